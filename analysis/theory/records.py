"""The records of `experiments/theory.py`, and by which rule they are judged."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.claims.rule import RESOLUTION
from analysis.intervals import LEVEL
from analysis.plots import records_checksum
from rtpo.errors import DataError

SCHEMA = 1
COMMAND = "python experiments/theory.py"
THEOREMS = (1, 2, 3)
MANIFEST_KEYS = (
    *("theorem", "settings", "started", "wall_seconds", "cpu_seconds", "commit", "dirty", "machine", "lines", "sha256"),
)
RULE = (
    f"The rule is the same for every claim. Its intervals hold together at {100 * LEVEL:g} %: each has the level that "
    "Bonferroni's correction over the claim's comparisons gives it. A claim that a quantity equals a closed form is "
    "contradicted where an interval does not reach the closed form, undecided where one is wider on a side than "
    f"{100 * RESOLUTION:g} % of the quantity's scale, and supported otherwise. A claim that something is larger is "
    "supported where all of its intervals lie above 0, contradicted where one lies below 0, and undecided otherwise."
)


@dataclass(frozen=True)
class Part:
    """A theorem's manifest and lines."""

    manifest: Mapping[str, Any]
    lines: tuple[Mapping[str, Any], ...]

    def of(self, kind: str, **values: Any) -> list[Mapping[str, Any]]:
        """The lines of a kind that have these values."""
        return [x for x in self.lines if x["kind"] == kind and all(x[key] == value for key, value in values.items())]


class Missing(DataError):
    """Records that were not made, or not to their end."""


def load(folder: Path, theorem: int) -> Part:
    """A theorem's records. Raises Missing for none or unfinished ones, DataError for damaged ones or those of another
    schema; all name the command that makes them."""
    again = f"{COMMAND} {theorem}"
    path, records = folder / f"theorem_{theorem}.json", folder / f"theorem_{theorem}.jsonl"
    if not path.exists():
        state = f"{records} was not finished" if records.exists() else f"{path} does not exist"
        raise Missing(f"{state}: {again} makes it.")
    manifest = _object(path.read_bytes(), str(path), again)
    if manifest.get("schema") != SCHEMA:
        raise DataError(f"{path} has schema {manifest.get('schema')!r} and this version reads {SCHEMA}: {again}.")
    absent = [key for key in MANIFEST_KEYS if key not in manifest]
    if absent or manifest["theorem"] != theorem:
        what = f"lacks {', '.join(absent)}" if absent else f"is of theorem {manifest['theorem']}"
        raise DataError(f"{path} {what}: it was not written by this version; {again}.")
    if not records.exists():
        raise Missing(f"{records} does not exist: {again} makes it.")
    data = records.read_bytes()
    lines = [_object(line, f"{records} line {n}", again) for n, line in enumerate(data.splitlines(), start=1)]
    if hashlib.sha256(data).hexdigest() != manifest["sha256"] or len(lines) != manifest["lines"]:
        raise DataError(f"{records} is not the file that its manifest describes: restore it, or {again}.")
    return Part(manifest, tuple(lines))


def _object(text: bytes, place: str, again: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise DataError(f"{place} is not JSON ({error}): restore it, or {again}.") from error
    if not isinstance(value, dict):
        raise DataError(f"{place} is not a JSON object: restore it, or {again}.")
    return value


def checksum(folder: Path) -> str | None:
    """Of the manifests that are there, which hold those of their lines."""
    manifests = [folder / f"theorem_{theorem}.json" for theorem in THEOREMS]
    return records_checksum([path for path in manifests if path.exists()])
