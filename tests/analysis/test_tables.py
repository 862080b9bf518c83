"""Tables of runs from made-up records with hand-computed cells, and the three formats."""

import csv
import itertools
from pathlib import Path

import pandas as pd
import pytest
from latex import compile_latex
from synthetic_runs import answers, step, update, write_run

from analysis import make_tables
from analysis.run_table import folder_table, run_table, short
from analysis.tables import NO_VALUE, NOT_RUN, Number, Table, csv_text, latex
from rtpo.errors import ConfigError, DataError

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
    # Wilson's over two questions
    assert rtpo["After"] == "**100.0 [34.2, 100.0]**"
    assert grpo["After"].startswith("50.0 [")
    # means over steps: kl of 0.1 and 0.2, ties of a half and a quarter
    assert (rtpo["KL"], rtpo["Ratio"], rtpo["Zero advantages, %"]) == ("0.1500", "0.861", "37.5")
    assert "Greedy" not in table.header
    with pytest.raises(ConfigError, match="ratio"):
        run_table(results, "quickstart", ["rato"])


def test_a_run_that_is_not_finished_is_left_out_and_named(results: Path) -> None:
    write_run(results, "rtpo", 2, STEPS, [], complete=False)
    table = run_table(results, "quickstart")
    assert all(any("rtpo-seed2" in note for note in shown.notes) for shown in (table, short(table)))
    with pytest.raises(DataError, match="rtpo-seed2"):
        folder_table([results / "quickstart" / "rtpo-seed2"])


def test_files_are_checked_and_latex_has_the_columns_that_a_page_has_room_for(results: Path) -> None:
    file, widths = results / "tables" / "quickstart_runs.tex", []
    for more in (["--columns", "all"], []):
        arguments = ["--results", str(results), "--experiment", "quickstart", *more]
        assert make_tables.main(arguments) == make_tables.main([*arguments, "--check"]) == 0
        widths.append(next(line.count("&") for line in file.read_text().splitlines() if "&" in line) + 1)
    assert widths[0] > 7 >= widths[1]
    file.with_suffix(".md").write_text("changed")
    assert make_tables.main([*arguments, "--check"]) == 1


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
