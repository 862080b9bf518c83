"""verl's own config tree: its `ppo_trainer` defaults with the run's `verl` key merged over them.

Nothing unknown passes: a key that verl's YAML and its dataclasses do not have is refused by name. Nothing here needs
Ray.
"""

import dataclasses
import importlib
import os
import traceback
from copy import deepcopy
from functools import cache
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import InstantiationException
from omegaconf import DictConfig, OmegaConf, open_dict

from rtpo.core.names import nearest
from rtpo.errors import ConfigError

LOOPBACK = "127.0.0.1"
SOCKETS = "RTPO_SOCKETS"
"""environment variable of a word in the names of the sockets that weights are sent through: verl names them after
Ray's job id, which is the same in every new cluster, and several clusters may share a node"""


def verl_settings(overrides: DictConfig) -> DictConfig:
    """verl's resolved tree with `overrides` (the run's `verl` key) applied.

    Raises ConfigError naming the key for one verl does not have, or a value of another kind than verl's own.
    """
    settings = deepcopy(_defaults())
    with open_dict(settings):
        _merge(settings, overrides, "verl")
    OmegaConf.resolve(settings)
    return settings


def check_settings(settings: DictConfig) -> None:
    """Raises ConfigError for what verl's dataclasses of actor and rollout refuse, and for what rows that are computed
    as trees (`rtpo.verl_harness.fsdp_engine`) would not hear."""
    from verl.utils.config import omega_conf_to_dataclass

    roles = settings.actor_rollout_ref
    heard = {
        **{f"{role}.log_prob_use_dynamic_bsz": True for role in ("rollout", "ref")},
        "actor.use_dynamic_bsz": True,
        **{
            f"{role}.log_prob_max_token_len_per_gpu": roles.actor.ppo_max_token_len_per_gpu
            for role in ("rollout", "ref")
        },
        "model.override_config.attn_implementation": "sdpa",
    }
    for key, value in heard.items():
        if (actual := OmegaConf.select(roles, key)) != value:
            raise ConfigError(
                f"verl.actor_rollout_ref.{key} is {actual!r}: rows are computed as trees, which needs {value!r} there."
            )

    for part in ("actor", "rollout"):
        try:
            omega_conf_to_dataclass(settings.actor_rollout_ref[part])
        except InstantiationException as error:
            cause = error.__cause__ or error  # which may be an assertion without words
            why = str(cause) or traceback.extract_tb(cause.__traceback__)[-1].line or type(cause).__name__
            raise ConfigError(
                f"verl.actor_rollout_ref.{part} is refused by verl: {' '.join(why.split()).rstrip('.')}."
            ) from error


def socket_word(job: str) -> str:
    """Ray's job id made different for every start of Ray."""
    return f"{job}-{os.environ[SOCKETS]}"


@cache
def _defaults() -> DictConfig:
    """verl's, and those of the embedded engine, which verl does not know."""
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
        settings.actor_rollout_ref.rollout.engine_kwargs.embedded = {"threads": 1, "cache_tokens": 65536}
    return settings


def _merge(base: DictConfig, overrides: DictConfig, path: str) -> None:
    """A mapping that is empty in verl's YAML may hold any key (vLLM's arguments, overrides of the model's config)."""
    known = {*map(str, base), *_dataclass_fields(base)}
    for key in map(str, overrides):
        value, default = overrides[key], base.get(key)
        if known and key not in known:
            raise ConfigError(f"{path}.{key} is not a verl setting: {nearest(key, sorted(known))}.")
        kind = _kind(default)
        if kind not in (None, _kind(value)) and (value is not None or isinstance(default, DictConfig)):
            raise ConfigError(f"{path}.{key} is {value!r}: verl has {kind} there.")
        if kind == "a number" and isinstance(default, int) and default > 0 and value is not None and value <= 0:
            raise ConfigError(f"{path}.{key} is {value}: use a number above 0.")
        if isinstance(value, DictConfig) and isinstance(default, DictConfig):
            _merge(default, value, f"{path}.{key}")
        else:
            base[key] = value


def _kind(value: Any) -> str | None:
    """None for what verl may have in more than one kind."""
    if isinstance(value, DictConfig):
        return "a mapping"
    if isinstance(value, bool):
        return "true or false"
    return "a number" if isinstance(value, int | float) else None


def _dataclass_fields(node: DictConfig) -> set[str]:
    target = node.get("_target_")
    if target is None:
        return set()
    module, name = str(target).rsplit(".", 1)
    cls: Any = getattr(importlib.import_module(module), name)
    return {field.name for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
