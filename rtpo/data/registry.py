"""The registry: every set of the paper, read from registry.yaml.

A commit or a checksum stands there only where the bytes were seen. Elsewhere it is `unverified`: the manifest records
what the first download had, and later ones are compared with that (docs/run/data.md).
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import yaml

from rtpo.data import sources
from rtpo.data.sources import Parser

UNVERIFIED: Final = "unverified"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """One set.

    source: URL of its raw file, hf:// for one of the Hub, or of where to get it from where it is no file (`parse` is
    None). sha256: of the raw file; it may be UNVERIFIED.
    rows: of the raw file.
    parse: of rtpo/data/sources.py, by its name in the YAML.
    gate: the Hugging Face data set whose terms a user must have accepted; None where there is none.
    sample: how many of its problems are taken, in a seeded order; None for all.
    against: evaluation sets that must be there first, since their questions are not to be trained on.
    """

    name: str
    role: Literal["train", "eval"]
    kind: Literal["math", "search", "airline"]
    source: str
    licence: str
    rows: int
    sha256: str
    parse: Parser | None = None
    gate: str | None = None
    sample: int | None = None
    against: tuple[str, ...] = ()
    note: str = ""

    @property
    def revision(self) -> str:
        """The commit that the source names, or UNVERIFIED."""
        named = re.search(r"\b[0-9a-f]{40}\b", self.source)
        return named[0] if named else UNVERIFIED


def _read(row: dict[str, Any]) -> DataSet:
    parse = getattr(sources, row["parse"]) if "parse" in row else None
    return DataSet(**row | {"parse": parse, "against": tuple(row.get("against", ()))})


REGISTRY: Final[dict[str, DataSet]] = {
    row["name"]: _read(row) for row in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
}
"""by name"""
