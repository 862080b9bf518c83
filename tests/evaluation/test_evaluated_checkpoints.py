"""The three kinds of checkpoint: a model folder, a run and a server; and what of them cannot be."""

import json
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any
from unittest.mock import Mock

import pytest
from completion_server import Server
from evaluations import WARM_START, evaluate, evaluation_in, folder_of, lines_of, toy_run
from local_backend import LocalBackend
from omegaconf import OmegaConf
from scripted import TOKENIZER
from transformers import Qwen3ForCausalLM

import rtpo.verl_harness.session as session
from analysis.run_folder import load_samples
from analysis.view import __main__ as view
from rtpo.core.files import sha256
from rtpo.errors import ConfigError, DataError, FolderInUse, MachineError
from rtpo.evaluation.panel import EvaluateConfig
from rtpo.run.config import RunConfig
from rtpo.run.records import RunFolder


@pytest.fixture
def greedy(tmp_path: Path) -> EvaluateConfig:
    config = evaluation_in(tmp_path)
    decoding = replace(config.decoding, temperature=0.0)
    return replace(config, checkpoint=str(WARM_START), decoding=decoding, samples=1, ks=(1,), limit=6, contexts=0)


@pytest.fixture
def run(tmp_path: Path) -> tuple[Path, RunConfig]:
    """A run with a save, on the trainer in plain torch."""
    config = replace(toy_run(), results=str(tmp_path / "runs"))
    folder = RunFolder(config.folder)
    folder.open(config.as_dict())

    def write(weights: Path) -> dict[str, Any]:
        LocalBackend(config).save(weights)
        (weights / "state.pt").rename(weights / "model.pt")
        return {"policy_version": 7}

    folder.save("step00003", {"name": "step00003"}, write, keep=1)
    return config.folder, config


class SavedTrainer(LocalBackend):
    """Loads what `run` saved."""

    def load(self, folder: Path) -> None:
        (folder / "state.pt").write_bytes((folder / "model.pt").read_bytes())
        super().load(folder)


def test_a_folder_a_server_a_run_and_a_profile_with_the_same_weights_give_the_same_answers(
    greedy: EvaluateConfig, run: tuple[Path, RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, run_config = run
    opener = Mock(side_effect=SavedTrainer)
    monkeypatch.setattr(session, "open_backend", opener)
    evaluate(greedy)
    evaluate(replace(greedy, checkpoint=str(path)))
    with Server(Qwen3ForCausalLM.from_pretrained(WARM_START), TOKENIZER) as server:
        served = replace(greedy.endpoint, model="org/served", tokenizer=str(WARM_START))
        evaluate(replace(greedy, checkpoint=server.url, endpoint=served))
    evaluate(replace(greedy, machine="a100x8", label="profile"))
    labels = ("warm_start_math", "grpo-seed5", "served", "profile")
    lines = [lines_of(greedy, label) for label in labels]
    assert lines[0] == lines[1] == lines[2] == lines[3]
    assert any(line["calls"].get("calculator", {}).get("executed") for line in lines[0])
    read = [load_samples(folder_of(greedy, label)) for label in labels]
    assert [len(samples) for samples in read] == [6] * len(labels)

    opened = [call.args[0] for call in opener.call_args_list]
    assert opened[0] == run_config
    rollout = OmegaConf.create(opened[1].verl).actor_rollout_ref.rollout
    assert (opened[1].profile.platform, rollout.name, opened[1].model.path) == ("cuda", "vllm", str(WARM_START))
    assert (rollout.prompt_length, rollout.response_length, rollout.max_model_len) == (32, 32, 256)

    folder, ran, server_s = (
        json.loads((folder_of(greedy, label) / "manifest.json").read_text())["checkpoint"] for label in labels[:3]
    )
    assert (folder["kind"], ran["kind"], server_s["kind"]) == ("model", "run", "endpoint")
    assert folder["tokenizer_sha256"] == ran["tokenizer_sha256"] == server_s["tokenizer_sha256"]
    assert folder["model_sha256"] == {"model.safetensors": sha256(WARM_START / "model.safetensors")}
    weights = path / "checkpoints" / "step00003" / "weights" / "model.pt"
    assert (ran["save"], ran["policy_version"], ran["model_sha256"]) == ("step00003", 7, {"model.pt": sha256(weights)})
    assert (server_s["model"], server_s["model_sha256"], server_s["url"]) == ("org/served", "unknown", server.url)


def test_the_rollout_page_shows_the_questions_whose_contexts_an_evaluation_keeps(
    greedy: EvaluateConfig, run: tuple[Path, RunConfig], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path, of_run = run
    monkeypatch.setattr(session, "open_backend", SavedTrainer)
    place = {"results": of_run.results, "experiment_name": of_run.experiment_name, "label": path.name}
    evaluate(replace(greedy, checkpoint=str(path), contexts=2, **place))
    page = tmp_path / "page.html"
    assert view.main([str(path / "toy"), "--output", str(page)]) == 0
    lines = [json.loads(line) for line in (path / "toy" / "samples.jsonl").read_text().splitlines()]
    for line in lines:
        assert (f"{line['uid']}<" in page.read_text()) == (line["position"] < 2)
    changed = (path / "toy" / "samples.jsonl").read_text().replace('"position": 0', '"position": 1')
    (path / "toy" / "samples.jsonl").write_text(changed)
    assert view.main([str(path / "toy"), "--output", str(page)]) == 1


def test_a_run_is_left_as_it_was_and_one_without_a_save_is_refused(
    greedy: EvaluateConfig, run: tuple[Path, RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines after the save too, which a run that goes on cuts off."""
    path, _ = run
    of_run = replace(greedy, checkpoint=str(path))
    RunFolder(path).append("steps.jsonl", [{"step": 4}])
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    monkeypatch.setattr(session, "open_backend", Mock(side_effect=MachineError("not reached")))
    with pytest.raises(MachineError, match="not reached"):
        evaluate(of_run)
    with pytest.raises(ConfigError):
        evaluate(replace(of_run, machine="a100x8"))
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before
    with RunFolder(path).held(), pytest.raises(FolderInUse):
        evaluate(of_run)
    RunFolder(path).finish({}, keep=1)
    RunFolder(path).delete_saves()
    with pytest.raises(DataError, match=str(path)):
        evaluate(of_run)


def test_a_model_with_other_layers_than_its_weights_or_too_few_positions_is_refused(
    greedy: EvaluateConfig, tmp_path: Path
) -> None:
    file = copytree(WARM_START, tmp_path / "model") / "config.json"
    whole = json.loads(file.read_text())
    for change, error, words in (
        ({"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}, DataError, "layers"),
        ({"max_position_embeddings": 200}, ConfigError, "200"),
    ):
        file.write_text(json.dumps(whole | change))
        with pytest.raises(error, match=words):
            evaluate(replace(greedy, checkpoint=str(file.parent)))
