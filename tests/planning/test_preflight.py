"""The preflight: it names each thing that is missing, and makes nothing by looking."""

import json
import shutil
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from programs import put_programs

from experiments.preflight import main
from rtpo.errors import MachineError
from rtpo.planning import preflight
from rtpo.planning.memory import Saves
from rtpo.planning.preflight import Gpu, gpus, problems, unusable_gold_notes
from rtpo.run import beside
from rtpo.run.config import PROJECT
from rtpo.run.experiments import Experiment, load_experiment
from rtpo.run.lines import model_sha256
from rtpo.run.records import JOURNAL, RunFolder

ONE = ("algorithm=rtpo", "seed=0")
TOY = ("profile=toy", "task=toy_math", *ONE)
WARM_START = PROJECT / "rtpo" / "toy" / "warm_start_math"


def toy(results: Path, *overrides: str) -> Experiment:
    return load_experiment("main_table", [*TOY, f"results={results}", *overrides])


def paper(results: Path, *overrides: str) -> Experiment:
    """The math element of the paper's profile, with one file of tasks for all data and a toy model that takes contexts
    as long as the paper's."""
    data = results.parent / "tasks.jsonl"
    data.write_text(json.dumps({"uid": "a", "question": "1 + 1 = ?", "answers": ["2"]}) + "\n")
    files = [f"task.{name}.file={data}" for name in ("train", "held_out")]
    model = Path(shutil.copytree(WARM_START, results.parent / "long_model", dirs_exist_ok=True))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 40960}))
    chosen = ["profile=a100x8", "task=math_paper", *ONE, f"results={results}", *files]
    experiment = load_experiment("main_table", [*chosen, "model.name=toy", f"model.path={model}", *overrides])
    return replace(experiment, elements=tuple(replace(element, benchmarks=()) for element in experiment.elements))


def finish(folder: RunFolder, model: Path) -> None:
    folder.finish({"schema": 1, "ledger": {}, "model_sha256": model_sha256(str(model))}, keep=1)


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts an nvidia-smi in the path that prints these rows (index, MiB in all, MiB used), or fails without any."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def put(*rows: tuple[int, int | str, int]) -> None:
        text = "\n".join(f"{index}, {total}, {used}" for index, total, used in rows)
        put_programs(tmp_path, monkeypatch, **{"nvidia-smi": f"echo '{text}'\nexit {9 * (not rows)}"})

    return put


def test_nothing_is_missing_for_the_toy_and_nothing_is_made(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert problems(toy(results)) == problems(toy(results), here=True) == []
    arguments = ["main_table", *TOY, f"results={results}"]
    assert main([*arguments, "--here"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"python: {sys.executable}"
    assert main([*arguments, f"model.path={results}"]) == 1
    assert "model.path" in capsys.readouterr().err
    assert not results.exists()


def test_files_that_are_missing_are_each_named_once(results: Path, tmp_path: Path) -> None:
    chosen = ["profile=a100x8", "task=math_paper,search_paper", "seed=0", "algorithm=rtpo,grpo", f"results={results}"]
    missing = problems(load_experiment("main_table", chosen), evaluation=[f"data={tmp_path}"])
    model, data = PROJECT / "models" / "Qwen3-8B", PROJECT / "data"
    files = [data / "math_train.jsonl", data / "hard_search.jsonl", tmp_path / "aime24.jsonl", tmp_path / "2wiki.jsonl"]
    for named in (f"model.path is {model}", *(f"data file {file}" for file in files), "search index"):
        assert sum(named in problem for problem in missing) == 1, named


def test_golds_that_no_answer_can_equal_are_noted_and_stop_nothing(results: Path) -> None:
    experiment = paper(results)
    assert unusable_gold_notes(experiment) == []
    file = results.parent / "tasks.jsonl"
    with file.open("a") as out:
        out.write(json.dumps({"uid": "b", "question": "?", "answers": ["5", "{"]}) + "\n")
    (note,) = unusable_gold_notes(experiment)
    assert all(part in note for part in (str(file), "1 row", "'{'", "line 2"))


def test_settings_that_do_not_fit_are_named(results: Path) -> None:
    verl = ("+verl.actor_rollout_ref.actor.ppo_epoch=2", "verl.actor_rollout_ref.rollout.tensor_model_parallel_size=3")
    for override in ("launch.resources.gpus=4", "launch.resources.nodes=2", *verl):
        field = override.partition("=")[0].rpartition(".")[2]
        assert any(field in problem for problem in problems(paper(results, override)))


def test_a_model_or_data_file_that_does_not_fit_is_named(results: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(WARM_START, tmp_path / "model"))
    file = model / "tokenizer.json"
    file.write_text(file.read_text(encoding="utf-8").replace("</think>", "</thought>"), encoding="utf-8")
    (sentence,) = problems(toy(results, f"model.path={model}"))
    assert "rollout_context" in sentence
    assert problems(toy(results, f"model.path={model}", "algorithm.rollout_context=full")) == []
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"model_type": "gemma2"}))
    for experiment in (toy(results, f"model.path={model}"), paper(results, f"model.path={model}")):
        assert any("gemma2" in problem for problem in problems(experiment))

    (tmp_path / "math500.jsonl").write_text("{no JSON\n")
    (element,) = experiment.elements
    experiment = replace(experiment, elements=(replace(element, benchmarks=("math500",)),))
    assert any("math500.jsonl" in problem for problem in problems(experiment, evaluation=[f"data={tmp_path}"]))


def test_what_does_not_fit_is_said_before_it_is_asked_for(results: Path) -> None:
    """By the plan's estimate, of models that are not here."""
    for overrides, fields in (
        *((f"profile={name}", "") for name in ("a100x8", "a100x1", "h100x8", "h200x8", "h200x1")),
        ("profile=a100x8 verl.actor_rollout_ref.actor.ppo_max_token_len_per_gpu=262144", "ppo_max_token_len_per_gpu"),
        ("profile=a100x8 verl.actor_rollout_ref.rollout.gpu_memory_utilization=0.99", "gpu_memory_utilization"),
        ("profile=a100x1 launch.models.main=Qwen3-8B", "1xA100-80G launch.resources.memory_gb"),
        ("profile=a100x8 launch.resources.memory_gb=100", "launch.resources.memory_gb"),
    ):
        chosen = ["task=math_paper", "algorithm=grpo", "seed=0", f"results={results}", *overrides.split()]
        shortages = [each for each in problems(load_experiment("main_table", chosen)) if "estimated to need" in each]
        assert all(field in problem for field, problem in zip(fields.split(), shortages, strict=True))


def test_a_folder_of_another_configuration_or_model_is_refused(results: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(WARM_START, tmp_path / "model"))
    own = (f"model.path={model}",)
    experiment = toy(results, *own)
    run = experiment.elements[0].run
    folder = RunFolder(run.folder)
    folder.open(run.as_dict())
    assert problems(toy(results, *own, "optimizer.lr=0.25")) == []  # nothing was trained
    (run.folder / JOURNAL).write_text("a charge\n")
    assert problems(experiment) == problems(toy(results, *own, "seed=5")) == []
    for other in (("optimizer.lr=0.25",), ("seed=5", "optimizer.lr=0.25")):  # in its folder, and beside it
        (sentence,) = problems(toy(results, *own, *other))
        assert "optimizer.lr" in sentence

    finish(folder, model)
    beside._weights_sha256.cache_clear()
    assert problems(experiment) == []
    shutil.copyfile(PROJECT / "rtpo/toy/warm_start_knowledge/model.safetensors", model / "model.safetensors")
    beside._weights_sha256.cache_clear()
    (sentence,) = problems(experiment)
    assert "model.safetensors" in sentence


def test_an_evaluation_that_tables_would_refuse_beside_others_is_refused(results: Path) -> None:
    """Beside kept frames, and beside an evaluation in a run's folder."""
    kept = "main_table_toy_toy_math"
    shutil.copytree(PROJECT / "results" / kept, results / kept)
    assert problems(toy(results, "seed=7")) == problems(toy(results), evaluation=["samples=8"]) == []  # seed 0 is there
    for setting, field in (("samples=8", "samples was 4 and is 8"), ("limit=3", "panel.questions was 500 and is 3")):
        (sentence,) = problems(toy(results, "seed=7"), evaluation=[setting])
        assert field in sentence
    shutil.rmtree(results / kept)
    experiment = toy(results)
    folder = RunFolder(experiment.elements[0].run.folder)
    folder.open(experiment.elements[0].run.as_dict())
    folder.finish(
        {"schema": 1, "ledger": {}, "policy_version": 3, "model_sha256": model_sha256(str(WARM_START))}, keep=1
    )
    evaluation = {
        "schema": 1,
        "benchmark": "toy_math",
        "samples": 4,
        "settings": {},
        "limits": {},
        "panel": {"questions": 500},
    }
    file = folder.path / "toy_math" / "manifest.json"
    file.parent.mkdir()
    for version, field in (
        (3, "temperature was 1.0 and is 0.6"),
        (2, ""),
    ):  # of the trained policy, and of an earlier one
        own = {"decoding": {"temperature": 1.0}, "checkpoint": {"policy_version": version}}
        file.write_text(json.dumps(evaluation | own))
        assert [field in sentence for sentence in problems(toy(results, "seed=7"))] == ([True] if field else [])


def test_room_on_disk_is_that_of_all_elements_or_of_one_here(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def free(gib: int) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(2 << 40, 1 << 40, gib << 30))

    monkeypatch.setattr(preflight, "saves", lambda run: Saves(300 << 30, 300 << 30))
    experiment = toy(results, "seed=0,1")
    free(1200)
    assert problems(experiment) == []
    free(1100)
    (sentence,) = problems(experiment)
    assert "1,200 GiB" in sentence  # two are kept, and two written at once
    assert problems(experiment, here=True) == []
    for needed, settings in (
        (900, {"at_once": 1}),
        (600, {"at_once": 1, "keep": "nothing"}),
        (1200, {"keep": "weights"}),
    ):
        free(needed)
        assert problems(replace(experiment, **settings)) == []
        free(needed - 1)
        assert len(problems(replace(experiment, **settings))) == 1
    free(800)
    finished = RunFolder(experiment.elements[0].run.folder)
    finished.open(experiment.elements[0].run.as_dict())
    finish(finished, WARM_START)
    assert problems(experiment) == []


def test_gpus_are_counted_and_measured(results: Path, smi: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = paper(results)
    monkeypatch.setattr(preflight, "environment_facts", lambda env, settings: {})
    monkeypatch.setenv("PATH", "/nowhere")
    assert any("and 0 can be seen here" in problem for problem in problems(experiment, here=True))
    for gpus_here, words in (
        ([(index, 81920, 4) for index in range(2)], "and 2 can be seen here"),
        ([(index, 4096, 4) for index in range(8)], "one of this machine has 4 GiB"),
        ([(index, 81920, 4096 * (index == 3)) for index in range(8)], "GPU 3 is in use"),
        ([], "nvidia-smi fails"),
    ):
        smi(*gpus_here)
        assert any(words in problem for problem in problems(experiment, here=True))
    smi(*((index, 81920, 4) for index in range(8)))
    assert [problem for problem in problems(experiment, here=True) if "requirements/gpu.txt" not in problem] == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3")
    assert gpus() == [Gpu(index, 80.0, 4 / 1024) for index in (1, 3)]
    smi((0, "[N/A]", 4))
    with pytest.raises(MachineError, match="nvidia-smi"):
        gpus()


def test_a_machine_that_lacks_a_cluster_cpus_or_a_sandbox_is_said(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{listening.getsockname()[1]}")
        assert problems(toy(results), here=True) == []
    (sentence,) = problems(toy(results), here=True)
    assert "RAY_ADDRESS" in sentence
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "2")
    (sentence,) = problems(toy(results), here=True)
    assert "2 CPUs" in sentence
    monkeypatch.setenv("PATH", "/nowhere")
    preflight.environment_facts.cache_clear()
    experiment = paper(results)
    assert not any("bwrap" in problem for problem in problems(experiment))
    assert any("bwrap" in problem for problem in problems(experiment, here=True))
