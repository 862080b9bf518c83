"""What cannot be trained is refused before Ray starts and before the run's folder is made."""

import json
import math
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from conftest import compose_config
from local_backend import LocalBackend
from omegaconf import OmegaConf
from ray.exceptions import RayActorError, RayTaskError
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig
from whole_runs import StopAt, config_in

from experiments import training
from experiments.training import check_and_load, train
from rtpo.errors import ConfigError, DataError, InfrastructureError, MachineError, Stopped
from rtpo.run.lines import model_sha256
from rtpo.run.model_folder import positions_of
from rtpo.run.stopping import StopRequest
from rtpo.run.tasks import load_tasks
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


def test_a_run_goes_on_from_the_model_that_it_began_with_alone(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Path(shutil.copytree(config_in(results).model.path, tmp_path / "model"))
    config = config_in(results, f"model.path={model}")
    with monkeypatch.context() as plain:
        plain.setattr(session, "open_backend", LocalBackend)
        with pytest.raises(Stopped):
            train(config, StopAt(2))
    began = (model / "model.safetensors").read_bytes()
    weights = load_file(model / "model.safetensors")
    save_file({name: weight + 1 for name, weight in weights.items()}, model / "model.safetensors")
    with pytest.raises(DataError, match=r"model\.safetensors differs"):
        train(config, StopRequest())
    (model / "model.safetensors").write_bytes(began)
    described = (model / "config.json").read_text()
    (model / "config.json").write_text(f"{described}\n")
    with pytest.raises(DataError, match=r"different: config\.json"):
        train(config, StopRequest())
    (model / "config.json").write_text(described)
    with monkeypatch.context() as fewer:
        fewer.setattr(
            training, "load_tasks", lambda task, of: load_tasks(task, of)[: 3 if of is task.held_out else None]
        )
        with pytest.raises(DataError, match="different: held-out tasks"):
            train(config, StopRequest())
    monkeypatch.setattr(session, "open_backend", LocalBackend)
    assert train(config, StopRequest()).manifest["model_sha256"] == model_sha256(str(model))


def test_contexts_longer_than_the_models_are_refused_before_a_run_begins(results: Path) -> None:
    limit = "task.max_context_tokens"
    positions = positions_of(Path(config_in(results).model.path))
    assert positions is not None
    check_and_load(config_in(results, f"{limit}={positions}"))
    with pytest.raises(ConfigError, match=limit):
        train(config_in(results, f"{limit}={positions + 1}"), StopRequest())


def test_a_prompt_over_the_limit_is_refused_where_the_budget_reaches_it(results: Path) -> None:
    """Of all 40 tasks some are too long; of the two that a small budget reaches, by the seed."""
    small = ("task.held_out.split=validation", "task.held_out.count=1", "task.max_prompt_tokens=14")

    def is_refused(seed: int, rollouts: int) -> bool:
        algorithm = ("algorithm=grpo", "algorithm.chains=2", "budget.tasks_per_step=1", f"budget.rollouts={rollouts}")
        try:
            check_and_load(config_in(results, *small, f"seed={seed}", algorithm=algorithm))
        except DataError as error:
            return "task.max_prompt_tokens" in str(error)
        return False

    assert all(is_refused(seed, rollouts=80) for seed in range(8))
    assert {is_refused(seed, rollouts=2) for seed in range(8)} == {True, False}


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("+engine=vllm_cpu", "head size"),  # which vLLM's CPU build does not take
        ("++{roles}.rollout.engine_kwargs.embedded.thread=3", "embedded.thread"),
        ("++{roles}.actor.use_dynamic_bsz=lots", "actor.use_dynamic_bsz"),
        ("++{roles}.rollout.tensor_model_parallel_size=0", "tensor_model_parallel_size"),
        ("++{roles}.ref.log_prob_max_token_len_per_gpu=9", "ref.log_prob_max_token_len_per_gpu"),
        ("++{roles}.model.override_config.attn_implementation=eager", "attn_implementation"),
        ("++{roles}.rollout.mode=sync", "rollout is refused by verl"),
        ("++{roles}.actor.checkpoint.save_contents=[model,extra]", "checkpoint.save_contents"),
        ("++{roles}.actor.policy_loss.loss_mode=gspo", "policy_loss"),
        ("++{roles}.rollout.repetition_penalty=1.1", "repetition_penalty"),
        ("++{roles}.model.path=/another", "model.path"),
        ("++verl.trainer.total_epochs=3", "trainer.total_epochs"),
        ("++verl.algorithm.use_kl_in_reward=true", "verl.algorithm"),
    ],
)
def test_what_verl_or_a_run_would_not_heed_is_refused_before_ray_starts(
    override: str, named: str, results: Path
) -> None:
    config = config_in(results, override.format(roles="verl.actor_rollout_ref"), "budget.optimizer_steps=4")
    with pytest.raises(ConfigError, match=named):
        train(config, StopRequest())
    assert not config.folder.exists()


def test_bf16_is_refused_where_the_processor_has_none_and_said_in_one_place(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "has_bf16", lambda: False)
    with pytest.raises(ConfigError, match=r"^profile\.precision is bf16, .* use fp32"):
        train(config_in(results, "profile.precision=bf16"), StopRequest())
    with pytest.raises(ConfigError, match=r"rollout\.dtype .* set profile\.precision alone"):
        config_in(results, "verl.actor_rollout_ref.rollout.dtype=bfloat16")


def test_a_bucket_of_weights_holds_the_largest_tensor_or_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "has_bf16", lambda: True)
    LlamaConfig(vocab_size=49158, hidden_size=576, num_hidden_layers=1, num_attention_heads=9).save_pretrained(tmp_path)
    vllm = ("+engine=vllm_cpu", f"model.path={tmp_path}")
    key = "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes"
    for size in (2, 4):
        settings = session.settings_of(compose_config(*vllm, f"profile.precision={'fp32' if size == 4 else 'bf16'}"))
        assert OmegaConf.select(settings, key) == math.ceil(49158 * 576 * size / 2**20)
    assert OmegaConf.select(session.settings_of(compose_config(*vllm, f"++verl.{key}=300")), key) == 300
    with pytest.raises(ConfigError, match=r"megabytes is 50 and the largest tensor of .* has 109 MiB"):
        session.settings_of(compose_config(*vllm, f"++verl.{key}=50"))


def test_a_run_with_vllm_where_there_is_none_is_refused(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "find_spec", lambda name: None)
    with pytest.raises(MachineError, match=r"^profile vllm_cpu runs vLLM, which is not installed: "):
        session.open_backend(config_in(results, "+engine=vllm_cpu"))


def test_what_a_machine_lacks_is_said_before_anything_is_written(results: Path) -> None:
    config = config_in(results, "profile=a100x1", "profile.track=[]")
    with pytest.raises(MachineError, match="profile a100x1 needs"):
        train(config, StopRequest())
    assert not config.folder.exists()


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["+engine=vllm_cpu", "deterministic=true"], "deterministic"),
        (["profile=a100x8", "verl.actor_rollout_ref.rollout.name=embedded"], "use vllm"),
        (["profile.logical_cpus=2"], r"profile\.logical_cpus is 2"),
    ],
)
def test_an_engine_is_one_that_the_platform_has_and_does_what_is_asked(overrides: list[str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        compose_config(*overrides)


WARM = ["start", "warm_up"]


@pytest.mark.parametrize(("platform", "said"), [("cpu", ["start", "restart"]), ("cuda", [*WARM, "close", *WARM])])
def test_a_trainer_on_gpus_is_warm_and_ends_before_another_starts(
    platform: Any, said: list[str], results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or evaluation after training would read the model, and a save's optimizer, beside all that training pinned."""
    config = config_in(results)
    settings, done = session.settings_of(config), []
    from rtpo.verl_harness import backend

    class Listening:
        def __init__(self, _: object, *, with_reference: bool) -> None:
            assert with_reference  # of the KL
            done.append("start")

        def __getattr__(self, name: str) -> Any:
            return lambda *_: done.append(name)

    monkeypatch.setattr(backend, "VerlBackend", Listening)
    monkeypatch.setattr(session, "start_ray", lambda _: None)
    monkeypatch.setattr(session, "check_machine", lambda _: None)
    monkeypatch.setattr(session, "settings_of", lambda _: settings)
    monkeypatch.setattr(session, "_open", None)
    for _ in range(2):
        session.open_backend(replace(config, profile=replace(config.profile, platform=platform)))
    assert done == said


def test_ranks_wait_as_long_as_the_settings_say_and_vllm_is_sent_weights_in_its_precision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker's start where a run has several machines, and the model is not built yet."""
    session.settings_of(compose_config())  # verl settles its platform when it is imported
    from rtpo.verl_harness import worker

    told: list[Any] = []
    monkeypatch.setenv("MASTER_ADDR", "192.0.2.1")  # as verl sets it
    monkeypatch.setenv("RTPO_SOCKETS", "word")
    monkeypatch.setattr(worker, "get_device_name", lambda: "cuda")
    monkeypatch.setattr(worker, "initialize_global_process_group_ray", lambda *arguments: told.append(arguments))
    job = SimpleNamespace(get_job_id=lambda: "job")
    monkeypatch.setattr(worker.ray, "get_runtime_context", lambda: job, raising=False)
    rollout = SimpleNamespace(zmq_handle="ipc:///tmp/job.sock")
    rollout.update_weights = lambda weights, **_: told.extend(weight.dtype for _, weight in weights)
    run = session.settings_of(compose_config("profile=a100x1", "verl.actor_rollout_ref.nccl_timeout=60"))
    actor, start = SimpleNamespace(set_loss_fn=lambda _: None), cast(Any, worker.AgentWorker.start)
    start(SimpleNamespace(config=run.actor_rollout_ref, actor=actor, init_model=lambda: None, rollout=rollout))
    rollout.update_weights([("weight", torch.ones(2, dtype=torch.float32))])
    assert told == [(60, None), torch.bfloat16]


def test_a_failed_start_of_ray_is_one_sentence_and_ctrl_c_waits_until_ray_has_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the middle Ctrl-C can lock Ray's client for ever."""
    profile, started = compose_config("profile=toy").profile, []

    def init(**_: object) -> None:
        if started:
            raise Exception("The current node timed out during startup.\nmore")  # as Ray does
        signal.raise_signal(signal.SIGINT)
        started.append(True)

    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(session, "_started", None)
    monkeypatch.setattr(session, "ray", SimpleNamespace(is_initialized=lambda: False, init=init))
    with pytest.raises(KeyboardInterrupt):
        start_ray(profile)
    assert started
    with pytest.raises(MachineError, match=r"^Ray did not start: The current node timed out during startup\. [^\n]*$"):
        start_ray(profile)


def test_a_plain_run_keeps_rays_token_in_memory_and_joins_no_cluster_that_a_file_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a token in the environment Ray writes one into the home, for all to read; without an address it takes
    that of a file in /tmp, which another user may have written."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.setattr(session, "_started", None)
    asked: list[dict[str, Any]] = []
    ray = SimpleNamespace(is_initialized=lambda: False, init=lambda **options: asked.append(options))
    ray.cluster_resources = lambda: {"CPU": 99, "GPU": 99}
    monkeypatch.setattr(session, "ray", ray)
    start_ray(compose_config("profile=toy").profile)
    assert asked[0]["address"] == "local"
    assert len(token := environment["RAY_AUTH_TOKEN"]) == 64
    assert token not in str(asked)  # what Ray keeps of a job's settings, others may read
    for own in ({"RAY_AUTH_TOKEN": "mine"}, {"RAY_AUTH_MODE": "disabled"}):
        del environment["RAY_AUTH_TOKEN"]
        environment |= own
        monkeypatch.setattr(session, "_started", None)
        start_ray(compose_config("profile=toy").profile)
        assert environment.get("RAY_AUTH_TOKEN") == own.get("RAY_AUTH_TOKEN")


@pytest.mark.parametrize(
    ("cause", "is_of_another_run"),
    [
        (FileNotFoundError("model_world_size_2_rank_0.pt"), True),
        (RuntimeError("Error(s) in loading state_dict"), True),
        (MemoryError(), False),
        (torch.OutOfMemoryError("CUDA out of memory"), False),
        (PermissionError("weights"), False),
    ],
)
def test_a_save_that_the_machine_cannot_load_now_is_not_to_be_deleted(
    cause: Exception, is_of_another_run: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    session.settings_of(compose_config())  # verl settles its platform when it is imported
    from rtpo.verl_harness.backend import VerlBackend

    def fail(_: str) -> None:
        raise RayTaskError("load_checkpoint", "a traceback", cause, "ray", 1, "::1")

    backend = object.__new__(VerlBackend)
    monkeypatch.setattr(VerlBackend, "_free_the_device", lambda _: None)
    backend._workers = SimpleNamespace(load_checkpoint=fail)
    with pytest.raises(DataError if is_of_another_run else MachineError, match="They are intact") as error:
        backend.load(tmp_path)
    assert ("Delete" in str(error.value)) == is_of_another_run


@pytest.mark.parametrize("call", ["save", "load"])
def test_a_trainer_that_ends_in_a_save_is_one_sentence(
    call: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    session.settings_of(compose_config())
    from rtpo.verl_harness.backend import VerlBackend

    def end(_: str) -> None:
        raise RayActorError

    backend = object.__new__(VerlBackend)
    monkeypatch.setattr(VerlBackend, "_free_the_device", lambda _: None)
    backend._workers = SimpleNamespace(load_checkpoint=end, save_checkpoint=end)
    with pytest.raises(InfrastructureError, match=r"^a training process ended, [^\n]*$"):
        getattr(backend, call)(tmp_path)


def test_settings_that_stay_as_in_verl_are_settings_of_verl() -> None:
    from rtpo.verl_harness.settings import AS_IN_VERL, verl_settings

    settings = OmegaConf.create()
    for key in AS_IN_VERL:
        OmegaConf.update(settings, f"actor_rollout_ref.{key}", None)
    verl_settings(settings)
    with pytest.raises(ConfigError, match="nosuch is not a verl setting"):
        verl_settings(OmegaConf.create({"actor_rollout_ref": {"rollout": {"nosuch": None}}}))


@pytest.mark.parametrize(
    ("nodes", "cpus", "named"), [(1, 99, r"profile\.nodes is 2 and the Ray cluster has 1 "), (2, 1, "has 1 CPU and")]
)
def test_a_cluster_without_the_nodes_or_processors_of_a_run_is_refused(
    nodes: int, cpus: int, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = SimpleNamespace(is_initialized=lambda: False, init=lambda **_: None)
    ray.nodes, ray.cluster_resources = lambda: nodes * [{"Alive": True}], lambda: {"CPU": cpus, "GPU": 99}
    monkeypatch.setattr(os, "environ", os.environ | {"RAY_ADDRESS": "192.0.2.1:6379"})
    monkeypatch.setattr(session, "_started", None)
    monkeypatch.setattr(session, "ray", ray)
    monkeypatch.setattr(session, "NODES_JOIN", 0)
    with pytest.raises(MachineError, match=named):
        start_ray(compose_config("profile=toy", "profile.nodes=2").profile)


@pytest.mark.parametrize(
    ("installed", "wrong"),
    [
        ({"torch": "2.11.0", "vllm": "0.24.0"}, None),
        ({"torch": "2.10.0+cu128", "vllm": "0.19.1"}, None),  # the set for drivers of CUDA 12
        ({"torch": "2.10.0", "vllm": "0.24.0"}, "vllm 0.19.1, and 0.24.0"),  # which were not resolved together
        ({"torch": "2.11.0", "vllm": "0.24.0+cpu"}, "built without"),
        ({"torch": "2.11.0", "vllm": ""}, "vllm, which is not installed"),
        ({"torch": "2.13.0", "vllm": "0.24.0"}, "torch 2.11.0, and 2.13.0"),
    ],
)
def test_a_profile_with_gpus_takes_the_packages_of_one_set(
    installed: dict[str, str], wrong: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_installed", installed.__getitem__)
    problems = list(session.package_problems(compose_config("profile=a100x8").profile))
    assert len(problems) == (wrong is not None)
    assert all(wrong in problem for problem in problems if wrong)


def test_a_temporary_folder_with_too_long_a_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the byte on at which the longest of Ray's sockets could not be bound, whose path has 107 at most."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.setattr(session, "ray", SimpleNamespace(is_initialized=lambda: False, init=lambda **_: 1 / 0))
    below = len("/ray/session_2026-01-01_00-00-00_000000_0000000/sockets/plasma_store")
    for length, why in ((107 - below, "Ray did not start"), (108 - below, "RAY_TMPDIR"), (70, "RAY_TMPDIR")):
        environment["TMPDIR"] = "/tmp/".ljust(length, "x")
        monkeypatch.setattr(session, "_started", None)
        with pytest.raises(MachineError, match=why):
            start_ray(compose_config("profile=toy").profile)


def test_a_start_that_failed_binds_the_next_to_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise MachineError("no Ray.")

    monkeypatch.setattr(session, "start_ray", fail)
    for steps in (4, 5):
        with pytest.raises(MachineError, match="no Ray"):
            train(config_in(tmp_path, f"budget.optimizer_steps={steps}"), StopRequest())
