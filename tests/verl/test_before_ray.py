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

from baselines import grpo
from experiments.training import train
from rtpo.errors import ConfigError, DataError, MachineError
from rtpo.harness.episodes import opening_context
from rtpo.run.config import PROJECT, RunConfig
from rtpo.run.model_folder import chat_format
from rtpo.run.records import JOURNAL, RunFolder, machine
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


def test_a_start_that_failed_binds_the_next_to_nothing(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise MachineError("no Ray.")

    monkeypatch.setattr(session, "start_ray", fail)
    for steps in (4, 5):
        config = config_in(results, f"budget.optimizer_steps={steps}")
        with pytest.raises(MachineError, match="no Ray"):
            train(config, StopRequest())
        assert RunFolder(config.folder).config["budget"]["optimizer_steps"] == steps
    (config.folder / JOURNAL).write_text("a charge\n")
    with pytest.raises(DataError, match=r"budget\.optimizer_steps was 5 and is 6; .* Change them back"):
        train(config_in(results, "budget.optimizer_steps=6"), StopRequest())


def test_a_prompt_over_the_limit_is_refused_where_the_budget_reaches_it(results: Path) -> None:
    found: dict[bool, str] = {}
    for seed in range(8):
        small = ("algorithm=grpo", "algorithm.chains=2", "budget.rollouts=2", "budget.tasks_per_step=1", f"seed={seed}")
        config = config_in(
            results,
            *small,
            "task.held_out.split=validation",
            "task.held_out.count=1",
            "task.max_prompt_tokens=14",
            algorithm=(),
        )
        tasks = load_tasks(config.task, config.task.train)
        lengths = [prompt_tokens(config, task) for task in take(tasks, 0, len(tasks), seed)]
        assert max(lengths) > 14
        try:
            train(config, StopRequest())
        except DataError as error:
            found[False] = str(error)
            assert max(lengths[:2]) > 14
        except pytest.fail.Exception as started:
            found[True] = str(started)
            assert max(lengths[:2]) <= 14
    assert found[True] == "Ray was started"
    assert "task.max_prompt_tokens is 14" in found[False]


def prompt_tokens(config: RunConfig, task: Task) -> int:
    opening = asyncio.run(config.task.make_env().reset(task))
    return len(opening_context(chat_format(config), opening, task, replace(config.task.limits, max_prompt_tokens=1000)))


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("+actor.ppo_epoch=2", "actor.ppo_epoch is not a verl setting: the nearest is ppo_epochs."),
        ("+actor.fsdp_config.param_ofload=true", "param_ofload is not a verl setting: the nearest is param_offload."),
        ("+rollout.engine_kwargs.vlm.x=3", "engine_kwargs.vlm is not a verl setting: the nearest is vllm."),
        ("+rollout.engine_kwargs.embedded.thread=3", "embedded.thread is not a verl setting: the nearest is threads."),
        ("+ref.x=3", "actor_rollout_ref.ref.x is not a verl setting: there are "),
        ("model=3", "actor_rollout_ref.model is 3: verl has a mapping there."),
        ("actor.use_dynamic_bsz=lots", "actor.use_dynamic_bsz is 'lots': verl has true or false there."),
        ("actor.ppo_max_token_len_per_gpu=lots", "ppo_max_token_len_per_gpu is 'lots': verl has a number there."),
        ("rollout.tensor_model_parallel_size=0", "tensor_model_parallel_size is 0: use a number above 0."),
        (
            "actor.use_dynamic_bsz=false",
            "use_dynamic_bsz is False: rows are computed as trees, which needs True there.",
        ),
        (
            "+ref.log_prob_max_token_len_per_gpu=9",
            "ref.log_prob_max_token_len_per_gpu is 9: rows are computed as trees",
        ),
        (
            "model.override_config.attn_implementation=eager",
            "attn_implementation is 'eager': rows are computed as trees",
        ),
        ("+actor.loss_agg_mode=foo", "actor is refused by verl: Invalid loss_agg_mode: foo."),
        ("+actor.optim.lr_scheduler_type=linear", 'refused by verl: assert self.lr_scheduler_type in ["constant"'),
        ("+rollout.mode=sync", "rollout is refused by verl: Rollout mode 'sync' has been removed."),
    ],
)
def test_what_verl_would_refuse_is_refused_before_ray_starts(override: str, sentence: str, results: Path) -> None:
    plus = "+" * override.startswith("+")
    config = config_in(results, f"{plus}verl.actor_rollout_ref.{override.lstrip('+')}", "budget.optimizer_steps=4")
    with pytest.raises(ConfigError) as caught:
        train(config, StopRequest())
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not config.folder.exists()


def test_a_model_with_heads_that_vllms_cpu_build_does_not_take_is_refused(results: Path) -> None:
    config = config_in(results, "+engine=vllm_cpu")
    with pytest.raises(
        ConfigError, match=r"warm_start_math, whose heads are of 16: vLLM's CPU build takes 32, 64"
    ) as why:
        train(config, StopRequest())
    assert "\n" not in str(why.value)
    assert not config.folder.exists()


def test_heads_of_a_size_that_a_config_does_not_say_are_refused_with_vllm_on_a_cpu(
    results: Path, tmp_path: Path
) -> None:
    model = model_of(tmp_path, model_type="gpt2", head_dim=None, hidden_size=None, n_embd=64, n_head=2)
    config = config_in(results, "+engine=vllm_cpu", f"model.path={model}")
    with pytest.raises(ConfigError, match=r"whose config\.json has no hidden_size: vLLM's CPU build takes"):
        train(config, StopRequest())


def test_training_row_by_row_is_said(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rtpo.verl_harness import backend

    other = model_of(tmp_path, model_type="gemma2")
    config = config_in(results, "profile=a100x8", "model.name=other", f"model.path={other}")
    monkeypatch.setattr(session, "find_spec", lambda name: name)
    monkeypatch.setattr(session, "start_ray", lambda profile: None)
    monkeypatch.setattr(session, "_open", None)
    monkeypatch.setattr(backend, "VerlBackend", lambda *_, **__: SimpleNamespace(warm_up=list))
    session.open_backend(config)
    assert capsys.readouterr().out == "other is trained row by row, not on prefix trees: model_type is 'gemma2'\n"


@pytest.mark.parametrize(
    ("overrides", "needed", "kept"),
    [
        (("algorithm=grpo", "algorithm.kl=0.02"), False, True),
        (("algorithm=grpo", "algorithm.kl=0"), False, False),
        (("algorithm=grpo", "algorithm.kl=0"), True, True),
        (("algorithm=vanilla", "algorithm.kl=0.02"), False, False),
    ],
)
def test_the_reference_worker_is_there_where_the_method_asks_for_it(
    results: Path, monkeypatch: pytest.MonkeyPatch, overrides: tuple[str, ...], needed: bool, kept: bool
) -> None:
    from rtpo.verl_harness import backend

    config = config_in(results, *overrides, algorithm=())
    monkeypatch.setattr(grpo, "ALGORITHM", replace(grpo.ALGORITHM, needs_reference=needed))
    monkeypatch.setattr(session, "start_ray", lambda profile: None)
    monkeypatch.setattr(session, "_open", None)
    monkeypatch.setattr(backend, "VerlBackend", lambda settings, *, with_reference: with_reference)
    assert session.open_backend(config) is kept


def model_of(folder: Path, **changes: Any) -> Path:
    """The toy model's folder with other fields in its config.json; None leaves one out."""
    model = shutil.copytree(PROJECT / "rtpo/toy/warm_start_math", folder / "other")
    config = json.loads((model / "config.json").read_text()) | changes
    kept = {name: value for name, value in config.items() if value is not None or name not in changes}
    (model / "config.json").write_text(json.dumps(kept))
    return model


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
    ],
)
def test_an_engine_is_one_that_the_platform_has_and_does_what_is_asked(overrides: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        compose_config(*overrides)


WARM = ["start", "warm up"]


@pytest.mark.parametrize(("platform", "said"), [("cpu", ["start", "restart"]), ("cuda", [*WARM, "close", *WARM])])
def test_a_trainer_on_gpus_is_warm_and_ends_before_another_starts(
    platform: Any, said: list[str], results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or evaluation after training would read the model, and a save's optimizer, beside all that training pinned."""
    config = config_in(results)
    settings, done = session.settings_of(config), []
    from rtpo.verl_harness import backend

    class Listening:
        def __init__(self, *_: object, **__: object) -> None:
            done.append("start")

        def warm_up(self) -> None:
            done.append("warm up")

        def close(self) -> None:
            done.append("close")

        def restart(self, _: object) -> None:
            done.append("restart")

    monkeypatch.setattr(backend, "VerlBackend", Listening)
    monkeypatch.setattr(session, "start_ray", lambda _: None)
    monkeypatch.setattr(session, "settings_of", lambda _: settings)
    monkeypatch.setattr(session, "_open", None)
    for _ in range(2):
        session.open_backend(replace(config, profile=replace(config.profile, platform=platform)))
    assert done == said


@pytest.mark.parametrize(
    ("device", "overrides", "said"),
    [
        ("cuda", ["profile=a100x8"], ("cpu:gloo,cuda:nccl", timedelta(hours=1))),
        (
            "cuda",
            ["profile=a100x1", "verl.actor_rollout_ref.nccl_timeout=60"],
            ("cpu:gloo,cuda:nccl", timedelta(0, 60)),
        ),
        ("cpu", ["profile=toy"], ("cpu:gloo", None)),
    ],
)
def test_ranks_wait_as_long_as_the_settings_say(
    device: str, overrides: list[str], said: tuple[str, timedelta | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what torch is told, where the model is not built yet."""
    session.settings_of(compose_config())  # verl settles its platform when it is imported
    from verl.utils import distributed

    from rtpo.verl_harness import worker

    told: list[dict[str, Any]] = []
    monkeypatch.setenv("MASTER_ADDR", "192.0.2.1")  # as verl sets it where a run has several machines
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: bool(told))
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda **given: told.append(given))
    for module in (worker, distributed):
        monkeypatch.setattr(module, "get_device_name", lambda: device)
    monkeypatch.setattr(distributed, "get_nccl_backend", lambda: "nccl")
    settings = session.settings_of(compose_config(*overrides))
    building = SimpleNamespace(
        config=settings.actor_rollout_ref,
        # as verl's does
        init_model=lambda: distributed.initialize_global_process_group_ray(timeout_second=None),
        actor=SimpleNamespace(set_loss_fn=lambda _: None),
        rollout=None,
    )
    start: Any = worker.AgentWorker.start
    start(building)
    (first,) = told
    assert (first["backend"], first["timeout"]) == said


def test_vllm_is_sent_weights_in_the_precision_that_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = session.settings_of(compose_config("profile=a100x1"))
    from rtpo.verl_harness import worker

    sent: list[torch.dtype] = []
    rollout = SimpleNamespace(zmq_handle="ipc:///tmp/job.sock")
    rollout.update_weights = lambda weights, **_: sent.extend(weight.dtype for _, weight in weights)
    monkeypatch.setenv("MASTER_ADDR", "192.0.2.1")
    monkeypatch.setenv("RTPO_SOCKETS", "word")
    monkeypatch.setattr(worker, "initialize_global_process_group_ray", lambda *_: None)
    monkeypatch.setattr(
        worker.ray, "get_runtime_context", lambda: SimpleNamespace(get_job_id=lambda: "job"), raising=False
    )
    actor = SimpleNamespace(set_loss_fn=lambda _: None)
    start: Any = worker.AgentWorker.start
    start(SimpleNamespace(config=settings.actor_rollout_ref, init_model=lambda: None, actor=actor, rollout=rollout))
    rollout.update_weights([("weight", torch.ones(2, dtype=torch.float32))])
    assert sent == [torch.bfloat16]


@pytest.mark.parametrize(("device", "multiple"), [("cuda", 128), ("cpu", 1)])
def test_trees_on_a_gpu_are_laid_out_in_whole_blocks(
    device: str, multiple: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.settings_of(compose_config())
    from rtpo.verl_harness import fsdp_engine

    class LaidOut(Exception):
        pass

    class OnDevice(SimpleNamespace):
        def keys(self) -> list[str]:
            return ["tree"]

        def __getitem__(self, _: str) -> Any:
            rows = torch.nested.nested_tensor([torch.ones(3)], layout=torch.jagged)
            return SimpleNamespace(device=torch.device(device), cpu=lambda: rows, tolist=lambda: [0])

    def forest(*_: Any, multiple: int, **__: Any) -> None:
        raise LaidOut(multiple)

    monkeypatch.setattr(fsdp_engine, "forest", forest)
    monkeypatch.setattr(fsdp_engine.tu, "get_non_tensor_data", lambda *_, default: default)
    with pytest.raises(LaidOut) as laid:
        fsdp_engine.tree_inputs(None, OnDevice())  # type: ignore[arg-type]
    assert laid.value.args == (multiple,)


@pytest.mark.parametrize("value", [None, "0"])
def test_the_choice_of_vllms_model_runner_reaches_workers_and_records(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, told = "VLLM_USE_V2_MODEL_RUNNER", []
    monkeypatch.setattr(os, "environ", dict(os.environ) | {"RAY_ADDRESS": "127.0.0.1:6379"})
    os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value
    monkeypatch.setattr(session, "_started", None)
    monkeypatch.setattr(session.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(session.ray, "init", lambda **given: told.append(given["runtime_env"]["env_vars"]))
    monkeypatch.setattr(session.ray, "nodes", lambda: [{"Alive": True}])
    monkeypatch.setattr(session.ray, "cluster_resources", lambda: {"CPU": 64, "GPU": 8})
    installed = {"vllm": "0.24.0", "torch": "2.11.0+cu130"}
    monkeypatch.setattr(session, "version", installed.__getitem__)
    start_ray(compose_config("profile=a100x8").profile)
    installed["vllm"] = "0.30.0"
    with pytest.raises(MachineError, match=r"^profile a100x8 needs vllm 0\.24\.0, and 0\.30\.0 is installed: install"):
        start_ray(compose_config("profile=a100x8").profile)
    assert [environment.get(name) for environment in told] == [machine().get(name)] == [value]


def test_a_ray_that_does_not_start_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: object) -> None:
        raise Exception("The current node timed out during startup.\nmore")  # as Ray does

    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(session, "_started", None)
    monkeypatch.setattr(session.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(session.ray, "init", init)
    with pytest.raises(MachineError, match=r"^Ray did not start: The current node timed out during startup\. [^\n]*$"):
        start_ray(compose_config("profile=toy").profile)
