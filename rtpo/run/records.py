"""What a run leaves behind (results/README.md): lines appended as they come, the manifest last.

Nothing half-written looks complete: whole files are written beside their place, flushed and moved there, a save is a
folder moved there, and lines written after the last save are cut off when the run is resumed.

Nothing damaged passes: a save has the checksums of its files and of the lines that were written before it, which are
compared with what is on disk before a run goes on, as those of all lines are before there is a manifest.
"""

import fcntl
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from shlex import quote
from typing import Any

import yaml

from rtpo.algorithms import PROJECT
from rtpo.core.files import (
    Appended,
    disk_errors,
    flush,
    sha256,
    start_of,
    write_whole,
)
from rtpo.errors import DataError, Held
from rtpo.run import archives
from rtpo.run.checkpoints import Save, Saves

SCHEMA = 1
MANIFEST_KEYS = ("ledger", "model_sha256", "files")
"""of a run's manifest, that whoever goes on with the run reads"""
LINE_FILES = ("steps.jsonl", "evaluations.jsonl", "paths.jsonl", "rollouts.jsonl")
JOURNAL = "charges.jsonl"
LOG = "log.txt"
PACKAGES = ("torch", "verl", "ray", "transformers", "tensordict", "vllm", "numpy", "hydra-core", "math-verify")

PASSED_ON = ("VLLM_USE_V2_MODEL_RUNNER",)
"""environment variables that decide what the workers compute: those that are set reach all of Ray's, and the records"""
SHOWN = 5
"""differences of two configurations that are named"""
FREE = ("verl", "task.settings", "settings", "checkpoint")
"""parts of a configuration whose keys are whatever is given, not fields of a dataclass"""
OPEN = "profile.track"
"""where a run is mirrored, which binds no start: it changes no record"""
_AGAIN = "restore it, or delete it and give the command again, which writes the configuration anew."
# libyaml's, where PyYAML has it, is ten times as fast
SAFE_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class RunFolder:
    """results/<experiment>/<run>/."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._saves = Saves(path / "checkpoints")
        self._written: dict[str, Appended] = {}

    @property
    def is_finished(self) -> bool:
        return archives.exists(self.path / "manifest.json")

    @property
    def manifest(self) -> Mapping[str, Any]:
        """Of a run. Raises DataError as `read_manifest`."""
        return read_manifest(self.path / "manifest.json", SCHEMA, MANIFEST_KEYS)

    @property
    def config(self) -> dict[str, Any]:
        """Raises DataError as `read_config`."""
        file = self.path / "config.yaml"
        return read_config(file, archives.read(file))

    def open(self, config: Mapping[str, Any]) -> None:
        """Make the folder, or check that it belongs to this configuration. Raises DataError naming what differs."""
        file = self.path / "config.yaml"
        with disk_errors(self.path):
            if not archives.exists(file):
                self.path.mkdir(parents=True, exist_ok=True)
                write_whole(file, yaml.safe_dump(_plain(config), sort_keys=False).encode())
        self.check(config)
        self.written("config.yaml")

    def check(self, config: Mapping[str, Any]) -> None:
        """Raises DataError for a configuration that is not the one here, naming what differs."""
        different = sorted(_differences(self.config, _plain(config), self.is_finished))
        if different:
            more = f"; and {len(different) - SHOWN} more" if len(different) > SHOWN else ""
            raise DataError(
                f"{self.path} holds a run with another configuration; different: {'; '.join(different[:SHOWN])}{more}. "
                "Change them back to resume it, or choose another experiment_name=<name>."
            )

    def begin(self, config: Mapping[str, Any]) -> None:
        """`open`, for who holds the folder: a start that failed before anything was trained binds nobody to its
        configuration."""
        if not self.has_trained:
            (self.path / "config.yaml").unlink(missing_ok=True)
        self.open(config)

    @property
    def has_trained(self) -> bool:
        """Whether rollouts were dispatched for training, or the run is finished."""
        return self.is_finished or _size(self.path / JOURNAL) > 0 or self._saves.pointer.exists()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keeps other processes out of the folder, which must exist unless the run is packed: nothing is written there.
        Raises Held when one is in."""
        if not self.path.exists() and self.is_finished:
            yield
            return
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

    def charged(self, steps: Sequence[Mapping[str, Any]]) -> int:
        """Rollouts charged so far, those of an unfinished step among them; of these whole steps alone where an earlier
        version wrote the journal. Raises DataError for a journal that is damaged at its end."""
        file = self.path / JOURNAL
        last = archives.read(file).rpartition(b"\n")[0].rpartition(b"\n")[2] if archives.exists(file) else b""
        charge = json_object(last, f"{file}, its last line,", ()) if last else {}
        return int(charge.get("rollouts", steps[-1]["rollouts"] if steps else 0))

    def append(self, file: str, lines: list[dict[str, Any]]) -> None:
        data = "".join(json.dumps(line) + "\n" for line in lines).encode()
        written = self.written(file)
        with disk_errors(self.path / file), (self.path / file).open("ab") as out:
            out.write(data)
        written.add(data)

    def written(self, file: str) -> Appended:
        """What the file should hold by all that this process wrote and checked; at first, what it holds."""
        if file not in self._written:
            self._written[file] = start_of(self.path / file, _size(self.path / file))
        return self._written[file]

    def checksums(self, *files: str) -> dict[str, str]:
        """Of what these files should hold. Raises DataError for one that does not."""
        for file in files:
            if not (self.path / file).exists() or sha256(self.path / file) != self.written(file).sha256:
                raise DataError(f"{self.path / file} is damaged: its sha256 is not that of what was written.")
        return {file: self.written(file).sha256 for file in files}

    def save(self, name: str, state: dict[str, Any], write_weights: Callable[[Path], Any], keep: int) -> None:
        """A save of this name; the lines that are before it are on disk first. Raises MachineError for a disk that
        cannot take it: what was saved before is then as it was."""
        written = {file: (so_far.size, so_far.sha256) for file in LINE_FILES for so_far in [self.written(file)]}
        with disk_errors(self._saves.path / name):
            for place in self._line_files():
                flush(place)
            self._saves.write(name, state | {"written": written}, write_weights)
            self._saves.keep(name, keep)

    def latest(self) -> Save | None:
        """The last save, with the line files cut back to it; None for a run that never saved, whose lines are put aside
        as `<file>.lost`. Raises DataError for damage, with the way back."""
        save = self.latest_save()
        if save is None:
            for file in LINE_FILES:
                if (self.path / file).exists():
                    (self.path / file).replace(self.path / f"{file}.lost")
                self._written.pop(file, None)
            return None
        with self._naming_the_way_back():
            self._written |= self._lines_before(save)
        for file in LINE_FILES:
            if _size(self.path / file) > self._written[file].size:
                os.truncate(self.path / file, self._written[file].size)
        return save

    def latest_save(self) -> Save | None:
        """The last save; nothing in the folder is changed. Raises DataError for damage in it, with the way back."""
        with self._naming_the_way_back():
            return self._saves.read(name) if (name := self._saves.latest_name) is not None else None

    def _lines_before(self, save: Save) -> dict[str, Appended]:
        """By file, the lines written before the save. Raises DataError naming a file without them."""
        found = {}
        for file, (size, digest) in save.state["written"].items():
            path = self.path / file
            found[file] = start_of(path, size)
            if found[file].size < size:
                raise DataError(
                    f"{path} has {found[file].size} bytes and the save {save.folder.parent} was made after {size}: "
                    "lines were lost."
                )
            if found[file].sha256 != digest:
                raise DataError(
                    f"{path} is damaged in its first {size} bytes: their sha256 is not the one in the save "
                    f"{save.folder.parent}."
                )
        return found

    @contextmanager
    def _naming_the_way_back(self) -> Iterator[None]:
        try:
            yield
        except DataError as error:
            raise DataError(f"{error} {self._way_back()}") from error

    def _way_back(self) -> str:
        """The newest save that is whole, with all lines before it."""
        for name in reversed(self._saves.names()):
            try:
                self._lines_before(self._saves.read(name))
            except DataError:
                continue
            pointer = self._saves.pointer
            if pointer.exists() and pointer.read_text(errors="replace").strip() == name:
                return f"Run the same command to go on from the save {name}."
            return f"Go back to the save {name} by `echo {name} > {quote(str(pointer))}`, and run the same command."
        return (
            "No save is left to go back to: restore the file, or start afresh by "
            f"`rm -r {quote(str(self._saves.path))}` and the same command."
        )

    def finish(self, manifest: dict[str, Any], keep: int) -> None:
        """The manifest, last of all, once saves are down to `keep`. A file that no line came for is there, empty.

        Raises DataError for a file that is not as it was written, with the way back.
        """
        for file in LINE_FILES:
            self.append(file, [])
        with self._naming_the_way_back():
            files = self.checksums("config.yaml", *LINE_FILES)
            latest = self._saves.latest_name
        if (self.path / JOURNAL).exists():
            files[JOURNAL] = sha256(self.path / JOURNAL)
        with disk_errors(self.path):
            if latest is not None:
                self._saves.keep(latest, keep)
            for place in self._line_files():
                flush(place)
            write_whole(
                self.path / "manifest.json", (json.dumps(manifest | {"files": files}, indent=1) + "\n").encode()
            )

    def delete_saves(self) -> None:
        """Of a finished run that nothing goes on from."""
        shutil.rmtree(self._saves.path, ignore_errors=True)

    def _line_files(self) -> list[Path]:
        return [self.path / file for file in LINE_FILES if (self.path / file).exists()]


def read_config(file: Path, data: bytes) -> dict[str, Any]:
    """What the bytes of a folder's config.yaml say. Raises DataError where they are damaged."""
    try:
        config = yaml.load(data, Loader=SAFE_LOADER)
    except (ValueError, yaml.YAMLError) as error:
        raise DataError(f"{file} is damaged ({' '.join(str(error).split())}): {_AGAIN}") from error
    if not isinstance(config, dict):
        raise DataError(f"{file} is damaged (it is not a mapping): {_AGAIN}")
    return config


def read_manifest(path: Path, schema: int, keys: Collection[str]) -> Mapping[str, Any]:
    """A manifest. Raises DataError for another schema than `schema`, and where it lacks one of `keys`."""
    manifest = json_object(archives.read(path), str(path), ("schema",))
    if manifest["schema"] != schema:
        raise DataError(
            f"{path} has schema {manifest['schema']!r} and this version reads schema {schema}: use the version of the "
            "project that made the run, or run it again."
        )
    require(manifest, keys, str(path))
    return manifest


def json_object(text: bytes, place: str, keys: Collection[str]) -> Mapping[str, Any]:
    """Raises DataError for text that is no JSON object with these keys."""
    try:
        value = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place} is not JSON ({error}): restore the run's files, or run again.") from error
    if not isinstance(value, dict):
        raise DataError(f"{place} is not a JSON object: restore the run's files, or run again.")
    require(value, keys, place)
    return value


def require(value: Mapping[str, Any], keys: Collection[str], place: str) -> None:
    """Raises DataError where keys are missing."""
    missing = [key for key in keys if key not in value]
    if missing:
        raise DataError(
            f"{place} lacks {', '.join(missing)}: it is damaged or of another version; restore it, or run again."
        )


def machine() -> dict[str, Any]:
    """What the run ran on."""
    return {
        "platform": platform.platform(),
        "processor": platform.machine(),
        "logical_cpus": os.cpu_count(),
        "python": platform.python_version(),
        **passed_on(),
    }


def passed_on() -> dict[str, str]:
    """Those of PASSED_ON that are set."""
    return {name: os.environ[name] for name in PASSED_ON if name in os.environ}


def packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def provenance() -> dict[str, Any]:
    """What a record was made with: the project's commit, the machine and the packages."""
    head, dirty = commit(PROJECT)
    return {"commit": head, "dirty": dirty, "machine": machine(), "packages": packages()}


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


def _plain(config: Mapping[str, Any]) -> Any:
    """As files have it."""
    return json.loads(json.dumps(config))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _differences(known: Any, wanted: Any, is_finished: bool, path: str = "") -> Iterator[str]:
    """A finished run did without the fields that came after it; what is free has no fields."""
    if isinstance(known, dict) and isinstance(wanted, dict):
        is_finished = is_finished and path not in FREE
        for key in known.keys() if is_finished else known.keys() | wanted.keys():
            yield from _differences(known.get(key), wanted.get(key), is_finished, f"{path}.{key}".lstrip("."))
    elif known != wanted and path != OPEN:
        yield f"{path} was {known!r} and is {wanted!r}"
