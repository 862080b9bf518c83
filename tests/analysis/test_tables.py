"""Tables of runs from made-up records with hand-computed cells, and the three formats."""

import csv
import itertools
from math import nan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latex import compile_latex
from synthetic_runs import answers, episode, step, update, write_evaluation, write_run

from analysis import make_tables
from analysis.looks import NOTES, TITLES
from analysis.run_table import folder_table, run_table, short
from analysis.tables import NO_VALUE, NOT_RUN, Number, Table, bold_best, csv_text, latex
from rtpo.errors import ConfigError, DataError

LABELS = ("grpo_exact_lr0.001", "grpo_exact_lr0.002", "grpo_exact (a)", "grpo_exact (b)", "mine", "rtpo,lr=0.1")
STEPS = [step(1, 28, 0.5, [update(10, 0.1, 0.5)]), step(2, 56, 0.5, [update(30, 0.2, 0.25)])]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Two methods, two seeds, two questions: rtpo solves a half before and all after training, grpo a half of each."""
    before = answers("before", "sampled", {"a": [1.0], "b": [0.0]})
    for label, seed in itertools.product(("rtpo", "grpo"), (0, 1)):
        after = answers("after", "sampled", {"a": [1.0], "b": [float(label == "rtpo")]})
        write_run(tmp_path, label, seed, STEPS, [*before, *after])
    return tmp_path


def test_cells_are_what_the_records_say(results: Path) -> None:
    table = run_table(results, "quickstart")
    rtpo, grpo = (dict(zip(table.header, row, strict=True)) for row in table.rows)
    assert (rtpo["Configuration"], rtpo["Seeds"]) == ("RTPO", "2")
    assert rtpo["Before"].startswith("50.0 [")
    # Wilson's over two questions, which does not lie above the other's
    assert rtpo["After"] == "100.0 [34.2, 100.0]"
    assert grpo["After"].startswith("50.0 [")
    # means over steps: kl of 0.1 and 0.2, ties of a half and a quarter
    assert (rtpo["KL"], rtpo["Ratio"], rtpo["Zero advantages, %"]) == ("0.1500", "0.861", "37.5")
    assert not any("Greedy" in title for title in table.header)
    with pytest.raises(ConfigError, match="ratio"):
        run_table(results, "quickstart", ["rato"])


def test_a_run_that_is_not_finished_is_left_out_and_named(results: Path) -> None:
    write_run(results, "rtpo", 2, STEPS, [], complete=False)
    table = run_table(results, "quickstart")
    assert all(any("rtpo-seed2" in note for note in shown.notes) for shown in (table, short(table)))
    with pytest.raises(DataError, match="rtpo-seed2"):
        folder_table([results / "quickstart" / "rtpo-seed2"])


@pytest.mark.parametrize(
    ("cells", "bold"),
    [
        ([(0.9, 0.8, 1.0), (0.5, 0.4, 0.6)], [True, False]),
        ([(0.9, 0.55, 1.0), (0.5, 0.4, 0.6)], [False, False]),
        ([(0.9, 0.8, 1.0), (0.5, 0.4, 0.6), (0.9001, 0.85, 0.95)], [True, False, True]),
        ([(1.0, nan, nan), (1.0, nan, nan), (0.5, nan, nan)], [False, False, False]),
        ([(0.9, 0.8, 1.0), (0.9, 0.8, 1.0)], [False, False]),
        ([(0.9, 0.8, 1.0), (0.5, nan, nan)], [False, False]),
        ([(0.9, 0.8, 1.0), (0.5, 0.4, 0.6), NOT_RUN], [True, False, False]),
    ],
)
def test_bold_are_all_of_the_best_where_intervals_set_them_apart(cells: list[Any], bold: list[bool]) -> None:
    column = [cell if isinstance(cell, str) else Number(cell[0], cell[1], cell[2], scale=100) for cell in cells]
    frame = bold_best(pd.DataFrame({"After": column}, dtype=object), ["After"])
    assert [isinstance(cell, Number) and cell.is_bold for cell in frame["After"]] == bold


@pytest.mark.parametrize("seeds", [1, 2])
def test_intervals_of_one_seed_say_so_and_set_nothing_apart(tmp_path: Path, seeds: int) -> None:
    for label, seed in itertools.product(("rtpo", "grpo"), range(seeds)):
        questions = {str(question): [float(label == "rtpo")] for question in range(20)}
        write_run(tmp_path, label, seed, STEPS, answers("after", "sampled", questions))
    table = run_table(tmp_path, "quickstart")
    assert any("1 seed" in note for note in table.notes) == (seeds == 1)
    assert [cell.is_bold for cell in table.frame["After"]] == [seeds > 1, False]


def test_greedy_success_is_shown_before_and_after(tmp_path: Path) -> None:
    greedy = [*answers("before", "greedy", {"a": [0.0]}), *answers("after", "greedy", {"a": [1.0]})]
    write_run(tmp_path, "rtpo", 0, STEPS, greedy)
    for shown in (table := run_table(tmp_path, "quickstart"), short(table)):
        cells = dict(zip(shown.header, shown.rows[0], strict=True))
        assert (cells["Greedy, before"], cells["Greedy, after"]) == ("0.0", "100.0")


@given(st.lists(st.sampled_from([*TITLES, *LABELS]), min_size=1, max_size=6, unique=True), st.integers(1, 2))
@settings(max_examples=15)
def test_rows_can_be_told_apart_and_say_their_seeds(labels: list[str], experiments: int) -> None:
    """Whatever their labels, in one experiment and in two, in the terminal and in all columns."""
    with TemporaryDirectory() as folder:
        for number in range(experiments):
            for place, label in enumerate(labels):
                for seed in range(1 + place % 2):
                    write_run(Path(folder), label, seed, STEPS, [], experiment=f"trial_{number}")
        table = folder_table([Path(folder)])
    for shown in (table, short(table)):
        names = [row[: shown.label_columns] for row in shown.rows]
        assert len(set(names)) == len(names) == experiments * len(labels)
        assert "Seeds" in shown.header or "1 seed each" in shown.caption
        assert ("Seeds" in short(table).header) == (len(labels) > 1)


def test_rows_of_a_method_are_in_the_order_of_their_values(tmp_path: Path) -> None:
    """That of the default among them, which the name leaves out."""
    for size in (10, 5, 3):
        label = "grpo" if size == 5 else f"grpo,group_size={size}"
        config = {"algorithm": {"label": label, "group_size": size}}
        write_run(tmp_path, label, 0, STEPS, [], config=config)
    write_run(tmp_path, "rtpo", 0, STEPS, [], config={"algorithm": {"label": "rtpo", "group_size": 3}})
    table = run_table(tmp_path, "quickstart")
    assert [row[:2] for row in short(table).rows] == [
        ("RTPO", "3"),
        *(("GRPO, flattened history", size) for size in ("3", "5", "10")),
    ]


def test_a_method_with_a_note_has_it_under_its_table(results: Path) -> None:
    """Once, however many of its labels are rows."""
    assert set(NOTES.values()).isdisjoint(run_table(results, "quickstart").notes)
    for label in ("seeupo", "seeupo,lr=0.1", "seeupo_flat"):
        write_run(results, label, 0, STEPS, [])
    notes = [*run_table(results, "quickstart").notes, *short(run_table(results, "quickstart")).notes]
    assert [note for note in notes if note == NOTES["seeupo"]] == 2 * [NOTES["seeupo"]]


def test_what_could_not_be_graded_is_said(tmp_path: Path) -> None:
    after = answers("after", "sampled", {"a": [None, None], "b": [None, None]})
    run = write_run(tmp_path, "rtpo", 0, STEPS, after)
    played = [episode(reward) | {"uid": "a", "sample": sample} for sample, reward in enumerate((None, None, 1.0))]
    write_evaluation(run, "aime24", played)
    write_run(tmp_path, "grpo", 0, STEPS, answers("after", "sampled", {"a": [1.0, None], "b": [0.0, 0.0]}))
    table = run_table(tmp_path, "quickstart")
    assert dict(zip(table.header, table.rows[0], strict=True))["After"] == NO_VALUE
    for counts in ("4 of 4", "1 of 4", "2 of 3 answers on aime24"):
        assert sum(counts in note for note in short(table).notes) == 1


def test_files_are_checked_and_latex_has_the_columns_that_a_page_has_room_for(results: Path) -> None:
    file, widths = results / "tables" / "quickstart_runs.tex", []
    for more in (["--columns", "all"], []):
        arguments = ["--results", str(results), "--experiment", "quickstart", *more]
        assert make_tables.main(arguments) == make_tables.main([*arguments, "--check"]) == 0
        widths.append(next(line.count("&") for line in file.read_text().splitlines() if "&" in line) + 1)
    assert widths[0] > 7 >= widths[1]
    file.with_suffix(".md").write_text("changed")
    assert make_tables.main([*arguments, "--check"]) == 1


def test_named_folders_need_no_results_folder(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    named = str(results / "quickstart")
    assert make_tables.main([named, "--output", "here"]) == 0
    assert [file.name for file in elsewhere.iterdir()] == ["here"]
    assert make_tables.main([named, "--output", "here", "--check"]) == 0
    assert make_tables.main([named]) == 0


def table_of(rows: int, columns: int) -> Table:
    cells = {f"c{place}": [Number(row + place, 0.5, 2.5) for row in range(rows)] for place in range(columns)}
    frame = pd.DataFrame(cells)
    frame.insert(0, "What & why_", [f"row {row} [5 %], `code`" for row in range(rows)])
    return Table("wide", frame, "A caption of 5 % → α.", ("Some note.",))


@pytest.mark.needs("pdflatex")
def test_latex_compiles(tmp_path: Path) -> None:
    """Long tables and wide ones too."""
    compile_latex([latex(table_of(*size)) for size in [(2, 2), (60, 3), (3, 25)]], tmp_path)


def test_csv_has_numbers_and_intervals_in_columns_of_their_own() -> None:
    frame = pd.DataFrame({"a": [Number(0.756, 0.5, 0.9, scale=100), NOT_RUN], "b": [Number(3.0), NO_VALUE]})
    rows = list(csv.reader(csv_text(Table("t", frame, "")).splitlines()))
    assert rows == [["a", "a, low", "a, high", "b"], ["75.6", "50", "90", "3"], ["", "", "", ""]]
