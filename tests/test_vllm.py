"""verl's vLLM server as the engine, beside what tests/test_engine_conformance.py asks of every engine: what vLLM leaves
to be worked out; what is caught when a synchronisation goes wrong; vLLM's engine in a process of its own."""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from engine_conformance import (
    STOP,
    Bench,
    Client,
    VllmInProcess,
    bench_of,
    folder_of,
    small_model,
    vllm_environment,
    vllm_server,
)
from ray.exceptions import RayActorError, RayTaskError
from transformers import Qwen3ForCausalLM

from experiments.speed.decoder import vllm_process
from rtpo.engines.base import Generation, Request, Sampling
from rtpo.engines.decoder import Decoder
from rtpo.errors import InfrastructureError, NonFinite, StaleEngine
from rtpo.types import Ids, StopReason, as_ids

T = TypeVar("T")
CONTEXTS = [as_ids(np.random.default_rng(n).integers(3, 200, n)) for n in (1, 5, 40, 41)]


@pytest.mark.parametrize(("device", "words"), [("", "not on this machine"), ("cuda", "cuda")])
def test_a_vllm_for_other_devices_is_not_started(
    device: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA's can be imported without a GPU, and finds no device."""
    stand_in(device, monkeypatch)
    with pytest.raises(pytest.skip.Exception, match=rf"no build for CPUs \(its device: {words}\)"):
        vllm_environment(tmp_path).__enter__()


def test_nothing_of_vllms_environment_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in("cpu", monkeypatch)
    monkeypatch.setattr(metadata, "version", lambda name: "0")
    before = dict(os.environ)
    with vllm_environment(tmp_path):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # as verl's server does
    assert dict(os.environ) == before


def stand_in(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of vLLM, for what is asked before it is started."""
    platforms = SimpleNamespace(current_platform=SimpleNamespace(device_type=device))
    for name, module in {"vllm": SimpleNamespace(), "vllm.platforms": platforms}.items():
        monkeypatch.setitem(sys.modules, name, module)


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


def engine_of(answer: Callable[..., Coroutine[Any, Any, Any]], stop_id: int = STOP) -> Any:
    from rtpo.verl_harness.engines import VllmEngine

    client: Any = Client(SimpleNamespace(generate=answer))
    return VllmEngine(client, stop_id)


def request(context: Ids, seed: int = 0, **sampling: Any) -> Request:
    return Request(context, Sampling(**sampling), seed, f"session {seed}")


def answered(reason: str | None, ids: Sequence[int], **fields: Any) -> Generation:
    """The generation made of an answer of verl's server."""
    from verl.workers.rollout.replica import TokenOutput

    async def answer(**_: Any) -> TokenOutput:
        extra = {"global_steps": 3, **({} if reason is None else {"finish_reason": reason}), **fields}
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


def test_log_probs_that_are_not_numbers_end_the_run() -> None:
    from verl.workers.rollout.replica import TokenOutput

    async def answer(**_: Any) -> TokenOutput:
        extra = {"global_steps": 3, "finish_reason": "stop"}
        return TokenOutput(token_ids=[8, STOP], log_probs=[-1.0, np.nan], extra_fields=extra)

    with pytest.raises(NonFinite, match="not finite"):
        asyncio.run(engine_of(answer).generate(request(as_ids([5]))))


# A synchronisation that goes wrong, on vLLM's engine in this process.


@pytest.fixture(scope="module")
def in_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("in_process")
    with vllm_environment(folder), bench_of(None) as bench:
        bench.subject = VllmInProcess(folder / "model")
        bench.run(bench.subject.server.launch_server())
        yield bench


@pytest.mark.parametrize("fault", ["skipped", "refused"])
def test_a_cache_that_is_not_emptied_at_a_synchronisation_is_caught(
    in_process: Bench, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = in_process.subject.server
    asked = request(CONTEXTS[3], max_tokens=4)
    in_process.push(0, 1)
    in_process.generate(asked)

    async def nothing(*_: Any, **__: Any) -> bool:
        return False

    if fault == "skipped":
        monkeypatch.setattr(server, "clear_kv_cache", nothing)
        monkeypatch.setattr(server, "wake_up", nothing)  # empties it, too
    else:
        monkeypatch.setattr(server.engine._engine, "reset_prefix_cache", nothing, raising=False)
    with pytest.raises(StaleEngine, match="its prefix cache"):
        in_process.push(1, 2)
    monkeypatch.undo()
    with pytest.raises(StaleEngine, match="given no weights yet"):
        in_process.generate(asked)
    in_process.push(1, 3)
    assert in_process.generate(asked)[0].policy_version == 3


def test_a_server_tells_that_its_workers_did_not_take_the_weights(in_process: Bench) -> None:
    server = in_process.subject.server
    in_process.push(0, 1)
    in_process.run(server.check_workers())
    with pytest.raises(ValueError, match="extra"):
        in_process.run(
            server.collective_rpc(
                "reload_weights", kwargs={"weights_iterator": iter([("model.extra", torch.zeros(1))])}
            )
        )
    with pytest.raises(InfrastructureError, match=r"vLLM's workers failed \(ValueError: .*extra[^\n]*$"):
        in_process.run(server.check_workers())
    in_process.push(0, 2)
    in_process.run(server.check_workers())


def test_a_turn_is_not_named_after_weights_that_came_while_it_ran(in_process: Bench) -> None:
    """verl names the version that it holds when a turn ends."""
    in_process.push(0, 1)

    async def sync_meanwhile() -> None:
        turn = asyncio.create_task(in_process.subject.engine.generate(request(CONTEXTS[3], max_tokens=50)))
        for _ in range(6):  # a step for each
            await asyncio.sleep(0)
        in_process.subject.server.global_steps = 2
        with pytest.raises(StaleEngine, match="version 2 of the weights while a turn of version 1"):
            await turn

    in_process.run(sync_meanwhile())


# The same server on vLLM's engine in a process of its own.


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vllm")
    with vllm_environment(folder):
        return folder_of(small_model(0, 32), folder / "model")


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


def test_the_benchmark_asks_vllm_in_a_process_of_its_own(model: Path, tmp_path: Path) -> None:
    batch = {"contexts": [ids.tolist() for ids in CONTEXTS], "new_tokens": 3}
    with vllm_process(Path(sys.executable), small_model(0, 32), tmp_path) as ask:
        assert ask(json.dumps(batch)) > 0.0
        assert ask(json.dumps(batch)) > 0.0  # whose cache is empty again
        with pytest.raises(RuntimeError, match="vLLM ended"):
            ask(json.dumps({"token": 1}))


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


@pytest.fixture(scope="module")
def served(model: Path, ended_by: int) -> Iterator[Served]:
    with vllm_environment(model.parent), asyncio.Runner() as runner:
        from rtpo.verl_harness.vllm_server import VllmServer

        server = vllm_server(VllmServer, model, load_format="auto")
        runner.run(server.launch_server())
        runner.run(server.set_global_steps(4))
        yield Served(server, runner)
        server.engine.shutdown()


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
