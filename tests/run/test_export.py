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
import yaml
from conftest import compose_config
from data_server import Hub, point_to, serving
from huggingface_hub import constants
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM

import rtpo.run.export
from analysis.summary import summarise
from experiments.export import export, main
from rtpo.core.chat import ChatFormat
from rtpo.core.files import write_sums
from rtpo.errors import DataError, Held, MachineError
from rtpo.evaluation.evaluate import evaluate
from rtpo.evaluation.panel import compose_evaluation
from rtpo.evaluation.policies import find_checkpoint
from rtpo.harness.budget import Budget, Ledger
from rtpo.run.cli import composed
from rtpo.run.config import PROJECT, RunConfig
from rtpo.run.model_folder import check_same_model
from rtpo.run.records import RunFolder
from rtpo.run.run import Progress, model_sha256
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
    """A run that has saved and is not finished."""
    folder = RunFolder(config.folder)
    folder.open(config.as_dict())
    asked = ChatFormat(AutoTokenizer.from_pretrained(WARM_START)).opening(QUESTION)
    folder.append("rollouts.jsonl", [{"turns": [{"context_ids": asked.tolist()}]}])
    save(folder, model.state_dict())
    return folder


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_the_folder_is_a_model(run: RunFolder, model: Any, tmp_path: Path) -> None:
    export(run.path, tmp_path / "out")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert same(loaded.state_dict(), model.state_dict())
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (WARM_START / name).read_bytes()
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "out").iterdir()} == {
        (tmp_path / "out" / "README.md").stat().st_mode & 0o777
    }


def test_the_card_says_that_a_run_is_not_finished(run: RunFolder, tmp_path: Path) -> None:
    export(run.path, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    head, *blocks = (
        yaml.safe_load(block) for block in re.findall(r"^(?:---|```yaml)\n(.*?)^(?:---|```)$", card, re.M | re.S)
    )
    _, run_block, settings, ledger = blocks
    assert head["tags"] == ["rtpo", "toy"]
    assert head["license"] == "unknown"
    assert "**A toy run.**" in card
    assert "42 of 100 rollouts" in card
    assert "Not evaluated" in card
    assert (run_block["policy_version"], run_block["dtype"]) == (7, "float32")
    assert settings["algorithm"]["clip_low"] == 0.2
    assert ledger["rollouts"] == 42


def test_large_weights_have_several_files(
    run: RunFolder, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rtpo.run.export, "FILE_BYTES", 200_000)
    export(run.path, tmp_path / "out")
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    assert len(files) > 2
    assert all(file.stat().st_size < 210_000 for file in files)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert {name: file.name for file in files for name in load_file(file)} == index["weight_map"]
    assert same(AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict(), model.state_dict())


def test_the_weights_can_be_halved(run: RunFolder, model: Any, tmp_path: Path) -> None:
    assert main([str(run.path), str(tmp_path / "out"), "--dtype", "bfloat16"]) == 0
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert loaded.dtype == torch.bfloat16
    assert same(loaded.state_dict(), {name: value.bfloat16() for name, value in model.state_dict().items()})


def test_an_exported_policy_is_evaluated(run: RunFolder, tmp_path: Path) -> None:
    export(run.path, tmp_path / "out")
    overrides = [f"checkpoint={tmp_path / 'out'}", f"results={tmp_path}", "benchmarks=[toy_math]", "limit=2"]
    evaluation = compose_evaluation(composed("evaluate", [*overrides, "samples=1", "ks=[1]"]))
    assert evaluate(evaluation, summarise)["toy_math"]["questions"] == 2
    identity = find_checkpoint(replace(evaluation, checkpoint=str(tmp_path / "out"))).identity
    assert identity["model_sha256"] == model_sha256(str(tmp_path / "out")) != model_sha256(str(WARM_START))


def test_a_place_that_holds_something_is_refused(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    export(run.path, tmp_path / "out")
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "out").iterdir()}
    assert main([str(run.path), str(tmp_path / "out")]) == 1
    assert f"error: {tmp_path / 'out'} is there already, and not an empty folder" in capsys.readouterr().err
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "out").iterdir()} == before


def test_what_is_no_trained_run_is_refused(run: RunFolder, config: RunConfig, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"is no run's folder: give that of one of its runs, {run.path.name}\.$"):
        export(run.path.parent, tmp_path / "out")
    with run.held(), pytest.raises(Held, match="another process is running"):
        export(run.path, tmp_path / "out")
    run.finish({"schema": 1, "ledger": {}, "model_sha256": model_sha256(str(WARM_START))}, keep=1)
    run.delete_saves()
    with pytest.raises(DataError, match="any more: its saves were deleted: there are no weights"):
        export(run.path, tmp_path / "out")
    young = RunFolder(tmp_path / "young")
    young.open(config.as_dict())
    with pytest.raises(DataError, match="has no checkpoint yet"):
        export(young.path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_another_model_is_refused(config: RunConfig, model: Any, tmp_path: Path) -> None:
    known = model_sha256(str(WARM_START))
    check_same_model(config, {"model_sha256": known}, known)
    with pytest.raises(DataError, match=r"model\.safetensors differs from the manifest"):
        check_same_model(config, {"model_sha256": {"model.safetensors": "0"}}, known)
    folder = RunFolder(config.folder)
    folder.open(config.as_dict())
    state = model.state_dict()
    save(folder, {**state, "model.norm.weight": torch.ones(65)})
    with pytest.raises(DataError, match=r"model\.norm\.weight has shape \(65,\) there and \(64,\) here"):
        export(folder.path, tmp_path / "out")
    save(folder, {name: value for name, value in state.items() if name != "model.norm.weight"})
    with pytest.raises(DataError, match=r"model\.norm\.weight has shape None there"):
        export(folder.path, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results"]


def test_nothing_half_written_is_left(run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = run.path / "checkpoints" / "step00003" / "weights"
    whole = (weights / "model_world_size_1_rank_0.pt").read_bytes()
    (weights / "model_world_size_1_rank_0.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(
        DataError, match=r"model_world_size_1_rank_0\.pt is damaged, or its line in SHA256SUMS: its sha256"
    ):
        export(run.path, tmp_path / "out")
    write_sums(weights.parent)
    with pytest.raises(DataError, match=r"the weights in .* cannot be read"):
        export(run.path, tmp_path / "out")
    (weights / "model_world_size_1_rank_0.pt").write_bytes(whole)
    write_sums(weights.parent)

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


def example_of(folder: Path) -> str:
    """What the card shows, as written."""
    (example,) = re.findall(r"^````python\n(.*?)^````$", (folder / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    return str(example)


def generated(example: str, folder: Path, **environment: str) -> str:
    """What it prints in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", example],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_cards_example_generates(run: RunFolder, tmp_path: Path) -> None:
    export(run.path, tmp_path / "out")
    example = example_of(tmp_path / "out")
    assert "place = '.'  # this folder\n" in example
    assert "max_new_tokens=32, do_sample=True, temperature=1.0, top_p=1.0, top_k=0)" in example
    said = generated(example, tmp_path / "out", HF_HUB_OFFLINE="1").removesuffix("\n")
    assert 1 <= len(AutoTokenizer.from_pretrained(WARM_START).encode(said, add_special_tokens=False)) <= 32
    tokenizer, first = AutoTokenizer.from_pretrained(WARM_START), json.loads((run.path / "rollouts.jsonl").read_text())
    (prompt,) = re.findall(r"^prompt = (.*)$", example, re.MULTILINE)
    asked = tokenizer(eval(prompt), add_special_tokens=False)["input_ids"]
    assert asked == first["turns"][0]["context_ids"]


def test_without_a_recorded_rollout_the_example_is_unknown(run: RunFolder, tmp_path: Path) -> None:
    (run.path / "rollouts.jsonl").unlink()
    export(run.path, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "the run recorded no rollout" in card


# to the Hub, of which tests/helpers/data_server.py is a stand-in


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Which takes weights by Git LFS alone."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", "mine")
    with serving() as running:
        point_to(running, tmp_path / "cache", monkeypatch)
        monkeypatch.setenv("HF_TOKEN", running.let_in)
        yield running


def test_a_pushed_policy_is_the_folder_and_its_example_generates(hub: Hub, run: RunFolder, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main([str(run.path), str(out), "--push", "me/policy"]) == 0
    assert [(one["organization"], one["name"], one["visibility"]) for one in hub.made] == [("me", "policy", "private")]
    files = {path: content for path, content in hub.files.items() if path.startswith("/me/policy/resolve/main/")}
    assert files == {f"/me/policy/resolve/main/{file.name}": file.read_bytes() for file in out.iterdir()}
    assert {token for _, path, token in hub.seen if "me/policy" in path} == {"Bearer mine"}
    example = example_of(out)
    assert "place = 'me/policy'\n" in example
    there = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
    assert generated(example, tmp_path, **there).strip()
    assert hub.fetched("/me/policy/resolve/main/model.safetensors") == 1


def test_nothing_is_pushed_without_being_asked_for(hub: Hub, run: RunFolder, tmp_path: Path) -> None:
    assert main([str(run.path), str(tmp_path / "out")]) == 0
    assert hub.seen == []


@pytest.mark.parametrize(
    ("repository", "token", "said"),
    [
        ("policy", "mine", "name it OWNER/NAME"),
        ("a/b/c", "mine", "Repo id must be"),
        ("me/policy", "", "oken"),
        ("me/policy", "another", "the Hub refuses it .Invalid user token"),
        ("you/policy", "mine", "the token is of me, lab"),
        ("me/full", "mine", "the repository holds files already: choose another name"),
    ],
)
def test_what_cannot_be_pushed_is_said_before_anything_is_written(
    hub: Hub,
    run: RunFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    repository: str,
    token: str,
    said: str,
) -> None:
    hub.pushed("/api/models/me/full/commit/main", b'{}\n{"key": "file", "value": {"path": "a", "content": ""}}\n')
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(DataError, match=said) as caught:
        export(run.path, tmp_path / "out", repository=repository)
    assert str(caught.value).startswith(f"--push {repository}: ")
    assert not (tmp_path / "out").exists()
    assert hub.made == []


def test_without_a_network_it_is_said(
    hub: Hub, run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(MachineError, match=r"the Hub cannot be reached \("):
        export(run.path, tmp_path / "out", repository="me/policy")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("part", "status"), [("create", 403), ("main", 400)])
def test_a_push_that_fails_leaves_the_folder_and_says_how_to_go_on(
    hub: Hub, run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str], part: str, status: int
) -> None:
    hub.refuses[part] = status
    out = tmp_path / "out"
    assert main([str(run.path), str(out), "--push", "me/policy"]) == 1
    sentence = capsys.readouterr().err.strip().splitlines()[-1]
    assert sentence.startswith("error: --push me/policy: the Hub refuses it (")
    assert sentence.endswith(f"{out} is whole: `hf upload me/policy {out}` goes on.")
    assert AutoModelForCausalLM.from_pretrained(out)
    assert not any("/resolve/" in path for path in hub.files)
