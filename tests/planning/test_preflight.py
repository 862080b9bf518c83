"""The preflight: a sentence for each thing that is missing, and nothing made by looking."""

import json
import shutil
import socket
from dataclasses import replace
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest

from experiments.preflight import main
from rtpo.errors import MachineError
from rtpo.planning import preflight
from rtpo.planning.memory import Saves
from rtpo.planning.preflight import Gpu, gpus, problems
from rtpo.run.config import PROJECT
from rtpo.run.experiments import Experiment, load_experiment
from rtpo.run.records import JOURNAL, RunFolder
from rtpo.run.run import model_sha256

ONE = ("algorithm=rtpo", "seed=0")
TOY = ("profile=toy", "task=toy_math", *ONE)
WARM_START = PROJECT / "rtpo" / "toy" / "warm_start_math"


def toy(results: Path, *overrides: str) -> Experiment:
    return load_experiment("main_table", [*TOY, f"results={results}", *overrides])


def paper(results: Path, *overrides: str) -> Experiment:
    """The math element of the paper's profile, with a toy model and one file of tasks for all data."""
    data = results.parent / "tasks.jsonl"
    data.write_text(json.dumps({"uid": "a", "question": "1 + 1 = ?", "answers": ["2"]}) + "\n")
    files = [f"task.{name}.file={data}" for name in ("train", "held_out")]
    model = ["model.name=toy", f"model.path={WARM_START}"]
    experiment = load_experiment(
        "main_table", ["profile=a100x8", "task=math_paper", *ONE, f"results={results}", *files, *model, *overrides]
    )
    return replace(experiment, elements=tuple(replace(one, benchmarks=()) for one in experiment.elements))


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts an nvidia-smi in the path that prints these rows (index, MiB in all, MiB used)."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def put(*rows: tuple[int, int, int], status: int = 0) -> None:
        program = tmp_path / "bin" / "nvidia-smi"
        program.parent.mkdir(exist_ok=True)
        text = "\n".join(f"{index}, {total}, {used}" for index, total, used in rows)
        program.write_text(f"#!/bin/sh\necho '{text}'\nexit {status}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")

    return put


def test_nothing_is_missing_for_the_toy_and_nothing_is_made(results: Path) -> None:
    assert problems(toy(results)) == problems(toy(results), here=True) == []
    assert not results.exists()


def test_the_command_says_what_it_found(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["main_table", *TOY, f"results={results}"]
    assert main([*given, "--here"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("main_table, profile toy, 1 elements: nothing is missing:")
    assert said.rstrip().endswith("this machine")
    assert main([*given, f"model.path={results}"]) == 1
    assert f"model.path is {results}: there is no {results}" in capsys.readouterr().err
    assert main(["main_table", "profile=a100"]) == 1
    assert "a100" in capsys.readouterr().err


def test_files_that_are_missing_are_each_named_once(results: Path, tmp_path: Path) -> None:
    experiment = load_experiment(
        "main_table",
        ["profile=a100x8", "task=math_paper,search_paper", "seed=0", "algorithm=rtpo,grpo", f"results={results}"],
    )
    assert len(experiment.elements) == 4
    found = problems(experiment, evaluation=[f"data={tmp_path}"])
    assert sum(f"model.path is {PROJECT / 'models' / 'Qwen3-8B'}: there is no " in one for one in found) == 1
    assert any(f"hf download Qwen/Qwen3-8B --local-dir {PROJECT / 'models' / 'Qwen3-8B'}." in one for one in found)
    for folder, names in ((PROJECT / "data", ("math_train", "hard_search")), (tmp_path, ("aime24", "2wiki"))):
        elsewhere = f" --folder {tmp_path}" if folder == tmp_path else ""
        for name in names:
            (sentence,) = [one for one in found if f"data file {folder / name}.jsonl cannot be read" in one]
            assert sentence.endswith(f": python experiments/prepare_data.py {name}{elsewhere} makes it.")
    assert sum("is no whole search index" in one for one in found) == 1
    assert sum("needs vllm, which is not installed" in one for one in found) == (not list(distributions(name="vllm")))


def test_thinking_cannot_be_left_out_with_a_tokenizer_that_has_no_tags(results: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(WARM_START, model)
    file = model / "tokenizer.json"
    file.write_text(file.read_text(encoding="utf-8").replace("</think>", "</thought>"), encoding="utf-8")
    (sentence,) = problems(toy(results, f"model.path={model}"))
    assert "does not have </think> as single token(s): use rollout_context=full" in sentence
    assert problems(toy(results, f"model.path={model}", "algorithm.rollout_context=full")) == []


def test_a_damaged_data_file_is_named_by_its_line(results: Path, tmp_path: Path) -> None:
    (tmp_path / "math500.jsonl").write_text("{no JSON\n")
    experiment = paper(results)
    experiment = replace(
        experiment, elements=tuple(replace(one, benchmarks=("math500",)) for one in experiment.elements)
    )
    found = problems(experiment, evaluation=[f"data={tmp_path}"])
    assert any(f"line 1 of {tmp_path / 'math500.jsonl'}" in one for one in found)
    found = problems(experiment, evaluation=["samples=0"])
    assert any("samples is 0" in one for one in found)


def test_settings_that_cannot_be_are_said(results: Path, tmp_path: Path) -> None:
    wide = "verl.actor_rollout_ref.rollout.tensor_model_parallel_size=3"
    few = ("launch.resources.gpus=4", "launch.resources.nodes=2", "profile.logical_cpus=4")
    found = problems(paper(results, *few, wide))
    for sentence in (
        "launch.resources.gpus is 4, and profile.processes 8",
        "launch.resources.nodes is 2 and profile.nodes 1",
        "profile.logical_cpus is 4, and 8 training process(es) with their engines need 18",
        "tensor_model_parallel_size is 3, which does not divide 8",
    ):
        assert any(sentence in one for one in found), sentence
    misspelt = problems(paper(results, "+verl.actor_rollout_ref.actor.ppo_epoch=2"))
    assert any("ppo_epoch is not a verl setting: the nearest is ppo_epochs." in one for one in misspelt)
    other = shutil.copytree(WARM_START, tmp_path / "gemma2")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"model_type": "gemma2"}))
    found = problems(toy(results, f"model.path={other}"))
    assert any(f"{other}: model_type is 'gemma2': " in one for one in found)
    assert any(
        f"{other}/config.json: model_type gemma2 is not one of" in one
        for one in problems(paper(results, f"model.path={other}"))
    )


def test_what_does_not_fit_the_profiles_machine_is_said_before_it_is_asked_for(results: Path) -> None:
    """By the plan's estimate, of models that are not here."""

    def said(*overrides: str) -> list[str]:
        chosen = ["task=math_paper", "algorithm=grpo", "seed=0", f"results={results}", *overrides]
        found = problems(load_experiment("main_table", chosen))
        return [one for one in found if "estimated to need" in one]

    for name in ("a100x8", "a100x1", "h100x8", "h100x1", "h200x8", "h200x1"):
        assert said(f"profile={name}") == []
    assert said("profile=h200x1", "launch.models.main=Qwen3-8B")
    batch = "verl.actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
    (sentence,) = said("profile=a100x8", f"{batch}=262144")
    assert f"and one of 8xA100-80G has 79 GiB: lower {batch}, or take" in sentence
    assert "a row may have 20,680 tokens" in sentence
    (sentence,) = said("profile=a100x8", "verl.actor_rollout_ref.rollout.gpu_memory_utilization=0.99")
    assert "lower verl.actor_rollout_ref.rollout.gpu_memory_utilization," in sentence
    gpu, host = said("profile=a100x1", "launch.models.main=Qwen3-8B")
    assert "and one of 1xA100-80G has 79 GiB" in gpu
    assert host.startswith("launch.resources.memory_gb is 96, and Qwen3-8B is estimated to need 148 GiB of a node's ")
    for memory, needed in ((100, "190 GiB of a node"), (512, "of which 8xA100-80G has 256")):
        (sentence,) = said("profile=a100x8", f"launch.resources.memory_gb={memory}")
        assert sentence.startswith(f"launch.resources.memory_gb is {memory}, and Qwen3-8B is estimated to need 190 GiB")
        assert needed in sentence


def test_masks_of_trees_that_a_cpu_does_not_hold_are_refused(results: Path) -> None:
    (sentence,) = problems(toy(results, "verl.actor_rollout_ref.actor.ppo_max_token_len_per_gpu=65536"))
    assert sentence.startswith("launch.resources.memory_gb is 4, and masks of prefix trees of verl.")


def test_a_folder_of_another_configuration_is_refused(results: Path) -> None:
    experiment = toy(results)
    run = experiment.elements[0].run
    RunFolder(run.folder).open(run.as_dict())
    assert problems(toy(results, "optimizer.lr=0.25")) == []  # nothing was trained
    (run.folder / JOURNAL).write_text("a charge\n")
    before = {file: file.read_bytes() for file in results.rglob("*") if file.is_file()}
    assert problems(experiment) == []
    (sentence,) = problems(toy(results, "optimizer.lr=0.25"))
    assert "holds a run with another configuration; different: optimizer.lr was" in sentence
    assert {file: file.read_bytes() for file in results.rglob("*") if file.is_file()} == before
    # beside a run of its label
    assert problems(toy(results, "seed=5")) == []
    (sentence,) = problems(toy(results, "seed=5", "optimizer.lr=0.25"))
    assert sentence.startswith(f"{run.folder} is of the same label and experiment, and tables would take both")
    assert "different: optimizer.lr was" in sentence


def test_a_finished_run_of_another_model_is_refused(results: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(WARM_START, model)
    experiment = toy(results, f"model.path={model}")
    run = experiment.elements[0].run
    folder = RunFolder(run.folder)
    folder.open(run.as_dict())
    folder.finish({"schema": 1, "ledger": {}, "model_sha256": model_sha256(str(model))}, keep=1)
    preflight._weights_sha256.cache_clear()
    assert problems(experiment) == []
    shutil.copyfile(PROJECT / "rtpo/toy/warm_start_knowledge/model.safetensors", model / "model.safetensors")
    preflight._weights_sha256.cache_clear()
    (sentence,) = problems(experiment)
    assert "model.safetensors differs from the manifest" in sentence


def test_room_on_disk_is_that_of_all_elements_or_of_one_here(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "saves", lambda run: Saves(300 << 30, 300 << 30))
    monkeypatch.setattr(shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(2 << 40, 1 << 40, 800 << 30))
    experiment = toy(results, "seed=0,1")
    (sentence,) = problems(experiment)
    assert "save.keep saves of each of 2 element(s) that are not finished, and one being written, are " in sentence
    # of 600 at most 300 are kept
    assert "estimated at 900 GiB and " in sentence
    assert "has 800 GiB free" in sentence
    assert problems(experiment, here=True) == []
    monkeypatch.setattr(shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(2 << 40, 1 << 40, 900 << 30))
    assert problems(experiment) == []
    monkeypatch.setattr(shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(2 << 40, 1 << 40, 800 << 30))
    finished = RunFolder(experiment.elements[0].run.folder)
    finished.open(experiment.elements[0].run.as_dict())
    finished.finish({"schema": 1, "ledger": {}, "model_sha256": model_sha256(str(WARM_START))}, keep=1)
    assert problems(experiment) == []


def test_gpus_are_counted_and_measured(results: Path, smi: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = paper(results)

    def said(*words: str) -> bool:
        return any(all(word in one for word in words) for one in problems(experiment, here=True))

    monkeypatch.setattr(preflight, "environment_facts", lambda env, settings: {})
    monkeypatch.setenv("PATH", "/nowhere")
    assert said("trains with 8 process(es)", "and 0 can be seen here")
    smi(*((index, 81920, 4) for index in range(2)))
    assert said("trains with 8 process(es)", "and 2 can be seen here")
    smi(*((index, 4096, 4) for index in range(8)))
    assert said("toy is estimated to need", "on each GPU, and one of this machine has 4 GiB")
    smi(*((index, 81920, 4096 * (index == 3)) for index in range(8)))
    assert said("GPU 3 is in use: 4.0 of 80 GiB are taken")
    smi(status=9)
    assert said("nvidia-smi fails")
    smi(*((index, 81920, 4) for index in range(8)))
    assert [one for one in problems(experiment, here=True) if "requirements/gpu.txt" not in one] == []


def test_only_visible_gpus_count(smi: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(*((index, 81920, 1024 * index) for index in range(4)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3")
    assert gpus() == [Gpu(1, 80.0, 1.0), Gpu(3, 80.0, 3.0)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpus() == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-5f,GPU-6a,MIG-1")
    assert len(gpus()) == 3


def test_memory_that_nvidia_smi_does_not_give_is_a_sentence(smi: Any, tmp_path: Path) -> None:
    smi((0, 81920, 4))
    program = tmp_path / "bin" / "nvidia-smi"
    program.write_text("#!/bin/sh\necho '0, 81920, [N/A]'\n")
    with pytest.raises(MachineError, match=r"^nvidia-smi says '0, 81920, \[N/A\]' where a GPU's index, .* MIG mode"):
        gpus()


def test_a_cluster_that_is_not_there_and_too_few_cpus_are_said(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
        assert problems(toy(results), here=True) == []
    (sentence,) = problems(toy(results), here=True)
    assert f"RAY_ADDRESS is 127.0.0.1:{port}, and nothing can be reached there" in sentence
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "2")
    (sentence,) = problems(toy(results), here=True)
    assert "this allocation has 2 CPUs on a node" in sentence
    assert "need 4 in all" in sentence


def test_a_sandbox_that_cannot_be_made_is_said_here_alone(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = paper(results)
    monkeypatch.setenv("PATH", "/nowhere")
    preflight.environment_facts.cache_clear()
    assert not any("bubblewrap" in one or "bwrap" in one for one in problems(experiment))
    assert any("bubblewrap" in one or "bwrap" in one for one in problems(experiment, here=True))
