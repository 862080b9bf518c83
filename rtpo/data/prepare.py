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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rtpo.core.files import disk_errors, readable, sha256, utc_now, write_whole
from rtpo.core.names import counted
from rtpo.data.download import fetch
from rtpo.data.records import Record, manifest_path, read_manifest, read_records, write_records
from rtpo.data.registry import REGISTRY, UNVERIFIED, DataSet
from rtpo.data.sources import Dropped, parse_file
from rtpo.errors import DataError
from rtpo.rewards.golds import unequal_golds
from rtpo.types import Task

SCHEMA = 1
"""version of the manifest's format"""
SAMPLE_SEED = 0
UNEQUAL_GOLDS = "unequal_golds"
"""the manifest's key for `UnequalGolds` of a mathematics set; null if every gold equals itself"""


@dataclass(frozen=True, slots=True)
class Raw:
    """A raw file, as the manifest describes it."""

    sha256: str
    bytes: int
    source: str  # its URL, or the name of the local file that stands in for it
    revision: str  # its commit; UNVERIFIED if unknown
    date: str  # when it was downloaded or copied, in UTC
    stands_in: bool = False  # the user gave a local file with --from
    may_differ: bool = False  # the user accepted any checksum and number of rows


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
        manifest, file, raw = self._manifest(name), self.file(name), self._kept(name)
        if manifest is None:
            return "missing"
        is_whole = raw is not None and file.exists() and sha256(file) == manifest["sha256"]
        if raw is None or not is_whole or manifest["against"] != self._evaluation_sets(self.registry[name]):
            return "stale"
        return "stand-in" if raw.stands_in and raw.sha256 != self.registry[name].sha256 else "ready"

    def is_ready(self, name: str) -> bool:
        """Whether the set or its stand-in can be used now."""
        return self.status(name) in ("ready", "stand-in")

    def prepare(self, name: str, stand_in: Path | None = None, may_differ: bool = False) -> dict[str, Any]:
        """Make a set's prepared file, unless it is ready; returns its manifest. Raises DataError.

        stand_in: a local file in the set's schema, used instead of a download.
        may_differ: accept the stand-in with any checksum and number of rows.
        """
        known = self.registry[name]
        if known.parse is None:
            raise DataError(f"{name} comes with a package, not as a file: install {known.source} (docs/run/tasks.md)")
        if stand_in is None and self.is_ready(name) and (manifest := self._manifest(name)) is not None:
            return manifest
        for needed in known.against:
            if not self.is_ready(needed):
                raise DataError(f"{name} may share no question with {needed}, which is not ready: prepare {needed} too")
        if stand_in is not None:
            file, raw = stand_in, self._stand_in(known, stand_in, may_differ)
        elif (kept := self._kept(name)) is not None:
            file, raw = self._raw(name), kept
        else:
            file, raw = self._fetched(known)
        records, dropped = parse_file(name, file, known.parse)
        rows = len(records) + len(dropped)
        if not records:
            raise DataError(f"{name}: {file} holds no problem with an answer: give the set's own file")
        if rows != known.rows and not raw.may_differ:
            raise DataError(
                f"{name} has {counted(rows, 'row')} in {raw.source}, but {known.rows} were expected: give the right "
                f"file with --from {name}=FILE, or accept this number of rows with --accept-other"
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

    def _stand_in(self, known: DataSet, file: Path, may_differ: bool) -> Raw:
        with readable(f"{known.name}:", file):
            content = file.read_bytes()
        checksum = hashlib.sha256(content).hexdigest()
        if known.sha256 not in (UNVERIFIED, checksum) and not may_differ:
            raise DataError(
                f"{known.name}: {file} has the sha256 {checksum}, but {known.sha256} was expected: give the right "
                "file, or accept this one with --accept-other"
            )
        revision = known.revision if known.sha256 == checksum else UNVERIFIED
        return Raw(checksum, len(content), file.name, revision, utc_now(), stands_in=True, may_differ=may_differ)

    def _fetched(self, known: DataSet) -> tuple[Path, Raw]:
        """Download; raises DataError unless the registry's checksum (else the first download's) matches."""
        file, revision = fetch(known)
        checksum, expected, manifest = sha256(file), known.sha256, self._manifest(known.name)
        remedy = f"remove it to download it anew, or give a file you have with --from {known.name}=FILE"
        if expected == UNVERIFIED and manifest is not None and not manifest["raw"]["stands_in"]:
            expected = manifest["raw"]["sha256"]
            remedy = f"remove {manifest_path(self.file(known.name))} to accept the new file"
        if expected not in (UNVERIFIED, checksum):
            raise DataError(f"{known.name}: {file} has the sha256 {checksum}, but {expected} was expected: {remedy}")
        return file, Raw(checksum, file.stat().st_size, known.source, revision, utc_now())

    def _kept(self, name: str) -> Raw | None:
        """The raw file that the last preparation kept; None if it is missing, changed or no longer the registry's."""
        manifest = self._manifest(name)
        if manifest is None or not self._raw(name).exists():
            return None
        raw, known = Raw(**manifest["raw"]), self.registry[name]
        is_known = raw.stands_in or known.sha256 in (UNVERIFIED, raw.sha256)
        return raw if is_known and sha256(self._raw(name)) == raw.sha256 else None

    # the prepared file

    def _evaluation_sets(self, known: DataSet) -> dict[str, str]:
        """Checksums of the evaluation sets that are ready, by name; empty if `known` is an evaluation set itself."""
        if known.role == "eval":
            return {}
        evaluation = [name for name, known in self.registry.items() if known.role == "eval" and self.is_ready(name)]
        return {name: sha256(self.file(name)) for name in evaluation}

    def _write(
        self, known: DataSet, raw: Raw, rows: int, records: Sequence[Record], dropped: list[Dropped]
    ) -> dict[str, Any]:
        name, against = known.name, self._evaluation_sets(known)
        shared = overlaps(records, [task for other in against for task in read_records(self.file(other))])
        gone = {problem.uid for problem in shared}
        records = [record for record in records if record.uid not in gone]
        dropped = dropped + shared
        if known.sample is not None:
            if len(records) < known.sample and not raw.may_differ:
                raise DataError(
                    f"{name} has {counted(len(records), 'problem')} and needs {known.sample}: give the whole file"
                )
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
    """Draw `count` records, or all if there are fewer; returns them in file order.

    Each record's rank depends only on its question and the seed, so dropping a record does not change other ranks.
    """
    order = sorted(records, key=lambda record: hashlib.sha256(f"{seed}:{record.question}".encode()).digest())
    taken = {record.uid for record in order[:count]}
    return [record for record in records if record.uid in taken]


def normalised(question: str) -> str:
    """A question without case, Unicode compatibility forms, punctuation and extra white space.

    A minus sign counts as punctuation, so two different mathematics problems can look the same. Then a training problem
    is lost, never an evaluation problem.
    """
    text = unicodedata.normalize("NFKC", question).casefold()
    return " ".join("".join(" " if unicodedata.category(c)[0] in "PZC" else c for c in text).split())


def overlaps(training: Iterable[Record], evaluation: Iterable[Task]) -> list[Dropped]:
    """Training records whose question is also in an evaluation set, each with the first such task's uid."""
    known: dict[str, str] = {}
    for task in evaluation:
        known.setdefault(normalised(task.question), task.uid)
    known.pop("", None)
    keys = [(record.uid, normalised(record.question)) for record in training]
    return [Dropped(uid, "overlap", known[key]) for uid, key in keys if key in known]
