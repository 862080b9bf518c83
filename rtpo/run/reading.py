"""The configuration and the manifest of a folder of records, read and checked."""

import hashlib
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from rtpo.core import json_text
from rtpo.core.names import missing_file, nearest, some
from rtpo.errors import DataError
from rtpo.run.manifest import check_fields

LARGEST_CONFIG = 100_000
"""the most values of a config.yaml; a run has some hundreds"""
_AGAIN = "restore it, or delete it and give the command again, which writes the configuration anew."
CHECKSUM = b"# sha256 of the lines above: "
"""starts the last line of config.yaml; earlier versions wrote no such line"""
# CSafeLoader is ten times as fast, but not every PyYAML has it
SAFE_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_config(file: Path, data: bytes) -> dict[str, Any]:
    """Parse the bytes of a folder's config.yaml. Raises DataError if they are damaged."""
    text, mark, digest = data.rpartition(CHECKSUM)
    if mark and digest.decode(errors="replace").strip() != hashlib.sha256(text).hexdigest():
        raise DataError(f"{file} is damaged (it is not as it was written): {_AGAIN}")
    try:
        config = yaml.load(data, Loader=SAFE_LOADER)
        size = _expanded_size(config, {})
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise DataError(f"{file} is damaged ({' '.join(str(error).split())}): {_AGAIN}") from error
    if not isinstance(config, dict):
        raise DataError(f"{file} is damaged (it is not a mapping): {_AGAIN}")
    if size > LARGEST_CONFIG:
        raise DataError(f"{file} is damaged (its aliases stand for more than {LARGEST_CONFIG} values): {_AGAIN}")
    return config


def _expanded_size(tree: Any, known: dict[int, float]) -> float:
    """How many values a YAML tree has once its aliases are expanded. known: the sizes of its parts, by id."""
    if not isinstance(tree, dict | list):
        return 1
    if id(tree) not in known:
        known[id(tree)] = math.inf  # for a tree that contains itself
        parts = tree.values() if isinstance(tree, dict) else tree
        known[id(tree)] = 1 + sum(_expanded_size(part, known) for part in parts)
    return known[id(tree)]


def why_no_run(folder: Path) -> str:
    """Why a folder is not a run's, with the runs below it, or the nearest run beside it."""
    if below := [file.parent.name for file in sorted(folder.glob("*/config.yaml"))]:
        return f"{folder} is not a run's folder: give that of one of its runs, {some(below)}."
    if beside := [file.parent.name for file in sorted(folder.parent.glob("*/config.yaml"))]:
        why = f"{folder} is not a run's folder; {nearest(folder.name, beside)}"
    else:
        why = f"{folder} is not a run's folder" if folder.exists() else missing_file(folder)
    return f"{why}: give one with a config.yaml, such as results/<experiment>/<run>."


def read_manifest(path: Path, schema: int, keys: Collection[str]) -> Mapping[str, Any]:
    """Read a manifest. Raises DataError if its schema is not `schema`, and as `check_fields`."""
    manifest = json_object(path.read_bytes(), str(path), ("schema",))
    if manifest["schema"] != schema:
        raise DataError(
            f"{path} has schema {manifest['schema']!r} and this version reads schema {schema}: use the version of the "
            "project that made the run, or run it again."
        )
    check_fields(manifest, keys, path)
    return manifest


def json_object(text: bytes, place: str, keys: Collection[str]) -> Mapping[str, Any]:
    """Parse a JSON object. Raises DataError, naming `place`, if the text is not one, or lacks one of `keys`."""
    value = json_text.json_object(text, place, "restore the run's files, or run again")
    require(value, keys, place)
    return value


def require(value: Mapping[str, Any], keys: Collection[str], place: str) -> None:
    """Raises DataError, naming `place`, if keys are missing."""
    missing = [key for key in keys if key not in value]
    if missing:
        raise DataError(
            f"{place} lacks {', '.join(missing)}: it is damaged or of another version; restore it, or run again."
        )
