"""The paper's tables and claims from made-up runs: cells as computed by hand, verdicts, what is refused."""

import io
import json
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from latex import compile_latex
from synthetic_runs import episode, held_out, path, step, update, write_evaluation, write_manifest, write_run

from analysis.claims.claims import parts
from analysis.make_tables import main
from analysis.paper.estimates import Estimate
from analysis.paper.numbers import Value, load_paper
from analysis.paper.pages import files_of
from analysis.paper.tables import PaperTable, all_tables, named, planned, verdict
from analysis.stats import Interval
from analysis.tables import markdown
from rtpo.core.names import counted
from rtpo.errors import DataError
from rtpo.run.config import PROJECT

WHOLE = {"aime24": 30, "xbench": 100}
"""questions of benchmarks; four of all others, which are cut down"""
SCALE = {"math_paper": (80000, "Qwen3-8B"), "search_paper": (16000, "Qwen3-8B"), "airline": (9760, "Qwen3-1.7B")}
"""rollouts and model of the experiments' runs, by task"""
STEPS = [
    step(1, 500, 0.5, [update(30, 0.02, 0.5, rows=6), update(10, 0.02, 1.0, rows=2)]),
    step(2, 1000, 0.5, [update(30, 0.02, 1.0)]),
]
TURNS = {1: 1, 2: 2, 3: 5, 8: 3}
"""of the failed ones of ten trunks; a success takes 4"""


def questions(benchmark: str, right: Sequence[int], calls: tuple[int, int, int] = (0, 0, 0)) -> list[dict[str, Any]]:
    """Questions with four samples each; `right`: how many of them, of each four questions."""
    return [
        {
            **{"uid": f"q{i}", "sample": sample, "meta": {"level": i + 1}},
            "qa": {"f1": 0.75, "span_f1": 0.375, "output_hit": float(sample < right[i % 4])},
            **episode(float(sample < right[i % 4]), calls=calls),
        }
        for i in range(WHOLE.get(benchmark, 4))
        for sample in range(4)
    ]


def airline() -> dict[str, Any]:
    """Episodes of three calls, two of them run and one well: four of each of 20 tasks, and ten trunks, each with a
    failed sibling. Answers at temperature 1 are right more often, and longer."""
    calls = (3, 2, 1)
    trunks = [
        path(1, f"t{i}", episode(float(i not in TURNS), turns=TURNS.get(i, 4), tokens=80 + i, calls=calls))
        for i in range(10)
    ]
    siblings = [path(1, f"t{i}", episode(0.0, calls=(9, 9, 9)), parent=f"p{i}") for i in range(10)]
    answers = [
        held_out(f"t{i}", sample, episode(float(sample < right[i % 4]), tokens=tokens, calls=called)) | {"mode": mode}
        for mode, right, tokens, called in (
            ("sampled", (4, 2, 1, 0), 200, (2, 1, 1)),
            ("paper", (4, 1, 0, 0), 100, calls),
        )
        for i in range(20)
        for sample in range(4)
    ]
    return {"evaluations": answers, "paths": trunks + siblings}


def run(results: Path, experiment: str, label: str, seed: int = 0, **more: Any) -> Path:
    """A run of an hour's training on eight GPUs, or two for RTPO."""
    task = experiment.partition("_a100x8_")[2]
    manifest = {"profile": "a100x8", "task": task, "wall_seconds": 7210.0 if label == "rtpo" else 3610.0}
    rollouts, model = SCALE[task]
    config = {
        "profile": {"platform": "cuda", "processes": 4, "nodes": 2},
        "sampling": {"temperature": 0.9, "top_p": 1.0, "top_k": -1},
        "budget": {"rollouts": rollouts, "seconds": None, "steps": 5 if task == "airline" else None},
        "model": {"name": model},
    }
    files: dict[str, Any] = {"experiment": experiment, "manifest": manifest, "config": config, **more}
    return write_run(results, label, seed, STEPS, files.pop("evaluations", []), **files)


def write_sync(results: Path, label: str) -> Path:
    """A run that the table of sync reads: with on-policy continuations the first question of each four is hit."""
    experiment = f"{'main_table' if label == 'rtpo' else 'drift'}_a100x8_search_paper"
    folder = results / experiment / f"{label}-seed0"
    if not folder.exists():
        run(results, experiment, label)
    for benchmark in ("gaia", "xbench"):
        write_evaluation(folder, benchmark, questions(benchmark, (4 if label == "rtpo" else 0, 0, 0, 0)))
    return folder


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PaperTable]:
    """Of runs of four experiments, the main table's RTPO with two seeds."""
    folder = tmp_path_factory.mktemp("results")
    for label, seed, right in (("vanilla", 0, (0, 0, 0, 0)), ("rtpo", 0, (4, 2, 0, 0)), ("rtpo", 1, (4, 4, 0, 0))):
        calls = (4, 3, 2) if label == "vanilla" else (3, 1, 0)
        for task, benchmark in (("math", "aime24"), ("search", "hotpotqa")):
            made = run(folder, f"main_table_a100x8_{task}_paper", label, seed)
            write_evaluation(made, benchmark, questions(benchmark, right, calls))
    for label in ("rtpo", "rtpo_off"):
        write_sync(folder, label)
    for label in ("grpo", "rtpo", "rtpo_g4"):
        run(folder, "airline_a100x8_airline", label, **airline())
    return {table.name: table for table in all_tables(folder)[0]}


def test_cells(tables: Mapping[str, PaperTable]) -> None:
    for table, place, value, seeds, units, word in (
        # of 30 questions 8 and 8 with samples right: 8 + 4 in the first seed, 8 + 8 in the second
        ("math_knowledge_toolcall_results", "rtpo.aime24_acc", 46.67, 2, "30 questions", "undecided"),
        ("math_knowledge_toolcall_results", "vanilla.aime24_calls", 90, 1, "30 questions", "no interval"),
        ("math_knowledge_toolcall_results", "rtpo.hotpotqa_acc", 37.5, 2, "4 questions", "not compared"),
        # a side of [0, 11.4] is wider than 10 points
        ("math_knowledge_toolcall_results", "vanilla.aime24_acc", 0, 1, "30 questions", "undecided"),
        ("supp_sync_results", "xbench.delta", 25, 1, "100 questions", "higher"),
        ("supp_airline_training", "rtpo.step_10", 50, 1, "2 prompts", "undecided"),
        ("supp_airline_test", "rtpo.pass_all_4", 25, 1, "20 questions", "undecided"),
        ("supp_airline_test", "rtpo.pass_at_4", 50, 1, "20 questions", "undecided"),
        ("supp_airline_test", "rtpo.pass_at_4_sampled", 75, 1, "20 questions", ""),
        ("supp_airline_tools", "rtpo.errors", 160, 1, "20 questions", "no interval"),
        ("supp_airline_tools", "grpo.tokens_per_success", 320, 1, "20 questions", "lower"),
        # rows weigh: 6 at 0.5, then 2 and 8 at 1
        ("supp_group_sensitivity", "g4.zero_advantage", 81.25, 1, "2 steps", "undecided"),
        ("supp_trunk_distribution", "failed_5.trunks", 40, 1, "10 prompts", "undecided"),
        ("supp_failure_dynamics", "failed_turns.step_20", 3.5, 1, "2 prompts", "undecided"),
        ("supp_training_tokens", "grpo.training_tokens", 45678, 1, "", "not compared"),
        ("supp_wall_clock", "rtpo.cost", 2, 1, "", "no interval"),
        ("supp_inference_budget", "rtpo.successes_per_1k", 3.125, 1, "20 questions", "higher"),
    ):
        line = pd.read_csv(io.StringIO(tables[table].csv)).set_index(tables[table].cells.index).loc[place].fillna("")
        assert (line["value"], line["seeds"], line["verdict"]) == (pytest.approx(value, abs=0.005), seeds, word), place
        assert not units or f"{line['n']:.0f} {line['of']}" == units


def test_a_table_is_laid_out_as_in_the_paper(tables: Mapping[str, PaperTable]) -> None:
    table = tables["supp_sync_results"].layout
    assert table.header[:5] == ("", "", "Off-policy", "On-policy", "Difference")
    assert ("XBench", "paper", "8.00", "15.00", "+7.00") in {row[:5] for row in table.rows}
    shown = ("0.00 [0.00, 3.70] (lower)", "25.00 [16.36, 33.64] (higher)", "+25.00 [+16.36, +33.64] (higher)")
    assert ("", "ours", *shown) in {row[:5] for row in table.rows}


def test_a_toy_table_names_models_that_are_not_the_experiment_s(tmp_path: Path) -> None:
    for label, model in (("rtpo", "mine"), ("grpo", "toy_math_warm_start")):
        write_run(tmp_path, label, 0, STEPS, [], manifest={"model": model}, experiment="main_table_toy_toy_math")
    notes = planned(tmp_path)["math_knowledge_toolcall_results_toy"].layout.notes
    assert [note for note in notes if "Trained" in note] == ["Trained: mine, on toy_math."]


def test_a_toy_table_names_the_paper_s_and_does_not_take_its_caption(tmp_path: Path) -> None:
    """Neither the paper's models nor its benchmarks are in a caption of toy rows."""
    toy = [table for name, table in planned(tmp_path).items() if name.endswith("_toy")]
    assert {"math_results_toy", "supp_budget_toy"} <= {table.name for table in toy}
    for table in toy:
        printed, caption = load_paper().tables[table.plan.paper], table.layout.caption
        assert table.name == f"{table.plan.paper}_toy"
        assert f"`{table.plan.paper}` (section {printed.section})" in caption
        assert printed.gist not in caption
        assert caption.startswith("Toy ")


def test_every_mean_says_its_seeds_once(tables: Mapping[str, PaperTable]) -> None:
    """In the caption if all have as many, else beside its row, else beside itself."""
    places, seeds = Counter[str](), re.compile(r"\b\d+ seeds?\b")
    for table in tables.values():
        rows = [row for row in table.layout.rows if row[1].startswith("ours")]
        for (_, cells), row in zip(table.cells.groupby("row", sort=False), rows, strict=True):
            shown = dict(zip(table.plan.columns, row[2:], strict=True))
            for cell in cells[cells.index.isin(table.estimates.index)].itertuples():
                texts = {"caption": table.layout.caption, "row": row[1], "cell": shown[cell.column]}
                said = [(place, count) for place, text in texts.items() for count in seeds.findall(text)]
                assert [count for _, count in said] == [counted(cell.outcome.seeds, "seed")], cell.Index
                places[said[0][0]] += 1
    assert places.keys() == {"caption", "row", "cell"}


def test_differences_are_bold_where_seeds_agree(tmp_path: Path) -> None:
    for label, seed in ((label, seed) for label in ("rtpo_full", "grpo_full") for seed in range(4)):
        folder = run(tmp_path, "credit_a100x8_math_paper", label, seed)
        right = [4 * (label == "rtpo_full" and (i + seed) % 5 > 0) for i in range(4)]
        for benchmark in ("amc23", "aime24", "aime25", "math500"):
            write_evaluation(folder, benchmark, questions(benchmark, right))
    compared = named(tmp_path, "math_results").compared
    assert compared is not None
    ((_, *cells),) = compared.rows
    assert "4 seeds" in compared.caption
    assert all(cell.startswith("**+") for cell in cells)


def test_a_claim_is_judged_on_our_cells(tmp_path: Path) -> None:
    for label, seed in ((label, seed) for label in ("rtpo", "rtpo_off") for seed in range(3)):
        right = (4, 0, 4 * (label == "rtpo"), 0)
        experiment = f"{'main_table' if label == 'rtpo' else 'drift'}_a100x8_search_paper"
        write_evaluation(run(tmp_path, experiment, label, seed), "xbench", questions("xbench", right))
    claims = parts(tmp_path)
    rows = claims[(claims["claim"] == "continuation") & (claims["scale"] == "paper")].set_index("what")
    xbench = rows.loc["XBench, on-policy minus off-policy"]
    assert (xbench["verdict"], xbench["mean"], xbench["n"]) == ("supported", pytest.approx(25), 3)
    assert rows.loc["GAIA, on-policy minus off-policy", "verdict"] == "not run"


@pytest.mark.needs("pdflatex")
def test_every_table_compiles(tables: Mapping[str, PaperTable], tmp_path: Path) -> None:
    files = files_of(list(tables.values()), tmp_path)
    compile_latex([text for file, text in files.items() if file.suffix == ".tex"], tmp_path)


def test_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    for printed, unit, low, high, expected in (
        # half a unit of the last digit
        ("50.0", "points", 50.04, 55, "agrees"),
        ("50.0", "points", 50.06, 55, "higher"),
        ("50.0", "points", 39, 49, "lower"),
        # a count has none
        ("17", "calls", 17.4, 20, "agrees"),
        ("17", "count", 17.4, 20, "higher"),
        # 10 points to either side, or a quarter of the number
        ("50.0", "points", 39, 61, "undecided"),
        ("100", "tokens", 75, 125, "agrees"),
        ("100", "tokens", 74, 126, "undecided"),
        ("50.0", "points", float("nan"), float("nan"), "no interval"),
    ):
        mean = 50.0 if isnan(low) else (low + high) / 2
        monkeypatch.setattr(Estimate, "interval", Interval(mean, low, high, 1, 1))
        ours = Estimate(mean, pd.DataFrame())
        assert verdict(Value(printed, unit), ours) == expected
        assert verdict(Value(printed, unit), ours, "other GPUs") == "not compared"


def test_the_committed_tables_are_those_of_the_committed_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All but one that was changed and one that no record gives, which are named."""
    for name in ("main_table_toy_toy_math", "main_table_toy_toy_knowledge"):
        (tmp_path / name).symlink_to(PROJECT / "results" / name, target_is_directory=True)
    folder = Path(shutil.copytree(PROJECT / "results" / "tables" / "paper", tmp_path / "tables" / "paper"))
    stale, left = folder / "supp_budget.csv", folder / "supp_budget_toy_compared.md"
    stale.write_text(stale.read_text().replace("not run", "agrees", 1))
    left.write_text("")
    assert main(["--results", str(tmp_path), "--check"]) == 1
    assert [line.split()[0] for line in capsys.readouterr().err.splitlines()] == [str(stale), str(left)]


@pytest.fixture
def sync(tmp_path: Path) -> Path:
    return write_sync(tmp_path, "rtpo")


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
    run(sync.parents[1], "drift_a100x8_search_paper", "rtpo_off", complete=False)
    verdicts, text = synced(sync)
    assert list(verdicts[["gaia.on_rate", "xbench.delta", "xbench.on_rate"]]) == ["not run", "not run", "higher"]
    assert "drift_a100x8_search_paper/rtpo_off-seed0, main_table_a100x8_search_paper/rtpo-seed0/gaia." in text


def test_another_scale_or_panel_is_not_compared(sync: Path) -> None:
    verdicts, text = synced(sync)
    assert (verdicts["gaia.on_rate"], verdicts["xbench.on_rate"]) == ("not compared", "higher")
    assert "4 of 103 questions of gaia" in text
    config = yaml.safe_load((sync / "config.yaml").read_text()) | {"model": {"name": "Qwen3-0.6B"}}
    (sync / "config.yaml").write_text(yaml.safe_dump(config))
    write_manifest(sync, json.loads((sync / "manifest.json").read_text()))
    verdicts, text = synced(sync)
    assert verdicts["xbench.on_rate"] == "not compared"
    assert "model.name of main_table_a100x8_search_paper/rtpo is Qwen3-0.6B" in text


def test_records_in_the_folder_of_others_are_refused(sync: Path) -> None:
    for folder, change, message in (
        (sync / "gaia", {"benchmark": "xbench"}, "'xbench' and lies in 'gaia'"),
        (sync / "gaia", {"checkpoint": {"run": "a/b", "policy_version": 9}}, "is an evaluation of 'a/b'"),
        (sync, {"task": "toy_knowledge"}, "'toy_knowledge' and lies in 'main_table_a100x8_"),
    ):
        manifest = json.loads((folder / "manifest.json").read_text())
        write_manifest(folder, manifest | change)
        with pytest.raises(DataError, match=message):
            synced(sync)
        write_manifest(folder, manifest)
