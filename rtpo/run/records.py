"""A run's folder of records (results/README.md). Lines are appended, and the manifest is written last.

Nothing half-written looks complete. Saves, and files to which no lines are appended, are written under a second name,
flushed and then renamed. A resumed run cuts off the lines after its last save.

Damage is found. A save has checksums of its files and of all earlier lines, which are checked before a run resumes. The
checksums of all lines are checked before the manifest is written.
"""

import fcntl
import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

import yaml

from rtpo.core.files import (
    SizeAndSum,
    checked_sums,
    disk_errors,
    flush,
    partial_of,
    sha256,
    start_of_file,
    whole_lines,
    write_sums,
    write_whole,
)
from rtpo.core.names import counted, some
from rtpo.errors import DataError, FolderInUse
from rtpo.run.differences import config_digest, fields_that_differ
from rtpo.run.reading import CHECKSUM, json_object, read_config, read_manifest

SCHEMA = 1
MANIFEST_KEYS = ("ledger", "model_sha256", "files")
"""keys that every run's manifest must have"""
LINE_FILES = ("steps.jsonl", "evaluations.jsonl", "paths.jsonl", "rollouts.jsonl")
CONFIG_DIGEST = "config.sha256"
"""file of a save that holds the checksum of its run's configuration"""
JOURNAL = "charges.jsonl"
LOG = "log.txt"


@dataclass(frozen=True)
class Save:
    """What a run resumes from."""

    folder: Path  # folder of the weights and the optimizer's state
    state: dict[str, Any]  # all other state of the run
    weights_sha256: Mapping[str, str]  # checksum of each file in `folder`


class RunFolder:
    """The folder of a run, results/<experiment>/<run>/. line_files: names of the files to which lines are appended.

    Saves are folders of checkpoints/, and the file `latest` names the last one. A save that is being written or deleted
    is called <name>.partial, which is never read.
    """

    other_files: tuple[str, ...] = (JOURNAL,)
    """further files whose checksums the manifest holds"""
    label_field = "algorithm.label"
    """the field that names the folder"""

    def __init__(self, path: Path, line_files: Sequence[str] = LINE_FILES) -> None:
        self.path = path
        self._line_files = line_files
        self._checkpoints = path / "checkpoints"
        self._pointer = self._checkpoints / "latest"
        self._expected: dict[str, SizeAndSum] = {}

    # configuration

    @property
    def is_finished(self) -> bool:
        """Whether the folder has a manifest, which is written last. Raises DataError if it is damaged."""
        file = self.path / "manifest.json"
        if not file.exists():
            return False
        try:
            json_object(file.read_bytes(), str(file), ())
        except DataError as error:
            if not self._names():
                raise
            why = str(error).partition(": restore")[0]
            raise DataError(f"{why}: delete {file} and give the command again, which writes it anew.") from error
        return True

    @property
    def manifest(self) -> Mapping[str, Any]:
        """The run's manifest. Raises DataError as `read_manifest`."""
        return read_manifest(self.path / "manifest.json", SCHEMA, MANIFEST_KEYS)

    @property
    def config(self) -> dict[str, Any]:
        """The contents of config.yaml. Raises DataError as `read_config`."""
        file = self.path / "config.yaml"
        return read_config(file, file.read_bytes())

    def open(self, config: Mapping[str, Any]) -> None:
        """Make the folder, or check that it has this configuration. Raises DataError, naming the fields that differ."""
        file = self.path / "config.yaml"
        with disk_errors(self.path):
            if not file.exists():
                self.path.mkdir(parents=True, exist_ok=True)
                text = yaml.safe_dump(json.loads(json.dumps(config)), sort_keys=False).encode()
                data = text + CHECKSUM + hashlib.sha256(text).hexdigest().encode() + b"\n"
                self._check_ended_with(data)
                write_whole(file, data)
        self.check(config)
        self.expected("config.yaml")

    def _check_ended_with(self, data: bytes) -> None:
        """Raises DataError if the run has finished with another config.yaml than these bytes."""
        file = self.path / "manifest.json"
        files = json_object(file.read_bytes(), str(file), ()).get("files", {}) if self.is_finished else {}
        if files.get("config.yaml") not in (None, hashlib.sha256(data).hexdigest()):
            raise DataError(
                f"{self.path / 'config.yaml'} is missing, and would not be written as the finished run had it: restore "
                "the file."
            )

    def check(self, config: Mapping[str, Any]) -> None:
        """Raises DataError if `config` is not the folder's, naming the fields that differ."""
        differing = fields_that_differ(self.config, json.loads(json.dumps(config)), self.is_finished)
        if different := some(sorted(differing), "; "):
            raise DataError(
                f"{self.path} holds a run with another configuration; different: {different}. Change them back to "
                f"resume it, or choose another experiment_name=<name> or {self.label_field}=<label>."
            )

    def begin(self, config: Mapping[str, Any]) -> None:
        """Open the folder for training. The caller must hold it (`held`). If nothing was trained yet, `config` replaces
        the folder's configuration. Raises DataError as `open`."""
        if self._checkpoints.exists() and not self._checkpoints.is_dir():
            raise DataError(f"{self._checkpoints} is a file, but saves need a folder there: move it away.")
        if not self.has_trained:
            (self.path / "config.yaml").unlink(missing_ok=True)
        elif not (self.path / "config.yaml").exists() and (name := self._latest_name) is not None:
            self._check_digest(name, config)
        self.open(config)

    def _check_digest(self, name: str, config: Mapping[str, Any]) -> None:
        """Raises DataError if the save has the checksum of another configuration. Saves of earlier versions have no
        checksum, and pass."""
        file = self._checkpoints / name / CONFIG_DIGEST
        if file.exists() and file.read_text(errors="replace") != config_digest(config):
            raise DataError(
                f"{self._checkpoints / name} was saved under another configuration than the present one: give the "
                "settings that the run began with, or choose another experiment_name."
            )

    @property
    def has_trained(self) -> bool:
        """Whether rollouts were dispatched for training, or the run has a save or is finished."""
        return self.is_finished or _size(self.path / JOURNAL) > 0 or self._pointer.exists()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the folder, which must exist. Raises FolderInUse if another process has locked it."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise FolderInUse(f"another process is running {self.path}: wait for it, or stop it.") from error
            yield
        finally:
            os.close(descriptor)

    # lines

    def charged_rollouts(self, steps: Sequence[Mapping[str, Any]]) -> int:
        """The number of rollouts charged so far, including an unfinished step's, from the journal's last line. A
        journal of an earlier version lacks it; then the last of the finished `steps` has it. Raises DataError if the
        journal's last line is damaged."""
        file = self.path / JOURNAL
        charges = whole_lines(file).splitlines()
        charge = json_object(charges[-1], f"{file}, its last line,", ()) if charges else {}
        return int(charge.get("rollouts", steps[-1]["rollouts"] if steps else 0))

    def append(self, file: str, lines: Sequence[Mapping[str, Any]]) -> None:
        data = "".join(json.dumps(line) + "\n" for line in lines).encode()
        expected = self.expected(file)
        with disk_errors(self.path / file), (self.path / file).open("ab") as out:
            out.write(data)
        expected.add(data)

    def expected(self, file: str) -> SizeAndSum:
        """The size and checksum that a file must have. They cover the lines from before this process, and the lines
        that this process appended."""
        if file not in self._expected:
            self._expected[file] = start_of_file(self.path / file, _size(self.path / file))
        return self._expected[file]

    # saves

    def save(self, name: str, state: dict[str, Any], write_weights: Callable[[Path], Any], keep: int) -> None:
        """Write a save, which becomes the latest. Lines are flushed to disk first.

        state: the run's, without the harness's.
        write_weights: writes weights and optimizer into a folder, and returns the harness's state.
        keep: number of saves to keep, this one included.

        Raises MachineError if the disk fails. Earlier saves then stay as they were.
        """
        expected = {file: self.expected(file) for file in self._line_files}
        written = {file: (so_far.size, so_far.sha256) for file, so_far in expected.items()}
        final = self._checkpoints / name
        partial = partial_of(final)
        with disk_errors(final):
            self._flush_lines()
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            try:
                state = state | {"written": written} | {"harness": write_weights(partial / "weights")}
                (partial / "state.pkl").write_bytes(pickle.dumps(state))
                (partial / CONFIG_DIGEST).write_text(config_digest(self.config))
                write_sums(partial)
                for path in (partial, *partial.rglob("*")):
                    flush(path)
                if final.exists():  # an earlier process wrote it, and crashed before `latest` named it
                    shutil.rmtree(final.rename(partial_of(self._checkpoints / f"{name}.old")))
                partial.rename(final)
                write_whole(self._pointer, name.encode())
            finally:  # a complete save has been renamed, so this deletes only a failed one
                shutil.rmtree(partial, ignore_errors=True)
            self._keep(name, keep)

    def _names(self) -> list[str]:
        """Names of complete saves, oldest first. A name has the number of its step, so names sort by age."""
        return sorted(save.name for save in self._checkpoints.glob("step*") if save.suffix != ".partial")

    def _keep(self, latest: str, count: int) -> None:
        """Keep the save `latest` and the `count` - 1 saves before it. Delete all other saves, complete or not."""
        names = self._names()
        index = names.index(latest)
        for name in (*names[: max(0, index - (count - 1))], *names[index + 1 :]):
            (self._checkpoints / name).rename(partial_of(self._checkpoints / name))
        for incomplete in self._checkpoints.glob("*.partial"):
            shutil.rmtree(incomplete) if incomplete.is_dir() else incomplete.unlink()

    @property
    def _latest_name(self) -> str | None:
        """The name of the last save. Raises DataError if no save has the name in `latest`."""
        if not self._pointer.exists():  # the file was lost, or a crash came before it was written
            return next(reversed(self._names()), None)
        name = self._pointer.read_text(errors="replace").strip()
        if name not in self._names():
            raise DataError(f"{self._pointer} is damaged: there is no save {name!r}.")
        return name

    def _read_save(self, name: str) -> Save:
        """Check and read a save. Reading runs the code in its pickle. Raises DataError, naming the changed file."""
        folder = self._checkpoints / name
        sums = checked_sums(folder)
        try:
            state = pickle.loads((folder / "state.pkl").read_bytes())
        except Exception as error:  # another version's classes may raise anything
            why = f"is intact but cannot be read ({error}): another version wrote it."
            raise DataError(f"{folder / 'state.pkl'} {why}") from error
        weights = {key.removeprefix("weights/"): digest for key, digest in sums.items() if key.startswith("weights/")}
        return Save(folder / "weights", state, weights)

    def restore_latest(self) -> Save | None:
        """Read the last save, and cut off all lines after it. Without a save, return None and append all lines to
        `<file>.lost`. Raises DataError for damage, saying how to recover."""
        save = self.latest_save()
        if save is None:
            for file in self._line_files:
                if (self.path / file).exists():
                    lines = (self.path / file).read_bytes()
                    with (self.path / f"{file}.lost").open("ab") as lost:
                        lost.write(lines if lines.endswith(b"\n") or not lines else lines + b"\n")
                    (self.path / file).unlink()
                self._expected.pop(file, None)
            return None
        with self._with_remedy():
            self._expected |= self._lines_before(save)
        for file in self._line_files:
            if _size(self.path / file) > self._expected[file].size:
                os.truncate(self.path / file, self._expected[file].size)
        return save

    def latest_save(self) -> Save | None:
        """Read the last save without changing the folder; None without a save. Raises DataError for damage, saying how
        to recover."""
        with self._with_remedy():
            if (name := self._latest_name) is None:
                return None
            save = self._read_save(name)
        if (self.path / "config.yaml").exists():
            self._check_digest(name, self.config)
        return save

    def required_save(self) -> Save:
        """`latest_save`, for a run that must have a save. Raises DataError if it has none."""
        if (save := self.latest_save()) is None:
            why = "any more: its saves were deleted" if self.is_finished else "yet"
            weights = self.path / "export"
            remedy = f"give its weights, {weights}" if weights.is_dir() else "train it again, or give another run"
            raise DataError(f"the run {self.path} has no checkpoint {why}: {remedy}.")
        return save

    def _lines_before(self, save: Save) -> dict[str, SizeAndSum]:
        """Size and checksum of the lines before the save, by file. Raises DataError, naming the file, if lines are
        missing or changed."""
        before = {}
        for file, (size, digest) in save.state["written"].items():
            path, name = self.path / file, save.folder.parent
            before[file] = start_of_file(path, size)
            if before[file].size < size:
                raise DataError(
                    f"{path} has {counted(before[file].size, 'byte')} of {size} before {name}: lines were lost."
                )
            if before[file].sha256 != digest:
                raise DataError(
                    f"{path} is damaged in its first {counted(size, 'byte')}: their sha256 is not that of {name}."
                )
        return before

    @contextmanager
    def _with_remedy(self) -> Iterator[None]:
        """Add to the message of a DataError how to recover."""
        try:
            yield
        except DataError as error:
            raise DataError(f"{error} {self._remedy()}") from error

    def _remedy(self) -> str:
        """A sentence on how to recover. It names the newest intact save whose earlier lines are intact too."""
        for name in reversed(self._names()):
            try:
                self._lines_before(self._read_save(name))
            except DataError:
                continue
            if self._pointer.exists() and self._pointer.read_text(errors="replace").strip() == name:
                return f"Run the same command to go on from the save {name}."
            return (
                f"Go back to the save {name} by `echo {name} > {quote(str(self._pointer))}`, and run the same command."
            )
        return (
            "No save is left to go back to: restore the file, or start afresh by "
            f"`rm -r {quote(str(self._checkpoints))}` and the same command."
        )

    def delete_saves(self) -> None:
        """Delete the saves of a finished run."""
        shutil.rmtree(self._checkpoints, ignore_errors=True)

    # the end

    def finish(self, manifest: Mapping[str, Any], keep: int = 0) -> None:
        """Keep the newest `keep` saves, and write the manifest last. A line file without lines is created empty. Raises
        DataError for a changed file, saying how to recover."""
        for file in self._line_files:
            self.append(file, [])
        with self._with_remedy():
            files = {}
            for file in ("config.yaml", *self._line_files):
                files[file] = self.expected(file).sha256
                if not (self.path / file).exists() or sha256(self.path / file) != files[file]:
                    raise DataError(f"{self.path / file} is damaged: its sha256 is not that of what was written.")
            latest = self._latest_name
        with disk_errors(self.path):
            if latest is not None:
                self._keep(latest, keep)
            self._flush_lines()
            files |= {file: sha256(self.path / file) for file in self.other_files if (self.path / file).exists()}
            write_whole(self.path / "manifest.json", indented_json({**manifest, "files": files}))

    def _flush_lines(self) -> None:
        for file in filter(Path.exists, (self.path / name for name in self._line_files)):
            flush(file)


def indented_json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
