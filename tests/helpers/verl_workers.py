"""A run's settings as verl's workers take them, up to where a GPU would be needed."""

from copy import deepcopy
from typing import Any
from unittest.mock import patch

from omegaconf import DictConfig
from verl.utils.config import omega_conf_to_dataclass
from verl.workers import engine_workers
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorkerConfig

from rtpo.errors import ConfigError


class _Configured:
    """In place of verl's training worker: keeps what it is made of."""

    def __init__(self, config: TrainingWorkerConfig) -> None:
        self.config = config

    def reset(self) -> None:
        pass

    def set_loss_fn(self, loss_fn: Any) -> None:
        pass

    def get_dispatch_collect(self) -> dict[str, Any]:
        return {"dispatch_dp_rank": 0, "is_collect": True}


class _Worker(ActorRolloutRefWorker):
    actor: Any
    ref: Any
    actor_worker_cls = _Configured  # type: ignore[assignment]
    ref_worker_cls = _Configured  # type: ignore[assignment]

    def __init__(self, config: DictConfig) -> None:
        # without "rollout", whose adapter listens on a socket
        self.config, self.role = config, "actor_ref"
        self.distillation_enabled = False
        self._omega_profiler_config = config.actor.get("profiler", {})

    def set_dispatch_collect(self, mesh_name: str, **_: Any) -> None:  # type: ignore[override]
        pass


def worker_configs(settings: DictConfig) -> dict[str, TrainingWorkerConfig]:
    """What verl's workers make of a run's settings (`rtpo.verl_harness.settings.verl_settings`), for actor and
    reference, in verl's own dataclasses and by its own code. `model.path` must hold config.json and a tokenizer.

    Raises ConfigError for what verl refuses.
    """
    roles = deepcopy(settings.actor_rollout_ref)
    worker = _Worker(roles)
    try:
        omega_conf_to_dataclass(roles.rollout)
        with (
            patch("torch.distributed.get_rank", return_value=0),
            patch.object(engine_workers, "aggressive_empty_cache"),
        ):
            worker.init_model()
    except Exception as error:
        raise ConfigError(f"verl's workers refuse verl.actor_rollout_ref: {' '.join(str(error).split())}") from error
    return {"actor": worker.actor.config, "ref": worker.ref.config}
