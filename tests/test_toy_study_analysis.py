"""The toy study's tables and verdicts: pairs, what is missing, and the rule, on made-up runs."""

import json
import re
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import yaml
from synthetic_runs import answers, empty_update, step, update, write_realistic_run, write_run

from analysis import measures
from analysis.claims.claims import Pair
from analysis.claims.evidence import Evidence, study_pair
from analysis.claims.rule import BESIDE, order
from analysis.intervals import Interval
from analysis.looks import TITLES, styles
from analysis.pages import __main__ as pages
from analysis.pages import blocks as readme
from analysis.records import RunGroup, load_runs, over_warm_starts
from analysis.study.findings import MEASURES, Finding, finding, verdict
from analysis.study.plan import named
from analysis.study.records import StudyRecords, load_study, missing_lines
from analysis.study.tables import DECODINGS, common_table, rates_table, task_table, task_tables
from analysis.tables import NO_VALUE, NOT_RUN, Table
from analysis.toy_study import __main__ as toy_study_command
from analysis.toy_study import page as toy_study
from analysis.toy_study.claims import (
    CLAIMS,
    SUCCESS,
    claims_table,
    verdict_lines,
)
from rtpo.errors import DataError

PLAN: dict[str, Any] = {
    "settings": ["budget.rollouts=4096"],
    "decoding": "sampled",
    "rates": {"grid": [1e-4, 2e-4, 5e-4], "seeds": [0], "settings": ["task.held_out.split=validation"]},
    "warm_starts": {"toy_math": ["toy_math", "toy_math_1"], "toy_knowledge": ["toy_knowledge"]},
    "core": {
        "tasks": ["toy_math"],
        "warm_starts": 2,
        "seeds": [0, 1],
        "configurations": ["rtpo", "grpo_exact"],
    },
    "rest": {"tasks": ["toy_math"], "warm_starts": 1, "seeds": [0], "configurations": ["refuel"]},
    "controls": {
        "tasks": ["toy_math"],
        "warm_starts": 1,
        "seeds": [0],
        "configurations": [{"label": "rtpo_64_steps", "algorithm": "rtpo", "settings": ["budget.optimizer_steps=64"]}],
    },
}
WARM_STARTS = ("toy_math", "toy_math_1")
RIGHT, WRONG = 1.0, 0.0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(PLAN, sort_keys=False))
    return path


@pytest.fixture
def results(tmp_path: Path) -> Path:
    (tmp_path / "toy").mkdir()
    return tmp_path / "toy"


def of_warm_start(experiment: str, rate: float = 2e-4, **more: Any) -> dict[str, Any]:
    """What a run's files say of where it started from."""
    return {
        "experiment": experiment,
        "manifest": {"model_sha256": {"model": experiment}, **more},
        "config": {
            "experiment_name": experiment,
            "model": {"name": experiment},
            "optimizer": {"lr": rate},
            "verl": {"trainer": {"experiment_name": experiment}, "seed": 1},
        },
    }


def write_small(results: Path, experiment: str, label: str, seed: int, right: str, **more: Any) -> Path:
    """A run evaluated on the questions a to d; after training the ones in `right` are answered right."""
    after = {question: [RIGHT if question in right else WRONG] for question in "abcd"}
    before = {question: [RIGHT if question == "a" else WRONG] for question in "abcd"}
    lines = [*answers("before", "sampled", before), *answers("after", "sampled", after, 1)]
    return write_run(
        results, label, seed, [step(1, 1000, 0.5, [update(10, 0.0, 0.5)])], lines, **of_warm_start(experiment, **more)
    )


def task_of(records: StudyRecords) -> Table | None:
    """The table of toy math."""
    return task_table(records, "toy_math", "toy_study", "Toy math.")


def column(table: Table | None, title: str) -> dict[str, str]:
    """A column's cells by configuration."""
    assert table is not None
    place = table.header.index(title)
    return {row[0]: row[place] for row in table.rows}


def test_differences_are_paired_by_warm_start_and_seed(file: Path, results: Path) -> None:
    write_small(results, "toy_math", "grpo_exact", 0, "ab")
    write_small(results, "toy_math", "grpo_exact", 1, "abc")
    write_small(results, "toy_math_1", "grpo_exact", 0, "a")
    write_small(results, "toy_math", "rtpo", 0, "abcd")
    write_small(results, "toy_math_1", "rtpo", 0, "ab")
    write_small(results, "toy_math_1", "rtpo", 1, "")
    table = task_of(load_study(results, file))
    rtpo, grpo = TITLES["rtpo"], TITLES["grpo_exact"]
    # (4 + 2 + 0) / 12, and the pairs (4 - 2) and (2 - 1) of 4
    assert column(table, "Sampled, after")[rtpo].startswith("50.0 [")
    assert column(table, "Difference to exact GRPO")[rtpo].startswith("+37.5 [")
    assert column(table, "Pairs") == {rtpo: "2", grpo: NO_VALUE}
    assert column(table, "After, by warm start") == {rtpo: "100.0 / 25.0", grpo: "62.5 / 25.0"}
    assert column(table, "Runs") == {rtpo: "3 of 4", grpo: "3 of 4"}
    assert column(table, "Part") == {rtpo: "core", grpo: "core"}
    assert column(table, "Greedy, after")[rtpo] == NOT_RUN


def test_costs_are_compared_by_pairs(file: Path, results: Path) -> None:
    for experiment, seed, own, control in (
        ("toy_math", 0, 60, 110),
        ("toy_math", 1, 30, 110),
        ("toy_math_1", 0, 90, 90),
    ):
        write_small(results, experiment, "rtpo", seed, "a", wall_seconds=float(own))
        write_small(results, experiment, "grpo_exact", seed, "a", wall_seconds=float(control))
    records = load_study(results, file)
    # 10 s of each are evaluation: 50 / 100, 20 / 100 and 80 / 80
    assert column(task_of(records), "Seconds / exact GRPO's")[TITLES["rtpo"]] == "0.50"
    found = finding(records, "toy_math", ("rtpo", "grpo_exact"), "seconds")
    assert found is not None
    assert found.difference is not None
    assert found.difference.mean == pytest.approx((0.5 + 0.8 + 0.0) / 3)
    assert (found.pairs, found.planned, found.difference.runs) == (3, 4, 3)


def test_what_is_missing_is_counted(file: Path, results: Path) -> None:
    write_small(results, "toy_math", "rtpo", 1, "a")
    write_run(results, "grpo_exact", 1, [], [], complete=False, experiment="toy_math")
    write_small(results, "rates_toy_math", "rtpo_lr0.0002", 0, "a")
    records = load_study(results, file)
    assert missing_lines(records) == [
        "rates, rates_toy_math: 8 of 9 runs",
        "core, toy_math: 3 of 4 runs (1 begun)",
        "core, toy_math_1: 4 of 4 runs",
        "rest, toy_math: 1 of 1 runs",
        "controls, toy_math: 1 of 1 runs",
    ]
    table = task_of(records)
    assert table is not None
    assert [row[0] for row in table.rows] == ["RTPO"]
    assert table.notes[-1] == "Excluded, because incomplete: toy_math/grpo_exact-seed1."
    assert "- core, toy_math: 3 of 4 runs (1 begun)\n" in toy_study.page(records)


def test_nothing_has_been_run(file: Path, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = load_study(results, file)
    assert toy_study.page(records) == f"{NOT_RUN}\n"
    assert toy_study.tables(records) == []
    made = ["--results", str(results), "--study", str(file), "--output", str(tmp_path / "made")]
    assert toy_study_command.main(made) == toy_study_command.main([*made, "--check"]) == 0
    assert "not run: core, toy_math: 4 of 4 runs" in capsys.readouterr().out
    assert [path for path in (tmp_path / "made").rglob("*") if path.is_file()] == []
    assert {row[-1] for row in claims_table(records).rows} == {NOT_RUN, NO_VALUE}


@pytest.mark.parametrize(
    ("interval", "pairs", "expected"),
    [
        ((0.01, 0.2), 3, "supported"),
        ((-0.2, -0.01), 10, "contradicted"),
        ((-0.01, 0.2), 10, "undecided"),
        ((0.0, 0.2), 10, "undecided"),
        ((0.01, 0.2), 2, "undecided"),
        ((float("nan"), float("nan")), 10, "undecided"),
    ],
)
def test_a_task_speaks_by_its_interval(interval: tuple[float, float], pairs: int, expected: str) -> None:
    assert order(Interval(0.1, *interval, pairs, 300), pairs) == expected
    assert order(None, pairs) == "undecided"


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ([("supported", 10), ("supported", 5)], "supported"),
        ([("contradicted", 10), ("contradicted", 3)], "contradicted (3 to 10 pairs)"),
        ([("undecided", 4), ("undecided", 4)], "undecided (4 pairs)"),
        ([("undecided", 1)], "undecided on x (1 pair)"),
        ([("supported", 10), ("undecided", 10)], "mixed: supported on x, undecided on y"),
        ([("supported", 3), ("contradicted", 10)], "mixed: supported on x (3 pairs), contradicted on y"),
        ([("supported", 10), ("undecided", 10), ("supported", 9)], "mixed: supported on x and z, undecided on y"),
        ([("undecided", 10), *[("supported", 10)] * 3], "mixed: undecided on x, supported on y, z and v"),
        ([("supported", 4), (NOT_RUN, 0)], "supported on x (4 pairs), not run on y"),
        ([(NOT_RUN, 0), (NOT_RUN, 0)], NOT_RUN),
        ([("supported", 5)], "supported on x"),
        ([(NOT_RUN, 0)], NOT_RUN),
        ([], NO_VALUE),
    ],
)
def test_tasks_give_a_verdict_together(outcomes: list[tuple[str, int]], expected: str) -> None:
    found = {task: Finding(None, (), pairs, 10, word) for task, (word, pairs) in zip("xyzv", outcomes, strict=False)}
    assert verdict(found) == expected


def test_a_claim_is_judged_on_its_runs(file: Path, results: Path) -> None:
    for experiment in WARM_STARTS:
        for seed in (0, 1):
            write_small(results, experiment, "grpo_exact", seed, "a")
            write_small(results, experiment, "rtpo", seed, "abcd" if experiment == "toy_math" else "abd")
    table = claims_table(load_study(results, file))
    rows = {row[0]: row for row in table.rows}
    found = rows["RTPO beats GRPO with exact contexts"]
    assert found[3].startswith("+62.5 [")
    assert found[3].endswith("]; 75.0 / 50.0; 4 of 4".replace("75.0", "+75.0").replace("50.0", "+50.0"))
    assert found[-1] == "undecided on toy math (4 pairs)"
    assert rows["RTPO beats SeeUPO"][3:] == (NO_VALUE, NO_VALUE)
    assert rows["RTPO beats exact GRPO at equal optimizer steps, RTPO given more"][3:] == (NOT_RUN, NOT_RUN)
    named, _, *lines = verdict_lines(load_study(results, file)).splitlines()
    assert "evaluated at temperature 1, each trained at a learning rate of its own" in named
    assert lines[0].startswith(
        "- **Undecided on toy math (4 pairs)**: RTPO beats GRPO with exact contexts (ours, control)"
    )
    assert "RTPO beats exact GRPO at equal optimizer steps, RTPO given more (ours)" in lines[-1]
    assert lines[-1].startswith("- **Not run**")
    assert "RTPO beats SeeUPO" not in "".join(lines)


def write_modes(
    results: Path,
    label: str,
    seed: int,
    right: dict[str, int],
    rate: float,
    entropy: float,
    moments: tuple[str, ...] = ("before", "after"),
) -> None:
    """A run evaluated on 20 questions; after training so many are answered right in each mode, before it 5."""
    lines = [
        line
        for when, number in ((when, int(when == "after")) for when in moments)
        for mode, count in right.items()
        for line in answers(
            when, mode, {f"q{i}": [float((i + seed) % 20 < (count if number else 5))] for i in range(20)}, number
        )
    ]
    configuration = label.removesuffix("_common")
    at = of_warm_start("toy_math", rate)
    settings = at["config"] | {"algorithm": {"label": label, "name": configuration}}
    steps = [step(1, 1000, 0.5, [update(10, 0.0, 0.5) | {"entropy": 9.0}, update(10, 0.0, 0.5) | {"entropy": entropy}])]
    steps.append(step(2, 2000, 0.5, [update(10, 0.0, 0.5) | {"entropy": entropy}]))
    for line in lines:
        line["step"] *= 2
    write_run(results, label, seed, steps, lines, **at | {"config": settings})


@pytest.fixture
def at_paper_decoding(tmp_path: Path, results: Path) -> StudyRecords:
    """At the paper's decoding RTPO is above exact GRPO, at temperature 1 below it, greedily level with it, and at one
    rate for all below it, which is its own rate but not RTPO's."""
    part = {"tasks": ["toy_math"], "warm_starts": 1, "seeds": [0, 1, 2], "configurations": ["rtpo", "grpo_exact"]}
    plan = PLAN | {"decoding": "paper", "core": part, "together": part | {"rate": "common"}}
    file = tmp_path / "paper.yaml"
    file.write_text(yaml.safe_dump({key: value for key, value in plan.items() if key not in ("rest", "controls")}))
    for seed in range(3):
        write_modes(results, "rtpo", seed, {"sampled": 8, "paper": 16, "greedy": 15}, 5e-4, 0.25)
        write_modes(results, "rtpo_common", seed, {"sampled": 8, "paper": 6, "greedy": 15}, 2e-4, 0.75)
        write_modes(results, "grpo_exact", seed, {"sampled": 12, "paper": 12, "greedy": 15}, 2e-4, 0.5)
    chosen = {"toy_math": {"rtpo": 5e-4, "grpo_exact": 2e-4, "common": 2e-4}}
    (results / "learning_rates.json").write_text(json.dumps(chosen))
    return load_study(results, file)


def test_the_papers_decoding_comes_first_and_the_others_beside_it(at_paper_decoding: StudyRecords) -> None:
    records = at_paper_decoding
    title, exact = TITLES["rtpo"], TITLES["grpo_exact"]
    table = task_of(records)
    assert table is not None
    shown = [name for name in table.header if name.endswith(", after") or name.startswith(("Difference", "Entropy"))]
    decoded = ["Paper's decoding, after", "Difference to exact GRPO", "Sampled, after", "Greedy, after", "Entropy, end"]
    assert shown == decoded
    assert [column(table, name)[title].partition(" [")[0] for name in decoded] == [
        "80.0",
        "+20.0",
        "40.0",
        "75.0",
        "0.250",
    ]
    assert column(table, "After, by warm start")[title] == "80.0"
    assert "at the paper's decoding (temperature 0.6, top-p 0.95), sampled at temperature 1" in table.caption

    claims = {row[0]: row for row in claims_table(records).rows}
    found = claims["RTPO beats GRPO with exact contexts"]
    assert found[2] == "success at the paper's decoding, points"
    assert found[-1] == "supported on toy math (3 pairs)"
    beside = toy_study.beside_table(records)
    assert beside is not None
    # each claim on success that the study has runs for, at three decodings and at the common rate
    assert [(row[1], row[-1]) for row in beside.rows] == [
        ("at the paper's decoding", "supported on toy math (3 pairs)"),
        ("at temperature 1", "contradicted on toy math (3 pairs)"),
        ("greedily", "undecided on toy math (3 pairs)"),
        ("at the paper's decoding, one rate for all", "contradicted on toy math (3 pairs)"),
    ]
    first, _, differing, *_ = verdict_lines(records).splitlines()
    assert first == "Some verdicts are others at another decoding or at one learning rate for all:"
    assert differing == (
        "- RTPO beats GRPO with exact contexts: **supported on toy math (3 pairs)** at the paper's decoding, "
        "**contradicted on toy math (3 pairs)** at temperature 1, **undecided on toy math (3 pairs)** greedily, "
        "**contradicted on toy math (3 pairs)** at the paper's decoding, one rate for all."
    )
    assert "Verdicts on success are of policies evaluated at the paper's decoding, each" in verdict_lines(records)
    assert exact in column(table, "Runs")


def test_what_few_runs_have_before_training_is_said_once(file: Path, results: Path) -> None:
    right = {"sampled": 8, "greedy": 15}
    write_modes(results, "rtpo", 0, right, 2e-4, 0.5, ("after",))
    table = task_of(load_study(results, file))
    assert table is not None
    assert {"Sampled, after", "Greedy, after"} == {
        name for name in table.header if "before" in name or ", after" in name
    }
    assert " Before training: not run. " in table.caption
    write_modes(results, "grpo_exact", 0, right, 2e-4, 0.5)
    table = task_of(load_study(results, file))
    assert table is not None
    assert not [name for name in table.header if "before" in name]
    said = (
        r"the same from a warm start and seed: 25\.0 \[.*\] at temperature 1, 25\.0 greedily; by warm start "
        r"25\.0 / not run at temperature 1 \(runs of GRPO, exact"
    )
    assert re.search(said, table.caption)
    (group,) = (group for group in load_study(results, file).groups["toy_math"] if group.label == "rtpo")
    assert measures.held_out_curve(group)["rollouts"].tolist() == [2000]


def test_other_decodings_stand_beside_a_claim_and_do_not_count(at_paper_decoding: StudyRecords) -> None:
    evidence = Evidence(at_paper_decoding, *4 * [cast(Any, None)])
    made = study_pair(evidence, Pair("rtpo", "grpo_exact"))
    assert [(part.outcome, part.aside) for part in made] == [
        ("supported", ""),
        ("contradicted", BESIDE),
        ("undecided", BESIDE),
        ("contradicted", BESIDE),
    ]
    assert "success at the paper's decoding, points" in made[0].what
    assert "sampled success, points" in made[1].what
    assert made[3].what.endswith("success at the paper's decoding, points, one rate for all")


def test_rates_of_their_own_and_the_common_one_stand_side_by_side(at_paper_decoding: StudyRecords) -> None:
    records = at_paper_decoding
    table = common_table(records, "toy_math", "toy_study")
    assert table is not None
    names = ("rate", "runs", "success at the paper's decoding", "sampled success", "entropy, end")
    cells = {
        which: [column(table, f"{which}, {name}")[TITLES["rtpo"]].partition(" [")[0] for name in names]
        for which in ("Own", "Common")
    }
    assert cells == {
        "Own": ["0.0005 †", "3 of 3", "80.0", "40.0", "0.250"],
        "Common": ["0.0002", "3 of 3", "30.0", "40.0", "0.750"],
    }
    differences = column(table, "Common, difference to exact GRPO")
    assert differences[TITLES["rtpo"]].startswith("−30.0 [")
    # one run serves both
    assert records.group("toy_math", "grpo_exact", is_common=True) is not None
    assert len(records.runs) == 9
    assert {table.name for table in toy_study.tables(records)} >= {
        "toy_study_claims_beside",
        "toy_study_toy_math_common",
    }
    assert "Toy math: each configuration at the rate" in toy_study.page(records)


def test_ratios_and_ties_are_turned_for_the_claim(tmp_path: Path) -> None:
    def group(label: str, context_kl: float, tied: float) -> RunGroup:
        for seed in range(3):
            lines = [step(1, 10, 0.5, [update(10, 0.3, tied, context_kl=context_kl)])]
            write_run(tmp_path, label, seed, lines, answers("after", "sampled", {"a": [1.0]}))
        return next(group for group in over_warm_starts(load_runs(tmp_path)) if group.label == label)

    exact, flat = group("rtpo", 0.0, 0.25), group("grpo", 0.1, 0.75)
    ratio, ties = (MEASURES[name][1](exact, flat) for name in ("ratio", "ties"))
    assert ratio is not None
    assert ties is not None
    assert ratio.mean == pytest.approx(1 - np.exp(-0.1))
    assert ties.mean == pytest.approx(0.5)


def test_an_edge_is_of_what_was_tried(file: Path, results: Path) -> None:
    title = TITLES["rtpo"]

    def rate(found: StudyRecords) -> str:
        return column(task_of(found), "Learning rate")[title]

    write_small(results, "toy_math", "rtpo", 0, "a", rate=5e-4)
    assert rate(load_study(results, file)) == "0.0005 †"
    write_small(results, "rates_toy_math", "rtpo_lr0.001", 0, "a", rate=1e-3)
    write_small(results, "rates_toy_math", "rtpo_lr0.0005", 0, "ab", rate=5e-4)
    assert rate(load_study(results, file)) == "0.0005"
    (results / "learning_rates.json").write_text(json.dumps({"toy_math": {"rtpo": 5e-4}}))
    table = rates_table(load_study(results, file), "toy_study")
    assert table is not None
    assert table.header == ("Task", "Configuration", "0.0001", "0.0002", "0.0005", "0.001")
    ((task, shown, *cells),) = table.rows
    assert (task, shown, cells[:2]) == ("Toy math", title, [NOT_RUN, NOT_RUN])
    assert cells[2].startswith("**50.0 [")
    assert cells[3].startswith("25.0 [")
    assert "Runs at 0.001 are of an earlier grid." in table.caption


def test_a_rate_is_marked_where_its_algorithm_has_another_name_in_the_plan(tmp_path: Path, results: Path) -> None:
    other = tmp_path / "other.yaml"
    again = {"rest": PLAN["rest"] | {"configurations": [{"label": "refuel_again", "algorithm": "refuel"}]}}
    other.write_text(yaml.safe_dump(PLAN | again))
    write_small(results, "rates_toy_math", "refuel_lr0.0005", 0, "ab", rate=5e-4)
    (results / "learning_rates.json").write_text(json.dumps({"toy_math": {"refuel": 5e-4}}))
    table = rates_table(load_study(results, other), "toy_study")
    assert table is not None
    (cells,) = table.rows
    assert cells[-1].startswith("**50.0 [")


def test_a_run_at_another_rate_than_planned_is_refused(file: Path, results: Path) -> None:
    write_small(results, "toy_math", "rtpo", 0, "a", rate=5e-4)
    (results / "learning_rates.json").write_text(json.dumps({"toy_math": {"rtpo": 2e-4}}))
    with pytest.raises(
        DataError, match=r"rtpo-seed0 was trained at the learning rate 0\.0005 and is planned at 0\.0002:"
    ):
        load_study(results, file)


def test_warm_starts_may_differ_in_nothing_else(tmp_path: Path) -> None:
    write_small(tmp_path, "toy_math", "rtpo", 0, "a")
    write_small(tmp_path, "toy_math_1", "rtpo", 0, "a")
    (group,) = over_warm_starts(load_runs(tmp_path))
    assert [run.folder.parent.name for run in group.runs] == list(WARM_STARTS)
    write_small(tmp_path, "toy_math_1", "rtpo", 1, "a", rate=1e-3)
    with pytest.raises(DataError, match=r"differ in optimizer\.lr, 0\.0002 and 0\.001: give"):
        over_warm_starts(load_runs(tmp_path))


def test_an_experiment_has_one_warm_start(tmp_path: Path) -> None:
    write_small(tmp_path, "toy_math", "rtpo", 0, "a")
    write_small(tmp_path, "toy_math", "grpo", 0, "a", model_sha256={"model": "other"})
    runs = load_runs(tmp_path)
    with pytest.raises(DataError, match="started from different weights and lie in one experiment"):
        over_warm_starts(runs)
    with pytest.raises(DataError, match="started from different weights"):
        measures.paired(*(RunGroup(run.label, (run,)) for run in runs))


def test_a_residual_is_shown_where_there_is_one(file: Path, results: Path) -> None:
    write_small(results, "toy_math", "rtpo", 0, "a")
    table = task_of(load_study(results, file))
    assert table is not None
    assert "Residual" not in table.header
    updates = [update(10, 0.0, 0.5) | {"residual": value} for value in (0.25, 0.75)]
    lines = [step(1, 500, 0.5, updates), step(2, 1000, 0.5, [update(10, 0.0, 0.5) | {"residual": 0.1}])]
    write_run(results, "refuel", 0, lines, answers("after", "sampled", {"a": [1.0]}, 2), **of_warm_start("toy_math"))
    cells = column(task_of(load_study(results, file)), "Residual")
    assert cells == {"RTPO": NO_VALUE, "REFUEL": "0.300"}


def test_ceilings_stand_in_a_table_of_their_own(file: Path, results: Path) -> None:
    write_small(results, "toy_math", "grpo_exact", 0, "a")
    assert len(task_tables(load_study(results, file), "toy_math", "toy_study", "Toy math.")) == 1
    ledger = {"rollouts": 1000, "generated_tokens": 4, "optimizer_steps": 1, "seconds": {"evaluate": 1.0}}
    write_small(results, "toy_math", "rtpo", 0, "a", ledger=ledger | {"budget": {}, "free_rollouts": 320})
    methods, ceilings = task_tables(load_study(results, file), "toy_math", "toy_study", "Toy math.")
    assert "Free rollouts" not in methods.header
    assert list(column(methods, "Runs")) == [TITLES["grpo_exact"]]
    assert column(ceilings, "Free rollouts") == {TITLES["rtpo"]: "320"}
    assert column(ceilings, "Difference to exact GRPO")[TITLES["rtpo"]].startswith("+0.0")
    assert "is a ceiling, and no method at this budget" in ceilings.caption


def test_success_is_interpolated_question_by_question(tmp_path: Path) -> None:
    for seed, charged in ((0, (100, 200)), (1, (150, 300))):
        lines = [
            *answers("before", "sampled", {"a": [0.0], "b": [0.0]}),
            *answers("during", "sampled", {"a": [1.0], "b": [0.0]}, 1),
            *answers("after", "sampled", {"a": [1.0], "b": [1.0]}, 2),
            *answers("after", "greedy", {"a": [0.0], "b": [0.0]}, 2),
        ]
        write_run(tmp_path, "rtpo", seed, [step(i + 1, n, 0.5, []) for i, n in enumerate(charged)], lines)
    (group,) = over_warm_starts(load_runs(tmp_path))
    curve = measures.held_out_curve(group)
    assert curve["rollouts"].tolist() == [0, 100, 200]
    # at 200 rollouts the second run is a third of the way from its first evaluation (1 of 2) to its last
    assert curve["mean"].tolist() == pytest.approx([0.0, (0.5 + 1 / 3) / 2, (1.0 + 2 / 3) / 2])
    assert curve["generated_tokens"].tolist() == pytest.approx([0, 4000, 8000])
    assert curve["seconds"].tolist() == pytest.approx([0, 1, 2])
    assert (curve["low"] <= curve["mean"]).all()
    assert (curve["mean"] <= curve["high"]).all()


def test_a_turn_is_the_mean_over_steps_of_its_updates(tmp_path: Path) -> None:
    steps = [
        step(1, 10, 0.5, [update(10, 0.1, 0.2, turns=(1,)), update(10, 0.3, 0.4, turns=(0, 1)), empty_update()]),
        step(2, 20, 0.5, [update(10, 0.6, 1.0, turns=(1,))]),
    ]
    write_run(tmp_path, "rtpo", 0, steps, answers("after", "sampled", {"a": [1.0]}))
    write_run(
        tmp_path,
        "rtpo",
        1,
        [step(1, 10, 0.5, [update(1, 1.0, 0.0, turns=(0,))])],
        answers("after", "sampled", {"a": [1.0]}),
    )
    (group,) = over_warm_starts(load_runs(tmp_path))
    kl = measures.by_turn(group, measures.turn_kl)
    assert kl["x"].tolist() == [0, 1]
    assert kl["mean"].tolist() == pytest.approx([(0.3 + 1.0) / 2, (0.2 + 0.6) / 2])
    assert kl[["low", "high"]].loc[0].tolist() == pytest.approx([0.3, 1.0])


def write_core(results: Path) -> None:
    for experiment in WARM_STARTS:
        for label in ("rtpo", "grpo_exact"):
            for seed in (0, 1):
                write_realistic_run(results, label, seed, questions=30, **of_warm_start(experiment))


def test_runs_that_have_the_tokens_of_others_differ_in_them(file: Path, results: Path) -> None:
    control = {"label": "rtpo_tokens", "algorithm": "rtpo", "tokens_of": "grpo_exact"}
    file.write_text(yaml.safe_dump(PLAN | {"controls": PLAN["core"] | {"configurations": [control]}}))
    for seed, tokens in ((0, 700), (1, 800)):
        given = of_warm_start("toy_math")
        given["config"]["budget"] = {"rollouts": 1024, "seconds": None, "generated_tokens": tokens}
        write_run(results, "rtpo_tokens", seed, [step(1, 1000, 0.5, [])], [], **given)
    group = load_study(results, file).group("toy_math", "rtpo_tokens")
    assert group is not None
    assert [run.config["budget"]["generated_tokens"] for run in group.runs] == [700, 800]


def test_a_run_that_ended_below_where_its_model_began_is_named(file: Path, results: Path) -> None:
    def evaluated(when: str, right: int) -> list[dict[str, Any]]:
        return answers(when, "sampled", {f"q{i}": [RIGHT if i < right else WRONG] for i in range(20)})

    ends = {("rtpo", "toy_math"): 2, ("rtpo", "toy_math_1"): 14, ("grpo_exact", "toy_math"): 20}
    for (label, experiment), right in ends.items():
        lines = [*(evaluated("before", 15) if label == "grpo_exact" else []), *evaluated("after", right)]
        write_run(results, label, 0, [step(1, 1000, 0.5, [])], lines, **of_warm_start(experiment))
    found = "at temperature 1, by a 95 % interval over questions: `toy_math/rtpo-seed0`; they stay in every mean"
    assert found in toy_study.page(load_study(results, file))


def test_files_are_made_and_made_alike(
    file: Path, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_core(results)
    made = []
    for output in (tmp_path / "first", tmp_path / "second"):
        command = ["--results", str(results), "--study", str(file), "--output", str(output)]
        assert toy_study_command.main(command) == toy_study_command.main([*command, "--check"]) == 0
        made.append({path.relative_to(output): path.read_bytes() for path in sorted(output.rglob("*.*"))})
    assert made[0] == made[1]
    names = {f"tables/toy_study_{name}.{suffix}" for name in ("claims", "toy_math") for suffix in ("md", "csv", "tex")}
    assert {path.as_posix() for path in made[0]} == names
    assert "toy-scale results, not the paper's" in capsys.readouterr().out


def test_the_page_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / readme.STUDY
    plan.parent.mkdir(parents=True)
    plan.write_text(yaml.safe_dump(PLAN, sort_keys=False))
    page = tmp_path / "docs" / "results" / "toy_study.md"
    page.parent.mkdir(parents=True)
    page.write_text(
        "<!-- generated:toy_study_settings -->\n<!-- end -->\n\n<!-- generated:toy_study -->\n<!-- end -->\n"
    )
    (tmp_path / "README.md").write_text("")
    check, write = ["--check", "--project", str(tmp_path)], ["--project", str(tmp_path)]
    assert pages.main(write) == pages.main(check) == 0
    assert page.read_text().endswith("<!-- generated:toy_study -->\nnot run\n<!-- end -->\n")
    assert "- budget.rollouts=4096\n" in page.read_text()
    write_core(tmp_path / readme.STUDY_RESULTS)
    assert pages.main(check) == 1
    assert "docs/results/toy_study.md is not what the records give" in capsys.readouterr().err
    assert pages.main(write) == pages.main(check) == 0
    assert "](figure_success_toy_study.png)" in page.read_text()


def test_claims_and_titles_are_of_the_study() -> None:
    study = named("toy")
    planned = {place.configuration.label for part in study.trained for place, _ in study.planned(part)}
    assert planned <= TITLES.keys()
    assert {label for claim in CLAIMS for label in (claim.first, claim.second)} <= planned
    assert {claim.measure for claim in CLAIMS} == {SUCCESS, *MEASURES} - DECODINGS.keys()
    looks = [(style.colour, style.marker, style.line) for style in styles(TITLES).values()]
    assert len(set(looks)) == len(looks)
