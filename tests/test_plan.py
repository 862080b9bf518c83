"""Plans: counts against the records, formulas against models, the fit, and what is said to be unknown."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import median

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from experiments import plan as command
from rtpo.budget import Budget, Ledger
from rtpo.config import RunConfig
from rtpo.errors import ConfigError, DataError
from rtpo.launch import experiments, load_experiment
from rtpo.planning import Plan, calibration, checkpoint_bytes, gpu_memory, host_bytes, plan
from rtpo.planning_data import GIB, Shape, find_hardware, model_shape
from rtpo.planning_memory import longest_row
from rtpo.planning_records import _records, measured, played
from rtpo.planning_sketch import UNITS, EpisodeShape, SketchHarness, chance_of_ending, course, sketch
from rtpo.planning_text import render, summary
from rtpo.planning_time import Seconds, fit_efficiency
from rtpo.types import Role, Task

A100X8 = find_hardware("a100x8")
PAPER = ("profile=a100x8", "seed=0")
TOY = ("profile=toy", "seed=0", "task=toy_math")
COUNTED = ("rtpo", "rtpo_off", "rtpo_sync_2", "rtpo_one_trunk", "grpo", "seeupo", "arpo", "tree_grpo")
WITHIN = 0.1
"""of a record's count, relative"""


@cache
def element(algorithm: str, task: str = "math_paper", *others: str) -> RunConfig:
    chosen = [*PAPER, f"task={task}", f"algorithm={algorithm}", *others]
    return load_experiment("main_table", chosen).elements[0].run


@cache
def toy_runs() -> dict[str, RunConfig]:
    loaded = load_experiment("main_table", [*TOY, f"algorithm={','.join(COUNTED)}"])
    return {one.run.label: one.run for one in loaded.elements}


@cache
def small_plan() -> Plan:
    return plan("gsm8k_audit", ["profile=a100x8"])


# shapes


@pytest.mark.parametrize(("name", "billions"), [("Qwen3-8B", 8.19), ("Qwen3-4B", 4.02), ("Qwen3-1.7B", 1.72)])
def test_a_models_parameters_are_those_of_the_model_and_of_its_card(name: str, billions: float) -> None:
    shape = model_shape(name, "nowhere")
    with torch.device("meta"):
        model = Qwen3ForCausalLM(Qwen3Config(**vars(shape)))
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert round(shape.parameters / 1e9, 2) == billions


def test_a_model_that_is_not_listed_has_its_shape_from_its_folder() -> None:
    run = toy_runs()["grpo"]
    config = json.loads((command.PROJECT / "rtpo/toy/warm_start_math/config.json").read_text())
    assert model_shape(run.model.name, run.model.path).vocab_size == config["vocab_size"]


def test_forward_passes_cost_two_flops_a_multiplying_weight_and_four_a_pair_and_channel() -> None:
    shape = Shape(10, 4, 8, 1, 2, 1, 2, False)
    weights = 4 * 4 + 2 * 4 * 2 + 4 * 4 + 3 * 4 * 8 + 2 * 2 + 2 * 4 + 10 * 4
    assert shape.forward_flops(3, 5) == 2 * weights * 3 + 4 * 4 * 5


# memory and disk


def test_memory_of_the_papers_machine_is_the_sum_of_its_parts() -> None:
    run, shape = element("grpo"), model_shape("Qwen3-8B", "")
    memory = gpu_memory(run, A100X8)
    assert memory is not None
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
    assert memory.generation_bytes == pytest.approx(0.6 * 79 * GIB + 4 * GIB)
    assert memory.cache_tokens == int((0.6 * 79 * GIB - 2 * shape.parameters - 4 * GIB) / (2 * 2 * 36 * 8 * 128))
    host = host_bytes(run, A100X8)
    assert host is not None
    # offloaded, the reference, and the whole model that an evaluation's first rank reads
    assert host == pytest.approx((16 + 4) * shape.parameters + 8 * 6 * GIB)


def test_without_fused_kernels_the_logits_are_the_largest_part() -> None:
    memory = gpu_memory(element("grpo", "math_paper", "verl.actor_rollout_ref.model.use_fused_kernels=false"), A100X8)
    assert memory is not None
    parts = {part.name: part.bytes for part in memory.update}
    assert parts["logits"] == 16 * 32768 * 151936
    assert "a layer computed again" not in parts


def test_a_row_longer_than_a_micro_batch_is_one_of_its_own() -> None:
    """Flattened history of stripped rollouts is not bounded by the context limit."""
    flattened = element("grpo", "search_paper")
    assert longest_row(flattened) == 8192 + 6 * 4096 + 5 * 750
    assert longest_row(element("rtpo", "search_paper")) == 32768
    assert longest_row(element("grpo", "search_paper", "algorithm.rollout_context=full")) == 32768
    assert longest_row(element("grpo")) == 8192 + 3 * 4096 + 2 * 100
    memory, recorded = gpu_memory(flattened, A100X8), gpu_memory(element("rtpo", "search_paper"), A100X8)
    assert memory is not None
    assert recorded is not None
    assert (memory.batch, recorded.batch) == (8192 + 6 * 4096 + 5 * 750, 32768)
    assert memory.update_bytes > recorded.update_bytes
    (row,) = plan("main_table", [*PAPER, "task=search_paper", "algorithm=grpo"]).rows
    (why,) = [fit.why for fit in row.fits if fit.hardware == "h200x1"]
    assert why.endswith("tokens a micro-batch fit, and the longest row may have 36,518")


@pytest.mark.parametrize("fused", ["true", "false"])
def test_the_longest_micro_batch_fits_and_the_next_does_not(fused: str) -> None:
    key = "verl.actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
    kernels = f"verl.actor_rollout_ref.model.use_fused_kernels={fused}"
    memory = gpu_memory(element("grpo", "math_paper", kernels), A100X8)
    assert memory is not None
    # all logits at once leave no room for the longest context
    assert (0 < memory.longest_batch < 32768) is (fused == "false")
    short = ("task.max_prompt_tokens=512", "task.max_turn_tokens=64")
    for tokens, fits in ((memory.longest_batch, True), (memory.longest_batch + 1024, False)):
        there = gpu_memory(element("grpo", "math_paper", kernels, *short, f"{key}={tokens}"), A100X8)
        assert there is not None
        assert (there.update_bytes <= A100X8.memory_bytes) is fits


def test_what_is_not_offloaded_stays_and_an_engine_that_does_not_sleep_stays_too() -> None:
    base = gpu_memory(element("grpo"), A100X8)
    prefix = "verl.actor_rollout_ref."
    stays = gpu_memory(element("grpo", "math_paper", f"{prefix}actor.fsdp_config.optimizer_offload=false"), A100X8)
    awake = gpu_memory(element("grpo", "math_paper", f"{prefix}rollout.free_cache_engine=false"), A100X8)
    assert base is not None
    assert stays is not None
    assert awake is not None
    parameters = model_shape("Qwen3-8B", "").parameters
    assert stays.generation_bytes - base.generation_bytes == pytest.approx(parameters)
    assert awake.update_bytes - base.update_bytes == pytest.approx(0.6 * A100X8.memory_bytes)


def test_disk_holds_the_kept_saves_and_the_one_being_written() -> None:
    parameters = model_shape("Qwen3-8B", "").parameters
    assert checkpoint_bytes(element("grpo")) == 2 * 12 * parameters
    assert checkpoint_bytes(element("grpo", "math_paper", "save.keep=3")) == 4 * 12 * parameters
    assert checkpoint_bytes(element("vanilla")) == 4 * parameters
    unlisted = replace(element("grpo"), model=replace(element("grpo").model, name="other", path="nowhere"))
    assert checkpoint_bytes(unlisted) is None


# counts


@pytest.mark.parametrize(("mean", "most"), [(1.5, 3), (3.5, 6), (2.99, 3), (1.0, 4)])
def test_episodes_have_the_mean_that_was_asked_for(mean: float, most: int) -> None:
    ends = chance_of_ending(mean, most)
    assert sum((1 - ends) ** j for j in range(most)) == pytest.approx(mean, abs=1e-6)


@pytest.mark.parametrize("label", COUNTED)
def test_a_drawn_step_does_what_the_recorded_runs_did(label: str) -> None:
    """The records' episodes, none of the algorithms' own counts."""
    run = toy_runs()[label]
    seen, whole = measured(run), played(run)
    assert seen is not None
    assert whole is not None
    counts = sketch(run, EpisodeShape(whole.turns, whole.tokens_per_turn, 27, 5, 0.5, whole.success), engines=1)
    assert counts.rollouts / counts.tasks == pytest.approx(seen.rollouts_per_task, rel=WITHIN)
    assert counts.generated / counts.rollouts == pytest.approx(seen.generated, rel=WITHIN)
    assert counts.trained / counts.rollouts == pytest.approx(seen.trained, rel=WITHIN)
    assert counts.optimizer_steps / counts.steps == pytest.approx(seen.steps_each, rel=WITHIN)
    # the first synchronisation and those of evaluations are a run's, not a step's
    assert counts.syncs / counts.steps == pytest.approx(seen.syncs_each, rel=WITHIN)


def test_a_context_is_computed_once_on_each_engine_until_new_weights_come() -> None:
    run = toy_runs()["rtpo"]
    harness = SketchHarness(run, EpisodeShape(3.0, UNITS, 40, 4, 0.5, 0.5), engines=1)
    harness.begin_step(0, 0.0, 100)
    harness.sync()
    (chains,) = harness.rollout([Task("t", "", None)], n=4, role=Role.CHAIN)
    # one prompt for all four, then each path's kept half turn and its feedback, twice
    assert harness.counts.prefill.tokens == 40 + 4 * 2 * (UNITS / 2 + 4)
    harness.rollout([chains[0].boundary(2)], n=2, role=Role.SIBLING)
    assert harness.counts.recomputed == 0
    harness.score([])
    harness.sync()
    harness.rollout([chains[0].boundary(2)], n=2, role=Role.SIBLING)
    assert harness.counts.recomputed == len(chains[0].boundary(2).context_ids)


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


def test_a_plan_of_the_toy_is_what_its_records_had() -> None:
    """The study's runs were planned after they ran: each within a tenth."""
    (row,) = plan("main_table", [*TOY, "algorithm=rtpo", "budget.rollouts=4096", "task.held_out.count=300"]).rows
    ledgers = [
        (one["ledger"], one["steps"]) for config, one, _ in _records(toy_runs()["rtpo"]) if one["label"] == "rtpo"
    ]
    assert len(ledgers) >= row.records >= 5
    assert row.tokens is not None
    assert row.hours.training is not None
    assert row.optimizer_steps is not None
    for ledger, steps in ledgers:
        assert row.steps == pytest.approx(steps, rel=WITHIN)
        assert row.prompts == pytest.approx(ledger["tasks_seen"], rel=WITHIN)
        assert row.tokens.generated.mid == pytest.approx(ledger["generated_tokens"], rel=WITHIN)
        assert row.tokens.trained.mid == pytest.approx(ledger["trained_tokens"], rel=WITHIN)
        assert row.optimizer_steps == pytest.approx(ledger["optimizer_steps"], rel=WITHIN)
    hours = [
        sum(one["seconds"][phase] for phase in ("generate", "score", "update", "sync")) / 3600 for one, _ in ledgers
    ]
    assert row.hours.training.mid == pytest.approx(median(hours), rel=WITHIN)
    assert row.memory is None
    assert row.fits == ()


# hours


def test_the_fit_is_the_nearest_to_both_hours_and_says_what_is_left() -> None:
    runs = [(Seconds(3600, 3600), 4.0), (Seconds(7200, 0), 9.0)]
    assert fit_efficiency(runs[:1]) == pytest.approx(1 / 3, rel=1e-3)
    assert 2 / 9 < fit_efficiency(runs) < 1 / 3
    found = calibration()
    assert 0.01 < found.value < 1
    assert [one.paper for one in found.residuals] == [15, 5]
    assert [one.paper for one in found.checks] == [3.80, 5.37]
    assert max(abs(one.error) for one in found.residuals) < 0.15
    # without the user simulator
    assert all(one.modelled < one.paper for one in found.checks)


def test_ranges_hold_their_middle_and_the_margin() -> None:
    (row,) = small_plan().rows
    total = row.gpu_hours
    assert total is not None
    assert row.hours.training is not None
    assert total.low < total.mid < total.high
    assert row.hours.training.high >= 3 * row.hours.training.mid
    assert total.mid == pytest.approx(8 * sum(part.mid for part in vars(row.hours).values()))


def test_seeds_are_one_line_and_the_total_counts_them() -> None:
    made = plan("drift", ["profile=toy", "algorithm=rtpo", "seed=0,1"])
    (row,) = made.rows
    assert row.count == made.total.elements == 2
    assert made.total.rollouts == 2 * row.budget == 2 * 6144
    assert row.disk
    assert made.total.disk == 2 * row.disk


def test_benchmarks_have_their_questions_times_the_samples() -> None:
    (row,) = plan("drift", [*PAPER, "algorithm=vanilla"]).rows
    assert row.evaluation.benchmark_rollouts == 4 * (103 + 200 + 500 + 100)
    # sampled and greedy, before and after
    assert row.evaluation.own_rollouts == 200 * 2 * 2


def test_the_untrained_model_costs_its_evaluation_alone() -> None:
    made = plan("main_table", [*PAPER, "task=math_paper", "algorithm=vanilla"])
    (row,) = made.rows
    assert (row.budget, row.steps, row.optimizer_steps, row.per_task) == (0, 0, 0, 0)
    assert row.tokens is not None
    assert row.tokens.generated.high == 0
    assert row.hours.training is not None
    assert row.hours.training.high == 0
    assert row.hours.evaluation is not None
    assert row.hours.evaluation.mid > 0


def test_what_is_not_known_is_unknown_and_left_out_of_the_total() -> None:
    made = plan("airline", [*PAPER, "algorithm=grpo", *command.STAND_INS["airline"]])
    (row,) = made.rows
    assert row.tokens is None
    assert row.gpu_hours is None
    assert row.per_task == pytest.approx(16)
    assert made.total.gpu_hours is None
    assert made.total.left_out == ("tokens of grpo on airline", "hours of grpo on airline")
    said = render(made)
    assert "Unknown: tokens of a turn of airline; latency of what answers in airline." in said
    assert made.as_dict()["rows"][0]["gpu_hours"] is None


def test_hours_with_live_search_are_unknown() -> None:
    search = "task.settings.search"
    live = [f"{search}.backend=http", f"+{search}.http.url=http://127.0.0.1:9", f"{search}.cache=somewhere"]
    (row,) = plan("drift", [*PAPER, "algorithm=vanilla", *live]).rows
    assert row.unknown == ("latency of live search",)
    assert row.hours.total is None
    assert row.tokens is not None


def test_each_machine_has_a_verdict_with_its_reason() -> None:
    (row,) = plan("main_table", [*PAPER, "task=math_paper", "algorithm=vanilla"]).rows
    assert [(fit.hardware, fit.status) for fit in row.fits] == [
        ("a100x8", "fits"),
        ("a100x4", "fits if the host has 55 GiB"),
        ("h200x1", "fits if the host has 37 GiB"),
        ("a100x1", "fits if the host has 37 GiB"),
    ]
    (trained,) = plan("main_table", [*PAPER, "task=math_paper", "algorithm=grpo"]).rows
    assert all(fit.why for fit in trained.fits)
    alone = next(fit for fit in trained.fits if fit.hardware == "a100x1")
    assert alone.status == "does not fit"
    assert alone.why.startswith("GPU memory by ")


# the command and its page


def test_wrong_input_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"^experiment is 'maintable': no such experiment; there are "):
        plan("maintable")
    with pytest.raises(ConfigError, match=r"^hardware is 'tpu': no such machine in hardware.yaml; there are a100x8, "):
        plan("gsm8k_audit", ["profile=a100x8"], "tpu")
    with pytest.raises(ConfigError, match=r"budget.rollouts is 10 and one task can take 28 .* not one step would fit"):
        plan("gsm8k_audit", ["profile=a100x8", "budget.rollouts=10"])
    with pytest.raises(DataError, match=r"^model.name is 'Llama': its shape is not in hardware.yaml, .* choose one of"):
        plan("gsm8k_audit", ["profile=a100x8", "launch.model=Llama"])


def test_the_command_prints_words_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["experiment=main_table", "profile=a100x8", "task=math_paper", "algorithm=vanilla", "seed=0"]
    command.main(chosen)
    said = capsys.readouterr().out
    assert "nothing was run at the paper's scale" in said
    assert "decode_efficiency = " in said
    command.main([*chosen, "--json", "--hardware", "a100x4"])
    made = json.loads(capsys.readouterr().out)
    assert made["hardware"]["gpus"] == made["rows"][0]["gpus"] == 4


def test_the_page_has_every_experiment_as_it_is_planned_now() -> None:
    """All tables take a minute: one experiment's is made again here, and the calibration."""
    page = command.PAGE.read_text(encoding="utf-8")
    for name in experiments():
        assert f"\n### {name}\n" in page
    assert f"### gsm8k_audit\n\n{summary(small_plan())}" in page
    assert command.calibration_text(calibration()) in page


def test_a_page_without_marks_or_with_other_tables_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("no marks\n")
    with pytest.raises(ConfigError, match="has no marks for the plans' tables"):
        command.write_page(page, "\nnew\n\n", check=False)
    page.write_text("a\n<!-- plans: written by experiments/plan.py --page -->\nold\n<!-- end of plans -->\nb\n")
    with pytest.raises(ConfigError, match="is not what the plans give now"):
        command.write_page(page, "\nnew\n\n", check=True)
    command.write_page(page, "\nnew\n\n", check=False)
    command.write_page(page, "\nnew\n\n", check=True)
    assert page.read_text().startswith("a\n")
