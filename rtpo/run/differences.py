"""The fields in which two configurations differ, and a configuration's checksum."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

FREE_KEYS = ("verl", "task.settings", "settings", "checkpoint")
"""parts of a configuration that may have any keys; all others are fields of dataclasses"""
MAY_CHANGE = "profile.track"
"""the field that a resumed run may change: tracking backends change no record"""
OWN_SETTINGS = ("seed", "results")
"""fields in which the runs of one label may differ"""
LATER_FIELDS: dict[str, Any] = {"evaluation.before": True, "profile.precision": "fp32", "algorithm.order": "reverse"}
"""fields that older records lack, with the values that their runs used; any other missing field was off"""


def config_digest(config: Mapping[str, Any]) -> str:
    """The checksum of a configuration. It leaves out MAY_CHANGE, fields that are off (`is_same`) or empty, and fields
    with their value in LATER_FIELDS. So it stays the same when a version adds fields."""
    tree = json.loads(json.dumps(config))
    for path in (MAY_CHANGE, *LATER_FIELDS):
        group, _, field = path.partition(".")
        fields = tree.get(group)
        if isinstance(fields, dict) and (path == MAY_CHANGE or fields.get(field) == LATER_FIELDS[path]):
            fields.pop(field, None)
    return hashlib.sha256(json.dumps(_without_off_fields(tree), sort_keys=True).encode()).hexdigest()


def _without_off_fields(tree: Any) -> Any:
    if isinstance(tree, dict):
        fields = {key: _without_off_fields(value) for key, value in tree.items()}
        return {key: value for key, value in fields.items() if value is not None and value is not False and value != {}}
    return tree


def differences(recorded: Mapping[str, Any], requested: Mapping[str, Any]) -> list[str]:
    """The fields in which two configurations differ, seed and results folder aside. No table mixes such runs."""
    own = {name: recorded.get(name) for name in OWN_SETTINGS}
    return sorted(fields_that_differ(recorded, json.loads(json.dumps(requested)) | own, is_finished=False))


def fields_that_differ(recorded: Any, requested: Any, is_finished: bool, path: str = "") -> Iterator[str]:
    """Yield a sentence for each field that differs. For a finished run, fields that its record lacks are ignored,
    except in FREE_KEYS."""
    if isinstance(recorded, dict) and isinstance(requested, dict):
        is_finished = is_finished and path not in FREE_KEYS
        for key in recorded.keys() if is_finished else recorded.keys() | requested.keys():
            field = f"{path}.{key}".lstrip(".")
            before = recorded.get(key, LATER_FIELDS.get(field))
            yield from fields_that_differ(before, requested.get(key), is_finished, field)
    elif not is_same(recorded, requested) and path != MAY_CHANGE:
        yield f"{path} was {recorded!r} and is {requested!r}"


def is_same(recorded: Any, requested: Any) -> bool:
    """Whether a field means the same in two configurations: absent, null and false all mean off."""
    return bool(recorded == requested) or all(value is None or value is False for value in (recorded, requested))
