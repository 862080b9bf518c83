"""Export without verl: what is refused, what is written, and that nothing half-written looks complete. The round trip
from runs of one and of two processes is in test_verl_two_processes.py."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import compose_config
from data_server import Hub, point_to
from huggingface_hub import constants
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM

import rtpo.run.export
from analysis.summary import summarise
from experiments.export import export, main
from experiments.launch import free_disk
from rtpo.core.chat import ChatFormat
from rtpo.core.files import write_sums
from rtpo.errors import DataError, FolderInUse, MachineError
from rtpo.evaluation.evaluate import evaluate
from rtpo.evaluation.panel import compose_evaluation
from rtpo.evaluation.policies import find_checkpoint
from rtpo.harness.budget import Budget, Ledger
from rtpo.run.cli import composed
from rtpo.run.config import PROJECT, RunConfig
from rtpo.run.experiments import Element
from rtpo.run.lines import model_sha256
from rtpo.run.records import RunFolder
from rtpo.run.run import Progress
from rtpo.types import Message, Opening

QUESTION = Opening((Message("user", " compute 12 + 5 * 3"),))
WARM_START = PROJECT / "rtpo" / "toy" / "warm_start_math"


@pytest.fixture(scope="module")
def model() -> Any:
    """The warm start, moved."""
    model = Qwen3ForCausalLM.from_pretrained(WARM_START, dtype=torch.float32)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    return model


def save(folder: RunFolder, state: dict[str, torch.Tensor]) -> None:
    """As a run of one process saves, after its third step."""

    def write(place: Path) -> dict[str, Any]:
        place.mkdir()
        torch.save(state, place / "model_world_size_1_rank_0.pt")
        (place / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": 1}))
        return {"policy_version": 7}

    ledger = Ledger(Budget(100), rollouts=42).as_dict()
    folder.save("step00003", {"name": "step00003", "progress": Progress(step=3), "ledger": ledger}, write, keep=1)


@pytest.fixture
def config(results: Path) -> RunConfig:
    return compose_config(f"results={results}", "experiment_name=e")


@pytest.fixture
def run(config: RunConfig, model: Any) -> RunFolder:
    """That has saved and is not finished."""
    folder = RunFolder(config.folder)
    folder.open(config.as_dict())
    asked = ChatFormat(AutoTokenizer.from_pretrained(WARM_START)).opening(QUESTION)
    folder.append("rollouts.jsonl", [{"turns": [{"context_ids": asked.tolist()}]}])
    save(folder, model.state_dict())
    return folder


def finished(folder: RunFolder) -> None:
    ledger = Ledger(Budget(100), rollouts=42).as_dict()
    folder.finish({"schema": 1, "ledger": ledger, "model_sha256": model_sha256(str(WARM_START))}, keep=1)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_the_folder_is_a_model_and_is_not_written_over(
    run: RunFolder, model: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    export(run.path, out)
    assert same(AutoModelForCausalLM.from_pretrained(out).state_dict(), model.state_dict())
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        assert (out / name).read_bytes() == (WARM_START / name).read_bytes()
    assert AutoTokenizer.from_pretrained(out).chat_template
    assert len({file.stat().st_mode & 0o777 for file in out.iterdir()}) == 1

    before = {file: file.stat().st_mtime_ns for file in out.iterdir()}
    assert main([str(run.path), str(out)]) == 1
    assert str(out) in capsys.readouterr().err
    assert {file: file.stat().st_mtime_ns for file in out.iterdir()} == before


def test_the_card_names_an_own_model_and_counts_right_answers_of_those_graded(
    results: Path, model: Any, tmp_path: Path
) -> None:
    own = shutil.copytree(WARM_START, tmp_path / "my_own_model")
    config = compose_config(f"results={results}", f"model.path={own}")
    folder = RunFolder(config.folder)
    folder.open(config.as_dict())
    graded = [("graded", 1), ("graded", 0), ("ungradable", None)]
    lines = [{"grade": grade, "reward": reward, "when": "after", "mode": "greedy"} for grade, reward in graded]
    folder.append("evaluations.jsonl", lines)
    save(folder, model.state_dict())
    finished(folder)
    export(folder.path, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "base_model: my_own_model\n" in card
    assert "after training, greedy: 1 of 2 graded answers\n" in card


def test_halved_weights_in_several_files_are_evaluated(
    run: RunFolder, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    monkeypatch.setattr(rtpo.run.export, "FILE_BYTES", 100_000)
    assert main([str(run.path), str(out), "--dtype", "bfloat16"]) == 0
    files = sorted(out.glob("*.safetensors"))
    assert len(files) > 2
    assert all(file.stat().st_size < 105_000 for file in files)
    loaded = AutoModelForCausalLM.from_pretrained(out)
    assert loaded.dtype == torch.bfloat16
    assert same(loaded.state_dict(), {name: value.bfloat16() for name, value in model.state_dict().items()})
    overrides = [f"checkpoint={out}", f"results={tmp_path}", "benchmarks=[toy_math]", "limit=2"]
    evaluation = compose_evaluation(composed("evaluate", [*overrides, "samples=1", "ks=[1]"]))
    assert evaluate(evaluation, summarise)["toy_math"]["questions"] == 2
    identity = find_checkpoint(evaluation).identity
    assert identity["model_sha256"] == model_sha256(str(out)) != model_sha256(str(WARM_START))


def test_what_is_no_trained_run_is_refused(run: RunFolder, config: RunConfig, tmp_path: Path) -> None:
    young = RunFolder(tmp_path / "young")
    young.open(config.as_dict())
    with run.held(), pytest.raises(FolderInUse):
        export(run.path, tmp_path / "out")
    finished(run)
    run.delete_saves()
    for place, named in ((run.path.parent, run.path.name), (run.path, run.path.name), (young.path, "young")):
        with pytest.raises(DataError, match=named):
            export(place, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("keep", ["save", "weights", "nothing"])
@pytest.mark.parametrize("experiment", ["mine", "main_table_toy_toy_math"])
def test_what_is_kept_of_a_finished_run(
    keep: str, experiment: str, results: Path, model: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    element = Element((), compose_config(f"results={results}", f"experiment_name={experiment}"), ())
    folder = RunFolder(element.run.folder)
    folder.open(element.run.as_dict())
    save(folder, model.state_dict())
    free_disk(element, keep)
    assert folder.required_save()  # it is not finished
    finished(folder)
    free_disk(replace(element, owner="main_table"), keep)
    assert folder.required_save()
    free_disk(element, keep)
    if keep == "save" or experiment != "mine":  # or read by drift and ladder
        assert folder.required_save()
        assert ("drift" in capsys.readouterr().out) is (keep != "save")
        return
    weights = folder.path / "export"
    with pytest.raises(DataError, match=re.escape(str(weights) if keep == "weights" else "train it again")):
        folder.required_save()
    assert weights.exists() is (keep == "weights")
    if keep == "weights":
        assert same(AutoModelForCausalLM.from_pretrained(weights).state_dict(), model.state_dict())


def test_another_model_is_refused(config: RunConfig, model: Any, tmp_path: Path) -> None:
    folder = RunFolder(config.folder)
    folder.open(config.as_dict())
    without = {name: value for name, value in model.state_dict().items() if name != "model.norm.weight"}
    for state in (without, without | {"model.norm.weight": torch.ones(65)}):
        save(folder, state)
        with pytest.raises(DataError, match=r"model\.norm\.weight"):
            export(folder.path, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results"]


def test_nothing_half_written_is_left(run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = run.path / "checkpoints" / "step00003" / "weights" / "model_world_size_1_rank_0.pt"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    for named in (r"model_world_size_1_rank_0\.pt", "weights"):
        with pytest.raises(DataError, match=named):
            export(run.path, tmp_path / "out")
        write_sums(weights.parents[1])
    weights.write_bytes(whole)
    write_sums(weights.parents[1])

    def stop(source: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "copyfile", stop)
    with pytest.raises(KeyboardInterrupt):
        export(run.path, tmp_path / "out")
    monkeypatch.undo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results"]
    (tmp_path / "out.partial").mkdir()  # of a killed export
    (tmp_path / "out.partial" / "model-00001-of-00009.safetensors").touch()
    export(run.path, tmp_path / "out")
    assert not (tmp_path / "out.partial").exists()
    assert len(list((tmp_path / "out").glob("*.safetensors"))) == 1


# to the Hub, of which tests/helpers/data_server.py is a stand-in


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Which takes weights by Git LFS alone."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", "mine")
    with Hub() as running:
        point_to(running, tmp_path / "cache", monkeypatch)
        monkeypatch.setenv("HF_TOKEN", running.let_in)
        yield running


def test_a_pushed_policy_is_the_folder_and_its_example_generates(hub: Hub, run: RunFolder, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main([str(run.path), str(out), "--push", "me/policy"]) == 0
    made = {"organization": "me", "name": "policy", "visibility": "private"}
    assert [{name: request[name] for name in made} for request in hub.made] == [made]
    files = {path: content for path, content in hub.files.items() if path.startswith("/me/policy/resolve/main/")}
    assert files == {f"/me/policy/resolve/main/{file.name}": file.read_bytes() for file in out.iterdir()}
    assert {token for _, path, token in hub.seen if "me/policy" in path} == {"Bearer mine"}
    (example,) = re.findall(r"^````python\n(.*?)^````$", (out / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    there = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "-c", example]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | there, capture_output=True, text=True, check=True)
    assert done.stdout.strip()
    assert hub.fetched("/me/policy/resolve/main/model.safetensors") == 1


def test_what_cannot_be_pushed_is_said_before_anything_is_written(
    hub: Hub, run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.pushed("/api/models/me/full/commit/main", b'{}\n{"key": "file", "value": {"path": "a", "content": ""}}\n')

    def refuse(repository: str, named: str) -> None:
        with pytest.raises((DataError, MachineError), match=named):
            export(run.path, tmp_path / "out", repository=repository)
        assert not (tmp_path / "out").exists()
        assert hub.made == []

    for repository in ("policy", "you/policy", "me/full"):
        refuse(repository, f"--push {repository}")
    monkeypatch.setenv("HF_TOKEN", "another")
    refuse("me/policy", "--push me/policy")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    refuse("me/policy", "Hub")


def test_a_push_that_fails_leaves_the_folder_and_says_how_to_go_on(
    hub: Hub, run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.refuses["main"] = 400
    out = tmp_path / "out"
    assert main([str(run.path), str(out), "--push", "me/policy"]) == 1
    assert f"hf upload me/policy {out}" in capsys.readouterr().err
    assert AutoModelForCausalLM.from_pretrained(out)
    assert not any("/resolve/" in path for path in hub.files)
