"""The paper's tables from made-up runs of every experiment: each cell as computed by hand from the records."""

import io
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from latex import compile_latex
from synthetic_runs import episode, held_out, path, step, update, write_evaluation, write_manifest, write_run

from analysis.figures.page import KEPT
from analysis.make_tables import main
from analysis.paper import table_page
from analysis.paper.estimates import Cells, Estimate, estimate, exact
from analysis.paper.grid import grid, long_form
from analysis.paper.numbers import Value, load_paper
from analysis.paper.records import Records
from analysis.paper.reproduction import SOURCE, CellPlan, Source, load_reproduction, read_reproduction
from analysis.paper.tables import make_table, verdict
from analysis.tables import NO_VALUE, markdown
from rtpo.errors import DataError
from rtpo.run.config import PROJECT

PAPER, TOY = "a100x8", "toy"
MATH = ("aime24", "aime25", "amc23", "math500", "gsm8k", "oe_math")
DEEP = ("gaia", "webwalker", "xbench", "hle")
RIGHT = {"vanilla": (0, 0), "grpo": (2, 0), "rtpo": (4, 2), "rtpo_full": (4, 2)}
"""by label, of four samples of the first and second of each four questions; one of the first for other labels"""
SECOND_SEED = (4, 4)
WHOLE = {"aime24": 30, "amc23": 40, "xbench": 100, "hle": 8}
"""questions of benchmarks; four of all others, which are cut down. HLE has eight, one of each subject"""
SCALE = {
    "main_table_a100x8_math_paper": (80000, None, "Qwen3-8B"),
    "main_table_a100x8_search_paper": (16000, None, "Qwen3-8B"),
    "credit_a100x8_math_paper": (80000, None, "Qwen3-4B"),
    "drift_a100x8_search_paper": (16000, None, "Qwen3-8B"),
    "sync_a100x8_search_paper": (16000, None, "Qwen3-8B"),
    "airline_a100x8_airline": (1884, None, "Qwen3-1.7B"),
    "airline_matched_a100x8_airline": (100000, 13680.0, "Qwen3-1.7B"),
    "gsm8k_audit_a100x8_math_paper": (80000, None, "Qwen3-4B"),
}
"""rollouts, seconds and model of the experiments' runs"""
F1 = {"vanilla": 0.25, "rtpo": 0.75}
SUBJECTS = (
    "Biology/Medicine",
    "Chemistry",
    "Computer Science/AI",
    "Engineering",
    "Humanities/Social Science",
    "Math",
    "Other",
    "Physics",
)
STEPS = [
    step(1, 500, 0.5, [update(30, 0.02, 0.5, rows=6), update(10, 0.02, 1.0, rows=2)]),
    step(2, 1000, 0.5, [update(30, 0.02, 1.0)]),
]
TURNS = {1: 1, 2: 2, 3: 5, 8: 3}
"""of the failed ones of ten trunks; a success takes 4"""


def questions(
    benchmark: str, label: str, calls: tuple[int, int, int], f1: float | None = None, seed: int = 0
) -> list[dict[str, Any]]:
    """Questions with four samples each."""
    right = (*(SECOND_SEED if seed else RIGHT.get(label, (1, 0))), 0, 0)
    qa = None if f1 is None else {"f1": f1, "span_f1": f1 / 2, "output_hit": 0.0}
    return [
        {"uid": f"q{i}", "sample": sample, "qa": qa, **episode(float(sample < right[i % 4]), calls=calls)}
        for i in range(WHOLE.get(benchmark, 4))
        for sample in range(4)
    ]


def hits(benchmark: str, label: str) -> list[dict[str, Any]]:
    """Deep search: with on-policy continuations the first question of each four is hit, of HLE the last of eight."""
    number = WHOLE.get(benchmark, 4)
    hit: set[int] = set()
    if label == "rtpo":
        hit = {0, 7} if benchmark == "hle" else set(range(0, number, 4))
    metas: list[dict[str, Any]] = [{}] * number
    if benchmark == "hle":
        metas = [{"category": subject} for subject in SUBJECTS]
    elif benchmark == "gaia":
        metas = [{"level": 1}, {"level": 2}, {"level": 3}, {"level": 3}]
    return [
        {
            "uid": f"q{i}",
            "sample": s,
            "meta": metas[i],
            "qa": {"output_hit": float(i in hit), "f1": 0.0},
            **episode(0.0),
        }
        for i in range(number)
        for s in range(4)
    ]


def audit() -> list[dict[str, Any]]:
    """One sample a question, of each four: one call, one that is refused, none, and three of which two run and one
    well."""
    given = [(1.0, (1, 1, 1), 1, 1, 0), (0.0, (1, 0, 0), 1, 0, 0), (1.0, (0, 0, 0), 0, 0, 0), (1.0, (3, 2, 1), 3, 2, 1)]
    return [
        {
            "uid": f"q{i}",
            "sample": 0,
            "audit": {"programs": programs, "valid_programs": valid, "repeated": repeated} if programs else None,
            **episode(reward, calls=calls),
        }
        for i, (reward, calls, programs, valid, repeated) in enumerate(25 * given)
    ]


def airline_answers() -> list[dict[str, Any]]:
    """Of each four of 20 tasks with four episodes of three calls, two of them run and one well: the first is always
    solved, the second once; the third is cut, half the time by its context; the fourth never ended, half the time for
    too many errors. The first task's calls write."""
    ends: dict[int, list[dict[str, Any]]] = {
        2: [{"cut_turns": 1}, {"termination": "context_limit"}],
        3: [{"termination": "turn_limit"}, {"detail": "too many errors"}],
    }
    lines = []
    for i in range(20):
        for sample in range(4):
            reward = float(i % 4 == 0 or (i % 4 == 1 and sample == 0))
            more = ends.get(i % 4, [{}, {}])[sample % 2]
            tool = "book_reservation" if i == 0 else "get_user_details"
            lines.append(held_out(f"t{i}", sample, episode(reward, calls=(3, 2, 1), tool=tool, **more)))
    return lines


def airline_paths() -> list[dict[str, Any]]:
    """Ten trunks, and a failed sibling after each."""
    lines = []
    for i in range(10):
        ends: dict[str, Any] = {"termination": "turn_limit"} if i == 8 else {}
        trunk = episode(float(i not in TURNS), turns=TURNS.get(i, 4), tokens=80 + i, calls=(3, 2, 1), **ends)
        lines += [path(1, f"t{i}", trunk), path(1, f"t{i}", episode(0.0, calls=(9, 9, 9)), parent=f"p{i}")]
    return lines


def run(results: Path, experiment: str, label: str, seed: int = 0, profile: str = PAPER, **more: Any) -> Path:
    """A run of an hour's training on eight GPUs, or two for RTPO."""
    ledger = {"budget": {"rollouts": 1024}, "rollouts": 1000, "generated_tokens": 5000 + seed, "optimizer_steps": 9}
    manifest = {
        "profile": profile,
        "task": experiment.partition(f"_{profile}_")[2],
        "wall_seconds": 7210.0 if label == "rtpo" else 3610.0,
        "ledger": {**ledger, "seconds": {"evaluate": 10.0}},
    }
    platform = {"platform": "cuda" if profile == PAPER else "cpu", "processes": 4, "nodes": 2}
    algorithm = {"label": label, "group_size": 4 if label == "rtpo_g4" else 3}
    rollouts, seconds, model = SCALE.get(experiment, (1024, None, "toy"))
    config = {
        "profile": platform,
        "sampling": {"temperature": 0.9, "top_p": 1.0, "top_k": -1},
        "algorithm": algorithm,
        "results": "r",
        "budget": {"rollouts": rollouts, "seconds": seconds},
        "model": {"name": model},
    }
    given = {"steps": STEPS, "evaluations": [], **more}
    return write_run(
        results,
        label,
        seed,
        given.pop("steps"),
        given.pop("evaluations"),
        experiment=experiment,
        manifest=manifest,
        config=config,
        **given,
    )


def write_paper_scale(results: Path) -> None:
    """Every experiment; the main table's RTPO with two seeds."""
    for label in ("vanilla", "grpo", "seeupo_flat", "rtpo", "grpo_exact", "seeupo", "arpo", "tree_grpo"):
        for seed in range(2 if label == "rtpo" else 1):
            calls = (4, 3, 2) if label == "vanilla" else (3, 1, 0)
            folder = run(results, "main_table_a100x8_math_paper", label, seed)
            for benchmark in MATH:
                write_evaluation(folder, benchmark, questions(benchmark, label, calls, seed=seed))
            folder = run(results, "main_table_a100x8_search_paper", label, seed)
            for benchmark in ("hotpotqa", "2wiki"):
                write_evaluation(folder, benchmark, questions(benchmark, label, calls, F1.get(label, 0.5)))
    for label in ("arpo_full", "tree_grpo_full", "seeupo_full", "rtpo_full", "grpo_full"):
        folder = run(results, "credit_a100x8_math_paper", label)
        for benchmark in ("amc23", "aime24", "aime25", "math500"):
            write_evaluation(folder, benchmark, questions(benchmark, label, (0, 0, 0)))
    for experiment, labels in {
        "drift": ("rtpo", "rtpo_off"),
        "sync": ("rtpo", "rtpo_off", "rtpo_sync_2", "rtpo_sync_kl"),
    }.items():
        for label in labels:
            folder = run(results, f"{experiment}_a100x8_search_paper", label)
            for benchmark in DEEP:
                write_evaluation(folder, benchmark, hits(benchmark, label))
    airline: dict[str, Any] = {"evaluations": airline_answers(), "paths": airline_paths()}
    for label in ("grpo", "seeupo_flat", "tree_grpo", "refuel", "rtpo", "rtpo_g4"):
        run(results, "airline_a100x8_airline", label, **airline)
    for label in ("grpo", "rtpo"):
        run(results, "airline_matched_a100x8_airline", label, **airline)
    write_evaluation(run(results, "gsm8k_audit_a100x8_math_paper", "rtpo_full"), "gsm8k_audit", audit())


def write_toy(results: Path) -> None:
    for label in ("vanilla", "rtpo"):
        for task, f1 in (("toy_math", None), ("toy_knowledge", 0.5)):
            folder = run(results, f"main_table_toy_{task}", label, profile=TOY)
            write_evaluation(folder, task, questions(task, label, (1, 1, 1), f1))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    write_paper_scale(folder)
    write_toy(folder)
    return folder


@pytest.fixture(scope="module")
def pages(results: Path) -> dict[str, table_page.Page]:
    return {page.table.name: page for page in table_page.all_pages(results)}


def long(page: table_page.Page) -> pd.DataFrame:
    """The CSV, as anybody reads it."""
    return pd.read_csv(io.StringIO(page.formats["csv"]))


Find = Callable[[str, str, str], pd.Series]


@pytest.fixture(scope="module")
def find(pages: dict[str, table_page.Page]) -> Find:
    """A line of a table's long form by its row's and column's keys."""

    def of(table: str, row: str, column: str) -> pd.Series:
        made = pages[table].made
        assert made is not None
        places = [(one.plan.row, one.plan.column) for one in made.cells]
        return long(pages[table]).iloc[places.index((row, column))]

    return of


CELLS = [
    # of 30 questions 8 and 8 with samples right: 8 + 4 in the first seed, 8 + 8 in the second
    ("math_knowledge_toolcall_results", "rtpo", "aime24_acc", "46.67", "2", "30", "undecided"),
    ("math_knowledge_toolcall_results", "vanilla", "aime24_calls", "90.0", "1", "30", "no interval"),
    ("math_knowledge_toolcall_results", "rtpo", "hotpotqa_acc", "75.00", "2", "4", "not compared"),
    ("math_knowledge_toolcall_results", "rtpo", "overall_acc", "51.93", "2", "94", "not compared"),
    ("math_knowledge_toolcall_results", "grpo", "math_calls", "86.0", "1", "86", "not compared"),
    ("math_knowledge_toolcall_results", "seeupo_official", "aime24_acc", "6.67", "1", "30", "—"),
    ("math_knowledge_toolcall_results", "vanilla", "aime24_acc", "0.00", "1", "30", "agrees"),
    ("math_knowledge_toolcall_results", "rtpo", "hotpotqa_span", "37.50", "2", "4", "—"),
    ("math_results", "rtpo_ca", "aime24_p1", "40.00", "1", "30", "lower"),
    ("math_results", "rtpo_ca", "aime24_p4", "53.33", "1", "30", "lower"),
    ("on_off_policy_hit", "webwalker", "on_hit", "1.0", "1", "4", "not compared"),
    ("on_off_policy_hit", "xbench", "questions", "100", "—", "—", "agrees"),
    ("on_off_policy_hit", "xbench", "on_hit", "25.0", "1", "100", "higher"),
    ("on_off_policy_hit", "xbench", "delta", "+25.00", "1", "100", "higher"),
    ("recheck_output_hit", "gaia_l1", "on_rate", "100.00", "1", "1", "not compared"),
    ("recheck_output_hit", "hle_physics", "on_rate", "100.00", "1", "1", "not compared"),
    ("acc_only_results", "grpo", "gsm8k", "12.50", "1", "4", "not compared"),
    ("supp_airline_training", "rtpo", "step_10", "50.00", "1", "2 prompts", "undecided"),
    ("supp_airline_test", "rtpo", "pass_at_1", "31.25", "1", "20", "undecided"),
    ("supp_airline_test", "rtpo", "pass_at_4", "50.00", "1", "20", "undecided"),
    ("supp_airline_test", "rtpo", "pass_all_4", "25.00", "1", "20", "undecided"),
    ("supp_airline_test", "rtpo", "normal_termination", "62.50", "1", "20", "undecided"),
    ("supp_airline_test", "rtpo", "truncation", "25.00", "1", "20", "undecided"),
    ("supp_airline_test", "rtpo", "response_tokens", "100.0", "1", "20", "no interval"),
    ("supp_airline_tools", "rtpo", "attempted", "240.0", "1", "20", "no interval"),
    ("supp_airline_tools", "rtpo", "errors", "160.0", "1", "20", "no interval"),
    ("supp_airline_tools", "rtpo", "execution", "33.33", "1", "20", "no interval"),
    ("supp_airline_tools", "grpo", "tokens_per_success", "320.0", "1", "20", "lower"),
    ("supp_airline_tools", "rtpo", "writes", "0.150", "1", "20", "—"),
    ("supp_airline_test", "rtpo", "no_op", "not measured", "—", "—", "not measured"),
    # rows weigh: 6 at 0.5, then 2 and 8 at 1
    ("supp_group_sensitivity", "g4", "zero_advantage", "81.25", "1", "2 steps", "undecided"),
    ("supp_group_cost", "g3", "gpu_hours", "16.00", "1", "—", "not compared"),
    ("supp_trunk_distribution", "failed_1", "trunks", "10.00", "1", "10 prompts", "undecided"),
    ("supp_trunk_distribution", "failed_5", "trunks", "40.00", "1", "10 prompts", "undecided"),
    ("supp_trunk_distribution", "no_signal", "trunks", "10.00", "1", "10 prompts", "undecided"),
    ("supp_trunk_distribution", "length", "trunks", "3.50", "1", "10 prompts", "lower"),
    ("supp_failure_dynamics", "ended_failed", "step_10", "50.00", "1", "2 prompts", "undecided"),
    ("supp_failure_dynamics", "no_signal", "step_50", "50.00", "1", "2 prompts", "undecided"),
    ("supp_failure_dynamics", "success_turns", "step_10", "4.00", "1", "2 prompts", "no interval"),
    ("supp_failure_dynamics", "failed_turns", "step_20", "3.50", "1", "2 prompts", "undecided"),
    ("supp_training_tokens", "tree_grpo", "training_tokens", "5,000", "1", "—", "no interval"),
    ("supp_training_tokens", "rtpo", "training_tokens", "5,000", "1", "—", "not compared"),
    ("supp_wall_clock", "rtpo", "wall_clock", "2.00", "1", "—", "not compared"),
    ("supp_wall_clock", "rtpo", "cost", "2.00", "1", "—", "no interval"),
    ("supp_compute_matched", "gpu_hours", "grpo", "8.00", "1", "—", "not compared"),
    ("supp_inference_budget", "rtpo", "successes_per_1k", "3.125", "1", "20", "higher"),
    ("supp_math_tool_calls", "gsm8k", "vanilla_calls", "12.0", "1", "4", "not compared"),
    ("supp_gsm8k_audit", "using", "result", "75.0", "1", "100", "higher"),
    ("supp_gsm8k_audit", "calls", "result", "1.25", "1", "100", "higher"),
    ("supp_gsm8k_audit", "zero", "result", "25.0", "1", "100", "lower"),
    ("supp_gsm8k_audit", "two_or_more", "result", "25.0", "1", "100", "higher"),
    ("supp_gsm8k_audit", "valid", "result", "75.0", "1", "100", "higher"),
    ("supp_gsm8k_audit", "executed", "out_of", "125.0", "1", "100", "higher"),
    ("supp_gsm8k_audit", "correct", "result", "50.0", "1", "100", "higher"),
    ("supp_gsm8k_audit", "repeated", "result", "25.0", "1", "100", "higher"),
    ("supp_sync_results", "gaia_l3", "on_rate", "0.00", "1", "2", "not compared"),
    ("supp_budget", "step_20", "trunk_tokens", "82.5", "1", "2 prompts", "lower"),
]


@pytest.mark.parametrize(("table", "row", "column", "ours", "seeds", "number", "verdict"), CELLS)
def test_cells(find: Find, table: str, row: str, column: str, ours: str, seeds: str, number: str, verdict: str) -> None:
    line = find(table, row, column).fillna(NO_VALUE)
    if ours != "not measured":
        digits = len(ours.partition(".")[2])
        assert f"{line['value']:,.{digits}f}" == ours.removeprefix("+")
    units = "" if line["of"] in ("questions", NO_VALUE) else f" {line['of']}"
    told = [f"{line[key]:.0f}" if line[key] != NO_VALUE else NO_VALUE for key in ("seeds", "n")]
    assert (told[0], told[1] + units, line["verdict"]) == (seeds, number, verdict), line


def test_every_cell_of_every_table_is_made(pages: dict[str, table_page.Page]) -> None:
    paper = load_paper()
    made = [page.made for page in pages.values() if page.made is not None and page.made.profile == PAPER]
    assert {table.key for table in made} == {*paper.tables, "settings"}
    for table in made:
        printed = {(one.plan.row, one.plan.column) for one in table.cells if one.plan.paper is not None}
        assert printed >= set(paper.tables[table.key].cells if table.key in paper.tables else ())
        assert "not run" not in table.counts, table.key


def test_pandas_reads_numbers_as_numbers(pages: dict[str, table_page.Page]) -> None:
    for page in pages.values():
        frame = long(page)
        for column in {"value", "low", "high", "n", "seeds", "paper"} & {*frame}:
            assert pd.api.types.is_numeric_dtype(frame[column]), (page.table.name, column)
    by_method = long(pages["math_results"]).pivot(index="row", columns="column", values="value")
    assert by_method.loc["RTPO-CA", "AIME24 P@1"] == pytest.approx(40)


def test_a_relative_gain_keeps_its_pairing(find: Find) -> None:
    # mean(46.667, 5 x 43.75, 2 x 75) = 51.927 against mean(6 x 0, 2 x 25) = 6.25
    assert find("math_knowledge_toolcall_results", "rtpo", "over_vanilla")["value"] == pytest.approx(730.83, abs=0.01)
    vanilla = find("math_knowledge_toolcall_results", "vanilla", "over_vanilla")
    assert (vanilla["value"], np.isnan(vanilla["low"])) == (pytest.approx(0), True)


def test_settings_stand_beside_the_papers(find: Find) -> None:
    keys = ["value", "low", "paper", "printed", "verdict"]
    third = pytest.approx(2 / 3)
    assert list(find("supp_group_sensitivity", "g4", "coefficient")[keys]) == [third, third, third, "2/3", "agrees"]
    assert list(find("supp_group_sensitivity", "g3", "group_size")[keys]) == [3, 3, 3, "3", "agrees"]
    assert list(find("all-hparams", "tree_grpo", "leaves")[["value", "paper"]]) == [4, 4]
    assert list(find("settings", "learning_rate", "value")[["value", "printed"]]) == [1e-6, "1e-6"]
    assert find("settings", "eval_top_p", "value")["value"] == 0.95
    assert find("settings", "arpo_tau", "value")["why"] == "the setting is off"


def test_a_share_of_nothing_has_wilsons_interval(find: Find) -> None:
    # 0 of 30 questions
    line = find("math_knowledge_toolcall_results", "vanilla", "aime24_acc")
    assert (line["value"], line["low"], round(line["high"], 2), line["seeds"]) == (0, 0, 11.35, 1)


def test_what_is_a_mean_of_nothing_has_no_value(find: Find) -> None:
    # both trunks of the third fifth succeed
    line = find("supp_failure_dynamics", "failed_turns", "step_30")
    assert line[["value", "low", "verdict"]].isna().all()
    assert (line["n"], line["of"]) == (2, "prompts")


def test_a_table_is_laid_out_as_in_the_paper(pages: dict[str, table_page.Page]) -> None:
    table = pages["supp_sync_results"].table
    assert table.header[:5] == ("", "", "Off-policy", "On-policy", "Difference")
    rows = {row[0]: (row, below) for row, below in itertools.pairwise(table.rows)}
    assert rows["XBench"][0] == ("XBench", "paper", "8.00", "15.00", "+7.00", "", "")
    shown = ["0.00 [0.00, 3.70] lower", "25.00 [16.36, 33.64] higher", "+25.00 [+16.36, +33.64] higher"]
    assert rows["XBench"][1][:5] == ("", "ours, 1 seed, 100 questions", *shown)
    assert "The paper's numbers are at temperature 0.6, top-p 0.95." in table.notes
    assert "Ours are at temperature 0.6, top-p 0.95." in table.notes


def test_facts_stand_with_the_lines_that_share_them(pages: dict[str, table_page.Page]) -> None:
    table = pages["math_knowledge_toolcall_results"].table
    assert [row[1] for row in table.rows[:8]] == [*["paper", "ours, 1 seed"] * 3, "paper", "ours, 2 seeds"]
    assert table.rows[-1][:5] == ("n", "", "30 questions", "30 questions", "4 questions")
    cost = pages["supp_group_cost"].table
    assert "Ours are at temperature 1." in cost.notes
    assert "Ours are at temperature 0.9, in training." in pages["supp_budget"].table.notes


def test_rows_that_the_paper_does_not_have_follow_and_are_marked(pages: dict[str, table_page.Page]) -> None:
    table = pages["math_knowledge_toolcall_results"].table
    assert [row[0] for row in table.rows[8:10]] == ["GRPO, exact contexts (control) †", "SeeUPO, as published †"]
    assert table.header[-2:] == ("HotpotQA span F1 †", "2Wiki span F1 †")
    assert "†: not in the paper's table." in table.notes


def test_toy_runs_never_stand_beside_the_papers_numbers(pages: dict[str, table_page.Page]) -> None:
    page = pages["math_knowledge_toolcall_results_toy"]
    frame = long(page).set_index(["row", "column"])
    assert frame["printed"].isna().all()
    assert not any("paper" in row for row in page.table.rows)
    assert dict(frame.loc["RTPO", "value"]) == {
        "toy_math accuracy": 37.5,
        "toy_math calls": 4,
        "toy_knowledge accuracy": 37.5,
        "toy_knowledge calls": 4,
        "Overall accuracy": 37.5,
        "Overall against vanilla": np.inf,
        "All calls": 8,
        "Math calls": 4,
        "Knowledge calls": 4,
    }
    assert "toy_math stands for math and toy_knowledge stands for search" in page.table.caption
    # the calls of math and those of three benchmarks there is one of
    assert set(long(pages["supp_math_tool_calls_toy"])["row"]) == {"toy_math"}
    assert {page.made.profile for page in pages.values() if page.made is not None} == {PAPER, TOY}
    # two rows of one method stay two
    assert {"SeeUPO", "SeeUPO, as published"} <= set(frame.index.get_level_values("row"))


def test_rows_are_compared_in_pairs(pages: dict[str, table_page.Page]) -> None:
    assert {name for name in pages if name.endswith("_compared")} == {
        f"{name}_compared" for name in ("math_knowledge_toolcall_results", "math_results", "supp_airline_test")
    } | {"math_knowledge_toolcall_results_toy_compared"}
    page = pages["math_knowledge_toolcall_results_compared"]
    assert [row[:2] for row in page.table.rows][:2] == [("Vanilla", "1"), ("GRPO", "1")]
    # RTPO's 46.67 less 16 of 120 samples, in pairs; one seed has no p-value, and so is not bold
    frame = long(page).set_index("Against")
    low, value, high = frame.loc["GRPO", [f"AIME24 accuracy{end}" for end in (", low", "", ", high")]]
    assert (value, low < value < high) == (pytest.approx(33.33), True)
    assert "**" not in markdown(page.table)


def test_a_difference_that_seeds_agree_on_is_bold(tmp_path: Path) -> None:
    for label, right in (("rtpo_full", 4), ("grpo_full", 0)):
        for seed in range(4):
            folder = run(tmp_path, "credit_a100x8_math_paper", label, seed)
            for benchmark in ("amc23", "aime24", "aime25", "math500"):
                lines = questions(benchmark, "", (0, 0, 0))
                for line in lines:
                    line["reward"] = float(line["sample"] < right and (int(line["uid"][1:]) + seed) % 3 > 0)
                write_evaluation(folder, benchmark, lines)
    pages = {page.table.name: page for page in table_page.one_table(tmp_path, "math_results")}
    (row,) = pages["math_results_compared"].table.rows
    assert row[:2] == ("GRPO, full history †", "4")
    assert all(cell.startswith("**+") for cell in row[2:])


@pytest.mark.needs("pdflatex")
def test_every_table_compiles_and_stays_within_the_line(
    pages: dict[str, table_page.Page], tmp_path_factory: pytest.TempPathFactory
) -> None:
    empty = table_page.all_pages(tmp_path_factory.mktemp("none"))
    compile_latex([page.formats["tex"] for page in (*pages.values(), *empty)], tmp_path_factory.mktemp("tex"))


# the command


def make(results: Path, folder: Path, *more: str) -> int:
    return main(["--results", str(results), "--output", str(folder), "--page", str(folder / "tables.md"), *more])


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.rglob("*.*"))}


def test_two_makings_are_alike(results: Path, tmp_path: Path) -> None:
    assert make(results, tmp_path / "one") == 0
    assert make(results, tmp_path / "two") == 0
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_stale_tables_are_named_with_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert make(tmp_path, tmp_path / "made") == 0
    made = files(tmp_path / "made")
    assert make(tmp_path, tmp_path / "made", "--check") == 0
    stale = tmp_path / "made" / "paper" / "supp_budget.csv"
    stale.write_text(stale.read_text().replace("not run", "agrees", 1))
    left = tmp_path / "made" / "paper" / "supp_budget_toy_compared.md"
    left.write_text("")
    thesis = tmp_path / "made" / "paper" / "main.tex"
    thesis.write_text("")
    capsys.readouterr()
    assert make(tmp_path, tmp_path / "made", "--check") == 1
    told = capsys.readouterr().err.splitlines()
    assert told == [f"{one} is not what the records give: python analysis/make_tables.py" for one in (stale, left)]
    make(tmp_path, tmp_path / "made")
    thesis.unlink()
    assert files(tmp_path / "made") == made


def test_one_table_is_asked_for(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert make(results, tmp_path, "--table", "supp_budget") == 0
    assert sorted(files(tmp_path)) == ["supp_budget.csv", "supp_budget.md", "supp_budget.tex"]
    assert "Profile a100x8" in capsys.readouterr().out
    assert make(results, tmp_path, "--table", "supp_budget_toy") == 1
    assert capsys.readouterr().err == (
        "error: The table supp_budget_toy has no complete run: `PROFILE=toy sbatch slurm/airline.sh`, or without SLURM "
        "`python experiments/launch.py run airline profile=toy`.\n"
    )
    assert make(results, tmp_path, "--table", "supp") == 1
    assert "There is no table 'supp'; there are math_knowledge_toolcall_results, " in capsys.readouterr().err
    # it is made of configurations, and so has no other profile's
    assert make(results, tmp_path, "--table", "all-hparams_toy") == 1
    told = capsys.readouterr().err
    assert told.startswith("error: There is no table 'all-hparams_toy'; ")
    assert told.endswith(" with _<profile> after its name.\n")
    assert make(results, tmp_path, "--table", "supp_budgte") == 1
    assert "There is no table 'supp_budgte'; the nearest is supp_budget. " in capsys.readouterr().err


def test_the_committed_tables_are_those_of_the_committed_records(tmp_path: Path) -> None:
    for name in KEPT:
        (tmp_path / name).symlink_to(PROJECT / "results" / name, target_is_directory=True)
    tables, page = PROJECT / "results" / "tables", PROJECT / "docs" / "results" / "tables.md"
    assert main(["--results", str(tmp_path), "--output", str(tables), "--page", str(page), "--check"]) == 0


# what is not there, not whole, or not alike


def one(results: Path, key: str) -> tuple[pd.DataFrame, Sequence[str]]:
    """A table's long form by row and column, and its notes."""
    reproduction, records = load_reproduction(), Records(results, PAPER)
    made = make_table(records, reproduction.tables[key], reproduction)
    page = table_page.Page(grid(made, records, load_paper(), reproduction), long_form(made), made)
    return long(page).set_index(["row", "column"]), page.table.notes


@pytest.fixture
def sync(tmp_path: Path) -> Path:
    """A run of the experiment sync with its four evaluations."""
    folder = run(tmp_path, "sync_a100x8_search_paper", "rtpo")
    for benchmark in DEEP:
        write_evaluation(folder, benchmark, hits(benchmark, "rtpo"))
    return folder


def test_without_records_every_cell_says_so_and_what_to_run(tmp_path: Path) -> None:
    lines, notes = one(tmp_path, "supp_sync_results")
    assert (set(lines["verdict"]), lines["value"].isna().all()) == ({"not run"}, True)
    assert notes[-1] == (
        "Not run: `sbatch slurm/sync.sh`, or without SLURM `python experiments/launch.py run sync profile=a100x8`."
    )


def test_incomplete_runs_and_evaluations_are_named_and_left_out(sync: Path) -> None:
    (sync / "gaia" / "manifest.json").unlink()
    other = run(sync.parents[1], "sync_a100x8_search_paper", "rtpo_off", complete=False)
    lines, notes = one(sync.parents[1], "supp_sync_results")
    for row, column in itertools.product(("GAIA", "WebWalkerQA"), ("Off-policy", "Difference")):
        assert lines.loc[(row, column), "verdict"] == "not run"
    assert lines.loc[("GAIA", "On-policy"), "verdict"] == "not run"
    assert lines.loc[("WebWalkerQA", "On-policy"), "value"] == 25
    assert notes[-1] == (
        f"Left out, because incomplete: {sync.parent.name}/{other.name}, {sync.parent.name}/{sync.name}/gaia."
    )


def test_an_evaluation_that_another_seed_has_is_missed(sync: Path) -> None:
    other = run(sync.parents[1], "sync_a100x8_search_paper", "rtpo", 1)
    write_evaluation(other, "hle", hits("hle", "rtpo"))
    _, notes = one(sync.parents[1], "supp_sync_results")
    missed = ", ".join(f"{other.parent.name}/{other.name}/{name}" for name in sorted({*DEEP} - {"hle"}))
    assert notes[-1] == f"Left out, because incomplete: {missed}."


def test_an_evaluation_before_the_end_of_training_is_left_out_and_named(sync: Path) -> None:
    manifest = json.loads((sync / "xbench" / "manifest.json").read_text())
    manifest["checkpoint"]["policy_version"] = 4
    write_manifest(sync / "xbench", manifest)
    lines, notes = one(sync.parents[1], "supp_sync_results")
    assert lines.loc[("XBench", "On-policy"), "verdict"] == "not run"
    assert notes[-1] == (
        f"Left out, because incomplete: {sync.parent.name}/{sync.name}/xbench (not of the trained policy)."
    )


@pytest.mark.parametrize(("key", "value"), [("profile", "toy"), ("task", "toy_knowledge")])
def test_a_run_in_the_folder_of_others_is_refused(sync: Path, key: str, value: str) -> None:
    write_manifest(sync, json.loads((sync / "manifest.json").read_text()) | {key: value})
    with pytest.raises(DataError, match=rf"rtpo-seed0/manifest\.json says {key} '{value}' and lies in 'sync_a100x8_"):
        one(sync.parents[1], "supp_sync_results")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"budget": {"rollouts": 64, "seconds": None}}, "budget.rollouts of {} is 64 and the experiment's 16000"),
        ({"budget": {"rollouts": 16000, "seconds": 60.0}}, "budget.seconds of {} is 60.0 and the experiment's None"),
        ({"model": {"name": "Qwen3-0.6B"}}, "model.name of {} is Qwen3-0.6B and the experiment's Qwen3-8B"),
    ],
)
def test_runs_of_another_scale_are_not_compared(sync: Path, change: Mapping[str, Any], told: str) -> None:
    config = yaml.safe_load((sync / "config.yaml").read_text()) | dict(change)
    (sync / "config.yaml").write_text(yaml.safe_dump(config))
    write_manifest(sync, json.loads((sync / "manifest.json").read_text()))
    lines, notes = one(sync.parents[1], "supp_sync_results")
    assert list(lines.loc[("XBench", "On-policy"), ["value", "verdict"]]) == [25, "not compared"]
    assert f"Not compared: {told.format('sync_a100x8_search_paper/rtpo')}." in notes


def test_panels_that_are_cut_down_are_not_compared(sync: Path) -> None:
    lines, notes = one(sync.parents[1], "supp_sync_results")
    verdicts = lines.xs("On-policy", level="column")["verdict"]
    assert (verdicts["XBench"], verdicts["WebWalkerQA"]) == ("higher", "not compared")
    assert (
        "Not compared: 4 of 103 questions of gaia; 4 of 200 questions of webwalker; 8 of 500 questions of hle." in notes
    )


def test_fewer_held_out_tasks_are_not_compared(tmp_path: Path) -> None:
    run(tmp_path, "airline_a100x8_airline", "rtpo", evaluations=airline_answers()[:16], paths=airline_paths())
    lines, notes = one(tmp_path, "supp_airline_test")
    assert lines.loc[("RTPO (G=3)", "Pass@1"), "verdict"] == "not compared"
    assert "Not compared: 4 of 20 questions of airline." in notes


# verdicts


def cell(printed: str, unit: str) -> CellPlan:
    return CellPlan("a", "b", "A", "B", unit, Value(printed, unit), True, Source())


def between(low: float, high: float) -> Estimate:
    return Estimate((low + high) / 2, np.array([low, high]), 1, {}, 0, (low, high))


VERDICT_CASES = [
    ("50.0", "points", 45, 55, "agrees"),
    # half a unit of the last digit
    ("50.0", "points", 50.04, 55, "agrees"),
    ("50.0", "points", 50.06, 55, "higher"),
    ("50.0", "points", 45, 49.96, "agrees"),
    ("50.0", "points", 45, 49.94, "lower"),
    ("17", "calls", 17.4, 20, "agrees"),
    ("17", "calls", 17.6, 20, "higher"),
    # a count has none
    ("17", "count", 17.4, 20, "higher"),
    ("17", "questions", 14, 16.6, "lower"),
    # 10 points to either side, or a quarter of the number
    ("50.0", "points", 40, 60, "agrees"),
    ("50.0", "points", 39, 60, "undecided"),
    ("100", "tokens", 75, 125, "agrees"),
    ("100", "tokens", 74, 125, "undecided"),
    ("-4.0", "percent", -5, -3, "agrees"),
    ("-4.0", "percent", -5.1, -3, "undecided"),
    ("50.0", "tokens", 10, float("inf"), "undecided"),
    # wide, and beside the number
    ("50.0", "points", 51, 99, "higher"),
]


@pytest.mark.parametrize(("printed", "unit", "low", "high", "expected"), VERDICT_CASES)
def test_verdicts(printed: str, unit: str, low: float, high: float, expected: str) -> None:
    ours = replace(between(low, high), value=low)
    assert verdict(cell(printed, unit), ours) == expected
    assert verdict(cell(printed, unit), ours, "other GPUs") == "not compared"


def test_a_number_known_exactly_is_the_papers_or_not() -> None:
    assert verdict(cell("0.5", "setting"), exact(0.5)) == "agrees"
    assert verdict(cell("0.5", "setting"), exact(0.54)) == "differs"
    assert verdict(cell("100", "questions"), exact(100.4)) == "higher"
    same = Cells(np.full((1, 3), 0.5), np.ones((1, 3)), (0,), "questions a", 3, 100.0)
    assert verdict(cell("50.0", "points"), estimate(same)) == "no interval"


# what is not whole


def damage(folder: Path, file: str, change: Callable[[list[str]], list[str]]) -> None:
    """Change a file's lines and the manifest's checksum with it."""
    (folder / file).write_text("\n".join([*change((folder / file).read_text().splitlines()), ""]))
    write_manifest(folder, json.loads((folder / "manifest.json").read_text()))


def test_damaged_lines_are_named_and_counted(sync: Path) -> None:
    damage(sync / "xbench", "samples.jsonl", lambda lines: [lines[0], "{", *lines[2:399], "[]"])
    with pytest.raises(DataError, match=r"xbench/samples\.jsonl line 2 is not JSON .* 2 of the 400 lines are damaged"):
        one(sync.parents[1], "supp_sync_results")
    damage(sync / "xbench", "samples.jsonl", lambda lines: [line for line in lines if line not in ("{", "[]")])
    with pytest.raises(DataError, match="has 398 lines and the manifest says 400"):
        one(sync.parents[1], "supp_sync_results")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 0}, "has schema 0 and this version reads schema 1"),
        ({"benchmark": "gaia"}, "says benchmark 'gaia' and lies in 'hle'"),
        ({"checkpoint": {"run": "a/b"}}, "is an evaluation of 'a/b', not of the run"),
    ],
)
def test_an_evaluation_of_another_kind_is_refused(sync: Path, change: Mapping[str, Any], message: str) -> None:
    manifest = json.loads((sync / "hle" / "manifest.json").read_text())
    write_manifest(sync / "hle", manifest | dict(change))
    with pytest.raises(DataError, match=message):
        one(sync.parents[1], "supp_sync_results")


def test_evaluations_that_differ_are_not_compared(sync: Path) -> None:
    other = run(sync.parents[1], "sync_a100x8_search_paper", "rtpo_off")
    write_evaluation(other, "hle", hits("hle", "rtpo_off"), manifest={"decoding": {"temperature": 1.0}})
    with pytest.raises(DataError, match=r"rtpo-seed0/hle and .*rtpo_off-seed0/hle differ in decoding: evaluate them"):
        one(sync.parents[1], "supp_sync_results")


def test_runs_of_a_label_that_differ_are_refused(sync: Path) -> None:
    folder = run(sync.parents[1], "sync_a100x8_search_paper", "rtpo", 1)
    config = yaml.safe_load((folder / "config.yaml").read_text()) | {"optimizer": {"lr": 1.0}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    write_manifest(folder, json.loads((folder / "manifest.json").read_text()))
    with pytest.raises(DataError, match=r"differ in optimizer\.lr, 0\.5 and 1\.0"):
        one(sync.parents[1], "supp_sync_results")


def test_what_could_not_be_graded_is_left_out_and_counted(tmp_path: Path) -> None:
    answers = airline_answers()
    # two of the second task's three failures
    answers[6:8] = [held_out("t1", sample, episode(None)) for sample in (2, 3)]
    run(tmp_path, "airline_a100x8_airline", "rtpo", evaluations=answers, paths=airline_paths())
    lines, notes = one(tmp_path, "supp_airline_test")
    # 5 of 1, 4 of .25 and 1 of .5 of 20; of the second task no four are graded, and 5 of 19 are always solved
    rtpo = lines.loc["RTPO (G=3)", "value"]
    assert (rtpo["Pass@1"], round(rtpo["Pass^4"], 2)) == (32.5, 26.32)
    assert any("could not be graded and are left out" in note for note in notes)


def test_a_run_without_paths_is_refused_by_name(tmp_path: Path) -> None:
    run(tmp_path, "airline_a100x8_airline", "rtpo", evaluations=airline_answers())
    with pytest.raises(DataError, match=r"manifest\.json, files lacks paths\.jsonl"):
        one(tmp_path, "supp_budget")


# what the cells are made of


def test_the_rows_of_experiments_are_those_of_the_tables() -> None:
    reproduction = load_reproduction()
    for name in reproduction.launchers:
        given = yaml.safe_load((PROJECT / "configs" / "experiment" / f"{name}.yaml").read_text())
        labels = set(given["hydra"]["sweeper"]["params"]["algorithm"].split(","))
        tables = [table for table in reproduction.tables.values() if table.experiments == (name,)]
        cells = [cell for table in tables for cell in table.cells if cell.source.label]
        assert {cell.source.label for cell in cells} == labels
        for label in given["launch"].get("not_in_paper", ()):
            assert not any(cell.in_paper for cell in cells if cell.source.label == label)
        said = {label.removeprefix("tab:") for label in given["launch"]["paper"] if label.startswith("tab:")}
        assert {table.key for table in tables} == said
        assert (PROJECT / "slurm" / f"{reproduction.launchers[name]}.sh").exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("quantity: ended}", "quantity: endings}", "quantity: there is no 'endings'; there are pass_at_1"),
        ("experiment: sync,", "experiment: synch,", "experiment: there is no 'synch'"),
        ("benchmark: 2wiki, quantity: f1", "benchmark: wiki, quantity: f1", "benchmark: there is no 'wiki'"),
        ("seeupo: {label", "seupo: {label", "The paper's table has no line seupo; there are vanilla"),
        ("episodes: held_out}", "episodes: held}", "episodes: there is no 'held'"),
        ("  supp_budget:", "  supp_budgets:", "reproduction.yaml has no table supp_budget"),
        ("trunk_tokens: {quantity: tokens_each}", "trunk_tokens: {quantity: turns}", "is in tokens and the quantity"),
        ("notes: [fifths]", "notes: [fifth]", "there is no 'fifth'"),
        ('"hle*.questions"', '"hl.questions"', "single: no cell is hl.questions"),
        ("      trunk_calls: {quantity: calls_each}\n", "", "step_10.trunk_calls: nothing is said of it"),
    ],
)
def test_what_is_not_there_is_refused(old: str, new: str, message: str) -> None:
    text = SOURCE.read_text(encoding="utf-8")
    assert old in text
    with pytest.raises(DataError, match=message.replace("(", r"\(")):
        read_reproduction(text.replace(old, new, 1), load_paper())
