"""The paper's tables from made-up runs: cells as computed by hand, verdicts, what is refused, and the files."""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from latex import compile_latex
from synthetic_runs import episode, held_out, path, step, update, write_evaluation, write_manifest, write_run

from analysis.make_tables import main
from analysis.paper.cells import SOURCE, read_plans
from analysis.paper.estimates import Estimate
from analysis.paper.numbers import Value, load_paper
from analysis.paper.pages import files_of
from analysis.paper.tables import PaperTable, all_tables, named, verdict
from analysis.stats import Interval
from analysis.tables import markdown
from rtpo.errors import DataError
from rtpo.run.config import PROJECT

PAPER = "a100x8"
MATH, DEEP = ("aime24", "gsm8k"), ("gaia", "xbench")
RIGHT = {"vanilla": (0, 0), "grpo": (2, 0), "rtpo": (4, 2)}
"""by label, of four samples of the first and second of each four questions; the second seed has all right"""
WHOLE = {"aime24": 30, "xbench": 100}
"""questions of benchmarks; four of all others, which are cut down"""
SCALE = {
    "main_table_a100x8_math_paper": (80000, None, "Qwen3-8B"),
    "main_table_a100x8_search_paper": (16000, None, "Qwen3-8B"),
    "drift_a100x8_search_paper": (16000, None, "Qwen3-8B"),
    "sync_a100x8_search_paper": (16000, None, "Qwen3-8B"),
    "airline_a100x8_airline": (1884, None, "Qwen3-1.7B"),
}
"""rollouts, seconds and model of the experiments' runs"""
STEPS = [
    step(1, 500, 0.5, [update(30, 0.02, 0.5, rows=6), update(10, 0.02, 1.0, rows=2)]),
    step(2, 1000, 0.5, [update(30, 0.02, 1.0)]),
]
TURNS = {1: 1, 2: 2, 3: 5, 8: 3}
"""of the failed ones of ten trunks; a success takes 4"""


def questions(benchmark: str, label: str, calls: tuple[int, int, int], f1: float | None = None, seed: int = 0) -> Any:
    """Questions with four samples each."""
    right = (*((4, 4) if seed else RIGHT.get(label, (1, 0))), 0, 0)
    qa = None if f1 is None else {"f1": f1, "span_f1": f1 / 2, "output_hit": 0.0}
    return [
        {"uid": f"q{i}", "sample": sample, "qa": qa, **episode(float(sample < right[i % 4]), calls=calls)}
        for i in range(WHOLE.get(benchmark, 4))
        for sample in range(4)
    ]


def hits(benchmark: str, label: str) -> list[dict[str, Any]]:
    """Deep search: with on-policy continuations the first question of each four is hit."""
    return [
        {"uid": f"q{i}", "sample": s, "meta": {"level": i + 1}, "qa": {"output_hit": hit, "f1": 0.0}, **episode(0.0)}
        for i in range(WHOLE.get(benchmark, 4))
        for s in range(4)
        for hit in [float(label == "rtpo" and i % 4 == 0)]
    ]


def airline_answers() -> list[dict[str, Any]]:
    """Of each four of 20 tasks with four episodes of three calls, two of them run and one well: the first is always
    solved, the second once; the third is cut, half the time by its context; the fourth never ended, half the time for
    too many errors."""
    ends: dict[int, list[dict[str, Any]]] = {
        2: [{"cut_turns": 1}, {"termination": "context_limit"}],
        3: [{"termination": "turn_limit"}, {"detail": "too many errors"}],
    }
    return [
        held_out(f"t{i}", sample, episode(reward, calls=(3, 2, 1), **ends.get(i % 4, [{}, {}])[sample % 2]))
        for i in range(20)
        for sample in range(4)
        for reward in [float(i % 4 == 0 or (i % 4 == 1 and sample == 0))]
    ]


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
    rollouts, seconds, model = SCALE.get(experiment, (1024, None, "toy"))
    config = {
        "profile": {"platform": "cuda" if profile == PAPER else "cpu", "processes": 4, "nodes": 2},
        "sampling": {"temperature": 0.9, "top_p": 1.0, "top_k": -1},
        "algorithm": {"label": label, "group_size": 4 if label == "rtpo_g4" else 3},
        "budget": {"rollouts": rollouts, "seconds": seconds},
        "model": {"name": model},
    }
    lines = {"evaluations": [], **more}
    answers = lines.pop("evaluations")
    return write_run(
        results, label, seed, STEPS, answers, experiment=experiment, manifest=manifest, config=config, **lines
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of four experiments, the main table's RTPO with two seeds, and of the profile toy."""
    folder = tmp_path_factory.mktemp("results")
    for label, seed in (("vanilla", 0), ("grpo", 0), ("rtpo", 0), ("rtpo", 1)):
        calls = (4, 3, 2) if label == "vanilla" else (3, 1, 0)
        made = run(folder, "main_table_a100x8_math_paper", label, seed)
        for benchmark in MATH:
            write_evaluation(made, benchmark, questions(benchmark, label, calls, seed=seed))
        made = run(folder, "main_table_a100x8_search_paper", label, seed)
        write_evaluation(made, "hotpotqa", questions("hotpotqa", label, calls, 0.75))
    for label in ("rtpo", "rtpo_off"):
        made = run(folder, "sync_a100x8_search_paper", label)
        for benchmark in DEEP:
            write_evaluation(made, benchmark, hits(benchmark, label))
    for label in ("grpo", "rtpo", "rtpo_g4"):
        run(folder, "airline_a100x8_airline", label, evaluations=airline_answers(), paths=airline_paths())
    for label, task in ((label, task) for label in ("vanilla", "rtpo") for task in ("toy_math", "toy_knowledge")):
        write_evaluation(
            run(folder, f"main_table_toy_{task}", label, profile="toy"), task, questions(task, label, (1, 1, 1))
        )
    return folder


@pytest.fixture(scope="module")
def tables(results: Path) -> dict[str, PaperTable]:
    return {table.name: table for table in all_tables(results)}


def long(table: PaperTable) -> pd.DataFrame:
    """The CSV, as anybody reads it, with a line a cell, by place."""
    return pd.read_csv(io.StringIO(table.csv)).set_index(table.cells.index)


CELLS = [
    # of 30 questions 8 and 8 with samples right: 8 + 4 in the first seed, 8 + 8 in the second
    ("math_knowledge_toolcall_results", "rtpo.aime24_acc", 46.67, 2, "30 questions", "undecided"),
    ("math_knowledge_toolcall_results", "vanilla.aime24_calls", 90, 1, "30 questions", "no interval"),
    ("math_knowledge_toolcall_results", "rtpo.hotpotqa_acc", 75, 2, "4 questions", "not compared"),
    # a side of [0, 11.4] is wider than 10 points
    ("math_knowledge_toolcall_results", "vanilla.aime24_acc", 0, 1, "30 questions", "undecided"),
    ("supp_sync_results", "xbench.delta", 25, 1, "100 questions", "higher"),
    ("supp_airline_training", "rtpo.step_10", 50, 1, "2 prompts", "undecided"),
    ("supp_airline_test", "rtpo.pass_at_1", 31.25, 1, "20 questions", "undecided"),
    ("supp_airline_test", "rtpo.pass_at_4", 50, 1, "20 questions", "undecided"),
    ("supp_airline_test", "rtpo.pass_all_4", 25, 1, "20 questions", "undecided"),
    ("supp_airline_tools", "rtpo.errors", 160, 1, "20 questions", "no interval"),
    ("supp_airline_tools", "grpo.tokens_per_success", 320, 1, "20 questions", "lower"),
    # rows weigh: 6 at 0.5, then 2 and 8 at 1
    ("supp_group_sensitivity", "g4.zero_advantage", 81.25, 1, "2 steps", "undecided"),
    ("supp_trunk_distribution", "failed_5.trunks", 40, 1, "10 prompts", "undecided"),
    ("supp_failure_dynamics", "failed_turns.step_20", 3.5, 1, "2 prompts", "undecided"),
    ("supp_wall_clock", "rtpo.cost", 2, 1, "", "no interval"),
    ("supp_inference_budget", "rtpo.successes_per_1k", 3.125, 1, "20 questions", "higher"),
]


@pytest.mark.parametrize(("table", "place", "value", "seeds", "units", "word"), CELLS)
def test_cells(tables: Any, table: str, place: str, value: float, seeds: int, units: str, word: str) -> None:
    line = long(tables[table]).loc[place]
    assert (round(line["value"], 2 if table != "supp_inference_budget" else 3), line["seeds"]) == (value, seeds)
    assert (f"{line['n']:.0f} {line['of']}" if units else units, line["verdict"]) == (units, word), line


def test_every_number_of_the_paper_has_a_cell_and_numbers_are_numbers(tables: Mapping[str, PaperTable]) -> None:
    for key, printed in load_paper().tables.items():
        frame = long(tables[key])
        assert {f"{row}.{column}" for row, column in printed.cells} <= set(frame.index)
        assert all(pd.api.types.is_numeric_dtype(frame[column]) for column in ("value", "low", "high", "n", "paper"))


def test_a_table_is_laid_out_as_in_the_paper(tables: Mapping[str, PaperTable]) -> None:
    table = tables["supp_sync_results"].layout
    assert table.header[:5] == ("", "", "Off-policy", "On-policy", "Difference")
    place = [row[0] for row in table.rows].index("XBench")
    assert table.rows[place][:5] == ("XBench", "paper", "8.00", "15.00", "+7.00")
    shown = ("0.00 [0.00, 3.70] (lower)", "25.00 [16.36, 33.64] (higher)", "+25.00 [+16.36, +33.64] (higher)")
    assert table.rows[place + 1][:5] == ("", "ours, 1 seed", *shown)


def test_toy_runs_have_tables_of_their_own_and_nothing_beside_them(tables: Mapping[str, PaperTable]) -> None:
    table = tables["math_knowledge_toolcall_results_toy"]
    frame = long(table)
    assert frame["printed"].isna().all()
    assert "paper" not in {row[1] for row in table.layout.rows}
    assert (frame.loc["rtpo.overall_acc", "value"], frame.loc["rtpo.calls", "value"]) == (37.5, 8)
    assert frame.loc["seeupo.calls", "verdict"] == "not run"
    # those made of configurations alone have no other profile's
    assert {name for name in tables if name.endswith("_toy")} == {
        f"{name}_toy" for name in ("math_knowledge_toolcall_results", "acc_only_results", "supp_math_tool_calls")
    }


def test_rows_are_compared_in_pairs_and_bold_where_seeds_agree(results: Path, tmp_path: Path) -> None:
    # a benchmark of the row has no run
    assert named(results, "math_knowledge_toolcall_results").compared is None
    toy = named(results, "math_knowledge_toolcall_results_toy").compared
    assert toy is not None
    # one seed has no p, and so is not bold
    assert toy.rows == (("Vanilla", "1", *toy.rows[0][2:]),)
    assert all(cell.startswith("+37.50 [") for cell in toy.rows[0][2:])
    for label, seed in ((label, seed) for label in ("rtpo_full", "grpo_full") for seed in range(4)):
        folder = run(tmp_path, "credit_a100x8_math_paper", label, seed)
        for benchmark in ("amc23", "aime24", "aime25", "math500"):
            lines = questions(benchmark, "", (0, 0, 0))
            for line in lines:
                line["reward"] = float(label == "rtpo_full" and (int(line["uid"][1:]) + seed) % 3 > 0)
            write_evaluation(folder, benchmark, lines)
    compared = named(tmp_path, "math_results").compared
    assert compared is not None
    ((_, seeds, *cells),) = compared.rows
    assert seeds == "4"
    assert all(cell.startswith("**+") for cell in cells)


@pytest.mark.needs("pdflatex")
def test_every_table_compiles(tables: Mapping[str, PaperTable], tmp_path: Path) -> None:
    files = files_of(list(tables.values()), tmp_path)
    compile_latex([text for file, text in files.items() if file.suffix == ".tex"], tmp_path)


# verdicts


@pytest.mark.parametrize(
    ("printed", "unit", "low", "high", "expected"),
    [
        ("50.0", "points", 45, 55, "agrees"),
        # half a unit of the last digit
        ("50.0", "points", 50.04, 55, "agrees"),
        ("50.0", "points", 50.06, 55, "higher"),
        ("50.0", "points", 45, 49.94, "lower"),
        # a count has none
        ("17", "calls", 16.6, 17.4, "agrees"),
        ("17", "count", 17.4, 20, "higher"),
        # 10 points to either side, or a quarter of the number
        ("50.0", "points", 40, 60, "agrees"),
        ("50.0", "points", 39, 61, "undecided"),
        ("100", "tokens", 75, 125, "agrees"),
        ("100", "tokens", 74, 126, "undecided"),
        # wide, and beside the number
        ("50.0", "points", 51, 99, "higher"),
        ("50.0", "points", float("nan"), float("nan"), "no interval"),
    ],
)
def test_verdicts(
    monkeypatch: pytest.MonkeyPatch, printed: str, unit: str, low: float, high: float, expected: str
) -> None:
    mean = 50.0 if low != low else (low + high) / 2
    monkeypatch.setattr(Estimate, "interval", Interval(mean, low, high, 1, 1))
    ours = Estimate(mean, pd.DataFrame())
    assert verdict(Value(printed, unit), ours) == expected
    assert verdict(Value(printed, unit), ours, "other GPUs") == "not compared"


# the command


def make(results: Path, folder: Path, *more: str) -> int:
    return main(["--results", str(results), "--output", str(folder), *more])


def test_stale_tables_are_named_and_none_is_deleted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert make(tmp_path, tmp_path / "made") == 0
    stale, left = (tmp_path / "made" / "paper" / name for name in ("supp_budget.csv", "supp_budget_toy_compared.md"))
    stale.write_text(stale.read_text().replace("not run", "agrees", 1))
    left.write_text("")
    capsys.readouterr()
    assert make(tmp_path, tmp_path / "made", "--check") == 1
    assert [line.split()[0] for line in capsys.readouterr().err.splitlines()] == [str(stale), str(left)]


def test_the_committed_tables_are_those_of_the_committed_records(tmp_path: Path) -> None:
    for name in ("main_table_toy_toy_math", "main_table_toy_toy_knowledge"):
        (tmp_path / name).symlink_to(PROJECT / "results" / name, target_is_directory=True)
    assert make(tmp_path, PROJECT / "results" / "tables", "--check") == 0


# what is not there, not whole, or not alike


@pytest.fixture
def sync(tmp_path: Path) -> Path:
    """A run of the experiment sync with evaluations."""
    folder = run(tmp_path, "sync_a100x8_search_paper", "rtpo")
    for benchmark in DEEP:
        write_evaluation(folder, benchmark, hits(benchmark, "rtpo"))
    return folder


def synced(folder: Path) -> tuple["pd.Series[Any]", str]:
    """The verdicts of supp_sync_results by place, and its notes."""
    table = named(folder.parents[1], "supp_sync_results")
    return table.cells["verdict"], markdown(table.layout)


def test_what_is_not_complete_or_not_of_the_trained_policy_is_named_and_left_out(sync: Path) -> None:
    manifest = json.loads((sync / "gaia" / "manifest.json").read_text())
    manifest["checkpoint"]["policy_version"] = 4
    write_manifest(sync / "gaia", manifest)
    verdicts, text = synced(sync)
    assert verdicts["gaia.on_rate"] == "not run"
    assert "rtpo-seed0/gaia (not of the trained policy)" in text
    (sync / "gaia" / "manifest.json").unlink()
    run(sync.parents[1], "sync_a100x8_search_paper", "rtpo_off", complete=False)
    verdicts, text = synced(sync)
    assert list(verdicts[["gaia.on_rate", "xbench.delta", "xbench.on_rate"]]) == ["not run", "not run", "higher"]
    assert "sync_a100x8_search_paper/rtpo_off-seed0, sync_a100x8_search_paper/rtpo-seed0/gaia." in text
    assert "`sbatch slurm/sync.sh`, or without SLURM `python experiments/launch.py run sync profile=a100x8`" in text


@pytest.mark.parametrize(
    "change", [{"budget": {"rollouts": 64, "seconds": None}}, {"model": {"name": "Qwen3-0.6B"}}, {}], ids=str
)
def test_another_scale_or_panel_is_not_compared(sync: Path, change: Mapping[str, Any]) -> None:
    config = yaml.safe_load((sync / "config.yaml").read_text()) | dict(change)
    (sync / "config.yaml").write_text(yaml.safe_dump(config))
    write_manifest(sync, json.loads((sync / "manifest.json").read_text()))
    verdicts, text = synced(sync)
    assert verdicts["xbench.on_rate"] == ("not compared" if change else "higher")
    assert verdicts["gaia.on_rate"] == "not compared"
    assert f"{next(iter(change))}." in text if change else "4 of 103 questions of gaia" in text


@pytest.mark.parametrize(
    ("folder", "change", "message"),
    [
        (".", {"profile": "toy"}, "rtpo-seed0 says profile 'toy' and lies in 'sync_a100x8_"),
        (".", {"task": "toy_knowledge"}, "rtpo-seed0 says task 'toy_knowledge' and lies in 'sync_a100x8_"),
        ("gaia", {"schema": 0}, "has schema 0 and this version reads schema 1"),
        ("gaia", {"benchmark": "xbench"}, "says benchmark 'xbench' and lies in 'gaia'"),
        ("gaia", {"checkpoint": {"run": "a/b", "policy_version": 9}}, "is an evaluation of 'a/b', not of the run"),
    ],
)
def test_records_in_the_folder_of_others_are_refused(
    sync: Path, folder: str, change: Mapping[str, Any], message: str
) -> None:
    manifest = json.loads((sync / folder / "manifest.json").read_text())
    write_manifest(sync / folder, manifest | dict(change))
    with pytest.raises(DataError, match=message):
        synced(sync)


# what the cells are made of


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("metric: ended}", "metric: endd}", "normal_termination: metric 'endd' is unknown; the nearest is ended"),
        ("experiment: sync,", "experiment: synch,", "experiment 'synch' is unknown; the nearest is sync"),
        ("benchmark: 2wiki,", "benchmark: 2wikis,", "benchmark '2wikis' is unknown; the nearest is 2wiki"),
        ("{row: seeupo,", "{row: seupo,", "row 'seupo' is unknown; the nearest is seeupo|no cell seeupo"),
        ("episodes: held_out, metric", "episodes: held, metric", "episodes 'held' is unknown"),
        ("label: rtpo,", "lable: rtpo,", "field 'lable' is unknown; the nearest is label"),
        ("  supp_budget:", "  supp_budgets:", "table 'supp_budget' is unknown"),
        ("metric: calls_each}", "metric: turns}", "is in calls and the metric 'turns' in turns"),
        ("notes: [fifths]", "notes: [fifth]", "note 'fifth' is unknown; the nearest is fifths"),
        ("formula: on_rate - off_rate", "formula: on_rate - of_rate", "cell 'gaia.of_rate' is unknown; the nearest is"),
        ("stated: kl,", "stated: k1,", "there is no stated number 'k1'"),
        ("{row: step_10, column: trunk_calls,", "{row: step_10, column: x,", "no cell step_10.trunk_calls"),
    ],
)
def test_a_name_that_is_not_there_is_refused_naming_the_cell(old: str, new: str, message: str) -> None:
    text = SOURCE.read_text(encoding="utf-8")
    assert old in text
    with pytest.raises(DataError, match=message):
        read_plans(text.replace(old, new, 1), load_paper())
