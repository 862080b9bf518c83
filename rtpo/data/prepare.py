"""Prepares a set: gets the raw file, reads its problems, drops overlaps, samples (docs/run/data.md).

It writes these files to the data folder, in this order:

    raw/<name>              a copy of the raw file
    <name>.dropped.jsonl    the problems left out, a `Dropped` a line
    <name>.jsonl            the prepared file, a `Record` a line
    <name>.manifest.json    source, checksums and counts; a set without a manifest counts as missing
"""

import hashlib
import json
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rtpo.core.files import disk_errors, readable, sha256, utc_now, write_whole
from rtpo.core.names import counted
from rtpo.data.download import fetch
from rtpo.data.manifest import Manifest, Raw, manifest_path, read_manifest, write_manifest
from rtpo.data.records import Record, read_records, write_records
from rtpo.data.registry import REGISTRY, UNVERIFIED, DataSet
from rtpo.data.sources import Dropped, parse_file
from rtpo.errors import DataError
from rtpo.rewards.golds import unequal_golds
from rtpo.types import Task

SAMPLE_SEED = 0


class DataFolder:
    """A folder of prepared sets; one process at a time may prepare in it."""

    def __init__(self, path: Path, registry: Mapping[str, DataSet] = REGISTRY) -> None:
        self.path = path
        self.registry = registry

    def file(self, name: str) -> Path:
        """A set's prepared file."""
        return self.path / f"{name}.jsonl"

    def status(self, name: str) -> str:
        """`ready`, `stand-in` (ready, but not the registry's bytes), `stale` (prepare it again) or `missing`.

        A training set is ready only if it was compared with the evaluation sets that are ready now.
        """
        manifest, file, raw = read_manifest(self.file(name)), self.file(name), self._kept_raw_file(name)
        if manifest is None:
            return "missing"
        is_whole = raw is not None and file.exists() and sha256(file) == manifest.sha256
        if raw is None or not is_whole or manifest.against != self._evaluation_sets(self.registry[name]):
            return "stale"
        return "stand-in" if raw.stands_in and raw.sha256 != self.registry[name].sha256 else "ready"

    def is_ready(self, name: str) -> bool:
        """Whether the set or its stand-in can be used now."""
        return self.status(name) in ("ready", "stand-in")

    def prepare(self, name: str, stand_in: Path | None = None, may_differ: bool = False) -> Manifest:
        """Write a set's file, unless it is ready; returns its manifest. Raises DataError, and MachineError (full disk).

        stand_in: a local file in the set's schema, used instead of a download. With it, the file is always written.
        may_differ: accept the stand-in with any checksum and number of rows.
        """
        dataset = self.registry[name]
        if dataset.parse is None:
            raise DataError(f"{name} comes with a package, not as a file: install {dataset.source} (docs/run/tasks.md)")
        if stand_in is None and self.is_ready(name) and (manifest := read_manifest(self.file(name))) is not None:
            return manifest
        for needed in dataset.against:
            if not self.is_ready(needed):
                raise DataError(f"{name} may share no question with {needed}, which is not ready: prepare {needed} too")
        if stand_in is not None:
            file, raw = stand_in, self._check_stand_in(dataset, stand_in, may_differ)
        elif (kept_raw := self._kept_raw_file(name)) is not None:
            file, raw = self._raw_path(name), kept_raw
        else:
            file, raw = self._download(dataset)
        records, dropped = parse_file(name, file, dataset.parse)
        rows = len(records) + len(dropped)
        if not records:
            raise DataError(f"{name}: {file} holds no problem with an answer: give the set's own file")
        if rows != dataset.rows and not raw.may_differ:
            raise DataError(
                f"{name} has {counted(rows, 'row')} in {raw.source}, but {dataset.rows} were expected: give the right "
                f"file with --from {name}=FILE, or accept this number of rows with --accept-other"
            )
        if file != self._raw_path(name):
            self._put(self._raw_path(name), file.read_bytes())
        return self._write(dataset, raw, rows, records, dropped)

    # the raw file

    def _raw_path(self, name: str) -> Path:
        return self.path / "raw" / name

    def _check_stand_in(self, dataset: DataSet, file: Path, may_differ: bool) -> Raw:
        with readable(f"{dataset.name}:", file):
            content = file.read_bytes()
        checksum = hashlib.sha256(content).hexdigest()
        if dataset.sha256 not in (UNVERIFIED, checksum) and not may_differ:
            raise DataError(
                f"{dataset.name}: {file} has the sha256 {checksum}, but {dataset.sha256} was expected: give the right "
                "file, or accept this one with --accept-other"
            )
        revision = dataset.revision if dataset.sha256 == checksum else UNVERIFIED
        return Raw(checksum, len(content), file.name, revision, utc_now(), stands_in=True, may_differ=may_differ)

    def _download(self, dataset: DataSet) -> tuple[Path, Raw]:
        """Download the raw file. Raises DataError if its checksum differs from the registry's, or, if the registry has
        none, from the first download's."""
        file, revision = fetch(dataset)
        checksum, expected, manifest = sha256(file), dataset.sha256, read_manifest(self.file(dataset.name))
        remedy = f"remove it to download it anew, or give a file you have with --from {dataset.name}=FILE"
        if expected == UNVERIFIED and manifest is not None and not manifest.raw.stands_in:
            expected = manifest.raw.sha256
            remedy = f"remove {manifest_path(self.file(dataset.name))} to accept the new file"
        if expected not in (UNVERIFIED, checksum):
            raise DataError(f"{dataset.name}: {file} has the sha256 {checksum}, but {expected} was expected: {remedy}")
        return file, Raw(checksum, file.stat().st_size, dataset.source, revision, utc_now())

    def _kept_raw_file(self, name: str) -> Raw | None:
        """The raw file of the last preparation; None if it is missing, changed, or not the one in the registry."""
        manifest = read_manifest(self.file(name))
        if manifest is None or not self._raw_path(name).exists():
            return None
        raw, dataset = manifest.raw, self.registry[name]
        is_known = raw.stands_in or dataset.sha256 in (UNVERIFIED, raw.sha256)
        return raw if is_known and sha256(self._raw_path(name)) == raw.sha256 else None

    # the prepared file

    def _evaluation_sets(self, dataset: DataSet) -> dict[str, str]:
        """Checksums of the evaluation sets that are ready, by name; empty for an evaluation set."""
        if dataset.role == "eval":
            return {}
        evaluation = [name for name, other in self.registry.items() if other.role == "eval" and self.is_ready(name)]
        return {name: sha256(self.file(name)) for name in evaluation}

    def _write(
        self, dataset: DataSet, raw: Raw, rows: int, records: Sequence[Record], dropped: list[Dropped]
    ) -> Manifest:
        name, against = dataset.name, self._evaluation_sets(dataset)
        shared = overlaps(records, [task for other in against for task in read_records(self.file(other))])
        shared_uids = {problem.uid for problem in shared}
        records = [record for record in records if record.uid not in shared_uids]
        dropped = dropped + shared
        if dataset.sample is not None:
            if len(records) < dataset.sample and not raw.may_differ:
                raise DataError(
                    f"{name} has {counted(len(records), 'problem')} and needs {dataset.sample}: give the whole file"
                )
            records = sample(records, dataset.sample, SAMPLE_SEED)
        lines = "".join(json.dumps(asdict(problem)) + "\n" for problem in dropped)
        self._put(self.path / f"{name}.dropped.jsonl", lines.encode())
        write_records(self.file(name), records)
        manifest = Manifest(
            name=name,
            rows=len(records),
            sha256=sha256(self.file(name)),
            raw=raw,
            raw_rows=rows,
            licence=dataset.licence,
            dropped=dict(Counter(problem.reason for problem in dropped)),
            overlaps=dict(Counter(problem.other.split("/")[0] for problem in shared)),
            against=against,
            sample_seed=None if dataset.sample is None else SAMPLE_SEED,
            date=utc_now(),
            unequal_golds=unequal_golds([each.answers for each in records]) if dataset.kind == "math" else "unchecked",
        )
        write_manifest(self.file(name), manifest)
        return manifest

    def _put(self, path: Path, content: bytes) -> None:
        with disk_errors(self.path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, content)


def sample(records: Sequence[Record], count: int, seed: int) -> list[Record]:
    """Draw `count` records, or all if there are fewer; returns them in file order.

    The draw ranks records by a hash of seed and question, so removing one record does not change the others' order.
    """
    order = sorted(records, key=lambda record: hashlib.sha256(f"{seed}:{record.question}".encode()).digest())
    drawn = {record.uid for record in order[:count]}
    return [record for record in records if record.uid in drawn]


def normalised(question: str) -> str:
    """A question without case, Unicode compatibility forms, punctuation and extra white space.

    Dollars around mathematics and every minus sign count as punctuation, so different mathematics problems can become
    equal. The only harm is a training problem dropped without need.
    """
    text = unicodedata.normalize("NFKC", question).casefold()
    return " ".join("".join(" " if c in "$\u2212" or unicodedata.category(c)[0] in "PZC" else c for c in text).split())


def overlaps(training: Iterable[Record], evaluation: Iterable[Task]) -> list[Dropped]:
    """Find the training records whose question is also in an evaluation set."""
    evaluated: dict[str, str] = {}
    for task in evaluation:
        evaluated.setdefault(normalised(task.question), task.uid)
    evaluated.pop("", None)
    keys = [(record.uid, normalised(record.question)) for record in training]
    return [Dropped(uid, "overlap", evaluated[key]) for uid, key in keys if key in evaluated]
