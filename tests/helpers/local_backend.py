"""The harness's backend in one process, in plain torch: a second opinion on verl's numbers, and cheap enough to kill.

The model, the decoder and the losses are the real ones; what is plain here is the trainer: one padded batch, one Adam.
"""

from functools import partial
from pathlib import Path

import numpy as np
import torch
from scripted import batch_of
from torch import Tensor
from transformers import Qwen3ForCausalLM

from rtpo.core.losses import loss
from rtpo.core.packing import Packed
from rtpo.engines.backend import StepResult, TokenScores
from rtpo.engines.base import BatchingEngine, Generation, Request
from rtpo.engines.decoder import Decoder
from rtpo.errors import MachineError, StaleEngine
from rtpo.run.config import RunConfig
from rtpo.types import Floats
from rtpo.verbs import Loss


class LocalBackend:
    """`rtpo.engines.backend.Backend` without processes."""

    is_serving = True

    def __init__(self, config: RunConfig) -> None:
        load = partial(Qwen3ForCausalLM.from_pretrained, config.model.path, dtype=torch.float32)
        self.model, self._initial = load(), load()
        self.has_reference = config.descriptor.has_reference(config.algorithm_config)
        settings = config.optimizer
        self._clip_grad = settings.clip_grad
        self._temperature = config.sampling.temperature
        self._optimizer = torch.optim.AdamW(
            self.model.parameters(), settings.lr, settings.betas, weight_decay=settings.weight_decay
        )
        model_config = self.model.config
        self.decoder = Decoder(model_config, {model_config.eos_token_id}, cache_tokens=65536)
        self.engine = BatchingEngine(self._generate)

    async def _generate(self, requests: list[Request]) -> list[Generation]:
        return self.decoder.generate(requests)

    @property
    def prefilled_tokens(self) -> int:
        return self.decoder.prefilled_tokens

    @torch.no_grad()
    def score(self, packed: Packed, *, apart: bool = False, shift: int = 0) -> TokenScores:
        logprobs = self._distributions(self.model, packed, shift)
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        return TokenScores(_chosen(logprobs, packed).numpy(), entropy.numpy(), len(packed.ids))

    @torch.no_grad()
    def reference(self, packed: Packed) -> TokenScores:
        chosen = _chosen(self._distributions(self._initial, packed), packed).numpy()
        return TokenScores(chosen, np.empty(0, np.float32), len(packed.ids))

    def step(self, packed: Packed, reference: Floats | None, loss_of: Loss, *, scored: bool = False) -> StepResult:
        scores = self.score(packed) if scored else None
        value, sums = self._loss(packed, reference, loss_of)
        self._optimizer.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._clip_grad)
        self._optimizer.step()
        lr = float(self._optimizer.param_groups[0]["lr"])
        return StepResult(float(norm), float(value.detach()), sums, lr, len(packed.ids), scores)

    def gradient(self, packed: Packed, reference: Floats | None, loss_of: Loss) -> Floats:
        value, _ = self._loss(packed, reference, loss_of)
        parts = torch.autograd.grad(value, list(self.model.parameters()))
        flat: Floats = torch.cat([part.flatten() for part in parts]).numpy()
        return flat

    def push(self, version: int) -> None:
        self.decoder.load(self.model.state_dict().items(), version)
        if self.decoder.version != version or self.decoder.cached_prompts:
            raise StaleEngine("the decoder did not take the weights")

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        state = {"model": self.model.state_dict(), "optimizer": self._optimizer.state_dict()}
        try:
            torch.save(state, folder / "state.pt")
        except RuntimeError as error:
            raise MachineError(f"the weights could not be written to {folder}: {error}") from error

    def load(self, folder: Path) -> None:
        state = torch.load(folder / "state.pt")
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])

    def _loss(self, packed: Packed, reference: Floats | None, loss_of: Loss) -> tuple[Tensor, dict[str, float]]:
        logprobs = _chosen(self._distributions(self.model, packed), packed)
        return loss(batch_of(packed, logprobs, reference), loss_of)

    def _distributions(self, model: Qwen3ForCausalLM, packed: Packed, shift: int = 0) -> Tensor:
        """[trained tokens, V] log-probs before each."""
        rows = torch.from_numpy(packed.ids).long().split(packed.lengths.tolist())
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        positions = torch.arange(ids.shape[1])[None] + shift
        logits = model(input_ids=ids, position_ids=positions).logits / self._temperature
        before = torch.cat([logits[i, : len(row)].roll(1, 0) for i, row in enumerate(rows)])
        return before[torch.from_numpy(packed.mask)].log_softmax(-1)


def _chosen(logprobs: Tensor, packed: Packed) -> Tensor:
    ids = torch.from_numpy(packed.ids[packed.mask]).long()
    return logprobs.gather(-1, ids[:, None])[:, 0]
