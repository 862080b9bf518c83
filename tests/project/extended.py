"""What docs/extend/extending.md says, done in a copy of the project that has what the page adds (test_extending.py).

Its training command runs the whole of experiments/train.py but for the trainer, which is `LocalBackend` in the place of
verl's.
"""

import importlib
import json
from collections.abc import Sequence
from typing import Any

import torch
from conftest import compose_config
from local_backend import LocalBackend
from test_extending import commands

import rtpo.verl_harness.session as session
from experiments.training import train
from rtpo.algorithms import load_algorithm
from rtpo.harness.budget import Budget, Ledger
from rtpo.run.config import PROJECT
from rtpo.run.run import StopRequest
from rtpo.theory.mdp import value
from rtpo.theory.mdps import layered
from rtpo.theory.tabular import TabularHarness, tasks


def type_it(words: Sequence[str]) -> None:
    """A command of the page, in this process."""
    if words[1] == "experiments/train.py":
        train(compose_config(*words[2:]), StopRequest())
        return
    named, rest = (words[2], words[3:]) if words[1] == "-m" else (words[1], words[2:])
    name = named.removesuffix(".py").replace("/", ".")
    assert importlib.import_module(name.replace("analysis.pages", "analysis.pages.__main__")).main(list(rest)) == 0


def check_learning() -> None:
    """On a table, where what a policy is worth is known exactly."""
    config: Any = compose_config("algorithm=rloo").algorithm_config
    harness = TabularHarness(layered(0), Ledger(Budget(100_000)), learning_rate=3.0)
    before = value(harness.mdp, harness.policy)
    for step in range(12):
        harness.begin_step(step, 8 * config.chains)
        harness.sync()
        load_algorithm("rloo").step(harness, [task for task in tasks(harness.mdp) for _ in range(8)], config)
        harness.end_step()
    assert value(harness.mdp, harness.policy) > before + 0.05


def lines(folder: str, file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (PROJECT / "results" / folder / file).read_text().splitlines()]


def check_training() -> None:
    """The environment's own model was warm-started, succeeds now and then, and is trained."""
    model = json.loads((PROJECT / "outputs" / "warm_start_guess" / "warm_start.json").read_text())
    assert 0.2 < model["held_out"]["sampled_success"] < 0.9
    assert model["training_cpu_seconds"] < 300
    steps = lines("trial/rloo-seed0", "steps.jsonl")
    assert steps[-1]["rollouts"] == 256
    assert all(0 < step["success"] < 1 for step in steps)
    assert all(update["optimizer_steps"] > 0 for step in steps for update in step["updates"])
    assert {line["grade"] for line in lines("trial/rloo-seed0", "evaluations.jsonl")} == {"graded"}


def main() -> None:
    torch.set_num_threads(1)
    session.open_backend = LocalBackend  # type: ignore[assignment]
    check_learning()
    typed = [words for words in commands() if words[:3] != ["python", "-m", "pytest"]]
    for words in typed:
        assert words[0] == "python"
        type_it(words)
    check_training()
    table = (PROJECT / "results" / "tables" / "trial_runs.csv").read_text().splitlines()
    assert table[0].endswith(",algorithm/spread")
    assert "[`rloo`](rloo.md)" in (PROJECT / "docs" / "method" / "methods.md").read_text()
    print(f"all that the page says was run: {len(typed)} commands")


if __name__ == "__main__":
    main()
