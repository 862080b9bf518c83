"""Saves that were damaged are said to be, and never half-read."""

import contextlib
import gzip
import os
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import write_realistic_run

from analysis.records import load_run
from rtpo import records
from rtpo.errors import DataError, Held
from rtpo.records import RunFolder


@pytest.fixture
def saved(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.open({"seed": 0})
    folder.append("steps.jsonl", [{"step": 1}])

    def write(place: Path) -> dict[str, Any]:
        place.mkdir()
        return {}

    folder.save("step00001", {"progress": 1}, write, keep=1)
    return folder


def test_lines_after_the_save_are_cut_off(saved: RunFolder) -> None:
    saved.append("steps.jsonl", [{"step": 2}])
    saved.append("evaluations.jsonl", [{"step": 2}])
    assert saved.latest() is not None
    assert (saved.path / "steps.jsonl").read_text() == '{"step": 1}\n'
    assert (saved.path / "evaluations.jsonl").read_text() == ""


@pytest.mark.parametrize("damage", [b"", b"garbage", b"\x80\x04cnowhere\nthing\n."])
def test_a_damaged_state_is_refused(saved: RunFolder, damage: bytes) -> None:
    (saved.path / "checkpoints" / "step00001" / "state.pkl").write_bytes(damage)
    with pytest.raises(DataError, match="cannot be read"):
        saved.latest()


def test_lost_lines_are_refused(saved: RunFolder) -> None:
    (saved.path / "steps.jsonl").write_text("")
    with pytest.raises(DataError, match=r"steps\.jsonl has 0 bytes"):
        saved.latest()


def test_a_save_that_was_cut_off_is_never_read(saved: RunFolder) -> None:
    partial = saved.path / "checkpoints" / "step00002.partial"
    partial.mkdir()
    (partial / "state.pkl").write_bytes(b"half")
    save = saved.latest()
    assert save is not None
    assert save.folder.parent.name == "step00001"


def names(folder: RunFolder) -> list[str]:
    return sorted(path.name for path in (folder.path / "checkpoints").iterdir())


def save(folder: RunFolder, name: str, keep: int) -> None:
    def write(place: Path) -> dict[str, Any]:
        place.mkdir()
        return {}

    folder.save(name, {"progress": name}, write, keep)


def test_a_clock_that_was_set_back_does_not_cost_the_latest_save(saved: RunFolder) -> None:
    os.utime(saved.path / "checkpoints" / "step00001", (4e9, 4e9))
    save(saved, "step00002", keep=1)
    assert names(saved) == ["latest", "step00002"]
    latest = saved.latest()
    assert latest is not None
    assert latest.state["progress"] == "step00002"


def test_as_many_saves_are_kept_as_asked_for(saved: RunFolder) -> None:
    for name in ("step00001-phase001", "step00001-phase002", "step00002"):
        save(saved, name, keep=2)
    assert names(saved) == ["latest", "step00001-phase002", "step00002"]


def test_what_a_crash_left_is_removed_with_the_manifest(saved: RunFolder) -> None:
    (saved.path / "checkpoints" / "step00000.partial").mkdir()
    save(saved, "step00002", keep=3)
    (saved.path / "checkpoints" / "step00003.partial").mkdir()
    saved.finish({}, keep=1)
    assert names(saved) == ["latest", "step00002"]


def test_a_folder_belongs_to_one_process(saved: RunFolder) -> None:
    with saved.held(), pytest.raises(Held, match="another process is running"), RunFolder(saved.path).held():
        pass
    with RunFolder(saved.path).held():
        pass


@pytest.mark.parametrize("after", [0, 1, 2])
def test_an_archived_run_reads_the_same_even_if_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    folder = RunFolder(write_realistic_run(tmp_path, "rtpo", 0))
    (folder.path / "checkpoints").mkdir()
    plain = load_run(folder.path)
    whole, written = records.write_whole, []

    def cut_off(path: Path, data: bytes) -> None:
        if len(written) == after:
            raise KeyboardInterrupt
        written.append(path)
        whole(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(records, "write_whole", cut_off)
        with contextlib.suppress(KeyboardInterrupt):
            folder.archive()
    assert len(written) == after
    assert load_run(folder.path).steps == plain.steps
    folder.archive()
    archived = load_run(folder.path)
    assert archived.steps == plain.steps
    assert archived.evaluations.equals(plain.evaluations)
    assert sorted(path.name for path in folder.path.iterdir()) == [
        "config.yaml",
        "evaluations.jsonl.gz",
        "manifest.json",
        "steps.jsonl.gz",
    ]


def test_a_changed_archive_is_refused(tmp_path: Path) -> None:
    folder = RunFolder(write_realistic_run(tmp_path, "rtpo", 0))
    folder.archive()
    (folder.path / "steps.jsonl.gz").write_bytes(gzip.compress(b"{}"))
    with pytest.raises(DataError, match="is not the file the run left"):
        load_run(folder.path)
    (folder.path / "steps.jsonl.gz").write_bytes(b"half")
    with pytest.raises(DataError, match=r"steps\.jsonl\.gz cannot be unpacked"):
        load_run(folder.path)
