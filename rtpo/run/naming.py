"""The part of a run's name that comes from its command line, as `lr=0.0005` in `rtpo,lr=0.0005-seed0`
(docs/run/runs.md)."""

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from rtpo.errors import ConfigError
from rtpo.run.building import leaves
from rtpo.run.cli import composed
from rtpo.run.config import FOLDER_NAME, FOLDER_RULE, LAUNCH, RunConfig, portable
from rtpo.run.differences import MAY_CHANGE

UNNAMED = ("algorithm", "profile", "engine", "seed", "experiment_name", "results", MAY_CHANGE)
"""not in a label: fields that are in the run's name or path anyway, say where it runs, or may change on resume"""
ROLES = "verl.actor_rollout_ref"
UNNAMED_BELOW = ("profile.", f"{ROLES}.rollout.", "model.path", f"{ROLES}.model.path")
"""not in a label: prefixes of the machine's fields and of the model's path, since `model.name` names the model"""
LONGEST = 120
"""the most characters of a label; in a longer one a hash replaces the last settings"""
KEPT_LONGEST = ("model=", "model.name=", "task=", "data=")
"""beginnings of the settings that a long label loses last: what was trained, and on what"""
NOT_OWN = ("verl.", f"{LAUNCH}.")
"""prefixes of fields that are verl's or an experiment's, not a run's own"""


def with_label(config: RunConfig, tree: DictConfig, hydra: Any) -> RunConfig:
    """The run with the label of its command line (`label_of`). Raises ConfigError if the label cannot name a folder."""
    label = label_of(tree, hydra)
    if not FOLDER_NAME.fullmatch(label):
        raise ConfigError(f"algorithm.label is {label!r}: {FOLDER_RULE}; name it yourself with algorithm.label=NAME.")
    return replace(config, algorithm=config.algorithm | {"label": label})


def label_of(tree: DictConfig, hydra: Any) -> str:
    """`algorithm.label`, plus the fields and groups that the command line changes from configs/. A label on the command
    line, or of an experiment's run, stays as it is. tree: of experiments/train.py. hydra: Hydra's own."""
    label, choices = str(tree.algorithm.label), hydra.runtime.choices
    overrides = {
        override.key_or_group: override.input_line
        for override in OverridesParser.create().parse_overrides(list(hydra.overrides.task))
    }
    if choices.get("experiment") is not None or "algorithm.label" in overrides:
        return label
    groups = {group: choices[group] for group in overrides if group in choices}
    unchanged = composed("train", [str(overrides[group]) for group in groups])
    defaults = composed("train", (), with_hydra=True).hydra.runtime.choices
    named_fields = [field for field in overrides if field not in (*groups, *UNNAMED)]
    named_fields += ["model.name"] if "model.path" in overrides else []
    parts = {
        **changed_fields(tree, unchanged, named_fields),
        **{group: name for group, name in groups.items() if group not in UNNAMED and defaults.get(group) != name},
    }
    return shortened([label, *sorted(f"{name}={text(value)}" for name, value in parts.items())])


def shortened(parts: Sequence[str]) -> str:
    """Join the parts of a label. In a label that is too long, a hash of all parts replaces the last settings. Settings
    in KEPT_LONGEST are the last that it replaces."""
    whole = ",".join(parts)
    if len(whole) <= LONGEST:
        return whole
    kept, end = list(parts), hashlib.sha256(whole.encode()).hexdigest()[:8]
    removable = sorted(parts[:0:-1], key=lambda part: part.startswith(KEPT_LONGEST))
    while removable and len(",".join([*kept, end])) > LONGEST:
        kept.remove(removable.pop(0))
    return ",".join([*kept, end])


def changed_fields(tree: DictConfig, unchanged: DictConfig, fields: Collection[str]) -> dict[str, Any]:
    """Compare `tree` with `unchanged` in these fields and all fields below them. Returns the values in `tree` that
    differ, by short name."""
    paths = {path: None for config in (tree, unchanged) for path, _ in leaves(OmegaConf.to_container(config))}
    return {
        short_name(path, paths): OmegaConf.select(tree, path)
        for path in paths
        if any(f"{path}.".startswith(f"{field}.") for field in fields)
        and not path.startswith(UNNAMED_BELOW)
        and OmegaConf.select(tree, path) != OmegaConf.select(unchanged, path)
    }


def short_name(path: str, paths: Collection[str]) -> str:
    """The shortest end of a field's path that is unique in `paths`: `lr` for `optimizer.lr`. For a run's own
    field, fields in NOT_OWN may have the same end."""
    is_own = not path.startswith(NOT_OWN)
    rivals = [other for other in paths if other != path and not (is_own and other.startswith(NOT_OWN))]
    parts = path.split(".")
    ends = (".".join(parts[start:]) for start in range(len(parts) - 1, 0, -1))
    return next((end for end in ends if not any(f".{other}".endswith(f".{end}") for other in rivals)), path)


def text(value: Any) -> str:
    """A value as folder names show it: `0.0005`, `true`, `0.9_0.95`, or the last part of a path."""
    value = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    value = Path(value).name if isinstance(value, str) and "/" in value else value
    return re.sub(r"[^\w.+-]+", "_", json.dumps(portable(value), ensure_ascii=False)).strip("_")


def settings_in(label: str) -> dict[str, str]:
    """The fields that a label names, with their values as the label has them."""
    return dict(part.split("=", 1) for part in label.split(",")[1:] if "=" in part)


def setting(config: Mapping[str, Any], name: str) -> str | None:
    """The value of a label's field `name` in a configuration. For a group, it is the name of the chosen file; None
    without such a field or group."""
    if isinstance(group := config.get(name), Mapping):
        return group.get("name")
    fields = [
        (path.startswith(NOT_OWN), text(value)) for path, value in leaves(config) if f".{path}".endswith(f".{name}")
    ]
    return min(fields)[1] if fields else None
