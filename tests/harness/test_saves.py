"""Saves that were damaged are said to be, and never half-read."""

import errno
import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rtpo.core.files import HashedFile, checked_sums, disk_errors, sha256, write_sums
from rtpo.errors import DataError, MachineError
from rtpo.run.records import LINE_FILES, RunFolder


def save(folder: RunFolder, name: str, keep: int) -> None:
    def write(place: Path) -> dict[str, Any]:
        (place / "huggingface").mkdir(parents=True)
        for file in ("model.pt", "optim.pt", "huggingface/config.json"):
            (place / file).write_bytes(f"{name} {file}".encode() * 100)
        return {}

    folder.save(name, {"progress": name}, write, keep)


@pytest.fixture
def saved(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "a run")
    folder.open({"seed": 0})
    folder.append("steps.jsonl", [{"step": 1}])
    save(folder, "step00001", keep=1)
    return folder


@pytest.fixture
def saved_twice(saved: RunFolder) -> RunFolder:
    """With lines after its second save."""
    saved.append("steps.jsonl", [{"step": 2}])
    save(saved, "step00002", keep=2)
    saved.append("steps.jsonl", [{"step": 3}])
    return saved


def flip(file: Path, place: int = -1) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)


def refused(act: Callable[[], Any], file: Path) -> str:
    """The command that the refusal gives as the way back; it names the file first."""
    with pytest.raises(DataError) as error:
        act()
    assert str(error.value).startswith(f"{file} ")
    (command,) = re.findall("`(.*)`", str(error.value))
    return str(command)


def test_a_save_with_a_damaged_file_is_refused(saved: RunFolder) -> None:
    save = saved.path / "checkpoints" / "step00001"
    files = {file for file in save.rglob("*") if file.is_file()} - {save / "SHA256SUMS"}
    assert len(files) == 5
    for file in files:
        whole = file.read_bytes()
        for damaged in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[: len(whole) // 2], b"", bytes(len(whole)), None):
            file.unlink() if damaged is None else file.write_bytes(damaged)
            commands = refused(saved.latest_save, file), refused(saved.restore_latest, file)
            assert commands == (f"rm -r '{saved.path}/checkpoints'",) * 2
        file.write_bytes(whole)
    assert saved.restore_latest() is not None


def test_a_save_whose_checksums_are_damaged_is_refused(saved: RunFolder) -> None:
    sums = saved.path / "checkpoints" / "step00001" / "SHA256SUMS"
    whole = sums.read_bytes()
    lines = whole.splitlines(keepends=True)
    assert len(lines) == 5
    for damaged in (b"", b"".join(lines[1:]), b"".join(lines[:2]), whole[:-2] + b"x\n", b"\xff", None):
        sums.unlink() if damaged is None else sums.write_bytes(damaged)
        with pytest.raises(DataError, match="SHA256SUMS"):
            saved.restore_latest()


@pytest.mark.parametrize("finished", [False, True])
def test_a_damaged_configuration_is_refused_until_it_is_deleted(saved: RunFolder, finished: bool) -> None:
    config = saved.path / "config.yaml"
    whole = config.read_bytes()
    if finished:
        saved.finish({"ledger": {}}, keep=1)
    with pytest.raises(DataError, match="seed"):
        saved.open({"seed": 1})
    for damaged in (whole.replace(b"0", b"1", 1), b"", b"[]", b"\xff\xfe", b"{"):
        config.write_bytes(damaged)
        with pytest.raises(DataError) as error:
            RunFolder(saved.path).open({"seed": 0})
        assert str(error.value).startswith(f"{config} is damaged")
    config.unlink()
    if finished:
        with pytest.raises(DataError, match="restore the file"):
            saved.open({"seed": 1})
        assert not config.exists()
    saved.open({"seed": 0})
    assert config.read_bytes() == whole


@pytest.mark.parametrize("keep", [0, 1])
def test_a_damaged_manifest_is_written_anew_from_a_save_alone(saved: RunFolder, keep: int) -> None:
    saved.finish({"ledger": {}}, keep=1)
    if not keep:
        saved.delete_saves()
    (saved.path / "manifest.json").write_text("{")
    with pytest.raises(DataError, match=r"manifest\.json") as error:
        saved.is_finished  # noqa: B018
    assert ("delete" in str(error.value)) == bool(keep)


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "make room"),
        (errno.EMFILE, "ulimit -n"),
        (errno.ENFILE, "ulimit -n"),
        (errno.EFBIG, "ulimit -f"),
        (errno.EROFS, "writable"),
    ],
)
def test_each_error_of_the_machine_has_its_own_remedy(number: int, remedy: str, tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=remedy) as caught, disk_errors(tmp_path):
        raise OSError(number, os.strerror(number))
    assert ("make room" in str(caught.value)) == (remedy == "make room")
    with pytest.raises(ConnectionResetError), disk_errors(tmp_path):
        raise ConnectionResetError(errno.ECONNRESET, "not of the disk")


def test_what_was_hashed_as_it_was_written_is_not_read_again(tmp_path: Path) -> None:
    weights = tmp_path / "weights" / "model.pt"
    weights.parent.mkdir()
    (tmp_path / "state.pkl").write_bytes(b"state")
    with weights.open("wb") as file:
        hashed = HashedFile(file)
        torch.save({"w": torch.arange(1000)}, hashed)  # type: ignore[arg-type]
    hashed.note(weights)
    as_written = sha256(weights)
    flip(weights)  # by the disk, say, before it could be read again
    write_sums(tmp_path)
    assert (tmp_path / "SHA256SUMS").read_text().splitlines()[1] == f"{as_written}  weights/model.pt"
    with pytest.raises(DataError, match=r"weights/model\.pt is damaged"):
        checked_sums(tmp_path)
    flip(weights)
    assert set(checked_sums(tmp_path)) == {"state.pkl", "weights/model.pt"}


@pytest.mark.parametrize("file", ["checkpoints/step00002/weights/optim.pt", "steps.jsonl", "checkpoints/latest"])
def test_a_damaged_run_goes_back_to_the_save_before(saved_twice: RunFolder, file: str) -> None:
    damaged = saved_twice.path / file
    if file == "checkpoints/latest":
        damaged.write_bytes(b"\0step\xff")
        flip(saved_twice.path / "checkpoints" / "step00002" / "state.pkl")
    else:
        flip(damaged, len('{"step": 1}\n{"st'))
    way_back = refused(RunFolder(saved_twice.path).restore_latest, damaged)
    subprocess.run(way_back, shell=True, check=True)
    folder = RunFolder(saved_twice.path)
    save_before = folder.restore_latest()
    assert save_before is not None
    assert save_before.state["progress"] == "step00001"
    assert (folder.path / "steps.jsonl").read_text() == '{"step": 1}\n'
    # what was left behind goes with the next save, whatever its name
    save(folder, "step00001-phase001", keep=2)
    assert names(folder) == ["latest", "step00001", "step00001-phase001"]


@pytest.mark.parametrize("going_on", [False, True])
@pytest.mark.parametrize("file", ["config.yaml", *LINE_FILES])
def test_there_is_no_manifest_of_a_damaged_file(saved_twice: RunFolder, file: str, going_on: bool) -> None:
    """Of lines that the process wrote itself, and that it found and checked."""
    folder = saved_twice
    if going_on:
        folder = RunFolder(folder.path)
        folder.open({"seed": 0})
        assert folder.restore_latest() is not None
    for lines in LINE_FILES:
        folder.append(lines, [{"step": 3}])
    flip(folder.path / file)
    with pytest.raises(DataError, match="step00002"):
        folder.finish({}, keep=1)
    assert not folder.is_finished
    flip(folder.path / file)
    folder.finish({}, keep=1)
    written = json.loads((folder.path / "manifest.json").read_text())["files"]
    assert written == {name: sha256(folder.path / name) for name in ("config.yaml", *LINE_FILES)}


def test_a_finished_run_did_without_later_fields_and_not_without_given_settings(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    known = {"seed": 0, "verl": {"actor": {"lr": 1}}, "task": {"settings": {"tools": 1}}}
    folder.open(known)
    (tmp_path / "manifest.json").write_text("{}")
    folder.open(known | {"later": 1, "task": {"settings": {"tools": 1}, "later": 2}})
    for changed, named in (
        ({"verl": {"actor": {"lr": 1, "warmup": 100}}}, r"verl\.actor\.warmup"),
        ({"task": {"settings": {"tools": 1, "user": "x"}}}, r"task\.settings\.user"),
    ):
        with pytest.raises(DataError, match=rf"{named}.*algorithm\.label="):
            folder.open(known | changed)


def test_lines_before_the_first_save_are_kept_crash_after_crash(tmp_path: Path) -> None:
    for lines in ("a\nb", "c\n"):
        folder = RunFolder(tmp_path)
        (tmp_path / "steps.jsonl").write_text(lines)
        assert folder.restore_latest() is None
    assert (tmp_path / "steps.jsonl.lost").read_text() == "a\nb\nc\n"
    assert not (tmp_path / "steps.jsonl").exists()


def test_a_save_goes_on_under_its_own_configuration_alone(saved: RunFolder) -> None:
    """Where config.yaml was lost, and written anew by a start with other settings."""
    with pytest.raises(DataError, match="seed was 0 and is 1"):
        RunFolder(saved.path).begin({"seed": 1})
    for other in ({"seed": 1}, {"seed": 0, "lr": 0.1}, {}):
        (saved.path / "config.yaml").unlink(missing_ok=True)
        with pytest.raises(DataError, match="another configuration"):
            RunFolder(saved.path).begin(other)
        assert not (saved.path / "config.yaml").exists()
        saved.open(other)
        with pytest.raises(DataError, match="another configuration"):
            RunFolder(saved.path).restore_latest()
    (saved.path / "config.yaml").unlink()
    folder = RunFolder(saved.path)
    folder.begin({"seed": 0, "later": None, "profile": {"track": ["wandb"]}, "task": {}} | {"task": None})
    assert folder.config["seed"] == 0


def test_a_file_in_the_place_of_the_saves_is_named(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(DataError, match="checkpoints is a file"):
        RunFolder(tmp_path).begin({"seed": 0})


def names(folder: RunFolder) -> list[str]:
    return sorted(path.name for path in (folder.path / "checkpoints").iterdir())


def test_the_latest_saves_are_kept_whatever_the_clock_says_and_nothing_that_a_crash_left(saved: RunFolder) -> None:
    os.utime(saved.path / "checkpoints" / "step00001", (4e9, 4e9))
    (saved.path / "checkpoints" / "step00000.partial").mkdir()
    for name in ("step00001-phase001", "step00001-phase002", "step00002"):
        save(saved, name, keep=2)
    assert names(saved) == ["latest", "step00001-phase002", "step00002"]
    (saved.path / "checkpoints" / "step00003.partial").mkdir()
    saved.append("steps.jsonl", [{"step": 2}])
    latest = saved.restore_latest()
    assert latest is not None
    assert latest.state["progress"] == "step00002"
    assert (saved.path / "steps.jsonl").read_text() == '{"step": 1}\n'
    (saved.path / "steps.jsonl").write_text("")
    with pytest.raises(DataError, match=r"steps\.jsonl has 0 bytes of 12"):
        saved.restore_latest()
    (saved.path / "steps.jsonl").write_text('{"step": 1}\n')
    saved.finish({}, keep=1)
    assert names(saved) == ["latest", "step00002"]


def test_a_configuration_that_aliases_blow_up_is_refused(tmp_path: Path) -> None:
    rows = [
        "a0: &a0 [1, 2, 3, 4, 5, 6, 7, 8, 9]",
        *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)),
    ]
    for text in ("\n".join(rows), "a: &a [*a]"):
        (tmp_path / "config.yaml").write_text(text)
        with pytest.raises(DataError, match=re.escape(f"{tmp_path}/config.yaml is damaged")):
            RunFolder(tmp_path).config  # noqa: B018
