"""Runs kept as frames: they are replaced whole or not at all, count as done, and bind what runs beside them."""

from contextlib import suppress
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from synthetic_runs import answers, episode, step, update, write_evaluation, write_run

from analysis import load as loading
from analysis import make_figures, make_tables
from analysis.load import Frames, keep, load, read_parquet
from experiments import launch, launched
from rtpo.core.files import SUMS, sha256
from rtpo.errors import DataError, MachineError
from rtpo.planning.preflight import problems
from rtpo.run.experiments import load_experiment

STEPS = [step(place, 28 * place, 0.5, [update(10, 0.1, 0.5)]) for place in (1, 2)]
EVALUATIONS = answers("before", "sampled", {"a": [1.0, 0.0], "b": [None, 0.0]})
TASK = "main_table_toy_toy_math"
ONE = ("profile=toy", "task=toy_math", "algorithm=grpo")


class Disk:
    """Full after so many writes and moves."""

    def __init__(self, room: int) -> None:
        self.room = room

    def limits(self, act: Any) -> Any:
        def wrapped(*arguments: Any, **settings: Any) -> Any:
            self.room -= 1
            if self.room < 0:
                raise OSError(ENOSPC, "No space left on device")
            return act(*arguments, **settings)

        return wrapped


def is_kept_on(disk: Disk, frames: Frames, folder: Path) -> bool:
    with pytest.MonkeyPatch.context() as patch, suppress(MachineError):
        patch.setattr(pd.DataFrame, "to_parquet", disk.limits(pd.DataFrame.to_parquet))
        patch.setattr(Path, "replace", disk.limits(Path.replace))
        keep(frames, folder)
        return True
    return False


def test_wherever_keeping_is_stopped_no_run_is_lost(tmp_path: Path) -> None:
    """At each file that is written and each that is moved; keeping again ends with all runs."""
    for seed in (0, 1):
        write_run(tmp_path / "results", "rtpo", seed, STEPS, EVALUATIONS)
    frames, seen = load(tmp_path / "results"), []
    for room in range(12):
        folder = tmp_path / str(room)
        keep(frames.select(frames.names[:1]), folder)
        is_done = is_kept_on(Disk(room), frames, folder)
        try:
            seen.append((is_done, len(read_parquet(folder).names)))
        except DataError:  # some files were in their places and some not
            seen.append((is_done, 0))
        assert keep(frames, folder).names == read_parquet(folder).names == frames.names
        assert len(list(folder.iterdir())) == 5
    # four are written, and their sums; then all take their places
    assert seen == [(False, 1)] * 6 + [(False, 0)] * 4 + [(True, 2)] * 2


def test_an_error_after_the_new_sums_are_in_their_place_leaves_what_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in (0, 1):
        write_run(tmp_path / "results", "rtpo", seed, STEPS, EVALUATIONS)
    frames, folder = load(tmp_path / "results"), tmp_path / "kept"
    keep(frames.select(frames.names[:1]), folder)

    def interrupted(file: Path, data: bytes) -> None:
        file.write_bytes(data)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loading, "write_whole", interrupted)
        with pytest.raises(KeyboardInterrupt):
            keep(frames, folder)
    assert read_parquet(folder).names == frames.names[:1]
    assert keep(frames, folder).names == frames.names


def kept_elements(results: Path, *overrides: str) -> launched.LoadedExperiments:
    """Elements of today's configurations as finished runs, kept as frames alone."""
    whole = launched.load("main_table", [*overrides, f"results={results}"])
    made = results.with_name("made")
    for element in whole.elements:
        run = element.run
        manifest = {"task": run.task.name, "algorithm": run.algorithm["name"]}
        names = {"experiment": run.experiment_name, "config": run.as_dict(), "manifest": manifest}
        folder = write_run(made, run.label, run.seed, STEPS, EVALUATIONS, **names)
        write_evaluation(folder, run.task.name, [{"uid": "q", "sample": 0, **episode(1.0, calls=(1, 1, 1))}])
        keep(load(folder), run.folder.parent)
    return whole


@pytest.mark.parametrize("lost", ["SHA256SUMS", "runs.parquet", "answers.parquet"])
def test_frames_that_are_not_whole_are_refused(lost: str, results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (element,) = kept_elements(results, *ONE, "seed=0").elements
    (element.run.folder.parent / lost).unlink()
    assert make_tables.main(["--results", str(results), "--experiment", TASK]) == 1
    assert str(element.run.folder.parent) in capsys.readouterr().err
    assert any(TASK in problem for problem in problems(load_experiment("main_table", element.overrides[1:])))


@pytest.mark.parametrize(("name", "column"), [("runs", "config"), ("runs", "label"), ("benchmarks", "run")])
def test_frames_without_a_column_are_refused(
    name: str, column: str, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As another version may write them, with sums that are theirs."""
    (element,) = kept_elements(results, *ONE, "seed=0").elements
    file = element.run.folder.parent / f"{name}.parquet"
    pd.read_parquet(file).drop(columns=column).to_parquet(file, index=False)
    sums = [f"{sha256(each)}  {each.name}\n" for each in sorted(file.parent.glob("*.parquet"))]
    (file.parent / SUMS).write_text("".join(sums))
    assert make_tables.main(["--results", str(results), "--experiment", TASK]) == 1
    (sentence,) = capsys.readouterr().err.splitlines()
    assert str(file) in sentence
    assert column in sentence
    if column != "label":  # which the check of what runs beside them needs
        assert any(str(file) in problem for problem in problems(load_experiment("main_table", element.overrides[1:])))


def test_two_runs_of_one_name_are_refused_and_one_that_is_in_two_places_is_taken_once(tmp_path: Path) -> None:
    for place, began in (("first", "10:00"), ("copy", "10:00"), ("again", "11:00")):
        write_run(tmp_path / place, "rtpo", 0, STEPS, EVALUATIONS, manifest={"started": began})
    folder = tmp_path / "kept"
    keep(load(tmp_path / "first"), folder)
    for whole in (
        load(tmp_path / "first", tmp_path / "copy", folder),
        load(folder, folder),
        keep(load(folder), folder),
    ):
        assert (len(whole.runs), len(whole.answers)) == (1, len(EVALUATIONS))
    for again in (lambda: load(folder, tmp_path / "again"), lambda: keep(load(tmp_path / "again"), folder)):
        with pytest.raises(DataError, match=r"10:00 and at 11:00"):
            again()
    assert list(read_parquet(folder).runs["started"]) == ["10:00"]


def test_a_kept_run_is_done_and_binds_the_settings_of_others(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(results.parent)
    kept = kept_elements(results, *ONE, "seed=0")
    assert not kept.incomplete
    assert launched.load("main_table", [*ONE, "seed=7", f"results={results}"]).incomplete
    assert launch.main(["run", "main_table", *ONE, "seed=0", f"results={results}"]) == 0  # without a start of Ray
    assert "complete: 1 of 1" in capsys.readouterr().out
    assert not kept.elements[0].run.folder.exists()
    more = [*ONE, "seed=0", f"results={results}", "launch.benchmarks.toy_math=[toy_math,toy_knowledge]"]
    assert launch.main(["run", "main_table", *more]) == 1
    assert "cannot be evaluated on toy_knowledge" in capsys.readouterr().err
    for seed in ("seed=0", "seed=7"):  # in its place, and beside it
        whole = [*ONE, seed, f"results={results}", "optimizer.lr=0.25"]
        assert launch.main(["run", "main_table", *whole]) == 1
        refusal = capsys.readouterr().err
        assert "optimizer.lr" in refusal
        remedy = refusal.strip().rpartition(" ")[2].rstrip(".")  # as one would type it
        assert problems(load_experiment("main_table", [*whole, remedy])) == []


def test_a_folder_with_a_fault_does_not_stop_the_tables_and_figures_of_others(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept_elements(results, "profile=toy", "seed=0", "algorithm=vanilla,grpo,rtpo", "task=toy_math,toy_knowledge")
    file = results / "main_table_toy_toy_knowledge" / "answers.parquet"
    file.write_bytes(file.read_bytes() + b"x")
    assert make_tables.main(["--results", str(results)]) == 1
    assert str(file) in capsys.readouterr().err
    paper = results / "tables" / "paper"
    assert (paper / "math_knowledge_toolcall_results.md").exists()
    assert (paper / "supp_math_tool_calls_toy.md").exists()  # of math alone
    assert not (paper / "math_knowledge_toolcall_results_toy.md").exists()
    assert make_figures.main(["--results", str(results), "--figure", "consistency"]) == 1
    assert str(file) in capsys.readouterr().err
    assert (results / "figures" / "paper_consistency_toy.png").exists()
