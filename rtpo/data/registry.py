"""The registry of the paper's data sets, read from registry.yaml.

Where we did not see the file, an entry has `unverified` for its commit or checksum. The manifest then records the
checksum of the first download. Later downloads must have this checksum (docs/run/data.md).
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, Final, Literal

import yaml

from rtpo.data import sources
from rtpo.data.records import NotPrepared, read_records
from rtpo.data.sources import Parser
from rtpo.errors import DataError
from rtpo.types import Task

UNVERIFIED: Final = "unverified"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """One set: an entry of registry.yaml."""

    name: str
    role: Literal["train", "eval"]
    kind: Literal["math", "search", "airline"]
    source: str  # URL of its raw file (hf:// for the Hub), or of the package that contains the set
    licence: str
    rows: int  # in the raw file
    sha256: str  # of the raw file, or UNVERIFIED
    parse: Parser | None = None  # a function of rtpo/data/sources.py; None for a set inside a package
    gate: str | None = None  # Hugging Face data set whose terms the user must accept
    sample: int | None = None  # number of problems to draw; None for all
    against: tuple[str, ...] = ()  # evaluation sets to prepare first: their questions are kept out of training
    note: str = ""

    @property
    def revision(self) -> str:
        """The commit that the source names, or UNVERIFIED."""
        named = re.search(r"\b[0-9a-f]{40}\b", self.source)
        return named[0] if named else UNVERIFIED


def _data_set(row: dict[str, Any]) -> DataSet:
    parse = getattr(sources, row["parse"]) if "parse" in row else None
    return DataSet(**row | {"parse": parse, "against": tuple(row.get("against", ()))})


REGISTRY: Final[dict[str, DataSet]] = {
    row["name"]: _data_set(row)
    for row in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
}
"""the sets by name"""


def read_tasks(path: str | Path) -> list[Task]:
    """Read the tasks of a prepared file. Raises DataError as `read_records` does. For a raw file of a known schema, the
    message names the command that prepares it."""
    try:
        return read_records(path)
    except NotPrepared as error:
        if (name := _set_that_parses(error.row)) is None:
            raise
        command = f"prepare_data.py --from {quote(f'{name}={path}')} --accept-other --folder data/own"
        hint = f"python experiments/{command} makes such a file, data/own/{name}.jsonl, of it"
        raise DataError(f"{error.message}; {hint}") from error


def _set_that_parses(row: Mapping[str, Any]) -> str | None:
    for dataset in REGISTRY.values():
        with suppress(DataError):
            if dataset.parse is not None and dataset.parse(row):
                return dataset.name
    return None
