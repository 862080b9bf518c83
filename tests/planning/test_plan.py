"""Plans: counts against the records, formulas against models, and what does not fit."""

import json
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch
from scripted import MemoryBackend, ScriptedEngine, ids, make_world
from transformers import AutoConfig, AutoModelForCausalLM
from whole_runs import lines

from experiments.plan import main
from rtpo.engines.base import Sampling
from rtpo.envs.toy.math import parse_question, problems
from rtpo.errors import ConfigError, DataError
from rtpo.harness.harness import AgentHarness
from rtpo.planning.hardware import GIB, TypicalEpisode, model_shape, planning_data
from rtpo.planning.memory import (
    Saves,
    gpu_memory,
    gpu_problems,
    largest_micro_batch,
    longest_row,
    memory_problems,
    saves,
)
from rtpo.planning.plan import plan, run_counts
from rtpo.run.config import RunConfig
from rtpo.run.experiments import experiments, load_experiment
from rtpo.run.records import RunFolder
from rtpo.run.run import Run, open_ledger
from rtpo.run.stopping import StopRequest

A100X8, ONE_A100 = (planning_data().hardware[name] for name in ("a100x8", "a100x1"))
PAPER = ("profile=a100x8", "seed=0")
TOY = ("profile=toy", "seed=0", "task=toy_math")
VERL = "verl.actor_rollout_ref."


@cache
def element(algorithm: str, task: str = "math_paper", *others: str) -> RunConfig:
    chosen = [*PAPER, f"task={task}", f"algorithm={algorithm}", *others]
    return load_experiment("main_table", chosen).elements[0].run


@cache
def toy(algorithm: str, *others: str) -> RunConfig:
    return load_experiment("main_table", [*TOY, f"algorithm={algorithm}", *others]).elements[0].run


@pytest.mark.parametrize("name", ["Qwen3-8B", "Qwen3-1.7B", "Qwen2.5-7B-Instruct", "Llama-3.1-8B-Instruct"])
def test_a_models_parameters_are_those_of_transformers_model(name: str) -> None:
    shape = model_shape(name, "nowhere")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**asdict(shape)))
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())


def test_a_model_that_is_not_listed_has_its_shape_from_its_folder(tmp_path: Path) -> None:
    """What a Llama's config.json leaves out is as usual."""
    listed = asdict(model_shape("Llama-3.1-8B-Instruct", ""))
    usual = {name: value for name, value in listed.items() if name not in ("head_dim", "tie_word_embeddings")}
    (file := tmp_path / "config.json").write_text(json.dumps(usual))
    assert asdict(model_shape("mine", str(tmp_path))) == listed
    file.write_text(json.dumps(listed | {"model_type": "mamba"}))
    with pytest.raises(DataError, match="mamba"):
        model_shape("mine", str(tmp_path))


def test_the_longest_row_is_what_the_limits_allow() -> None:
    """Flattened history of stripped rollouts is not bounded by the context limit."""
    assert longest_row(element("grpo", "search_paper")) == 8192 + 6 * 4096 + 5 * 750
    assert longest_row(element("rtpo", "search_paper")) == 32768
    assert longest_row(element("grpo", "search_paper", "algorithm.rollout_context=full")) == 32768
    limit = f"{VERL}actor.ppo_max_token_len_per_gpu=1024"
    # a pair is one tree
    assert largest_micro_batch(element("refuel", "search_paper", limit)) == 2 * 32768


EXACT = ("rtpo", "rtpo_sync_2", "grpo", "seeupo", "rtpo_variants")
DRAWN = ("arpo", "tree_grpo", "refuel", "anchored_forks")
"""whose forks are at turns that are drawn, or whose groups are so few that all may tie: near, and not equal"""


@pytest.mark.parametrize("label", [*EXACT, *DRAWN])
def test_a_whole_runs_counts_are_those_of_its_records(label: str, tmp_path: Path) -> None:
    """Played by a script all of whose paths are as long, so that nothing of it is left to chance."""
    sizes = ("budget.rollouts=200", "budget.tasks_per_step=4", "save.every_steps=2", "save.every_phases=2")
    others = ("task.held_out.count=2", "algorithm.kl=0", f"results={tmp_path}")
    config = load_experiment("main_table", [*TOY, f"algorithm={label}", *sizes, *others]).elements[0].run
    folder = RunFolder(config.folder)
    folder.open(config.as_dict())
    backend = MemoryBackend(ScriptedEngine(whole_path), learning_rate=1e-3)
    world = make_world(backend.engine, rollout_context=config.algorithm_config.rollout_context)
    harness = AgentHarness(backend, world, Sampling(), open_ledger(config, folder, None), engine_kl_limit=1e9)
    Run(config, folder, harness, problems("train", 64, 0), problems("held_out", 2, 0), None, StopRequest()).train()
    steps, done = lines(folder.path, "steps.jsonl"), folder.manifest["ledger"]
    calls = [call for step in steps for call in step["rollout_calls"]]
    (tokens,) = {call["generated_tokens"] / call["turns"] for call in calls}
    drawn = TypicalEpisode(turns=3.0, tokens_per_turn=tokens, prompt_tokens=16, feedback_tokens=8, success=0.5)
    counts = run_counts(config, drawn, None)
    near = pytest.approx if label in EXACT else partial(pytest.approx, rel=0.15)
    expected = {"steps": len(steps), "calls": len(calls), "syncs": done["syncs"]}
    expected |= {"generated": done["generated_tokens"], "free": done["free_tokens"], "trained": done["trained_tokens"]}
    expected |= {"optimizer_steps": done["optimizer_steps"]}
    expected |= {"saves": (folder.path / "log.txt").read_text().count("  saving ")}
    assert {name: getattr(counts, name) for name in expected} == near(expected)


def whole_path(context: str, rng: np.random.Generator) -> str:
    """Two calls and an answer, right in half the cases, each with as many tokens as the others."""
    a, b = rng.integers(10, 100, size=2)
    right = parse_question(context.partition("user\n")[2].partition("<")[0]).answer
    said = f"<tool_call> {a} * {b}</tool_call>"
    if context.count("</tool_response>") == 2:
        said = f" answer\\boxed{{ {right if rng.random() < 0.5 else a}}}"
    return f"<think>{' first' * (24 - len(ids(said)))}</think>{said}"


def test_what_fits_and_what_does_not() -> None:
    parameters = model_shape("Qwen3-8B", "").parameters
    assert saves(element("grpo", "math_paper", "save.keep=3")) == Saves(3 * 12 * parameters, 12 * parameters)
    assert gpu_problems(element("grpo"), A100X8) == []
    assert len(gpu_problems(element("grpo"), ONE_A100)) == 1
    assert memory_problems(toy("grpo", f"{VERL}actor.ppo_max_token_len_per_gpu=65536"), None, 4) == []


@pytest.mark.parametrize(
    ("settings", "kept", "written"),
    [("", 2, 2), ("launch.at_once=1", 2, 1), ("launch.keep=nothing launch.at_once=1", 1, 1)],
)
def test_a_plans_disk_is_that_of_all_saves(settings: str, kept: int, written: int) -> None:
    """Of two elements: those that are kept, and those that are being written."""
    size = saves(toy("grpo"))
    planned = plan("main_table", ["profile=toy", "task=toy_math", "algorithm=grpo", "seed=0,1", *settings.split()])
    assert planned.disk == kept * size.kept + written * size.writing > 0


def test_memory_of_the_papers_machine_is_the_sum_of_its_parts() -> None:
    shape = model_shape("Qwen3-8B", "")
    shards = (4 + 4 + 8) * shape.parameters / 8
    gathered = 2 * (2 * 151936 * 4096 + 2 * shape.layer_parameters) + 2 * (151936 * 4096 + shape.layer_parameters)
    # in bf16 gate, up, activation, product, q, k, v, attention; the four norms keep 8 bytes for each of theirs
    layer = 2 * (4 * 12288 + 2 * 4096 + 2 * 1024) + 8 * (2 * 4096 + 4096 + 1024)
    memory = gpu_memory(element("grpo"), A100X8)
    assert memory.update == shards + gathered + 4 * GIB + 2 * 36 * 4096 * 32768 + layer * 32768
    assert memory.generation == pytest.approx(0.8 * 79 * GIB + 4 * GIB)
    assert memory.cache_tokens == int((0.8 * 79 * GIB - 2 * shape.parameters - 4 * GIB) / (2 * 2 * 36 * 8 * 128))
    # without fused kernels the logits of all nodes are more than a layer, with their hidden states and the gradient
    plain = gpu_memory(element("grpo", "math_paper", f"{VERL}model.use_fused_kernels=false"), A100X8)
    assert plain.update - memory.update == (14 * 151936 + 2 * 2 * 4096 - layer) * 32768


def test_a_pattern_plans_all_experiments_of_that_name(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["profile=toy", "task=toy_math", "seed=0"]
    together, names = plan("ablate_k*", settings), [*experiments("ablate_k*")]
    alone = [row.run.label for name in names for row in plan(name, settings).rows]
    assert [row.run.label for row in together.rows] == alone
    assert main(["ablate_cl*", *settings]) in (None, 0)
    assert "ablate_cl*" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="ablate_x"):
        plan("ablate_x*", settings)
