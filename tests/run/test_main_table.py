"""The main table at a small budget beside the committed frames of results/."""

import shutil
from pathlib import Path

import pytest

from rtpo.planning.preflight import problems
from rtpo.run.config import PROJECT
from rtpo.run.experiments import load_experiment

METHODS = ("grpo", "rtpo")
SMALL = (
    *("profile=toy", "task=toy_math", f"algorithm={','.join(METHODS)}", "deterministic=true"),
    *("budget.rollouts=96", "budget.tasks_per_step=1", "task.held_out.count=4", "save.every_steps=1"),
)
TRIAL = "experiment_name=trial_${task.name}"


@pytest.fixture
def committed(results: Path) -> Path:
    """A results folder with the committed main table."""
    for folder in (PROJECT / "results").glob("main_table_*"):
        shutil.copytree(folder, results / folder.name)
    return results


def test_the_committed_labels_bind_and_other_folders_are_free(committed: Path, tmp_path: Path) -> None:
    """Of a kept run's own seed, and of another seed beside it."""

    def refusals(*overrides: str) -> list[str]:
        return problems(load_experiment("main_table", [*SMALL, *overrides]))

    for seed in ("seed=0", "seed=7"):
        refused = "\n".join(refusals(seed, f"results={committed}"))
        assert all(f"main_table_toy_toy_math/{name}-seed" in refused for name in METHODS)
        assert refusals(seed, f"results={committed}", TRIAL) == []
        assert refusals(seed, f"results={tmp_path / 'other'}") == []
