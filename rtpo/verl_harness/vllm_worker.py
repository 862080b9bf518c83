"""verl's extension of vLLM's workers, which takes the trainer's weights and checks that they are complete."""

from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

from rtpo.core.model_family import EMBEDDING, HEAD
from rtpo.errors import DataError
from rtpo.verl_harness.engines import first_error
from rtpo.verl_harness.settings import shapes_of


class CheckedWorker(vLLMColocateWorkerExtension):
    """Checks that all weights arrive: vLLM would silently keep the old values of missing ones."""

    model_runner: Any

    @cached_property
    def expected_shapes(self) -> dict[str, torch.Size]:
        """Shapes of all weights by name; computed once, since a synchronisation comes before every phase."""
        return shapes_of(self.model_runner.model_config.hf_config)

    def update_weights_from_ipc(
        self, peft_config: Any = None, base_sync_done: bool = False, use_shm: bool = False
    ) -> None:
        self._arrived: dict[str, torch.Size] = {}
        with first_error():
            super().update_weights_from_ipc(peft_config, base_sync_done, use_shm)
        check_complete(self._arrived, self.expected_shapes, self.model_runner.model_config.hf_config)

    def _update_weights(self, weights: list[tuple[str, Tensor]], *arguments: Any, **options: Any) -> None:
        self._arrived |= {name: tensor.shape for name, tensor in weights}
        super()._update_weights(weights, *arguments, **options)


class ReloadingWorker(CheckedWorker):
    """Reloads vLLM's CPU build from new weights. This build packs linear weights on loading, so verl cannot copy
    new ones into their place. All buckets are kept until the last arrives, then vLLM loads itself anew."""

    def update_weights_from_ipc(
        self, peft_config: Any = None, base_sync_done: bool = False, use_shm: bool = False
    ) -> None:
        weights: dict[str, Tensor] = {}
        receiver = BucketedWeightReceiver(self._get_zmq_handle(), self.device, use_shm)
        with first_error():
            receiver.receive_weights(
                lambda bucket, is_last: weights.update((name, tensor.clone()) for name, tensor in bucket)
            )
        config = self.model_runner.model_config.hf_config
        check_complete({name: tensor.shape for name, tensor in weights.items()}, self.expected_shapes, config)
        if config.tie_word_embeddings:
            weights[HEAD] = weights[EMBEDDING]  # otherwise vLLM would keep the old head
        self.model_runner.reload_weights(weights_iterator=iter(weights.items()))


def check_complete(shapes: dict[str, torch.Size], expected: dict[str, torch.Size], config: PretrainedConfig) -> None:
    """Raises DataError for a weight of the model that is missing, unknown or misshapen. A tied head may be absent."""
    missing = expected.keys() - shapes.keys() - ({HEAD} if config.tie_word_embeddings else set())
    for what, names in (("missing", missing), ("unknown", shapes.keys() - expected.keys())):
        if names:
            raise DataError(f"weights {sorted(names)} are {what}: give the full set of the model's config.")
    for name, shape in shapes.items():
        if shape != expected[name]:
            raise DataError(
                f"weight {name!r} has shape {tuple(shape)} where the config asks for {tuple(expected[name])}: "
                "load a model of the same config."
            )
