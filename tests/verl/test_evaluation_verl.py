"""A run's last save, evaluated through the worker group that trains."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import harness_on
from evaluations import QUESTIONS, evaluate, evaluation_in, folder_of, lines_of
from scripted import rows_of

from rtpo.engines.base import Sampling
from rtpo.envs.toy.math import problems
from rtpo.evaluation.panel import EvaluateConfig, episode_facts
from rtpo.run.config import RunConfig
from rtpo.run.model_folder import chat_format
from rtpo.run.records import RunFolder
from rtpo.types import Role
from rtpo.verbs import TokenClip

TASKS = problems("held_out", QUESTIONS, seed=0)


@pytest.fixture
def config(tmp_path: Path) -> EvaluateConfig:
    return evaluation_in(tmp_path, "samples=1", "ks=[1]", "decoding.temperature=0")


def test_the_saved_weights_are_those_that_answer(
    backend: Any, toy_config: RunConfig, config: EvaluateConfig, tmp_path: Path
) -> None:
    run = replace(toy_config, results=str(tmp_path / "runs"))
    harness = harness_on(backend, run)
    harness.sync()
    loss = TokenClip()
    for _ in range(3):
        harness.update(rows_of(harness.rollout(TASKS, n=4, role=Role.CHAIN)), loss)
        harness.sync()
    chat = chat_format(run)
    expected = [
        episode_facts(rollout, chat, is_qa=False)
        for (rollout,) in harness.evaluate(TASKS, 1, Sampling(temperature=0.0), name="before")
    ]
    folder = RunFolder(run.folder)
    folder.open(run.as_dict())
    folder.save("step00003", {"name": "step00003"}, harness.save, keep=1)

    evaluate(replace(config, checkpoint=str(run.folder)))
    evaluate(replace(config, checkpoint=run.model.path, label="initial"))
    of_run, of_model = lines_of(config, "rtpo-seed0"), lines_of(config, "initial")
    assert [{key: line[key] for key in expected[0]} for line in of_run] == expected
    assert [line["uid"] for line in of_run] == [line["uid"] for line in of_model] == [task.uid for task in TASKS]
    assert [line["answer"] for line in of_run] != [line["answer"] for line in of_model]
    manifest = json.loads((folder_of(config, "rtpo-seed0") / "manifest.json").read_text())
    assert manifest["checkpoint"]["policy_version"] == 3
    assert list(manifest["checkpoint"]["model_sha256"]) == ["model_world_size_1_rank_0.pt"]
