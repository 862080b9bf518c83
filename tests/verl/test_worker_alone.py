"""verl's worker and engine server with a small model of SmolLM2's architecture, without Ray: what they compute, and
what the worker sends, saves and loads."""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

STEPS = 3


def check(precision: str, folder: Path) -> None:
    """In a process of its own, which has one worker for good."""
    import numpy as np
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from rtpo.engines.base import Request, Sampling
    from rtpo.engines.decoder import Decoder
    from rtpo.run.cli import composed
    from rtpo.run.config import compose_run
    from rtpo.verbs import TokenClip
    from rtpo.verl_harness import session

    session.has_bf16 = lambda: True  # or slower, but the same
    overrides = ["profile=laptop_lm", f"profile.precision={precision}", f"model.path={folder}", "optimizer.lr=1e-3"]
    toy = Path(compose_run(composed("train", [])).model.path)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(toy / name, folder)
    torch.manual_seed(0)
    sizes = {"vocab_size": 300, "hidden_size": 36, "intermediate_size": 96, "num_hidden_layers": 3, "head_dim": 4}
    described = LlamaConfig(**sizes, num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True)
    LlamaForCausalLM(described).save_pretrained(folder)
    settings = session.settings_of(compose_run(composed("train", overrides)))
    from rtpo.verl_harness.backend import VerlBackend, forked_rows
    from rtpo.verl_harness.rollout_server import EmbeddedServer
    from rtpo.verl_harness.worker import AgentWorker

    class Alone(VerlBackend):
        def __init__(self) -> None:
            self._settings, self.ranks, self.is_serving = settings, 1, False
            self._temperature, self._token_limit, self._break_even, self._rows_apart = 1.0, 512, 2**40, False
            self._workers: Any = AgentWorker(config=settings.actor_rollout_ref, role="actor_rollout_ref")
            self._workers.start()

    backend = Alone()
    worker = backend._workers
    rows = forked_rows(4, 24)
    scores, alone = backend.score(rows).logprobs, backend.score(rows, apart=True).logprobs
    assert abs(scores - alone).max() < {"fp32": 1e-5, "bf16": 0.05}[precision]
    # of the weights that training begins from, here and after training
    assert (backend.reference(rows).logprobs == scores).all()

    def weights() -> dict[str, torch.Tensor]:
        return {name: tensor.clone() for name, tensor in worker.actor.engine.get_per_tensor_param()[0]}

    for step in range(STEPS):
        if step == 1:
            backend.save(folder / "save")
        backend.step(rows, None, TokenClip())
    ended = weights()
    assert {tensor.dtype for tensor in ended.values()} == {torch.float32}
    backend.load(folder / "save")
    assert any(not torch.equal(ended[name], tensor) for name, tensor in weights().items())
    for _ in range(1, STEPS):
        backend.step(rows, None, TokenClip())
    assert all(torch.equal(ended[name], tensor) for name, tensor in weights().items())
    assert (backend.score(rows).logprobs != scores).any()
    assert (backend.reference(rows).logprobs == scores).all()

    sent: dict[str, torch.Tensor] = {}

    class Remote:
        async def remote(self, arrived: dict[str, torch.Tensor], _: int) -> None:
            sent.update(arrived)

    worker.rollout._server = type("Server", (), {"load": Remote()})()
    asyncio.run(worker.rollout.update_weights(iter(ended.items()), global_steps=1))
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    assert sent.keys() == ended.keys()
    assert all(torch.equal(sent[name], tensor.to(dtype)) for name, tensor in ended.items())

    server = EmbeddedServer(str(folder), 0, 1, 1000, 64, settings.actor_rollout_ref.rollout.dtype)
    asyncio.run(server.load(ended, 1))
    halves = [ids[:12] for ids in np.split(rows.ids, np.cumsum(rows.lengths)[:-1])]
    requests = [Request(ids, Sampling(max_tokens=12), i, str(i), str(i)) for i, ids in enumerate(halves)]
    sampled = asyncio.run(server.generate_many(requests))
    ids = [np.concatenate([half, turn.output_ids]) for half, turn in zip(halves, sampled, strict=True)]
    mask = np.concatenate([np.arange(len(row)) >= 12 for row in ids])
    lengths = np.array([len(row) for row in ids], np.int32)
    outputs = replace(rows, ids=np.concatenate(ids), lengths=lengths, mask=mask)
    apart = abs(backend.score(outputs).logprobs - np.concatenate([turn.logprobs for turn in sampled]))
    assert apart.max() < {"fp32": 1e-5, "bf16": 0.05}[precision]
    alike = Decoder(described, stop_ids=(), cache_tokens=0, dtype=dtype)
    alike.load(ended.items(), 1)
    assert asyncio.run(server.checksum()) == alike.weight_checksum()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_training_goes_on_from_a_save_as_if_never_stopped_and_the_engine_gets_what_computes(
    precision: str, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    own = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment = os.environ | own | {"OMP_NUM_THREADS": "1", "RTPO_SOCKETS": "word"}
    command = [sys.executable, __file__, precision, str(tmp_path)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]


if __name__ == "__main__":
    check(sys.argv[1], Path(sys.argv[2]))
