"""The records of `experiments/theory.py`, and by which rule they are judged."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.claims.rule import RESOLUTION
from analysis.intervals import LEVEL
from analysis.plots import records_checksum
from analysis.records import read_lines
from rtpo.errors import DataError
from rtpo.run.records import read_manifest

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
    """A theorem's records. Raises Missing for none or unfinished ones, naming the command that makes them, DataError
    for damaged ones or those of another schema or theorem."""
    again = f"{COMMAND} {theorem}"
    path, records = folder / f"theorem_{theorem}.json", folder / f"theorem_{theorem}.jsonl"
    if not path.exists():
        state = f"{records} was not finished" if records.exists() else f"{path} does not exist"
        raise Missing(f"{state}: {again} makes it.")
    manifest = read_manifest(path, SCHEMA, MANIFEST_KEYS)
    if manifest["theorem"] != theorem:
        raise DataError(f"{path} is of theorem {manifest['theorem']}: restore it, or {again}.")
    if not records.exists():
        raise Missing(f"{records} does not exist: {again} makes it.")
    return Part(manifest, tuple(read_lines(records, {records.name: manifest["sha256"]}, ("kind",))))


def checksum(folder: Path) -> str | None:
    """Of the manifests that are there, which hold those of their lines."""
    manifests = [folder / f"theorem_{theorem}.json" for theorem in THEOREMS]
    return records_checksum([path for path in manifests if path.exists()])
