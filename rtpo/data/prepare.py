"""The way of a set to its prepared file: raw file, problems, overlaps, sample, manifest (docs/run/data.md).

In the data folder, written in this order:

    raw/<name>              a copy of the raw file
    <name>.dropped.jsonl    the problems left out, and why
    <name>.jsonl            the prepared file
    <name>.manifest.json    what it is: a set without one is not there
"""

import hashlib
import json
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rtpo.core.files import disk_errors, readable, sha256, utc_now, write_whole
from rtpo.data.download import fetch
from rtpo.data.records import Record, manifest_path, read_manifest, read_records, write_records
from rtpo.data.registry import REGISTRY, UNVERIFIED, DataSet
from rtpo.data.sources import Dropped, parse_file
from rtpo.errors import DataError
from rtpo.rewards.golds import unequal_golds
from rtpo.types import Task

SCHEMA = 1
"""of manifests"""
SAMPLE_SEED = 0
UNEQUAL_GOLDS = "unequal_golds"
"""the manifest's key for golds of mathematics that no answer can equal; null where there are none"""


@dataclass(frozen=True, slots=True)
class Raw:
    """A raw file, as the manifest has it. source: its URL, or the name of the file that stands in for it. revision:
    UNVERIFIED where none is known. may_differ: it was to be taken whatever its bytes and rows."""

    sha256: str
    bytes: int
    source: str
    revision: str
    date: str
    stands_in: bool = False
    may_differ: bool = False


class DataFolder:
    """A folder of prepared sets; one process at a time may prepare in it."""

    def __init__(self, path: Path, registry: Mapping[str, DataSet] = REGISTRY) -> None:
        self.path = path
        self.registry = registry

    def file(self, name: str) -> Path:
        """A set's prepared file."""
        return self.path / f"{name}.jsonl"

    def status(self, name: str) -> str:
        """`ready`: there as its manifest says, and, to train on, held against the evaluation sets that are there now;
        `stand-in`: the same of other bytes than the registry's; `stale`: to be prepared again; or `missing`."""
        manifest, file, raw = self._manifest(name), self.file(name), self._kept(name)
        if manifest is None:
            return "missing"
        is_whole = raw is not None and file.exists() and sha256(file) == manifest["sha256"]
        if raw is None or not is_whole or manifest["against"] != self._to_hold_against(self.registry[name]):
            return "stale"
        return "stand-in" if raw.stands_in and raw.sha256 != self.registry[name].sha256 else "ready"

    def is_ready(self, name: str) -> bool:
        """Whether a set, or what stands in for it, can be used as it is."""
        return self.status(name) in ("ready", "stand-in")

    def prepare(self, name: str, stand_in: Path | None = None, may_differ: bool = False) -> dict[str, Any]:
        """Make a set's prepared file, unless it is ready; returns its manifest.

        stand_in: a local file in the set's schema, in place of the download. may_differ: whatever its bytes and rows.
        Raises DataError with what to do.
        """
        known = self.registry[name]
        if known.parse is None:
            raise DataError(f"{name} is no file but a part of a package: install {known.source} (docs/run/tasks.md)")
        if stand_in is None and self.is_ready(name) and (manifest := self._manifest(name)) is not None:
            return manifest
        for needed in known.against:
            if not self.is_ready(needed):
                raise DataError(f"{name} may share no question with {needed}, which is not ready: prepare {needed} too")
        if stand_in is not None:
            file, raw = stand_in, self._given(known, stand_in, may_differ)
        elif (kept := self._kept(name)) is not None:
            file, raw = self._raw(name), kept
        else:
            file, raw = self._fetched(known)
        records, dropped = parse_file(name, file, known.parse)
        rows = len(records) + len(dropped)
        if not records:
            raise DataError(f"{name}: {file} has no row to keep: give the set's own file")
        if rows != known.rows and not raw.may_differ:
            raise DataError(
                f"{name} has {rows} rows in {raw.source}, and {known.rows} were expected: give the right file with "
                f"--from {name}=FILE, or add --accept-other to take one as it is"
            )
        if file != self._raw(name):
            self._put(self._raw(name), file.read_bytes())
        return self._write(known, raw, rows, records, dropped)

    # the raw file

    def _raw(self, name: str) -> Path:
        return self.path / "raw" / name

    def _manifest(self, name: str) -> dict[str, Any] | None:
        manifest = read_manifest(self.file(name))
        return manifest if manifest is not None and manifest.get("schema") == SCHEMA else None

    def _given(self, known: DataSet, file: Path, may_differ: bool) -> Raw:
        with readable(f"{known.name}:", file):
            content = file.read_bytes()
        checksum = hashlib.sha256(content).hexdigest()
        if known.sha256 not in (UNVERIFIED, checksum) and not may_differ:
            raise DataError(
                f"{known.name}: {file} has the sha256 {checksum}, and {known.sha256} was expected: give the right "
                "file, or add --accept-other to take this one as it is"
            )
        revision = known.revision if known.sha256 == checksum else UNVERIFIED
        return Raw(checksum, len(content), file.name, revision, utc_now(), stands_in=True, may_differ=may_differ)

    def _fetched(self, known: DataSet) -> tuple[Path, Raw]:
        """Held to the registry's checksum, or else to that of the first download, which the manifest has."""
        file, revision = fetch(known)
        checksum, expected, manifest = sha256(file), known.sha256, self._manifest(known.name)
        remedy = f"remove it to download it anew, or give a file you have with --from {known.name}=FILE"
        if expected == UNVERIFIED and manifest is not None and not manifest["raw"]["stands_in"]:
            expected = manifest["raw"]["sha256"]
            remedy = f"remove {manifest_path(self.file(known.name))} to take it as it is now"
        if expected not in (UNVERIFIED, checksum):
            raise DataError(f"{known.name}: {file} has the sha256 {checksum}, and {expected} was expected: {remedy}")
        return file, Raw(checksum, file.stat().st_size, known.source, revision, utc_now())

    def _kept(self, name: str) -> Raw | None:
        """The raw file of the last time, where it is still the one to use."""
        manifest = self._manifest(name)
        if manifest is None or not self._raw(name).exists():
            return None
        raw, known = Raw(**manifest["raw"]), self.registry[name]
        is_known = raw.stands_in or known.sha256 in (UNVERIFIED, raw.sha256)
        return raw if is_known and sha256(self._raw(name)) == raw.sha256 else None

    # the prepared file

    def _to_hold_against(self, known: DataSet) -> dict[str, str]:
        """The evaluation sets that are ready, with their prepared files' checksums; none for an evaluation set."""
        if known.role == "eval":
            return {}
        evaluation = [name for name, known in self.registry.items() if known.role == "eval" and self.is_ready(name)]
        return {name: sha256(self.file(name)) for name in evaluation}

    def _write(
        self, known: DataSet, raw: Raw, rows: int, records: Sequence[Record], dropped: list[Dropped]
    ) -> dict[str, Any]:
        name, against = known.name, self._to_hold_against(known)
        shared = overlaps(records, [task for other in against for task in read_records(self.file(other))])
        gone = {problem.uid for problem in shared}
        records = [record for record in records if record.uid not in gone]
        dropped = dropped + shared
        if known.sample is not None:
            if len(records) < known.sample and not raw.may_differ:
                raise DataError(f"{name} has {len(records)} problems to take {known.sample} of: give the whole file")
            records = sample(records, known.sample, SAMPLE_SEED)
        lines = "".join(json.dumps(asdict(problem)) + "\n" for problem in dropped)
        self._put(self.path / f"{name}.dropped.jsonl", lines.encode())
        write_records(self.file(name), records)
        manifest = {
            "schema": SCHEMA,
            "name": name,
            "rows": len(records),
            "sha256": sha256(self.file(name)),
            "raw": asdict(raw),
            "raw_rows": rows,
            "licence": known.licence,
            "dropped": dict(Counter(problem.reason for problem in dropped)),
            "overlaps": dict(Counter(problem.other.split("/")[0] for problem in shared)),
            "against": against,
            "sample_seed": None if known.sample is None else SAMPLE_SEED,
            "date": utc_now(),
        }
        if known.kind == "math":
            unequal = unequal_golds([record.answers for record in records])
            manifest[UNEQUAL_GOLDS] = unequal and asdict(unequal)
        self._put(manifest_path(self.file(name)), (json.dumps(manifest, indent=1, ensure_ascii=False) + "\n").encode())
        return manifest

    def _put(self, place: Path, content: bytes) -> None:
        with disk_errors(self.path):
            place.parent.mkdir(parents=True, exist_ok=True)
            write_whole(place, content)


def sample(records: Sequence[Record], count: int, seed: int) -> list[Record]:
    """The first `count` records, or all, of a seeded order of their questions, in the order they stand in.

    The order is a function of each question and the seed, so that leaving some records out changes no other place.
    """
    order = sorted(records, key=lambda record: hashlib.sha256(f"{seed}:{record.question}".encode()).digest())
    taken = {record.uid for record in order[:count]}
    return [record for record in records if record.uid in taken]


def normalised(question: str) -> str:
    """The words and symbols of a question, whatever their case, compatibility forms, punctuation and white space.

    A hyphen that is a minus sign is punctuation too, so two problems of mathematics may be taken for one. That costs a
    training problem and never an evaluation problem.
    """
    text = unicodedata.normalize("NFKC", question).casefold()
    return " ".join("".join(" " if unicodedata.category(c)[0] in "PZC" else c for c in text).split())


def overlaps(training: Iterable[Record], evaluation: Iterable[Task]) -> list[Dropped]:
    """The training records whose question is an evaluation task's, each with the uid of the first such task."""
    known: dict[str, str] = {}
    for task in evaluation:
        known.setdefault(normalised(task.question), task.uid)
    known.pop("", None)
    keys = [(record.uid, normalised(record.question)) for record in training]
    return [Dropped(uid, "overlap", known[key]) for uid, key in keys if key in known]
