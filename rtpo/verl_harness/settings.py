"""verl's own config tree: its `ppo_trainer` defaults with the run's `verl` key merged over them.

A key that verl's YAML and its dataclasses do not have is refused by name. Only a mapping that is empty in verl's YAML
may hold any key. Nothing here needs Ray.
"""

import dataclasses
import importlib
import os
import shutil
import traceback
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import InstantiationException
from omegaconf import DictConfig, OmegaConf, open_dict
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from rtpo.core.names import nearest
from rtpo.errors import ConfigError, MachineError

LOOPBACK = "127.0.0.1"
SHARED_MEMORY = Path("/dev/shm")
SOCKETS = "RTPO_SOCKETS"
"""environment variable with a word that makes the names of weights' sockets unique. verl names them after Ray's job id.
Every new cluster begins with the same id, and clusters may share a node"""

READ = (
    *("actor_rollout_ref", "trainer.device", "trainer.n_gpus_per_node", "trainer.nnodes"),
    *("trainer.project_name", "trainer.experiment_name"),
)
"""the parts of verl's tree that this project reads"""
AS_IN_VERL = (
    # a run that resumes needs all that verl saves
    *("actor.checkpoint.save_contents", "actor.checkpoint.load_contents"),
    # the loss and its schedule are the algorithm's
    *("actor.entropy_coeff", "actor.use_kl_loss", "actor.kl_loss_coef", "actor.clip_ratio", "actor.clip_ratio_low"),
    *("actor.clip_ratio_high", "actor.ppo_epochs", "actor.loss_agg_mode", "actor.policy_loss.loss_mode"),
    # tokens would be drawn from another distribution than the trainer's, or requests would be mixed up
    *("rollout.repetition_penalty", "rollout.ignore_eos", "rollout.n", "rollout.full_determinism"),
    "rollout.checkpoint_engine.backend",
)
"""settings of `actor_rollout_ref` that must keep verl's defaults"""


def verl_settings(overrides: DictConfig) -> DictConfig:
    """verl's resolved tree with `overrides` (the run's `verl` key) applied.

    Raises ConfigError naming a key that verl does not have, that nothing reads here, or whose value has another kind
    than verl's.
    """
    settings = deepcopy(_defaults())
    with open_dict(settings):
        _merge(settings, overrides, "verl")
    trainer = overrides.get("trainer") or {}
    for key in (*({*map(str, overrides)} - {"trainer"}), *(f"trainer.{key}" for key in trainer)):
        if key not in READ:
            raise ConfigError(f"verl.{key} is read by nothing here: leave it out.")
    OmegaConf.resolve(settings)
    return settings


def check_settings(settings: DictConfig, model: str) -> None:
    """Raises ConfigError for settings that verl's dataclasses of actor and rollout refuse, for those of AS_IN_VERL that
    are changed, for another model than the run's, and for settings that do not fit rows computed as trees
    (`rtpo.verl_harness.fsdp_engine`)."""
    from verl.utils.config import omega_conf_to_dataclass

    roles, defaults = settings.actor_rollout_ref, _defaults().actor_rollout_ref
    if roles.model.path != model:
        raise ConfigError(f"verl.actor_rollout_ref.model.path is {roles.model.path}: set model.path alone, {model}.")
    for key in AS_IN_VERL:
        if (actual := OmegaConf.select(roles, key)) != (default := OmegaConf.select(defaults, key)):
            raise ConfigError(
                f"verl.actor_rollout_ref.{key} is {actual!r}: it must be verl's default, {default!r}; leave it out."
            )
    required = {
        **{f"{role}.log_prob_use_dynamic_bsz": True for role in ("rollout", "ref")},
        "actor.use_dynamic_bsz": True,
        **{
            f"{role}.log_prob_max_token_len_per_gpu": roles.actor.ppo_max_token_len_per_gpu
            for role in ("rollout", "ref")
        },
        "model.override_config.attn_implementation": "sdpa",
    }
    for key, value in required.items():
        if (actual := OmegaConf.select(roles, key)) != value:
            raise ConfigError(
                f"verl.actor_rollout_ref.{key} is {actual!r}: rows are computed as trees, which needs {value!r} there."
            )

    for part in ("actor", "rollout"):
        try:
            omega_conf_to_dataclass(settings.actor_rollout_ref[part])
        except InstantiationException as error:
            cause = error.__cause__ or error  # it may be an assertion without a message
            why = str(cause) or traceback.extract_tb(cause.__traceback__)[-1].line or type(cause).__name__
            raise ConfigError(
                f"verl.actor_rollout_ref.{part} is refused by verl: {' '.join(why.split()).rstrip('.')}."
            ) from error


def fit_bucket(settings: DictConfig, model: str, megabytes: int | None) -> None:
    """Set the size, in MiB, of the buckets that carry weights to vLLM's CPU build. None: the size of the largest
    tensor. Raises ConfigError if `megabytes` is too small, and MachineError if shared memory has too little room."""
    rollout = settings.actor_rollout_ref.rollout
    key = "rollout.checkpoint_engine.update_weights_bucket_megabytes"
    from verl.utils.torch_dtypes import PrecisionType  # its import decides verl's platform

    width = PrecisionType.to_dtype(rollout.dtype).itemsize
    largest = max(shape.numel() for shape in shapes_of(AutoConfig.from_pretrained(model)).values())
    needed = -(-largest * width // 2**20)
    if megabytes is not None and megabytes < needed:
        raise ConfigError(
            f"verl.actor_rollout_ref.{key} is {megabytes} and the largest tensor of {model} has {needed} MiB: leave it "
            "out."
        )
    rollout.checkpoint_engine.update_weights_bucket_megabytes = bucket = megabytes or needed
    if SHARED_MEMORY.exists() and (free := shutil.disk_usage(SHARED_MEMORY).free >> 20) < bucket:
        raise MachineError(
            f"weights go to vLLM through {bucket} MiB of shared memory and {SHARED_MEMORY} has {free} free: make room "
            "(in a container: --shm-size)."
        )


def shapes_of(config: PretrainedConfig) -> dict[str, torch.Size]:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


def unique_job_id(job: str) -> str:
    """Ray's job id with a suffix that differs for every start of Ray."""
    return f"{job}-{os.environ[SOCKETS]}"


@cache
def _defaults() -> DictConfig:
    """verl's default settings, plus those of the embedded engine, which verl does not know."""
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
        settings.actor_rollout_ref.rollout.engine_kwargs.embedded = {
            **{"threads": 1, "cache_tokens": 65536},
            "delay": 0.0,  # seconds that a call waits for further requests
        }
    return settings


def _merge(base: DictConfig, overrides: DictConfig, path: str) -> None:
    """Merge `overrides` into `base`. A mapping that is empty in verl's YAML may hold any key (vLLM's arguments,
    overrides of the model's config). Raises ConfigError for an unknown key and a value of another kind."""
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
    """A value's kind in words; None if verl may accept several kinds."""
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
