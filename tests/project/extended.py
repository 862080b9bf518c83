"""What docs/extend/extending.md says, done in a copy of the project that has what the page adds (test_extending.py).

Its training command runs the whole of experiments/train.py but for the trainer, which is `LocalBackend` in the place of
verl's.
"""

import importlib
import json
from collections.abc import Sequence

from conftest import compose_config
from test_extending import commands
from whole_runs import lines

from experiments.training import train
from rtpo.run.config import PROJECT
from rtpo.run.stopping import StopRequest


def type_it(words: Sequence[str]) -> None:
    """A command of the page, in this process."""
    if words[1] == "experiments/train.py":
        train(compose_config(*words[2:]), StopRequest())
        return
    named, rest = (words[2], words[3:]) if words[1] == "-m" else (words[1], words[2:])
    name = named.removesuffix(".py").replace("/", ".")
    assert importlib.import_module(name.replace("analysis.pages", "analysis.pages.__main__")).main(list(rest)) == 0


def test_what_the_page_claims_holds(plain_trainer: None) -> None:
    """The commands of the page that train, plan, tabulate and draw, and what they leave."""
    for words in commands():
        assert words[0] == "python"
        if words[:3] != ["python", "-m", "pytest"]:
            type_it(words)
    # the environment's own model was warm-started, succeeds now and then, and is trained
    model = json.loads((PROJECT / "outputs" / "warm_start_guess" / "warm_start.json").read_text())
    assert 0.2 < model["held_out"]["sampled_success"] < 0.9
    run = PROJECT / "results" / "trial" / "rloo-seed0"
    steps = lines(run, "steps.jsonl")
    assert steps[-1]["rollouts"] == 256
    assert all(0 < step["success"] < 1 for step in steps)
    assert all(update["optimizer_steps"] > 0 for step in steps for update in step["updates"])
    assert {line["grade"] for line in lines(run, "evaluations.jsonl")} == {"graded"}
    table = (PROJECT / "results" / "tables" / "trial_runs.csv").read_text().splitlines()
    assert table[0].endswith(",algorithm/spread")
    assert "[`rloo`](rloo.md)" in (PROJECT / "docs" / "method" / "methods.md").read_text()
