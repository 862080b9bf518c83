"""The fields in which two configurations differ, and the checksum that ties a run to its configuration."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

FREE = ("verl", "task.settings", "settings", "checkpoint")
"""parts of a configuration with free keys, not fields of a dataclass"""
OPEN = "profile.track"
"""the tracking backends: a resumed run may change them, since they change no record"""
OWN_SETTINGS = ("seed", "results")
"""fields in which the runs of one label may differ"""
ADDED: dict[str, Any] = {"evaluation.before": True, "profile.precision": "fp32", "algorithm.order": "reverse"}
"""fields that came later and are not off by default; each has the value that older runs used"""
SHOWN = 5
"""the most differences that a message names"""


def config_digest(config: Mapping[str, Any]) -> str:
    """The checksum of the fields that tie a run to its configuration. Fields that are off, or have the value in ADDED,
    count as absent (`is_same`)."""
    wanted = json.loads(json.dumps(config))
    for path in (OPEN, *ADDED):
        group, _, field = path.partition(".")
        fields = wanted.get(group)
        if isinstance(fields, dict) and (path == OPEN or fields.get(field) == ADDED[path]):
            fields.pop(field, None)
    return hashlib.sha256(json.dumps(_set_fields(wanted), sort_keys=True).encode()).hexdigest()


def _set_fields(tree: Any) -> Any:
    if isinstance(tree, dict):
        fields = {key: _set_fields(value) for key, value in tree.items()}
        return {key: value for key, value in fields.items() if value is not None and value is not False and value != {}}
    return tree


def differences(known: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """The fields in which two configurations differ, seed and results folder aside. Runs that differ in any share no
    table. A field that `known` lacks has the value in ADDED; any other missing field is off (`is_same`)."""
    own = {name: known.get(name) for name in OWN_SETTINGS}
    return sorted(fields_that_differ(known, json.loads(json.dumps(wanted)) | own, is_finished=False))


def fields_that_differ(known: Any, wanted: Any, is_finished: bool, path: str = "") -> Iterator[str]:
    """Yield a sentence for each field that differs. For a finished run, fields that came later are ignored, but keys in
    FREE parts are not."""
    if isinstance(known, dict) and isinstance(wanted, dict):
        is_finished = is_finished and path not in FREE
        for key in known.keys() if is_finished else known.keys() | wanted.keys():
            field = f"{path}.{key}".lstrip(".")
            yield from fields_that_differ(known.get(key, ADDED.get(field)), wanted.get(key), is_finished, field)
    elif not is_same(known, wanted) and path != OPEN:
        yield f"{path} was {known!r} and is {wanted!r}"


def is_same(known: Any, wanted: Any) -> bool:
    """Whether a field means the same in two configurations: absent, null and false all mean off."""
    return bool(known == wanted) or all(value is None or value is False for value in (known, wanted))


def some_of(different: Sequence[str]) -> str:
    """The first of these differences, and how many more there are."""
    more = f"; and {len(different) - SHOWN} more" if len(different) > SHOWN else ""
    return "; ".join(different[:SHOWN]) + more
