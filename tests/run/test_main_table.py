"""The main table at a small budget beside the committed frames of results/: an element is killed and begun again, and
tables and figures are made after each. The trainer is `LocalBackend`; on a real SLURM: test_slurm.py."""

import shutil
from pathlib import Path

import pandas as pd
import pytest
from crashing import run as run_in_a_process
from whole_runs import assert_same_run

from analysis import make_figures, make_tables
from experiments import launch, launched
from rtpo.core.files import sha256
from rtpo.run.config import PROJECT
from rtpo.run.records import RunFolder

METHODS = ("grpo", "rtpo")
SMALL = (
    *("profile=toy", "task=toy_math", f"algorithm={','.join(METHODS)}", "deterministic=true"),
    *("budget.rollouts=96", "budget.tasks_per_step=1", "task.held_out.count=4", "save.every_steps=1"),
)
ON_FEW = ("evaluate.limit=4", "evaluate.samples=1", "evaluate.ks=[1]")
TRIAL = "experiment_name=trial_${task.name}"


@pytest.fixture
def committed(results: Path) -> Path:
    """A results folder with the committed main table."""
    for folder in (PROJECT / "results").glob("main_table_*"):
        shutil.copytree(folder, results / folder.name)
    return results


def run_main_table(*overrides: str) -> int:
    return launch.main(["run", "main_table", *SMALL, "seed=0", *ON_FEW, *overrides])


def checksums(folder: Path) -> dict[Path, str]:
    return {file: sha256(file) for file in folder.rglob("*") if file.is_file()}


def test_an_element_is_killed_and_begun_again_beside_the_committed_frames(
    committed: Path, tmp_path: Path, plain_trainer: None, capsys: pytest.CaptureFixture[str]
) -> None:
    frames = checksums(committed)
    assert frames
    trial = (TRIAL, f"results={committed}")
    killed, other = launched.load("main_table", [*SMALL, "seed=0", *trial]).elements
    assert run_in_a_process(killed.run, kill="between two phases") == -9
    assert RunFolder(killed.run.folder).has_trained
    assert make_tables.main(["--results", str(committed)]) == 0
    paper_tables = checksums(committed / "tables" / "paper")

    assert run_main_table(*trial) == 0
    printed = capsys.readouterr().out
    assert f"resuming {killed.run.folder}" in printed
    assert printed.count("; optimizer steps: ") == len(METHODS)
    assert f"complete: {len(METHODS)} of {len(METHODS)} elements" in printed
    manifests = [RunFolder(each.run.folder).manifest for each in (killed, other)]
    assert [manifest["resumed"] for manifest in manifests] == [1, 0]
    assert all(0 < manifest["ledger"]["rollouts"] <= 96 for manifest in manifests)
    assert len(pd.read_csv(committed / "tables" / "trial_toy_math_runs.csv")) == len(METHODS)

    assert make_tables.main(["--results", str(committed)]) == 0
    assert make_figures.main(["--results", str(committed)]) == 0
    assert make_figures.main(["--results", str(committed), "--experiment", "trial_toy_math"]) == 0
    assert checksums(committed / "tables" / "paper") == paper_tables  # which take no trials
    assert frames.items() <= checksums(committed).items()

    whole = tmp_path / "whole"  # where the paper's tables take the run, which nothing kills
    alone = [setting for setting in SMALL if not setting.startswith("algorithm=")]
    assert launch.main(["run", "main_table", *alone, "algorithm=grpo", "seed=0", *ON_FEW, f"results={whole}"]) == 0
    uninterrupted = RunFolder(whole / "main_table_toy_toy_math" / killed.run.folder.name)
    assert_same_run(RunFolder(killed.run.folder), uninterrupted, but=frozenset({"lost", "syncs"}))
    assert (whole / "tables" / "paper" / "math_knowledge_toolcall_results_toy.md").exists()
