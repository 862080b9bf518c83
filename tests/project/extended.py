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
from rtpo.run.config import PROJECT
from rtpo.run.run import StopRequest


def type_it(words: Sequence[str]) -> None:
    """A command of the page, in this process."""
    if words[1] == "experiments/train.py":
        train(compose_config(*words[2:]), StopRequest())
        return
    named, rest = (words[2], words[3:]) if words[1] == "-m" else (words[1], words[2:])
    name = named.removesuffix(".py").replace("/", ".")
    assert importlib.import_module(name.replace("analysis.pages", "analysis.pages.__main__")).main(list(rest)) == 0


def lines(file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (PROJECT / "results" / "trial" / "rloo-seed0" / file).read_text().splitlines()]


def main() -> None:
    torch.set_num_threads(1)
    session.open_backend = LocalBackend  # type: ignore[assignment]
    typed = [words for words in commands() if words[:3] != ["python", "-m", "pytest"]]
    for words in typed:
        assert words[0] == "python"
        type_it(words)
    # the environment's own model was warm-started, succeeds now and then, and is trained
    model = json.loads((PROJECT / "outputs" / "warm_start_guess" / "warm_start.json").read_text())
    assert 0.2 < model["held_out"]["sampled_success"] < 0.9
    steps = lines("steps.jsonl")
    assert steps[-1]["rollouts"] == 256
    assert all(0 < step["success"] < 1 for step in steps)
    assert all(update["optimizer_steps"] > 0 for step in steps for update in step["updates"])
    assert {line["grade"] for line in lines("evaluations.jsonl")} == {"graded"}
    table = (PROJECT / "results" / "tables" / "trial_runs.csv").read_text().splitlines()
    assert table[0].endswith(",algorithm/spread")
    assert "[`rloo`](rloo.md)" in (PROJECT / "docs" / "method" / "methods.md").read_text()
    print(f"all that the page says was run: {len(typed)} commands")


if __name__ == "__main__":
    main()
