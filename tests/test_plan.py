"""Plans: counts against the records, formulas against models, and what is said to be unknown."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from statistics import fmean, median

import numpy as np
import pandas as pd
import pytest
import torch
from scripted import RecordingHarness, scripted_harness
from transformers import AutoConfig, AutoModelForCausalLM

from analysis.records import Run, load_runs
from experiments import plan as command
from rtpo.core.packing import Packed
from rtpo.core.trees import EVEN, deal
from rtpo.envs.toy.math_problems import parse_question, problems
from rtpo.errors import ConfigError, DataError
from rtpo.harness.budget import Budget, Ledger
from rtpo.planning.data import GIB, Episodes, episodes, find_hardware, model_shape
from rtpo.planning.memory import (
    Saves,
    cache_a_path,
    gpu_memory,
    gpu_problems,
    host_memory,
    largest_micro_batch,
    longest_row,
    mask_bytes,
    mask_problems,
    most_nodes,
    saves,
    total,
)
from rtpo.planning.plan import Plan, plan, task_count
from rtpo.planning.sketch import chance_of_ending, course, expected_turns, sketch
from rtpo.planning.text import render, summary
from rtpo.run.config import PROJECT, RunConfig
from rtpo.run.experiments import load_experiment
from rtpo.run.records import RunFolder
from rtpo.types import Role

A100X8, ONE_H200, ONE_A100 = (find_hardware(name) for name in ("a100x8", "h200x1", "a100x1"))
PAPER = ("profile=a100x8", "seed=0")
TOY = ("profile=toy", "seed=0", "task=toy_math")
SERVER = ("task.settings.server.base_url=http://127.0.0.1:8000/v1", "task.settings.server.model=user")
COUNTED = ("rtpo", "rtpo_off", "rtpo_sync_2", "grpo", "seeupo", "arpo", "tree_grpo")
WITHIN = 0.1
"""of a record's count, relative"""
TREES_WITHIN = 0.05
"""of the trees of a step that was played, relative"""
SCORED_WITHIN = 0.12
"""of what was scored before its updates, relative: how many rows are tied is drawn, too"""


@cache
def element(algorithm: str, task: str = "math_paper", *others: str) -> RunConfig:
    chosen = [*PAPER, f"task={task}", f"algorithm={algorithm}", *others]
    return load_experiment("main_table", chosen).elements[0].run


@cache
def toy(algorithm: str, *others: str) -> RunConfig:
    return load_experiment("main_table", [*TOY, f"algorithm={algorithm}", *others]).elements[0].run


@cache
def toy_runs() -> dict[str, RunConfig]:
    loaded = load_experiment("main_table", [*TOY, f"algorithm={','.join(COUNTED)}"])
    return {one.run.label: one.run for one in loaded.elements}


@cache
def recorded() -> list[Run]:
    return load_runs(PROJECT / "results" / "toy", "toy_math")


@cache
def small_plan() -> Plan:
    return plan("gsm8k_audit", ["profile=a100x8"])


# shapes


BILLIONS = {
    "Qwen3-8B": 8.19,
    "Qwen3-4B": 4.02,
    "Qwen3-1.7B": 1.72,
    "Qwen2.5-7B-Instruct": 7.62,
    "Llama-3.1-8B-Instruct": 8.03,
}


@pytest.mark.parametrize(("name", "billions"), BILLIONS.items())
def test_a_models_parameters_are_those_of_the_model_and_of_its_card(name: str, billions: float) -> None:
    shape = model_shape(name, "nowhere")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**asdict(shape)))
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert round(shape.parameters / 1e9, 2) == billions


def test_a_model_that_is_not_listed_has_its_shape_from_its_folder() -> None:
    run = toy_runs()["grpo"]
    config = json.loads((PROJECT / "rtpo/toy/warm_start_math/config.json").read_text())
    assert model_shape(run.model.name, run.model.path).vocab_size == config["vocab_size"]


def test_what_a_config_leaves_out_is_as_usual(tmp_path: Path) -> None:
    """A Llama's, as older ones are written."""
    listed = asdict(model_shape("Llama-3.1-8B-Instruct", ""))
    file = tmp_path / "config.json"
    usual = ("head_dim", "tie_word_embeddings")
    file.write_text(json.dumps({name: value for name, value in listed.items() if name not in usual}))
    assert asdict(model_shape("mine", str(tmp_path))) == listed
    file.write_text(json.dumps(listed | {"model_type": "mamba"}))
    with pytest.raises(DataError, match=r"is a mamba model's, whose shape is not reckoned with: give a model of qwen3"):
        model_shape("mine", str(tmp_path))


# memory and disk


def test_memory_of_the_papers_machine_is_the_sum_of_its_parts() -> None:
    run, shape = element("grpo"), model_shape("Qwen3-8B", "")
    memory = gpu_memory(run, A100X8)
    parts = {part.name: part.bytes for part in memory.update}
    assert parts["parameter shards"] == parts["gradient shards"] == 4 * shape.parameters / 8
    assert parts["Adam's states"] == 8 * shape.parameters / 8
    assert parts["gradients before they are sharded"] == 2 * (151936 * 4096 + shape.layer_parameters)
    # in bf16 gate, up, activation, product, q, k, v, attention; the four norms keep 8 bytes for each of theirs
    layer = 2 * (4 * 12288 + 2 * 4096 + 2 * 1024) + 8 * (2 * 4096 + 4096 + 1024)
    assert parts["a layer computed again"] == layer * 32768
    # more than a chunk's logits, which are gone by then
    assert "logits" not in parts
    assert parts["activations"] == 2 * 36 * 4096 * 32768
    assert memory.update_bytes == sum(parts.values())
    assert memory.peak_bytes == max(memory.update_bytes, memory.generation_bytes)
    assert memory.generation_bytes == pytest.approx(0.8 * 79 * GIB + 4 * GIB)
    assert memory.cache_tokens == int((0.8 * 79 * GIB - 2 * shape.parameters - 4 * GIB) / (2 * 2 * 36 * 8 * 128))


@pytest.mark.parametrize(("name", "ranks"), [("Qwen3-8B", 8), ("Qwen3-4B", 8), ("Qwen3-1.7B", 1)])
def test_what_is_offloaded_is_counted_as_torch_pins_it(name: str, ranks: int) -> None:
    """A block a parameter and rank, of a power of two; by the shapes of transformers' model and FSDP's cuts of them."""
    shape = model_shape(name, "")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**asdict(shape)))
    blocks = [len(parameter.chunk(ranks)[0]) * parameter[0].numel() * 4 for parameter in model.parameters()]
    pinned = ranks * sum(2 ** math.ceil(math.log2(block)) for block in blocks)
    assert pinned > 1.2 * 4 * shape.parameters
    hardware, processes = replace(A100X8, gpus=ranks), ranks * 6 * GIB
    sizes = (f"profile.processes={ranks}", f"launch.models.main={name}")
    # parameters, two moments and the reference
    training = total(host_memory(element("grpo", "math_paper", *sizes), hardware))
    without = total(host_memory(element("grpo", "math_paper", "algorithm.kl=0", *sizes), hardware))
    # every rank reads a model whose embeddings are tied
    read = 4 * shape.parameters * (ranks if shape.tie_word_embeddings else 1)
    assert training == processes + max(4 * pinned, pinned + read)
    assert without == processes + max(3 * pinned, read)
    assert total(host_memory(element("vanilla", "math_paper", *sizes), hardware)) == processes + read


def test_keys_and_values_are_shared_by_the_paths_that_an_engine_runs_at_once() -> None:
    """RTPO's trunks and then the siblings of one boundary, GRPO's chains all together."""
    cached = gpu_memory(element("grpo"), A100X8).cache_tokens
    made = plan("main_table", [*PAPER, "task=math_paper", "algorithm=grpo,rtpo,vanilla"])
    each = {row.label: (row.counts.at_once, row.cache_a_path) for row in made.rows}
    assert each == {"grpo": (64 * 16, cached / 128), "rtpo": (64 * 8, cached / 64), "vanilla": (0, None)}
    assert "; 2,500 KV tokens a path\n" in summary(made)
    few = "+verl.actor_rollout_ref.rollout.max_num_seqs=100"
    assert cache_a_path(element("grpo", "math_paper", few), A100X8, 64 * 16) == cached / 100
    two = "verl.actor_rollout_ref.rollout.tensor_model_parallel_size=2"
    parallel = element("grpo", "math_paper", two)
    assert cache_a_path(parallel, A100X8, 64 * 16) == gpu_memory(parallel, A100X8).cache_tokens / 256


def test_without_fused_kernels_the_logits_are_the_largest_part() -> None:
    memory = gpu_memory(element("grpo", "math_paper", "verl.actor_rollout_ref.model.use_fused_kernels=false"), A100X8)
    parts = {part.name: part.bytes for part in memory.update}
    # at each trained pair, whose hidden state is picked out of all, with its gradient
    assert parts["logits"] == (14 * 151936 + 2 * 2 * 4096) * 32768
    assert "a layer computed again" not in parts


def test_a_row_longer_than_a_micro_batch_is_one_of_its_own() -> None:
    """Flattened history of stripped rollouts is not bounded by the context limit."""
    flattened = element("grpo", "search_paper")
    assert longest_row(flattened) == 8192 + 6 * 4096 + 5 * 750
    assert longest_row(element("rtpo", "search_paper")) == 32768
    assert longest_row(element("grpo", "search_paper", "algorithm.rollout_context=full")) == 32768
    assert longest_row(element("grpo")) == 8192 + 3 * 4096 + 2 * 100
    memory, alone = gpu_memory(flattened, A100X8), gpu_memory(element("rtpo", "search_paper"), A100X8)
    assert memory.update_bytes > alone.update_bytes
    (why,) = gpu_problems(flattened, replace(A100X8, gpus=2))
    assert why.endswith("and the limits of task (a row may have 36,518 tokens).")


def test_log_probs_are_computed_at_trained_pairs_alone() -> None:
    """A row beyond the limit trains what the policy may say; others may all be trained."""
    limit = "verl.actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
    assert largest_micro_batch(element("rtpo")) == (32768, 32768)
    assert largest_micro_batch(element("rtpo", "search_paper", f"{limit}=1024")) == (32768, 4096)
    assert largest_micro_batch(element("grpo", "search_paper", f"{limit}=1024")) == (
        8192 + 6 * 4096 + 5 * 750,
        6 * 4096,
    )
    # a pair is one tree
    assert largest_micro_batch(element("refuel", "search_paper", f"{limit}=1024")) == (2 * 32768, 2 * 4096)


def test_a_cpus_masks_are_of_nodes_by_nodes() -> None:
    run = toy("grpo")
    assert mask_bytes(run) == 4096**2 * (1 + 3 * 4)
    again = "verl.actor_rollout_ref.model.enable_gradient_checkpointing=true"
    large = "verl.actor_rollout_ref.actor.ppo_max_token_len_per_gpu=65536"
    assert mask_bytes(toy("grpo", again)) == 4096**2 * (1 + 4)
    assert mask_problems(run, 4) == []
    (sentence,) = mask_problems(toy("grpo", large), 4)
    assert "masks of prefix trees of 65,536 nodes (verl.actor_rollout_ref.actor.ppo_max_token_len_" in sentence
    assert "take 52 GiB on a CPU" in sentence
    assert mask_problems(toy("vanilla", large), 4) == []


def test_each_layer_on_a_cpu_keeps_its_mask_in_the_models_numbers() -> None:
    kept: list[torch.Tensor] = []
    query, mask = torch.zeros(1, 2, 64, 4, requires_grad=True), torch.ones(1, 1, 64, 64).tril().bool()

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        torch.nn.functional.scaled_dot_product_attention(query, query, query, attn_mask=mask)
    assert sum(one.untyped_storage().nbytes() for one in kept if one.shape[-2:] == (64, 64)) == 4 * 64 * 64


def test_what_is_not_offloaded_stays_and_an_engine_that_does_not_sleep_stays_too() -> None:
    base = gpu_memory(element("grpo"), A100X8)
    prefix = "verl.actor_rollout_ref."
    stays = gpu_memory(element("grpo", "math_paper", f"{prefix}actor.fsdp_config.optimizer_offload=false"), A100X8)
    awake = gpu_memory(element("grpo", "math_paper", f"{prefix}rollout.free_cache_engine=false"), A100X8)
    parameters = model_shape("Qwen3-8B", "").parameters
    assert stays.generation_bytes - base.generation_bytes == pytest.approx(parameters)
    assert awake.update_bytes - base.update_bytes == pytest.approx(0.8 * A100X8.memory_bytes)


def test_on_one_gpu_the_optimizers_step_may_be_the_peak() -> None:
    """As counted on tensors without contents (experiments/rehearsal/memory.py)."""
    run = element("grpo", "math_paper", "profile.processes=1", "launch.models.main=Qwen3-4B")
    memory, parameters = gpu_memory(run, ONE_H200), model_shape("Qwen3-4B", "").parameters
    assert {part.name for part in memory.update} >= {"Adam's step"}
    assert memory.update_bytes == 5 * 4 * parameters + 4 * GIB
    assert "Adam's step" not in {part.name for part in gpu_memory(element("grpo"), A100X8).update}


def test_disk_holds_the_kept_saves_and_the_one_being_written() -> None:
    parameters = model_shape("Qwen3-8B", "").parameters
    assert saves(element("grpo")) == Saves(12 * parameters, 12 * parameters)
    assert saves(element("grpo", "math_paper", "save.keep=3")) == Saves(3 * 12 * parameters, 12 * parameters)
    assert saves(element("vanilla")) == Saves(4 * parameters, 0)
    unlisted = replace(element("grpo"), model=replace(element("grpo").model, name="other", path="nowhere"))
    assert saves(unlisted) is None


# counts


@pytest.mark.parametrize(("mean", "most"), [(1.5, 3), (3.5, 6), (2.99, 3), (1.0, 4)])
def test_episodes_have_the_mean_that_was_asked_for(mean: float, most: int) -> None:
    ends = chance_of_ending(mean, most)
    assert expected_turns(mean, most) == sum((1 - ends) ** j for j in range(most)) == pytest.approx(mean, abs=1e-6)


@pytest.mark.parametrize("label", COUNTED)
def test_a_drawn_step_does_what_the_recorded_runs_did(label: str) -> None:
    """From the toy model's own record of whole episodes, none of the algorithms' own counts."""
    run = toy_runs()[label]
    drawn = episodes(run)
    assert drawn is not None
    counts = sketch(run, drawn)
    runs = [one for one in recorded() if one.label == label]
    assert len(runs) >= 3

    def same(mine: float, recorded_in: Callable[[Run], float]) -> None:
        assert mine == pytest.approx(median(recorded_in(one) for one in runs), rel=WITHIN)

    same(counts.rollouts / counts.tasks, lambda one: one.ledger["rollouts"] / one.ledger["tasks_seen"])
    same(counts.generated / counts.rollouts, lambda one: one.ledger["generated_tokens"] / one.ledger["rollouts"])
    same(counts.trained / counts.rollouts, lambda one: one.ledger["trained_tokens"] / one.ledger["rollouts"])
    same(counts.rows / counts.rollouts, lambda one: _rows(one) / one.ledger["rollouts"])
    same(counts.optimizer_steps / counts.steps, lambda one: one.ledger["optimizer_steps"] / one.manifest["steps"])
    # the first synchronisation and those of evaluations are a run's, not a step's
    same(counts.syncs / counts.steps, lambda one: one.ledger["syncs"] / one.manifest["steps"])


def thinker(context: str, rng: np.random.Generator) -> str:
    """Plays the toy task with calls and thoughts of drawn numbers, so that few turns begin alike; four fifths of a turn
    are thought."""
    thought = "".join(f" {number}" for number in rng.integers(100, size=rng.integers(17, 29)))
    a, b = rng.integers(100, size=2)
    if context.count("</tool_response>") == 2 or rng.random() < 0.2:
        answer = a if rng.random() < 0.5 else parse_question(context.partition("user\n")[2].partition("<")[0]).answer
        return f"<think>{thought}</think> answer\\boxed{{ {answer}}}"
    return f"<think>{thought}</think><tool_call> {a} * {b}</tool_call>"


def thinking_harness(run: RunConfig) -> RecordingHarness:
    limits = {"max_prompt_tokens": 64, "max_turn_tokens": 64, "max_context_tokens": 512}
    return scripted_harness(thinker, rollout_context=run.algorithm_config.rollout_context, **limits)


@cache
def thought_episodes() -> Episodes:
    """As whole ones are."""
    groups = thinking_harness(element("grpo")).rollout(problems("train", 16, 0), n=32, role=Role.CHAIN)
    whole = [rollout for group in groups for rollout in group]
    turns = [turn for rollout in whole for turn in rollout.turns]
    return Episodes(
        turns=len(turns) / len(whole),
        tokens_per_turn=fmean(len(turn.output_ids) for turn in turns),
        prompt_tokens=fmean(len(rollout.turns[0].context_ids) for rollout in whole),
        feedback_tokens=fmean(len(turn.feedback_ids) for rollout in whole for turn in rollout.turns[:-1]),
        success=fmean(rollout.reward for rollout in whole),
    )


@pytest.mark.parametrize(
    ("label", "kl"),
    [
        *((label, 0.0) for label in ("rtpo", "grpo", "grpo_exact", "seeupo", "seeupo_flat", "arpo", "tree_grpo")),
        *(("refuel", 0.0), ("rtpo", 0.02), ("grpo_exact", 0.02)),
    ],
)
def test_trees_of_a_drawn_step_are_those_of_a_played_one(label: str, kl: float) -> None:
    """As the trainer deals them: what contexts share, at the toy model's bound."""
    run = toy(label, f"algorithm.kl={kl}")
    drawn, harness = sketch(run, thought_episodes()), thinking_harness(run)
    run.descriptor.step(harness, problems("train", 16, 0), run.algorithm_config)
    even = EVEN * model_shape(run.model.name, run.model.path).hidden_size

    def nodes(packed: Packed, together: int = 1) -> int:
        rows = np.split(packed.ids, np.cumsum(packed.lengths)[:-1])
        return deal(rows, 1, most_nodes(run), even=even, together=together).nodes

    computed = sum(nodes(step.packed, step.loss.rows_together) for step in harness.backend.steps)
    in_rows = sum(len(step.packed.ids) for step in harness.backend.steps)
    assert drawn.computed / drawn.in_rows == pytest.approx(computed / in_rows, rel=TREES_WITHIN)
    by_reference = [step.packed for step in harness.backend.steps if kl]
    scored = sum(map(nodes, [*harness.backend.scored, *by_reference]))
    assert drawn.scored == pytest.approx(scored, rel=SCORED_WITHIN)


def test_what_is_sampled_beside_the_budget_is_counted_apart() -> None:
    """As a played step's ledger has it."""
    run = toy("grpo_state_values", "algorithm.continuations=4")
    drawn, harness = sketch(run, thought_episodes()), thinking_harness(run)
    run.descriptor.step(harness, problems("train", 16, 0), run.algorithm_config)
    assert drawn.rollouts == harness.ledger.rollouts
    assert drawn.generated == pytest.approx(harness.ledger.generated_tokens, rel=WITHIN)
    assert drawn.free == pytest.approx(harness.ledger.free_tokens, rel=WITHIN)
    made = plan("drift", ["profile=toy", "algorithm=grpo_state_values", "seed=0"])
    assert [text.count(" beside the budget") for text in (summary(made), render(made))] == [1, 2]


@pytest.mark.parametrize(("exact", "flattened"), [("grpo_exact", "grpo"), ("seeupo", "seeupo_flat")])
def test_flattened_history_is_what_the_method_that_trains_on_it_computes(exact: str, flattened: str) -> None:
    counts = [sketch(toy(label), thought_episodes()) for label in (exact, flattened)]
    assert counts[0].flattened == pytest.approx(counts[1].in_rows)
    assert counts[0].in_rows != pytest.approx(counts[1].in_rows)


def _rows(run: Run) -> int:
    return sum(update["rows"] for step in run.steps for update in step["updates"])


@pytest.mark.parametrize("limits", [{}, {"generated_tokens": 3000}, {"optimizer_steps": 7}])
def test_the_course_of_a_run_is_the_ledgers(limits: dict[str, int]) -> None:
    run = toy_runs()["rtpo"]
    run = replace(run, budget=replace(run.budget, rollouts=1000, **limits))
    ledger, steps, each, tokens = Ledger(Budget(1000)), 0, 20, 30
    while fit := ledger.tasks_that_fit(run.budget.tasks_per_step, 28):
        ledger.reserve(28 * fit)
        ledger.charge(each * fit)
        ledger.release()
        ledger.tasks_seen += fit
        steps += 1
        if ledger.tasks_seen * tokens >= limits.get("generated_tokens", 10**9):
            break
        if 3 * steps >= limits.get("optimizer_steps", 10**9):
            break
    whole = course(run, each, tokens, 3)
    assert whole is not None
    assert (whole.steps, whole.tasks, whole.rollouts) == (steps, ledger.tasks_seen, ledger.rollouts)
    assert course(replace(run, budget=replace(run.budget, seconds=60)), each, tokens, 3) is None


def test_seeds_are_one_line_and_the_total_counts_them() -> None:
    made = plan("drift", ["profile=toy", "algorithm=rtpo", "seed=0,1"])
    (row,) = made.rows
    assert row.count == 2
    assert made.sum(lambda row: row.rollouts) == 2 * row.rollouts == 2 * 6144
    assert row.disk
    assert made.sum(lambda row: row.disk) == 2 * row.disk
    assert made.disk_in_turn == 1.5 * row.disk  # one of two is kept
    assert "| Total of all elements " in render(made)


def test_benchmarks_have_their_questions_times_the_samples() -> None:
    (row,) = plan("drift", [*PAPER, "algorithm=vanilla"]).rows
    # sampled and greedy, before and after
    assert row.evaluation_rollouts == 4 * (103 + 200 + 500 + 100) + 200 * 2 * 2
    assert row.evaluation_tokens == pytest.approx(row.evaluation_rollouts * 3.5 * 600)


def test_a_plan_counts_the_evaluations_that_a_run_makes() -> None:
    settings = ["evaluation.paper=true", "evaluation.before=false", "task.held_out.count=10"]
    (row,) = plan("drift", ["profile=toy", "algorithm=rtpo", "seed=0", *settings]).rows
    (other,) = plan("drift", ["profile=toy", "algorithm=rtpo", "seed=0", "task.held_out.count=10"]).rows
    assert None not in (row.evaluation_rollouts, other.evaluation_rollouts)
    # one sample each at two decodings and a greedy one after training; two each before and after
    assert other.evaluation_rollouts - row.evaluation_rollouts == 10 * (2 * 2 - 3)


def test_a_plan_is_for_the_tasks_that_its_budget_has() -> None:
    made = small_plan()
    (row,) = made.rows
    counts = row.counts
    assert None not in vars(counts).values()
    assert counts.prompts is not None
    assert counts.per_task is not None
    assert counts.generated is not None
    assert counts.prompts * counts.per_task == pytest.approx(row.rollouts, rel=0.01)
    assert row.epochs == counts.prompts / 5000
    # less than whole episodes, since siblings begin inside of them
    assert 0.5 * row.rollouts * 1.5 * 1500 < counts.generated < row.rollouts * 1.5 * 1500
    assert None not in (counts.trained, counts.computed, counts.in_rows)
    assert counts.trained <= counts.generated
    assert counts.trained < counts.computed < counts.in_rows
    said = f"{counts.computed / counts.in_rows:.2f} of those of rows, {counts.computed / counts.flattened:.2f} of"
    assert said in summary(made)


def test_the_untrained_model_costs_its_evaluation_alone() -> None:
    (row,) = plan("main_table", [*PAPER, "task=math_paper", "algorithm=vanilla"]).rows
    assert row.rollouts == 0
    assert set(vars(row.counts).values()) == {0}
    assert row.evaluation_tokens
    assert (row.gpu, row.problems) == (pytest.approx(0.8 * 79 * GIB + 4 * GIB), ())


def test_what_is_not_known_is_unknown_and_so_is_its_total() -> None:
    made = plan("airline", [*PAPER, "algorithm=grpo", *SERVER])
    (row,) = made.rows
    assert row.counts.generated is row.counts.scored is row.evaluation_tokens is None
    assert row.counts.per_task == pytest.approx(16)
    assert made.sum(lambda row: row.counts.generated) is None
    said = render(made)
    assert "tokens of a turn unknown" in said
    assert said.endswith("GPU-hours: unknown of training, unknown of evaluation.\n")
    assert "GPU-hours: unknown of training" in summary(made)
    assert "\nTokens that updates compute, M: unknown\n" in summary(made)
    assert made.as_dict()["rows"][0]["counts"]["generated"] is None


def test_a_machine_that_does_not_hold_an_element_is_a_sentence() -> None:
    assert gpu_problems(element("grpo"), A100X8) == []
    (sentence,) = gpu_problems(element("grpo"), ONE_A100)
    assert sentence == (
        "Qwen3-8B on 1 GPU(s) is estimated to need 157 GiB on each, and one of 1xA100-80G has 79 GiB: take more or "
        "larger GPUs, or a smaller model."
    )
    small = element("vanilla", "math_paper", "verl.actor_rollout_ref.rollout.gpu_memory_utilization=0.25")
    (sentence,) = gpu_problems(small, ONE_A100)
    assert "room for 3" in sentence
    assert "cached tokens, below task.max_context_tokens 32,768: raise verl." in sentence
    said = render(plan("main_table", [*PAPER, "task=math_paper", "algorithm=grpo,rtpo"], "a100x1"))
    assert said.count("Does not fit (grpo, math_paper; rtpo, math_paper): Qwen3-8B on 1 GPU(s) is estimated") == 1


def test_hours_are_the_papers_in_proportion_to_the_rollouts() -> None:
    overrides = [*PAPER, "algorithm=rtpo,vanilla", "budget.rollouts=40000"]
    made = plan("main_table", [*overrides, "task=math_paper"])
    assert [row.hours for row in made.rows] == [60, 0]
    rollouts = made.rows[1].evaluation_rollouts
    assert rollouts
    assert [row.evaluation_hours for row in made.rows] == [pytest.approx(rollouts * 120 / 80000)] * 2
    said = summary(made)
    assert "GPU-hours: 60 of training" in said
    assert "Time on 8xA100-80G: 7 h 30 min of training, 4 h 38 min of evaluation, one" in said
    assert "the disk (save.keep" in summary(plan("main_table", [*PAPER, "save.keep=1000000"]))
    assert plan("main_table", [*overrides, "task=math_paper"], "h200x1").rows[0].hours is None
    (row,) = plan("main_table", [*TOY, "algorithm=grpo"]).rows
    done = RunFolder(toy_runs()["grpo"].folder).manifest
    seconds, played = done["ledger"]["seconds"]["evaluate"], done["ledger"]["evaluation_rollouts"]
    assert row.hours == pytest.approx((done["wall_seconds"] - seconds) / 3600)
    assert row.evaluation_rollouts
    assert row.evaluation_hours == pytest.approx(seconds / 3600 * row.evaluation_rollouts / played)


def test_tokens_beside_the_budget_take_their_hours() -> None:
    chosen = ["profile=a100x8", "seed=0", "algorithm=grpo_exact,grpo_state_values,grpo_state_values_reverse"]
    of = {row.label: row for row in plan("ladder", chosen).rows}
    counts = of["grpo_state_values"].counts
    assert of["grpo_exact"].hours == 120
    assert counts.free
    assert counts.generated
    assert of["grpo_state_values"].hours == pytest.approx(120 * (1 + counts.free / counts.generated))
    assert of["grpo_state_values"].hours == of["grpo_state_values_reverse"].hours
    timed = plan("main_table", [*PAPER, "task=math_paper", "algorithm=grpo", "budget.seconds=60"])
    assert timed.rows[0].hours is None  # of what tokens are not known of


def test_ten_lines_stay_short_and_say_what_does_not_fit(tmp_path: Path) -> None:
    said = summary(plan("main_table", [*PAPER, "save.keep=1000000"], "h200x1"))
    assert max(map(len, said.splitlines())) <= 120
    assert "\nDoes not fit: 14 of 16 elements, and the disk (save.keep, " in said
    said = summary(plan("main_table", [*TOY, f"results={tmp_path}"]))
    assert max(map(len, said.splitlines())) <= 120
    assert (
        "\nDoes not fit: nothing was found that does not; of memory, the masks of trees alone were looked at\n" in said
    )
    assert "Time on a CPU: unknown of training, unknown of evaluation" in said  # no records beside


# the command


def test_wrong_input_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"^experiment is 'maintable': .*; the nearest is main_table\.$"):
        plan("maintable")
    with pytest.raises(ConfigError, match=r"^hardware is 'tpu': no such machine in hardware.yaml; there are a100x8, "):
        plan("gsm8k_audit", ["profile=a100x8"], "tpu")
    with pytest.raises(ConfigError, match=r"budget.rollouts is 10 and one task can take 28 .* not one step would fit"):
        plan("gsm8k_audit", ["profile=a100x8", "budget.rollouts=10"])
    with pytest.raises(DataError, match=r"^model.name is 'Llama': its shape is not in hardware.yaml, .* choose one of"):
        plan("gsm8k_audit", ["profile=a100x8", "launch.model=Llama"])


def test_the_command_prints_words_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["main_table", "profile=a100x8", "task=math_paper", "algorithm=vanilla", "seed=0"]
    command.main(chosen)
    short = capsys.readouterr().out.splitlines()
    assert len(short) <= 10
    assert short[1].startswith("GPU-hours: 0 of training")
    command.main([chosen[0], "--full", *chosen[1:]])
    assert capsys.readouterr().out.startswith("Plan of main_table, profile a100x8, on 8xA100-80G; Qwen3-8B.")
    command.main([*chosen, "--json", "--hardware", "a100x4"])
    made = json.loads(capsys.readouterr().out)
    assert made["hardware"]["gpus"] == 4
    assert made["rows"][0]["counts"]["rows"] == 0


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "parquet"])
def test_a_files_tasks_are_counted_in_every_format(tmp_path: Path, kind: str) -> None:
    rows = pd.DataFrame({"uid": ["a", "b"], "question": ["1 + 1 = ?", "two\nlines"], "answers": ['["2"]', '["3"]']})
    file = tmp_path / f"tasks.{kind}"
    text = {"jsonl": rows.to_json(orient="records", lines=True), "json": rows.to_json(orient="records")}
    if kind == "parquet":
        rows.to_parquet(file)
    else:
        file.write_text(text.get(kind) or rows.to_csv(index=False))
    task = element("rtpo", "math_paper", f"task.train.file={file}", "task.train.count=null").task
    assert task_count(task.train) == 2
