"""Records of `experiments/theory.py`: JSON lines, and a manifest with their checksum."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from rtpo.core.files import sha256
from rtpo.errors import DataError
from rtpo.run.reading import json_object, read_manifest

SCHEMA = 1
Manifest = Mapping[str, Any]


class MissingRecords(DataError):
    """Records that do not exist or are incomplete."""


def load(folder: Path, name: str, keys: Collection[str], command: str) -> tuple[Manifest, pd.DataFrame]:
    """The manifest `<name>.json`, and a row for each line of `<name>.jsonl`. keys: required in the manifest. Raises
    MissingRecords, naming the `command` that makes them, for missing records, and DataError for damaged ones."""
    manifest, lines = folder / f"{name}.json", folder / f"{name}.jsonl"
    for path in (manifest, lines):
        if not path.exists():
            raise MissingRecords(f"{path} does not exist: {command} makes it.")
    described = read_manifest(manifest, SCHEMA, [*keys, "sha256"])
    if sha256(lines) != described["sha256"]:
        raise DataError(f"{lines} is not the file that its manifest describes: restore it.")
    return described, pd.DataFrame([json_object(line, str(lines), ()) for line in lines.read_bytes().splitlines()])
