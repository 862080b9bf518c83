"""verl's own config tree: its `ppo_trainer` defaults with the run's `verl` key merged over them.

Nothing unknown passes: a key that verl's YAML and its dataclasses do not have is refused by name.
"""

import dataclasses
import importlib
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf, open_dict

from rtpo.errors import ConfigError


def verl_settings(overrides: DictConfig) -> DictConfig:
    """verl's resolved tree with `overrides` (the run's `verl` key) applied.

    Raises ConfigError naming the key for one verl does not have, or a plain value where verl has a mapping.
    """
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module("verl.trainer.config", version_base=None):
            settings = compose("ppo_trainer")
    finally:
        GlobalHydra.instance().clear()
        if outer is not None:
            GlobalHydra.instance().initialize(outer)
    with open_dict(settings):
        _merge(settings, overrides, "verl")
    OmegaConf.resolve(settings)
    return settings


def _merge(base: DictConfig, overrides: DictConfig, path: str) -> None:
    for key in map(str, overrides):
        value = overrides[key]
        if key not in base and key not in _dataclass_fields(base) and not _is_free(path):
            known = ", ".join(sorted(str(k) for k in base))
            raise ConfigError(f"{path}.{key} is not a verl setting; {path} has: {known}.")
        if isinstance(base.get(key), DictConfig) and not isinstance(value, DictConfig):
            raise ConfigError(f"{path}.{key} is {value!r}: verl has a mapping there; set the values below it.")
        if isinstance(value, DictConfig) and isinstance(base.get(key), DictConfig):
            _merge(base[key], value, f"{path}.{key}")
        else:
            base[key] = value


def _is_free(path: str) -> bool:
    """Whether verl lets this mapping hold any key (engine arguments, overrides of the model's config)."""
    return path.rsplit(".", 1)[-1] in {"engine_kwargs", "override_config", "embedded", "vllm"}


def _dataclass_fields(node: DictConfig) -> set[str]:
    target = node.get("_target_")
    if target is None:
        return set()
    module, name = str(target).rsplit(".", 1)
    cls: Any = getattr(importlib.import_module(module), name)
    return {field.name for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
