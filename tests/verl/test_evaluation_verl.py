"""A run's last save, evaluated through the worker group that trains."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import compose_config, harness_on

from analysis.summary import summarise
from rtpo.engines.base import Sampling
from rtpo.envs.toy.math_problems import problems
from rtpo.evaluation.evaluate import evaluate
from rtpo.evaluation.panel import EvaluateConfig, compose_evaluation, episode_facts
from rtpo.rows import trajectory_rows
from rtpo.run.cli import composed
from rtpo.run.config import RunConfig
from rtpo.run.model_folder import chat_format
from rtpo.run.records import RunFolder
from rtpo.types import Role, Task, TrainRow
from rtpo.verbs import TokenClip

TASKS = problems("held_out", 6, seed=1)


def rows_that_move_the_weights(harness: Any, tasks: Sequence[Task]) -> list[TrainRow]:
    chains = [chain for group in harness.rollout(tasks, n=4, role=Role.CHAIN) for chain in group]
    return [
        row
        for number, chain in enumerate(chains)
        for row in trajectory_rows(chain, "recorded", (-1.0) ** number, 1 / len(chains), chain.task.uid)
    ]


@pytest.fixture
def config(tmp_path: Path) -> EvaluateConfig:
    file = tmp_path / "panel.jsonl"
    rows = [{"uid": task.uid, "question": task.question, "answer": task.answer} for task in TASKS]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = compose_config("task=toy_math").task
    task = replace(task, held_out=replace(task.held_out, split="all", count=None, file=str(file)))
    overrides = ["checkpoint=x", f"results={tmp_path}", "benchmarks=[math500]", "samples=1", "ks=[1]"]
    config = compose_evaluation(composed("evaluate", [*overrides, "decoding.temperature=0"]))
    return replace(config, benchmarks={"toy": task})


def lines_of(config: EvaluateConfig, label: str) -> list[dict[str, Any]]:
    file = Path(config.results) / config.experiment_name / label / "toy" / "samples.jsonl"
    return sorted((json.loads(line) for line in file.read_text().splitlines()), key=lambda line: line["position"])


def test_the_saved_weights_are_those_that_answer(
    backend: Any, toy_config: RunConfig, config: EvaluateConfig, tmp_path: Path
) -> None:
    run = replace(toy_config, results=str(tmp_path / "runs"))
    harness = harness_on(backend, run)
    harness.sync()
    loss = TokenClip()
    for _ in range(3):
        harness.update(rows_that_move_the_weights(harness, TASKS), loss)
        harness.sync()
    chat = chat_format(run)
    expected = [
        episode_facts(rollout, chat, is_qa=False)
        for (rollout,) in harness.evaluate(TASKS, 1, Sampling(temperature=0.0), name="before")
    ]
    folder = RunFolder(run.folder)
    folder.open(run.as_dict())
    folder.save("step00003", {"name": "step00003"}, harness.save, keep=1)

    evaluate(replace(config, checkpoint=str(run.folder)), summarise)
    evaluate(replace(config, checkpoint=run.model.path, label="initial"), summarise)
    of_run, of_model = lines_of(config, "rtpo-seed0"), lines_of(config, "initial")
    assert [{key: line[key] for key in expected[0]} for line in of_run] == expected
    assert [line["uid"] for line in of_run] == [line["uid"] for line in of_model] == [task.uid for task in TASKS]
    assert [line["answer"] for line in of_run] != [line["answer"] for line in of_model]
    manifest = json.loads((Path(config.results) / "evaluation" / "rtpo-seed0" / "toy" / "manifest.json").read_text())
    assert manifest["checkpoint"]["policy_version"] == 3
    assert list(manifest["checkpoint"]["model_sha256"]) == ["model_world_size_1_rank_0.pt"]
