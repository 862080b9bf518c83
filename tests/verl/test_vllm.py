"""verl's vLLM server as the engine, beside what test_engine_conformance.py asks of every engine: what vLLM leaves
to be worked out, and runs in which something goes wrong."""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import psutil
import pytest
import torch
from conftest import compose_config
from engine_conformance import STOP, TOY, vllm_config, vllm_device
from larger_heads import save_with_larger_heads
from ray.exceptions import RayActorError, RayTaskError

from experiments.training import train
from rtpo.engines.base import Generation, Request, Sampling
from rtpo.errors import InfrastructureError, NonFinite, RTPOError, StaleEngine
from rtpo.run.config import RunConfig
from rtpo.run.stopping import StopRequest
from rtpo.types import StopReason, as_ids

T = TypeVar("T")
QUICK = ("task.held_out.count=2", "evaluation.greedy=false")


@pytest.fixture(scope="module", autouse=True)
def _platform() -> None:
    """verl settles it when it is first imported."""
    from rtpo.verl_harness.session import settings_of

    settings_of(compose_config("profile=a100x1" if torch.cuda.is_available() else "profile=toy"))


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


def answered(reason: str | None, ids: Sequence[int], *, top_logprobs: Any = None, logprob: float = -1.0) -> Generation:
    """The generation made of an answer of verl's server, which is told of the one id that ends a turn."""
    from verl.workers.rollout.replica import TokenOutput

    async def answer(*_: Any, sampling_params: dict[str, Any], **__: Any) -> TokenOutput:
        assert (sampling_params["ignore_eos"], sampling_params["stop_token_ids"]) == (True, [STOP])
        extra = {"global_steps": 3, "finish_reason": reason, "top_logprobs": top_logprobs}
        known = {name: value for name, value in extra.items() if value is not None}
        return TokenOutput(token_ids=list(ids), log_probs=[logprob] * len(ids), extra_fields=known)

    from rtpo.verl_harness.engines import VllmEngine

    sampling = Sampling(top_logprobs=0 if top_logprobs is None else top_logprobs.shape[1])
    client: Any = SimpleNamespace(generate=answer)
    return asyncio.run(VllmEngine(client, STOP).generate(Request(as_ids([5]), sampling, 0, "session 0", "route 0")))


def test_a_turn_stopped_or_was_cut_off_as_vllm_says_or_is_no_turn() -> None:
    top = np.full((2, 4), -1.0, np.float32)
    stopped, cut = answered("stop", [8, STOP], top_logprobs=top), answered("length", [8, 9])
    assert (stopped.stop, cut.stop, stopped.policy_version) == (StopReason.STOP, StopReason.LENGTH, 3)
    assert stopped.top_logprobs is top
    assert cut.top_logprobs is None
    for reason in ("abort", "error", None):
        with pytest.raises(InfrastructureError, match=f"session 0: {reason or 'refused'}"):
            answered(reason, [8, 9])
    with pytest.raises(NonFinite, match="not finite"):
        answered("stop", [8, STOP], logprob=np.nan)


def test_an_error_of_an_actor_comes_as_it_was_or_as_one_sentence() -> None:
    from rtpo.verl_harness.engines import ray_failures, trainer_errors

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
    with pytest.raises(InfrastructureError, match=r"^a training process ended[^\n]*$"), trainer_errors():
        raise RayActorError()
    with pytest.raises(RayTaskError, match="a traceback"), trainer_errors():
        raise raised(ValueError("a fault"))


# A run in which something goes wrong, through verl's server, sender and worker extension.


@pytest.fixture(scope="module")
def short_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunConfig]:
    """A run of the toy task's model, with heads that vLLM's CPU build takes. `open_backend` gives the backend that it
    will have; a failure ends that one."""
    device = vllm_device()
    from rtpo.verl_harness.session import close_backend

    folder = tmp_path_factory.mktemp("short_run")
    save_with_larger_heads(TOY, folder / "model")
    settings = ["algorithm=grpo_exact", "budget.rollouts=128"]
    yield vllm_config(folder / "model", device, *settings, *QUICK, "optimizer.lr=0.0005", f"results={folder}")
    close_backend()


def inside(actor: Any, change: Callable[[Any], T]) -> T:
    """`change`, called with an actor's object in the actor's process."""
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # which that process cannot import
    answer: T = ray.get(actor.__ray_call__.remote(change))
    return answer


def send_changed(worker: Any, change: Callable[[str, Any], Any]) -> None:
    """Send what `change` makes of each weight, and none where that is None."""
    send = worker.rollout.update_weights

    async def update_weights(weights: Any, **options: Any) -> None:
        changed = ((name, change(name, weight)) for name, weight in weights)
        await send(((name, weight) for name, weight in changed if weight is not None), **options)

    worker.rollout.update_weights = update_weights


def lose_a_weight(worker: Any) -> None:
    send_changed(worker, lambda name, weight: None if name.endswith("1.mlp.up_proj.weight") else weight)


def cut_a_weight(worker: Any) -> None:
    send_changed(worker, lambda name, weight: weight[:3] if name == "model.norm.weight" else weight)


def keep_the_cache(worker: Any) -> None:
    """verl's adapter names the version of new weights and does not have the cache emptied."""

    class Forgetful:
        def __init__(self, server: object) -> None:
            self._server = server

        def __getattr__(self, name: str) -> object:
            return getattr(self._server, "check_workers" if name == "clear_kv_cache" else name)

    assert worker.rollout._ensure_server_handle()
    worker.rollout.server_handle = Forgetful(worker.rollout.server_handle)


FAULTS: dict[str, tuple[Callable[[Any], None], type[RTPOError], str]] = {
    "a weight that does not arrive": (
        lose_a_weight,
        InfrastructureError,
        r"vLLM's workers failed \(weights \['model\.layers\.1\.mlp\.up_proj\.weight'\] are missing",
    ),
    "a weight of another shape": (cut_a_weight, InfrastructureError, r"'model\.norm\.weight' has shape \(3,\) where"),
    "a cache that is not emptied": (keep_the_cache, StaleEngine, r"version \d and its prefix cache was not emptied"),
}


@pytest.mark.parametrize("algorithm", ["rtpo", "grpo_exact"])
def test_a_whole_run_ends_with_an_engine_that_agrees_with_the_trainer(short_run: RunConfig, algorithm: str) -> None:
    settings = [f"algorithm={algorithm}", "budget.rollouts=256", *QUICK, f"results={short_run.results}"]
    run = vllm_config(Path(short_run.model.path), vllm_device(), *settings)
    folder = train(replace(run, experiment_name="whole"), StopRequest())
    steps = [json.loads(line) for line in (folder.path / "steps.jsonl").read_text(encoding="utf-8").splitlines()]
    kl = [update["mismatch/engine/kl_k3"] for step in steps for update in step["updates"]]
    assert folder.is_finished
    assert kl
    assert max(kl) < run.profile.engine_kl_limit


@pytest.mark.parametrize("fault", FAULTS)
def test_a_synchronisation_that_goes_wrong_ends_the_run_in_its_cause(short_run: RunConfig, fault: str) -> None:
    from rtpo.verl_harness.session import open_backend

    change, error, sentence = FAULTS[fault]
    (worker,) = open_backend(short_run)._workers.workers
    inside(worker, change)
    with pytest.raises(error, match=sentence) as ended:
        train(replace(short_run, experiment_name=change.__name__), StopRequest())
    assert "\n" not in str(ended.value)


ENDED = r"vLLM's engine has ended: a process of it was killed or failed\."


@pytest.mark.parametrize(
    ("moment", "sentence"),
    [("before_the_weights_come", rf"{ENDED}|vLLM's workers failed \("), ("while_turns_are_waiting", ENDED)],
)
def test_a_killed_worker_of_vllm_ends_the_run_in_its_cause_and_the_same_command_goes_on(
    short_run: RunConfig, monkeypatch: pytest.MonkeyPatch, moment: str, sentence: str
) -> None:
    from rtpo.verl_harness.session import open_backend

    backend, run = open_backend(short_run), replace(short_run, experiment_name=moment)
    push = backend.push

    def kill_worker() -> None:
        server = psutil.Process(inside(backend._replicas[0].servers[0], lambda _: os.getpid()))
        (worker,) = [child for child in server.children(recursive=True) if "Worker" in child.name()]
        worker.kill()

    def push_and_kill(version: int) -> None:
        if (version, moment) == (1, "before_the_weights_come"):
            kill_worker()
        push(version)
        if (version, moment) == (1, "while_turns_are_waiting"):
            kill_worker()

    monkeypatch.setattr(backend, "push", push_and_kill)
    with pytest.raises(InfrastructureError, match=f"^({sentence})") as ended:
        train(run, StopRequest())
    assert "\n" not in str(ended.value)
    assert train(run, StopRequest()).is_finished
