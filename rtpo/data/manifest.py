"""The manifest of a prepared file: where its rows come from, checksums and counts."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

from rtpo.core.files import disk_errors, write_whole
from rtpo.errors import DataError
from rtpo.rewards.golds import UnequalGolds


@dataclass(frozen=True, slots=True)
class Raw:
    """The raw file that a set was prepared from."""

    sha256: str
    bytes: int
    source: str  # its URL, or the name of the user's local file
    revision: str  # its commit; UNVERIFIED if unknown
    date: str  # when it was downloaded or copied, in UTC
    stands_in: bool = False  # the user gave a local file with --from
    may_differ: bool = False  # the user accepted any checksum and number of rows with --accept-other


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """`<name>.manifest.json`, beside the prepared file."""

    schema: Literal[1] = 1  # version of this format
    name: str  # of the set
    rows: int  # of the prepared file
    sha256: str  # of the prepared file
    raw: Raw
    raw_rows: int  # of the raw file
    licence: str
    dropped: Mapping[str, int]  # problems left out, by reason
    overlaps: Mapping[str, int]  # number of training problems that are also in an evaluation set, by that set
    against: Mapping[str, str]  # checksums of the evaluation sets that were compared, by name
    sample_seed: int | None  # None if the set keeps all problems
    date: str  # of preparation, in UTC
    unequal_golds: UnequalGolds | Literal["unchecked"] | None = "unchecked"
    """golds that no answer can match; None if there are none, `unchecked` if the set is not of mathematics"""


_MANIFEST = TypeAdapter(Manifest)


def manifest_path(path: Path) -> Path:
    """The path of a prepared file's manifest."""
    return path.with_suffix(".manifest.json")


def read_manifest(path: Path) -> Manifest | None:
    """Read a prepared file's manifest; None if there is no such file. Raises DataError if it cannot be read."""
    file = manifest_path(path)
    try:
        return _MANIFEST.validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        reason = error if isinstance(error, OSError) else _first_problem(error)
        raise DataError(f"{file} cannot be read ({reason}): remove it and prepare {path.stem} again") from error


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write a prepared file's manifest, whole or not at all. Raises MachineError if the disk is full."""
    text = json.dumps(asdict(manifest), indent=1, ensure_ascii=False) + "\n"
    with disk_errors(path):
        write_whole(manifest_path(path), text.encode())


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    return f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}".removeprefix(": ")
