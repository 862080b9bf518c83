"""What cannot be trained is refused before Ray starts and before the run's folder is made."""

import asyncio
import json
import os
import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed
from conftest import compose_config
from whole_runs import config_in

from experiments.training import train
from rtpo.errors import ConfigError, DataError, MachineError
from rtpo.harness.episodes import opening_context
from rtpo.run.config import RunConfig
from rtpo.run.model_folder import chat_format
from rtpo.run.run import StopRequest
from rtpo.run.tasks import load_tasks, take
from rtpo.types import Task
from rtpo.verl_harness import session

start_ray = session.start_ray


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "start_ray", lambda _: pytest.fail("Ray was started"))


def test_a_model_that_the_embedded_engine_does_not_compute_is_refused(results: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(config_in(results).model.path, model)
    described = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(described | {"model_type": "gemma2"}))
    config = config_in(results, f"model.path={model}")
    with pytest.raises(ConfigError, match=r"model: model_type is .gemma2.: .* Use such a model, or"):
        train(config, StopRequest())
    (model / "config.json").write_text(json.dumps(described | {"layer_types": ["full_attention"]}))
    with pytest.raises(DataError, match=r"config\.json is no qwen3 model's"):
        train(config, StopRequest())
    assert not config.folder.exists()


def test_a_prompt_over_the_limit_is_refused_where_the_budget_reaches_it(results: Path) -> None:
    """Of the tasks in a run's order, two are reached."""
    small = ("algorithm=grpo", "algorithm.chains=2", "budget.rollouts=2", "budget.tasks_per_step=1")
    small += ("task.held_out.split=validation", "task.held_out.count=1", "task.max_prompt_tokens=14")

    def prompt_tokens(config: RunConfig, task: Task) -> int:
        limits = replace(config.task.limits, max_prompt_tokens=1000)
        opening = asyncio.run(config.task.make_env().reset(task))
        return len(opening_context(chat_format(config), opening, task, limits))

    found: dict[bool, RunConfig] = {}
    for seed in range(8):
        config = config_in(results, *small, f"seed={seed}", algorithm=())
        tasks = load_tasks(config.task, config.task.train)
        lengths = [prompt_tokens(config, task) for task in take(tasks, 0, len(tasks), seed)]
        assert max(lengths) > 14
        found[max(lengths[:2]) > 14] = config
    with pytest.raises(DataError, match=r"task\.max_prompt_tokens"):
        train(found[True], StopRequest())
    with pytest.raises(pytest.fail.Exception, match="Ray was started"):
        train(found[False], StopRequest())


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("+engine=vllm_cpu", "warm_start_math"),  # whose heads vLLM's CPU build does not take
        ("actor.ppo_epoch=2", "actor.ppo_epoch"),
        ("rollout.engine_kwargs.embedded.thread=3", "embedded.thread"),
        ("model=3", "actor_rollout_ref.model"),
        ("actor.use_dynamic_bsz=lots", "actor.use_dynamic_bsz"),
        ("rollout.tensor_model_parallel_size=0", "tensor_model_parallel_size"),
        ("actor.use_dynamic_bsz=false", "use_dynamic_bsz"),
        ("ref.log_prob_max_token_len_per_gpu=9", "ref.log_prob_max_token_len_per_gpu"),
        ("model.override_config.attn_implementation=eager", "attn_implementation"),
        ("actor.loss_agg_mode=foo", "loss_agg_mode"),
        ("rollout.mode=sync", "rollout"),
    ],
)
def test_what_verl_would_refuse_is_refused_before_ray_starts(override: str, named: str, results: Path) -> None:
    whole = override if override.startswith("+engine") else f"++verl.actor_rollout_ref.{override}"
    config = config_in(results, whole, "budget.optimizer_steps=4")
    with pytest.raises(ConfigError, match=named):
        train(config, StopRequest())
    assert not config.folder.exists()


def test_a_run_with_vllm_where_there_is_none_is_refused(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "find_spec", lambda name: None)
    with pytest.raises(MachineError, match=r"^profile toy_vllm runs vLLM, which is not installed: "):
        session.open_backend(config_in(results, "+engine=vllm_cpu"))


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["+engine=vllm_cpu", "deterministic=true"], "it holds with the embedded engine alone"),
        (
            ["+engine=vllm_cpu", "algorithm=rtpo_sync_kl", "verl.actor_rollout_ref.rollout.free_cache_engine=true"],
            "sync_kl",
        ),
        (["profile=a100x8", "verl.actor_rollout_ref.rollout.name=embedded"], "with this profile use vllm"),
        (["verl.actor_rollout_ref.rollout.name=sglang"], "with this profile use embedded or vllm"),
        (["profile.logical_cpus=2"], r"profile\.logical_cpus is 2"),
    ],
)
def test_an_engine_is_one_that_the_platform_has_and_does_what_is_asked(overrides: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        compose_config(*overrides)


WARM = ["start", "warm_up"]


@pytest.mark.parametrize(("platform", "said"), [("cpu", ["start", "restart"]), ("cuda", [*WARM, "close", *WARM])])
@pytest.mark.parametrize(("kl", "has_reference"), [(0.02, True), (0, False)])
def test_a_trainer_on_gpus_is_warm_and_ends_before_another_starts(
    platform: Any, said: list[str], kl: float, has_reference: bool, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or evaluation after training would read the model, and a save's optimizer, beside all that training pinned. It
    has the reference worker where the method asks for it."""
    config = config_in(results, f"algorithm.kl={kl}")
    settings, done = session.settings_of(config), []
    from rtpo.verl_harness import backend

    class Listening:
        def __init__(self, _: object, *, with_reference: bool) -> None:
            assert with_reference is has_reference
            done.append("start")

        def __getattr__(self, name: str) -> Any:
            return lambda *_: done.append(name)

    monkeypatch.setattr(backend, "VerlBackend", Listening)
    monkeypatch.setattr(session, "start_ray", lambda _: None)
    monkeypatch.setattr(session, "settings_of", lambda _: settings)
    monkeypatch.setattr(session, "_open", None)
    for _ in range(2):
        session.open_backend(replace(config, profile=replace(config.profile, platform=platform)))
    assert done == said


@pytest.mark.parametrize(
    ("overrides", "said", "served"),
    [
        (["profile=a100x8"], ("cpu:gloo,cuda:nccl", timedelta(hours=1)), torch.bfloat16),
        (
            ["profile=a100x1", "verl.actor_rollout_ref.nccl_timeout=60"],
            ("cpu:gloo,cuda:nccl", timedelta(0, 60)),
            torch.bfloat16,
        ),
        (["profile=toy"], ("cpu:gloo", None), None),
    ],
)
def test_ranks_wait_as_long_as_the_settings_say_and_vllm_is_sent_weights_in_its_precision(
    overrides: list[str],
    said: tuple[str, timedelta | None],
    served: torch.dtype | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker's start where a run has several machines, and the model is not built yet."""
    session.settings_of(compose_config())  # verl settles its platform when it is imported
    from verl.utils import distributed

    from rtpo.verl_harness import worker

    told: list[dict[str, Any]] = []
    sent: list[torch.dtype] = []
    monkeypatch.setenv("MASTER_ADDR", "192.0.2.1")  # as verl sets it
    monkeypatch.setenv("RTPO_SOCKETS", "word")
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: bool(told))
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda **given: told.append(given))
    for module in (worker, distributed):
        monkeypatch.setattr(module, "get_device_name", lambda: "cuda" if served else "cpu")
    monkeypatch.setattr(distributed, "get_nccl_backend", lambda: "nccl")
    job = SimpleNamespace(get_job_id=lambda: "job")
    monkeypatch.setattr(worker.ray, "get_runtime_context", lambda: job, raising=False)

    def init_model() -> None:  # as verl's does
        distributed.initialize_global_process_group_ray(timeout_second=None)

    rollout = SimpleNamespace(zmq_handle="ipc:///tmp/job.sock") if served else None
    if rollout:
        rollout.update_weights = lambda weights, **_: sent.extend(weight.dtype for _, weight in weights)
    config = session.settings_of(compose_config(*overrides)).actor_rollout_ref
    start: Any = worker.AgentWorker.start
    actor = SimpleNamespace(set_loss_fn=lambda _: None)
    start(SimpleNamespace(config=config, actor=actor, init_model=init_model, rollout=rollout))
    (first,) = told
    assert (first["backend"], first["timeout"]) == said
    if rollout:
        rollout.update_weights([("weight", torch.ones(2, dtype=torch.float32))])
    assert sent == [served] * bool(served)


@pytest.mark.parametrize(("device", "multiple"), [("cuda", 128), ("cpu", 1)])
def test_trees_on_a_gpu_are_laid_out_in_whole_blocks(
    device: str, multiple: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.settings_of(compose_config())
    from rtpo.verl_harness import fsdp_engine

    rows = SimpleNamespace(device=torch.device(device), unbind=lambda: [torch.ones(3)], tolist=lambda: [0])
    rows.cpu = lambda: rows
    micro_batch: Any = dict.fromkeys(("tree", "input_ids", "loss_mask"), rows)

    def forest(*_: Any, multiple: int) -> None:
        raise InterruptedError(multiple)

    monkeypatch.setattr(fsdp_engine, "forest", forest)
    monkeypatch.setattr(fsdp_engine.tu, "get_non_tensor_data", lambda *_, default: default)
    with pytest.raises(InterruptedError, match=rf"^{multiple}$"):
        fsdp_engine.tree_inputs(None, micro_batch)


def test_a_ray_that_does_not_start_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: object) -> None:
        raise Exception("The current node timed out during startup.\nmore")  # as Ray does

    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(session, "_started", None)
    monkeypatch.setattr(session.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(session.ray, "init", init)
    with pytest.raises(MachineError, match=r"^Ray did not start: The current node timed out during startup\. [^\n]*$"):
        start_ray(compose_config("profile=toy").profile)


def test_a_start_that_failed_binds_the_next_to_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise MachineError("no Ray.")

    monkeypatch.setattr(session, "start_ray", fail)
    for steps in (4, 5):
        with pytest.raises(MachineError, match="no Ray"):
            train(config_in(tmp_path, f"budget.optimizer_steps={steps}"), StopRequest())
