"""verl's vLLM server as the engine: what vLLM leaves to be worked out, and the real server on a CPU where vLLM is."""

import asyncio
import json
import shutil
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar
from uuid import uuid4

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from ray.exceptions import RayActorError, RayTaskError
from transformers import Qwen3Config, Qwen3ForCausalLM

from rtpo.config import PROJECT
from rtpo.decoder import Decoder
from rtpo.engine import Generation, Request, Sampling
from rtpo.errors import InfrastructureError, StaleEngine
from rtpo.sampling import truncate
from rtpo.types import Floats, Ids, StopReason, as_ids

T = TypeVar("T")
STOP = 2


def entries(**logprobs: float) -> dict[int, Any]:
    """A position as vLLM gives it: the sampled token first, then the largest."""
    return {int(name[1:]): SimpleNamespace(logprob=value) for name, value in logprobs.items()}


def test_the_largest_log_probs_are_taken_whether_or_not_the_sampled_one_is_among_them() -> None:
    from rtpo.verl_harness.engines import largest_logprobs

    among = entries(t7=-1.5, t4=-0.5, t9=-2.0)
    beyond = entries(t7=-6.0, t4=-0.25, t9=-1.75, t1=-3.0)
    fewer = entries(t3=0.0)
    cut = entries(t3=-0.125, t4=-np.inf, t5=-np.inf)
    largest = largest_logprobs([among, beyond, fewer, cut], 3)
    assert largest.dtype == np.float32
    expected = [[-0.5, -1.5, -2.0], [-0.25, -1.75, -3.0], [0.0, -np.inf, -np.inf], [-0.125, -np.inf, -np.inf]]
    np.testing.assert_array_equal(largest, np.asarray(expected, np.float32))


class Client:
    """verl's client, with one server and no router."""

    def __init__(self, answer: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        self._answer = answer

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        return await self._answer(prompt_ids=prompt_ids, sampling_params=sampling_params, request_id=uuid4().hex)


def engine_of(answer: Callable[..., Coroutine[Any, Any, Any]], stop_id: int = STOP) -> Any:
    from rtpo.verl_harness.engines import VllmEngine

    client: Any = Client(answer)
    return VllmEngine(client, stop_id)


def request(context: Ids, seed: int = 0, **sampling: Any) -> Request:
    return Request(context, Sampling(**sampling), seed, f"session {seed}")


def answered(reason: str | None, ids: Sequence[int], version: int | None = 3, **fields: Any) -> Generation:
    """The generation made of an answer of verl's server."""
    from verl.workers.rollout.replica import TokenOutput

    async def answer(**_: Any) -> TokenOutput:
        extra = {"global_steps": version, **({} if reason is None else {"finish_reason": reason}), **fields}
        return TokenOutput(token_ids=list(ids), log_probs=[-1.0] * len(ids), extra_fields=extra)

    top_logprobs = fields["top_logprobs"].shape[1] if fields else 0
    return asyncio.run(engine_of(answer).generate(request(as_ids([5]), top_logprobs=top_logprobs)))


def test_a_turn_stopped_or_was_cut_off_as_vllm_says() -> None:
    top = np.full((2, 4), -1.0, np.float32)
    stopped, cut = answered("stop", [8, STOP], top_logprobs=top), answered("length", [8, 9])
    assert (stopped.stop, cut.stop) == (StopReason.STOP, StopReason.LENGTH)
    assert stopped.policy_version == 3
    assert stopped.top_logprobs is top
    assert cut.top_logprobs is None


@pytest.mark.parametrize("reason", ["abort", "error", None])
def test_a_turn_that_vllm_did_not_finish_is_no_turn(reason: str | None) -> None:
    with pytest.raises(InfrastructureError, match=f"session 0: {reason or 'refused'}"):
        answered(reason, [8, 9])


def test_a_turn_sampled_before_the_first_synchronisation_is_refused() -> None:
    with pytest.raises(StaleEngine, match="given no weights yet"):
        answered("stop", [8, STOP], version=None)


def test_an_error_of_an_actor_comes_as_it_was_or_as_one_sentence() -> None:
    from rtpo.verl_harness.engines import ray_failures

    def raised(cause: Exception) -> RayTaskError:
        return RayTaskError("generate", "a traceback", cause, "ray", 1, "::1")

    ours = raised(StaleEngine("old keys")).make_dual_exception_instance()
    for error in (ours, raised(ours)):
        with pytest.raises(StaleEngine, match=r"^old keys$"), ray_failures("vLLM"):
            raise error
    with pytest.raises(InfrastructureError, match=r"^vLLM failed: out of memory$"), ray_failures("vLLM"):
        raise raised(ValueError("out of memory\nand more")).make_dual_exception_instance()
    with pytest.raises(InfrastructureError, match=r"^vLLM failed: The actor [^\n]*$"), ray_failures("vLLM"):
        raise RayActorError()


# The real server. vLLM's CPU kernels take no heads of 16, which the toy models have: the model is made here.

CONTEXTS = [as_ids(np.random.default_rng(n).integers(3, 200, n)) for n in (1, 5, 40, 41)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights with the toy task's tokenizer."""
    pytest.importorskip("vllm", reason="vLLM is not installed: its server is not started")
    folder = tmp_path_factory.mktemp("vllm") / "model"
    toy = PROJECT / "rtpo" / "toy" / "warm_start_math"
    config = Qwen3Config(
        vocab_size=204,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        initializer_range=0.2,
        eos_token_id=STOP,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(toy / name, folder)
    return folder


@pytest.fixture(scope="module")
def decoder(model: Path) -> Decoder:
    network = Qwen3ForCausalLM.from_pretrained(model, dtype=torch.float32)
    decoder = Decoder(network.config, {STOP}, cache_tokens=0)
    decoder.load(network.state_dict().items(), version=0)
    return decoder


@pytest.fixture(scope="module")
def ended_by(decoder: Decoder, model: Path) -> int:
    """The greedy fifth token after the longest context; the generation config says that it ends a turn, too."""
    (generation,) = decoder.generate([request(CONTEXTS[-1], temperature=0.0, max_tokens=8)])
    token = int(generation.output_ids[4])
    assert token not in generation.output_ids[:4]
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [STOP, token]}))
    return token


class Served:
    """The server in this process; its engine is a process of its own."""

    def __init__(self, server: Any, runner: asyncio.Runner) -> None:
        self.server = server
        self._runner = runner

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(coroutine)

    def generate(self, *requests: Request, stop_id: int = STOP) -> list[Generation]:
        engine = engine_of(self.server.generate, stop_id)

        async def together() -> list[Generation]:
            return await asyncio.gather(*[engine.generate(one) for one in requests])

        return self.run(together())

    def cached_tokens(self, context: Ids) -> int:
        """Of the context, as vLLM found them in its cache."""
        parameters = {"temperature": 1.0, "max_tokens": 1}
        output = self.run(self.server.generate(context.tolist(), parameters, uuid4().hex))
        return int(output.extra_fields["num_cached_tokens"])


@pytest.fixture(scope="module")
def served(model: Path, ended_by: int) -> Iterator[Served]:
    from verl.workers.rollout.replica import RolloutMode

    from rtpo.verl_harness.settings import verl_settings
    from rtpo.verl_harness.vllm_server import VllmServer, ray

    rollout = {
        "name": "vllm",
        "tensor_model_parallel_size": 1,
        "dtype": "float32",
        "load_format": "auto",
        "max_model_len": 256,
        "max_num_batched_tokens": 512,
        "max_num_seqs": 32,
        "enforce_eager": True,
        "enable_sleep_mode": False,
        "engine_kwargs": {
            "vllm": {"distributed_executor_backend": "uni", "kv_cache_memory_bytes": 64 << 20, "block_size": 32}
        },
    }
    tree = verl_settings(
        OmegaConf.create({"actor_rollout_ref": {"model": {"path": str(model)}, "rollout": rollout}})
    ).actor_rollout_ref
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner() as runner:
        patch.setenv("VLLM_WORKER_MULTIPROCESSING_METHOD", "spawn")
        patch.setenv("VLLM_NO_USAGE_STATS", "1")
        # the server asks Ray for the job's name alone
        patch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_job_id=lambda: "test"))
        server = VllmServer(tree.rollout, tree.model, RolloutMode.HYBRID, [], 0, 0, 1, 1, "")
        runner.run(server.launch_server())
        runner.run(server.set_global_steps(4))
        yield Served(server, runner)
        server.engine.shutdown()


def distributions(model: Path, generation: Generation, asked: Request) -> Floats:
    """[n, V] log-probs that transformers gives each output position, cut as asked."""
    network = Qwen3ForCausalLM.from_pretrained(model, dtype=torch.float32)
    ids = torch.tensor(np.concatenate([asked.context_ids, generation.output_ids]).astype(np.int64))[None]
    with torch.no_grad():
        scores = network(ids).logits[0, len(asked.context_ids) - 1 : -1] / asked.sampling.temperature
    top_k = torch.full((len(scores),), asked.sampling.top_k if asked.sampling.top_k > 0 else scores.shape[1])
    top_p = torch.full((len(scores),), asked.sampling.top_p if asked.sampling.top_p < 1 else torch.inf)
    logprobs: Floats = truncate(scores, top_k, top_p).log_softmax(-1).numpy()
    return logprobs


def test_greedy_turns_are_the_embedded_decoders(served: Served, decoder: Decoder) -> None:
    asked = [request(context, temperature=0.0, max_tokens=24, top_logprobs=10) for context in CONTEXTS]
    for ours, theirs in zip(decoder.generate(asked), served.generate(*asked), strict=True):
        np.testing.assert_array_equal(ours.output_ids, theirs.output_ids)
        np.testing.assert_allclose(ours.logprobs, theirs.logprobs, atol=1e-5)
        assert ours.top_logprobs is not None
        assert theirs.top_logprobs is not None
        assert theirs.top_logprobs.shape == (len(theirs.output_ids), 10)
        np.testing.assert_allclose(ours.top_logprobs, theirs.top_logprobs, atol=1e-5)
        assert (theirs.stop, theirs.policy_version) == (ours.stop, 4)


def test_log_probs_are_those_of_the_distribution_that_was_drawn_from(served: Served, model: Path) -> None:
    """Each request with a count of its own, all in one batch."""
    asked = [
        request(context, seed, max_tokens=16, top_logprobs=count, **sampling)
        for context in CONTEXTS
        for seed, (count, sampling) in enumerate(
            [(10, {"temperature": 1.0}), (1, {"temperature": 0.7}), (0, {}), (20, {"temperature": 1.3, "top_k": 6})]
        )
    ]
    sampled_beyond = 0
    for one, generation in zip(asked, served.generate(*asked), strict=True):
        expected, count = distributions(model, generation, one), one.sampling.top_logprobs
        sampled = expected[np.arange(len(expected)), generation.output_ids]
        np.testing.assert_allclose(generation.logprobs, sampled, atol=1e-5)
        if count == 0:
            assert generation.top_logprobs is None
            continue
        assert generation.top_logprobs is not None
        largest = -np.sort(-expected)[:, :count]
        np.testing.assert_allclose(generation.top_logprobs, largest, atol=1e-5)
        assert np.isneginf(generation.top_logprobs[:, 6:]).all() == (one.sampling.top_k == 6 or count <= 6)
        sampled_beyond += int((generation.logprobs < generation.top_logprobs[:, -1]).sum())
    assert sampled_beyond > 10


def test_a_stop_in_the_last_place_is_a_stop_and_no_other_token_ends_a_turn(
    served: Served, decoder: Decoder, ended_by: int
) -> None:
    context = CONTEXTS[-1]
    for limit, reason in [(4, StopReason.LENGTH), (5, StopReason.STOP), (8, StopReason.STOP)]:
        asked = request(context, temperature=0.0, max_tokens=limit)
        (generation,) = served.generate(asked, stop_id=ended_by)
        assert (len(generation.output_ids), generation.stop) == (min(limit, 5), reason)
    (goes_on,) = served.generate(request(context, temperature=0.0, max_tokens=8))
    assert goes_on.output_ids[4] == ended_by
    assert (len(goes_on.output_ids), goes_on.stop) == (8, StopReason.LENGTH)


def test_siblings_share_their_prefix_and_a_reset_empties_it(served: Served) -> None:
    context = as_ids(np.random.default_rng(9).integers(3, 200, 100))
    assert served.cached_tokens(context) == 0
    asked = [request(context, seed, max_tokens=4, top_logprobs=10) for seed in range(8)]
    siblings = served.generate(*asked)
    assert len({generation.output_ids.tobytes() for generation in siblings}) > 1
    for generation in siblings:
        assert generation.top_logprobs is not None
        assert siblings[0].top_logprobs is not None
        np.testing.assert_allclose(generation.top_logprobs[0], siblings[0].top_logprobs[0], atol=1e-5)
    assert served.cached_tokens(context) == 96
    served.run(served.server.clear_kv_cache())
    assert served.cached_tokens(context) == 0


def test_a_cache_that_vllm_cannot_empty_is_an_error(served: Served) -> None:
    async def reset_while_running() -> None:
        turn = asyncio.create_task(engine_of(served.server.generate).generate(request(CONTEXTS[2], max_tokens=200)))
        while not served.server.engine.output_processor.request_states:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        try:
            with pytest.raises(StaleEngine, match="did not empty its prefix cache"):
                await served.server.clear_kv_cache()
        finally:
            await turn
        await served.server.clear_kv_cache()

    served.run(reset_while_running())


def test_an_aborted_turn_is_an_infrastructure_error(served: Served) -> None:
    async def abort() -> None:
        turn = asyncio.create_task(
            engine_of(served.server.generate).generate(request(CONTEXTS[2], max_tokens=200, top_logprobs=5))
        )
        while not served.server.engine.output_processor.request_states:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        await served.server.abort_all_requests()
        with pytest.raises(InfrastructureError, match="session 0: abort"):
            await turn
        await served.server.resume_generation()

    served.run(abort())
    (generation,) = served.generate(request(CONTEXTS[2], max_tokens=4))
    assert len(generation.output_ids) == 4
