"""The paper's claims: each verdict both ways on made-up runs and numbers, what is not run, the page, the commands."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from synthetic_runs import answers, episode, step, write_evaluation, write_run
from synthetic_runs import update as alike

from analysis.claims import __main__ as paper_claims
from analysis.claims.claims import CLAIMS, PAPER_SCALE, PRINTED, THEORY, TOY, Claim, Lead
from analysis.claims.evidence import Evidence, load_evidence
from analysis.claims.page import Row, judged, overview
from analysis.claims.rule import BESIDE, CONSISTENT, OURS, Part, equality, verdict
from analysis.intervals import Interval
from analysis.paper.estimates import Estimate
from analysis.paper.numbers import Paper, Value
from analysis.paper.records import Missing, Records
from analysis.study.plan import TOY_RESULTS, TOY_STUDY, Study
from analysis.tables import CONTRADICTED, FEW_RUNS, NOT_RUN, SUPPORTED, UNDECIDED
from rtpo.run.config import PROJECT

BY_KEY = {claim.key: claim for claim in CLAIMS}
FROM_TABLES = [claim.key for claim in CLAIMS for test in claim.tests if test.scale == PAPER_SCALE and test.tables]
FROM_RUNS = ["ratio_at_one", "ratio_below", "ratio_rising", "ties"]
"""each has a test of its own"""
SEEDS = range(FEW_RUNS)


@pytest.fixture(scope="module")
def nothing(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """Without any record."""
    return load_evidence(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def rows(nothing: Evidence) -> Sequence[Row]:
    """Every claim without any record."""
    return judged(nothing)


def at(evidence: Evidence, key: str, scale: str) -> Row:
    """The row of a claim at a scale."""
    (row,) = [row for row in judged(evidence, [BY_KEY[key]]) if row.scale == scale]
    return row


# the rule


@pytest.mark.parametrize(
    ("mean", "low", "high", "pairs", "said"),
    [
        (1.01, 1.005, 1.015, 3, SUPPORTED),
        (0.95, 0.94, 0.96, 3, CONTRADICTED),
        (1.0, 0.9, 1.1, 3, UNDECIDED),
        (1.0, 0.999, 1.001, 2, UNDECIDED),
        (1.0, float("nan"), float("nan"), 3, SUPPORTED),
        (0.9, float("nan"), float("nan"), 3, CONTRADICTED),
        (float("nan"), float("nan"), float("nan"), 3, UNDECIDED),
    ],
)
def test_an_equality_needs_a_narrow_interval_that_reaches_it(
    mean: float, low: float, high: float, pairs: int, said: str
) -> None:
    assert equality(Interval(mean, low, high, pairs, 1), pairs, 1.0, 0.02) == said


@pytest.mark.parametrize(
    ("outcomes", "every", "said"),
    [
        ([SUPPORTED, SUPPORTED], False, SUPPORTED),
        ([CONTRADICTED, SUPPORTED, UNDECIDED], False, "mixed: supported, contradicted, undecided"),
        ([SUPPORTED, CONTRADICTED], True, CONTRADICTED),
        ([SUPPORTED, UNDECIDED], True, "mixed: supported, undecided"),
        ([NOT_RUN, NOT_RUN], False, NOT_RUN),
        ([CONTRADICTED, NOT_RUN, NOT_RUN], False, "contradicted (1 of 3 parts run)"),
        ([], False, "not testable"),
    ],
)
def test_a_claim_says_what_its_parts_say_together(outcomes: list[str], every: bool, said: str) -> None:
    beside = [Part("x", "", CONTRADICTED, aside, 3) for aside in (OURS, BESIDE)]
    assert verdict([*(Part("x", "", outcome) for outcome in outcomes), *beside], every) == said


def test_a_verdict_on_few_runs_says_on_how_many() -> None:
    few, many = Part("x", "", SUPPORTED, count=3, of="runs"), Part("x", "", SUPPORTED, count=FEW_RUNS)
    assert (few.text, many.text) == ("*supported (3 runs)*, x", "*supported*, x")
    assert [verdict(parts) for parts in ([few], [many], [few, many])] == [
        "supported (3 runs)",
        "supported",
        "supported (3 to 5 runs)",
    ]
    against = Part("x", "", CONTRADICTED, count=4)
    assert verdict([many, against]) == "mixed: supported, contradicted (4 pairs)"
    assert verdict([many, few, against], every=True) == "contradicted (4 pairs)"


# nothing run


def test_what_has_no_complete_run_is_not_run(nothing: Evidence, rows: Sequence[Row]) -> None:
    by_scale = {scale: {row.verdict for row in rows if row.scale == scale} for scale in (PAPER_SCALE, TOY, THEORY)}
    assert by_scale == {PAPER_SCALE: {NOT_RUN}, TOY: {NOT_RUN}, THEORY: {NOT_RUN, "not testable"}}
    assert "| Turn-level credit | not run | not run | — | supported |" in overview(rows, nothing.paper)
    assert {row.claim.key for row in rows} == BY_KEY.keys()
    at_paper_scale = {row.claim.key for row in rows if row.scale == PAPER_SCALE}
    assert at_paper_scale == {*FROM_TABLES, *FROM_RUNS}


# the paper's scale, from hand-made cells


NUMBER = count()


def known(value: float, seeds: int = FEW_RUNS) -> Estimate:
    """With noise of its own."""
    noise = 1e-5 * np.random.default_rng(next(NUMBER)).normal(size=(seeds, 30))
    parts = {(f"questions {next(NUMBER)}", 30): pd.DataFrame(noise - noise.mean())}
    return Estimate(value, parts, seeds, {"questions x": 30})


def with_cells(nothing: Evidence, claim: Claim, favour: bool, seeds: int = FEW_RUNS) -> Evidence:
    """Evidence whose cells hold a claim, or its opposite."""
    values: dict[str, dict[tuple[str, str], float]] = {}
    (tables,) = (test.tables for test in claim.tests if test.scale == PAPER_SCALE)
    for one in tables:
        of_table = values.setdefault(one.table, {})
        if isinstance(one, Lead):
            for line in one.lines:
                place = lambda name, line=line, one=one: (name, line) if one.by_row else (line, name)  # noqa: E731
                high = favour != one.lower if one.others else favour
                of_table[place(one.one)] = (9.0 if high else 1.0) if one.others else (5.0 if high else -5.0)
                of_table.update({place(other): 5.0 for other in one.others})
        elif one.formula.startswith("relative"):
            rtpo, other = re.findall(r"\w+", one.formula)[1:]
            gain = one.closed(nothing.paper) if favour else 0.0
            of_table[rtpo, one.column], of_table[other, one.column] = 60.0, 60.0 / (1 + gain / 100)
        else:
            of_table[one.formula, one.column] = one.closed(nothing.paper) + (0.0 if favour else 50.0)
    evidence = replace(nothing)
    for key, cells in values.items():
        plans = {(plan.row, plan.column): plan for plan in nothing.reproduction.tables[key].cells}
        evidence._tables[key] = {place: (plans[place], known(value, seeds)) for place, value in cells.items()}
    return evidence


@pytest.mark.parametrize("key", FROM_TABLES)
def test_claims_from_the_tables_go_both_ways(nothing: Evidence, key: str) -> None:
    claim = BY_KEY[key]
    assert at(with_cells(nothing, claim, favour=True), key, PAPER_SCALE).verdict == SUPPORTED
    against = at(with_cells(nothing, claim, favour=False), key, PAPER_SCALE)
    assert against.verdict == CONTRADICTED
    assert re.search(r"\[[+−\d.]+, [+−\d.]+\].*5 seeds, 30 questions", against.evidence)
    assert at(with_cells(nothing, claim, favour=True, seeds=2), key, PAPER_SCALE).verdict == "undecided (2 seeds)"


def test_controls_stand_beside_and_cells_that_are_missing_do_not_count(nothing: Evidence) -> None:
    evidence = with_cells(nothing, BY_KEY["accuracy"], favour=True)
    ((table, cells),) = evidence._tables.items()
    plan, _ = cells["grpo_exact", "overall_acc"]
    evidence._tables[table] = {**cells, ("grpo_exact", "overall_acc"): (plan, known(50.0))}
    row = at(evidence, "accuracy", PAPER_SCALE)
    assert row.verdict == SUPPORTED
    assert re.search(r"\*contradicted\* \(ours\), Overall accuracy, against GRPO, exact[^:]*: −41\.0 \[", row.evidence)
    plan, _ = cells["seeupo", "overall_acc"]
    evidence._tables[table] = {**cells, ("seeupo", "overall_acc"): (plan, Missing(NOT_RUN))}
    assert at(evidence, "accuracy", PAPER_SCALE).verdict == "supported (1 of 2 parts run)"


# the paper's scale, from runs


def paper_run(
    results: Path,
    experiment: str,
    task: str,
    label: str,
    seed: int,
    kls: Sequence[float],
    tied: float = 0.5,
    complete: bool = True,
) -> Path:
    """A run of the paper's profile with an update a step."""
    steps = [step(place, 10 * place, 0.5, [alike(10, kl, tied + 0.01 * seed)]) for place, kl in enumerate(kls, start=1)]
    kind = {"profile": "a100x8", "task": task}
    place = f"{experiment}_a100x8_{task}"
    return write_run(results, label, seed, steps, [], complete=complete, manifest=kind, experiment=place)


def consistent(results: Path, rtpo: float, others: Sequence[float]) -> Evidence:
    for task in ("math_paper", "search_paper"):
        for seed in SEEDS:
            noise = 1e-4 * seed
            paper_run(results, "main_table", task, "rtpo", seed, [rtpo + noise] * 10)
            for label in ("grpo", "seeupo_flat"):
                paper_run(results, "main_table", task, label, seed, [kl * (1 + noise) for kl in others])
    return load_evidence(results)


def test_consistency_at_the_paper_s_scale_goes_both_ways(tmp_path: Path) -> None:
    rising = np.linspace(0.3, 0.1, 10).tolist()
    found = consistent(tmp_path / "for", 0.0, rising)
    against = consistent(tmp_path / "against", 0.4, rising[::-1])
    for key in ("ratio_at_one", "ratio_below", "ratio_rising"):
        assert at(found, key, PAPER_SCALE).verdict == SUPPORTED
        assert at(against, key, PAPER_SCALE).verdict == CONTRADICTED
    (tmp_path / "two" / "x").mkdir(parents=True)
    for seed in (0, 1):
        paper_run(tmp_path / "two", "main_table", "math_paper", "rtpo", seed, [0.0] * 5)
    paper_run(tmp_path / "two", "main_table", "math_paper", "rtpo", 2, [0.0] * 5, complete=False)
    two = at(load_evidence(tmp_path / "two"), "ratio_at_one", PAPER_SCALE)
    assert two.verdict == "undecided (2 runs) (1 of 2 parts run)"
    assert "2 runs" in two.evidence


@pytest.mark.parametrize(("four", "said"), [(0.25, SUPPORTED), (0.5, CONTRADICTED)])
def test_ties_at_the_paper_s_scale_are_compared_before_training(tmp_path: Path, four: float, said: str) -> None:
    for seed in SEEDS:
        paper_run(tmp_path, "airline", "airline", "rtpo", seed, [0.0], tied=0.5)
        paper_run(tmp_path, "airline", "airline", "rtpo_g4", seed, [0.0], tied=four)
    assert at(load_evidence(tmp_path), "ties", PAPER_SCALE).verdict == said


def test_accuracy_comes_out_of_complete_evaluations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = {"vanilla": 1, "grpo": 2, "seeupo_flat": 2, "rtpo": 8}
    benchmarks = {
        "math_paper": ("aime24", "aime25", "amc23", "math500", "gsm8k", "oe_math"),
        "search_paper": ("hotpotqa", "2wiki"),
    }
    for task, names in benchmarks.items():
        for label, many in right.items():
            for seed in SEEDS:
                made = paper_run(tmp_path, "main_table", task, label, seed, [0.0])
                lines = [
                    {"uid": f"q{i}", "sample": 0, "qa": {"f1": one, "span_f1": one}, **episode(one)}
                    for i, one in enumerate(float(i < many) for i in range(8))
                ]
                for name in names:
                    write_evaluation(made, name, lines)
    # eight questions of each benchmark decide nothing
    assert at(load_evidence(tmp_path), "accuracy", PAPER_SCALE).verdict == UNDECIDED
    monkeypatch.setattr(Records, "shortfall", lambda self, source: None)
    evidence = load_evidence(tmp_path)
    row = at(evidence, "accuracy", PAPER_SCALE)
    assert row.verdict == SUPPORTED
    assert "Overall accuracy, against GRPO: +75.0" in row.evidence
    assert "*not run* (ours)" in row.evidence
    assert at(evidence, "best_on_all", PAPER_SCALE).verdict == SUPPORTED
    assert at(evidence, "headline", PAPER_SCALE).verdict == CONTRADICTED


# toy


def toy_run(results: Path, task: str, label: str, seed: int, better: bool, **of: Any) -> None:
    """A run of the toy study that is better, or worse: more right, dearer, with fewer ties and `calls` an episode."""
    given = {"kls": [0.0] * 5, "calls": 1, "tied": 0.5, "right": 10 if better else 5, **of}
    steps = [
        step(place, 10 * place, 0.5, [alike(10, kl * (1 + seed / 100), given["tied"] * (1 + seed / 100))])
        for place, kl in enumerate(given["kls"], start=1)
    ]
    rewards: dict[str, list[float | None]] = {
        f"q{i}": [float(i < given["right"] + better * seed % 2)] for i in range(16)
    }
    lines = [
        line | {"tools": {"ok": 10 * given["calls"] + better * (seed % 10), "malformed": 7}}
        for mode in ("sampled", "paper")
        for line in answers("after", mode, rewards, len(steps))
    ]
    ledger = {"budget": {"rollouts": 50}, "rollouts": 50, "optimizer_steps": 5, "seconds": {"evaluate": 10.0}}
    ledger |= {"generated_tokens": (2000 if better else 1000) + seed}
    write_run(
        results / "toy",
        label,
        seed,
        steps,
        lines,
        manifest={"task": task, "ledger": ledger, "wall_seconds": (200.0 if better else 100.0) + seed},
        experiment=task,
    )


def toy(results: Path, favour: bool) -> Evidence:
    """Runs that hold the paper's claims, or their opposites."""
    rising = np.linspace(0.3, 0.1, 10).tolist()
    worse = {"kls": rising if favour else rising[::-1]}
    for seed in (10 + place for place in SEEDS):
        for task in ("toy_math", "toy_knowledge"):
            fewer = favour == (task == "toy_math")
            rtpo = {"kls": [0.0 if favour else 0.6] * 10, "calls": 1 if fewer else 3, "tied": 0.6}
            toy_run(results, task, "rtpo", seed, favour, **rtpo)
            toy_run(results, task, "rtpo_off", seed, not favour)
            for label in ("grpo", "seeupo_flat"):
                toy_run(results, task, label, seed, not favour, calls=2, **worse)
        toy_run(results, "toy_math", "rtpo_full", seed, favour)
        toy_run(results, "toy_math", "grpo_full", seed, not favour)
        group = {"tied": 0.4, "right": 16} if favour else {"tied": 0.7, "right": 0}
        toy_run(results, "toy_math", "rtpo_g4", seed, favour, **group)
    return load_evidence(results)


def test_toy_claims_go_both_ways(tmp_path: Path) -> None:
    found, against = toy(tmp_path / "for", True), toy(tmp_path / "against", False)
    keys = [claim.key for claim in CLAIMS for test in claim.tests if test.scale == TOY]
    assert len(keys) == 10
    for key in keys:
        rows = at(found, key, TOY), at(against, key, TOY)
        # the rest and the controls have 3 planned pairs
        assert [row.verdict.partition(" (3")[0] for row in rows] == [SUPPORTED, CONTRADICTED], key
        assert re.search(r"(\]|in all), [35] (runs|pairs|of \d+ planned pairs)", rows[0].evidence), key


# theory


@pytest.mark.parametrize("key", [claim.key for claim in CLAIMS for test in claim.tests if test.scale == THEORY])
def test_theory_goes_both_ways(nothing: Evidence, key: str) -> None:
    for word in (SUPPORTED, CONTRADICTED, UNDECIDED, *CONSISTENT.values()):
        theory = {name: one._replace(part=Part("", "Found.", word)) for name, one in nothing.theory.items()}
        row = at(replace(nothing, theory=theory), key, THEORY)
        assert row.verdict == word
        assert "Found." in row.evidence


def test_what_cannot_be_tested_says_why() -> None:
    untestable = {claim.key: claim.untestable for claim in CLAIMS if not claim.tests}
    assert untestable.keys() == {"theorem_1_neural", "theorem_2c"}
    assert all(why.endswith(".") for why in untestable.values())


# the paper's numbers


def edited(paper: Paper, table: str, row: str, column: str, printed: str) -> Paper:
    one = paper.table(table)
    value = one.cells[row, column]
    cells = {**one.cells, (row, column): Value(printed, value.unit)}
    return replace(paper, tables={**paper.tables, table: replace(one, cells=cells)})


BOTH = "mixed: supported, contradicted"
MAIN = "math_knowledge_toolcall_results"


@pytest.mark.parametrize(
    ("key", "said", "change", "then"),
    [
        ("accuracy", SUPPORTED, (MAIN, "rtpo", "overall_acc", "36.00"), CONTRADICTED),
        ("best_on_all", CONTRADICTED, (MAIN, "rtpo", "amc23_acc", "70.00"), SUPPORTED),
        ("credit", SUPPORTED, ("math_results", "rtpo_ca", "overall_p1", "1.00"), BOTH),
        ("continuation", SUPPORTED, ("on_off_policy_hit", "hle", "delta", "+5.00"), BOTH),
        ("cost", SUPPORTED, ("supp_wall_clock", "rtpo", "gpu_hours", "15.20"), CONTRADICTED),
        ("tool_use", BOTH, (MAIN, "rtpo", "oe_math_calls", "1"), SUPPORTED),
        ("group_size", SUPPORTED, ("supp_group_sensitivity", "g4", "pass_at_1", "1.00"), BOTH),
        ("ties", "not testable", ("supp_group_sensitivity", "g4", "zero_advantage", "84.42"), "not testable"),
        ("airline_training", SUPPORTED, ("supp_airline_training", "rtpo", "step_20", "1.00"), BOTH),
        ("airline_test", SUPPORTED, ("supp_airline_test", "rtpo", "pass_at_1", "1.00"), BOTH),
        ("headline", CONTRADICTED, (MAIN, "grpo", "overall_acc", "50.75"), BOTH),
    ],
)  # fmt: skip
def test_the_paper_s_numbers_go_both_ways(
    nothing: Evidence, key: str, said: str, change: tuple[str, str, str, str], then: str
) -> None:
    assert at(nothing, key, PRINTED).verdict == said
    assert at(replace(nothing, paper=edited(nothing.paper, *change)), key, PRINTED).verdict == then


# the page


def test_the_page_is_what_the_records_give() -> None:
    assert paper_claims.main(["--check"]) == 0


def test_the_page_is_written_and_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "docs" / "results" / "claims.md"
    page.parent.mkdir(parents=True)
    given = ["--project", str(tmp_path)]
    assert paper_claims.main(given) == 0
    claims = page.read_text()
    table = claims.partition("\n| Claim |")[2].partition("\n\n")[0]
    assert len(re.findall(r"^\| ", table, re.MULTILINE)) == 1 + len(CLAIMS)
    page.write_text(claims.replace("Turn-level credit | not run", "Turn-level credit | x"))
    assert paper_claims.main(["--check", *given]) == 1
    assert "claims.md is not what the records give: python -m analysis.claims" in capsys.readouterr().err


def test_every_command_exists(rows: Sequence[Row]) -> None:
    told = {command for row in rows for command in re.findall(r"`([^`]+)`", row.command)}
    told |= {command for row in rows for command in re.findall(r"`(python [^`]+)`", row.evidence)}
    assert len(told) >= 10
    parts = {command.split()[3] for command in told if "study.py" in command}
    assert parts <= set(Study(TOY_STUDY, TOY_RESULTS).parts)
    for command in told:
        script = command.replace("python -m ", "python ").split()[1]
        assert (PROJECT / script).is_file() or (PROJECT / script.replace(".", "/") / "__main__.py").is_file(), command
