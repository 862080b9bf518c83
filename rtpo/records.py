"""What a run leaves behind (results/README.md): lines appended as they come, the manifest last.

Nothing half-written looks complete: whole files are written beside their place, flushed and moved there, a save is a
folder moved there, and lines written after the last save are cut off when the run is resumed.
"""

import errno
import fcntl
import gzip
import hashlib
import json
import os
import pickle
import platform
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml

from rtpo.errors import DataError, Held, MachineError

SCHEMA = 1
LINE_FILES = ("steps.jsonl", "evaluations.jsonl", "paths.jsonl", "rollouts.jsonl")
PACKAGES = ("torch", "verl", "ray", "transformers", "tensordict", "vllm", "numpy", "hydra-core", "math-verify")


@dataclass(frozen=True)
class Save:
    """A place to go on from: weights in `folder`, everything else in `state`."""

    folder: Path
    state: dict[str, Any]


class RunFolder:
    """results/<experiment>/<run>/."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def is_finished(self) -> bool:
        return (self.path / "manifest.json").exists()

    @property
    def manifest(self) -> dict[str, Any]:
        """Raises DataError for one that cannot be read."""
        try:
            loaded: dict[str, Any] = json.loads((self.path / "manifest.json").read_text())
        except ValueError as error:
            raise DataError(f"{self.path / 'manifest.json'} is damaged ({error}): restore it, or run again.") from error
        return loaded

    def open(self, config: Mapping[str, Any]) -> None:
        """Make the folder, or check that it belongs to this configuration. Raises DataError naming what differs."""
        file = self.path / "config.yaml"
        plain = json.loads(json.dumps(config))
        with disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            if not file.exists():
                write_whole(file, yaml.safe_dump(plain, sort_keys=False).encode())
        known = yaml.safe_load(file.read_text())
        different = sorted(_differences(known, plain))
        if different:
            raise DataError(
                f"{self.path} holds a run with another configuration; different: {'; '.join(different)}. Change them "
                "back to resume it, or choose another experiment_name=<name>."
            )

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keeps other processes out of the folder, which must exist. Raises Held when one is in."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise Held(f"another process is running {self.path}: wait for it, or stop it.") from error
        try:
            yield
        finally:
            os.close(descriptor)

    def append(self, file: str, lines: list[dict[str, Any]]) -> None:
        with disk_errors(self.path / file), (self.path / file).open("a", encoding="utf-8") as out:
            out.write("".join(json.dumps(line) + "\n" for line in lines))

    def save(self, name: str, state: dict[str, Any], write_weights: Any, keep: int) -> Save:
        """A save under checkpoints/<name>. `write_weights(folder)` writes weights and returns its part of the state.
        Until all is on disk, and again while it is deleted, a save is called <name>.partial, which is never read.
        """
        saves = self.path / "checkpoints"
        partial, final = _partial(saves / name), saves / name
        offsets = {file: _size(self.path / file) for file in LINE_FILES}
        with disk_errors(final):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            try:
                state = state | {"harness": write_weights(partial / "weights"), "offsets": offsets}
                (partial / "state.pkl").write_bytes(pickle.dumps(state))
                for place in (*self._line_files(), partial, *partial.rglob("*")):
                    _flush(place)
                if final.exists():  # a crash came before `latest` named it
                    shutil.rmtree(final.rename(_partial(saves / f"{name}.old")))
                partial.rename(final)
                write_whole(saves / "latest", name.encode())
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
            self._tidy(keep)
        return Save(final / "weights", state)

    def _tidy(self, keep: int) -> None:
        """Delete saves that are not whole, and all whole ones but the latest and the `keep` - 1 before it."""
        saves = self.path / "checkpoints"
        latest = (saves / "latest").read_text().strip()
        # by name, which tells their order whatever the clock did
        before = sorted(save for save in saves.glob("step*") if save.suffix != ".partial" and save.name != latest)
        for old in before[: len(before) - (keep - 1)]:
            old.rename(_partial(old))
        for left in saves.glob("*.partial"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()

    def latest(self) -> Save | None:
        """The last save, with the line files cut back to it; None for a run that never saved, whose lines are put aside
        as `<file>.lost`."""
        save = self.latest_save()
        if save is None:
            for file in LINE_FILES:
                if (self.path / file).exists():
                    (self.path / file).replace(self.path / f"{file}.lost")
            return None
        for file, size in save.state["offsets"].items():
            there = _size(self.path / file)
            if there < size:
                raise DataError(
                    f"{self.path / file} has {there} bytes and the save {save.folder.parent} was made after {size}: "
                    f"lines were lost. Restore the file, or delete {self.path} to start afresh."
                )
            if there > size:
                os.truncate(self.path / file, size)
        return save

    def latest_save(self) -> Save | None:
        """The last save; nothing in the folder is changed."""
        pointer = self.path / "checkpoints" / "latest"
        if not pointer.exists():
            return None
        folder = pointer.parent / pointer.read_text().strip()
        try:
            state = pickle.loads((folder / "state.pkl").read_bytes())
        except Exception as error:  # damaged pickles raise whatever their bytes spell
            raise DataError(
                f"the save {folder} cannot be read ({error}); delete {pointer.parent} to start afresh."
            ) from error
        return Save(folder / "weights", state)

    def finish(self, manifest: dict[str, Any], keep: int) -> None:
        """The manifest, last of all, once saves are down to `keep`. A file that no line came for is there, empty."""
        for file in LINE_FILES:
            self.append(file, [])
        files = {path.name: sha256(path) for path in (self.path / "config.yaml", *self._line_files())}
        with disk_errors(self.path):
            self._tidy(keep)
            for place in self._line_files():
                _flush(place)
            write_whole(
                self.path / "manifest.json", (json.dumps(manifest | {"files": files}, indent=1) + "\n").encode()
            )

    def archive(self) -> None:
        """Make a finished run small: its line files become `<file>.gz`, its saves are deleted."""
        with disk_errors(self.path):
            for file in self._line_files():
                write_whole(file.with_name(file.name + ".gz"), gzip.compress(file.read_bytes(), mtime=0))
                file.unlink()
            shutil.rmtree(self.path / "checkpoints", ignore_errors=True)

    def _line_files(self) -> list[Path]:
        return [self.path / file for file in LINE_FILES if (self.path / file).exists()]


@contextmanager
def disk_errors(place: Path) -> Iterator[None]:
    """A full or read-only disk in words. Raises MachineError."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES):
            raise
        raise MachineError(
            f"cannot write {place}: {os.strerror(error.errno)}. What was saved before is intact; make room and run the "
            "same command to go on."
        ) from error


def machine() -> dict[str, Any]:
    """What the run ran on."""
    return {
        "platform": platform.platform(),
        "processor": platform.machine(),
        "logical_cpus": os.cpu_count(),
        "python": platform.python_version(),
    }


def packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def commit(project: Path) -> tuple[str, bool | str]:
    """The project's git commit and whether the tree differs from it; `unknown` outside a checkout."""
    try:
        head = subprocess.run(
            ["git", "-C", str(project), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "-C", str(project), "status", "--porcelain", "--untracked-files=no"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown", "unknown"
    return head, bool(changed)


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_whole(path: Path, data: bytes) -> None:
    """Beside its place, flushed, and moved there."""
    beside = _partial(path)
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    _flush(path.parent)


def _flush(place: Path) -> None:
    """A file or folder to disk."""
    descriptor = os.open(place, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _partial(path: Path) -> Path:
    return path.with_name(path.name + ".partial")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _differences(known: Any, wanted: Any, path: str = "") -> Iterator[str]:
    if isinstance(known, dict) and isinstance(wanted, dict):
        for key in known.keys() | wanted.keys():
            yield from _differences(known.get(key), wanted.get(key), f"{path}.{key}".lstrip("."))
    elif known != wanted:
        yield f"{path} was {known!r} and is {wanted!r}"
