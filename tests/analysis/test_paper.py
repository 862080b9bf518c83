"""The paper's numbers: all tables, lookup, what agrees with what, and the page."""

import csv
import re
from collections import Counter
from pathlib import Path

import pytest

from analysis.paper.numbers import SOURCE, Paper, load_paper, read_paper
from analysis.paper.slips import KINDS, frame, recomputed, slips
from rtpo.errors import DataError

UNEVEN = {"all-hparams", "supp_gsm8k_audit"}
"""whose rows have different numbers"""
SLIPS = dict(csv.reader((Path(__file__).parents[1] / "golden" / "slips.csv").read_text().splitlines()[1:]))
"""every number and order of the paper that its own numbers do not give, with what they give"""
COUNTS = {"arithmetic": 8, "reading": 8, "order": 7, "expectation": 8}


@pytest.fixture(scope="module")
def paper() -> Paper:
    return load_paper()


def test_the_papers_tables_are_all_there(paper: Paper) -> None:
    assert (len(paper.tables), sum(len(table.cells) for table in paper.tables.values())) == (21, 561)
    missing = {
        (key, row, column)
        for key, table in paper.tables.items()
        if key not in UNEVEN
        for row in table.rows
        for column in table.columns
        if (row, column) not in table.cells
    }
    assert missing == {("supp_airline_tools", "seeupo", "tokens_per_success")}  # printed as N/A


def test_numbers_of_the_prose(paper: Paper) -> None:
    assert len(paper.stated) == 158
    known = {"abstract_over_grpo": 21.5, "math_rollouts": 80_000, "learning_rate": 1e-6, "hours_over_grpo": 41.3}
    assert {key: paper.statement(key).value.number for key in known} == known
    with pytest.raises(DataError, match="there is no stated number 'headline'"):
        paper.statement("headline")


def test_exactly_these_do_not_agree(paper: Paper) -> None:
    found = slips(paper)
    assert {slip.place: slip.recomputed for slip in found} == SLIPS
    assert Counter(slip.kind for slip in found) == COUNTS
    assert {kind: len(frame(kind)) for kind in KINDS} == COUNTS


@pytest.mark.parametrize(
    ("printed", "mistyped", "place"),
    [
        ('"+66.78", "2251"', '"+66.87", "2251"', "math_knowledge_toolcall_results.rtpo.over_vanilla"),
        ('"16.25", "25.00", "10.00"', '"16.52", "25.00", "10.00"', "supp_airline_test.tree_grpo.pass_at_1"),
        ('"947", "114"', '"974", "114"', "recheck_output_hit.hle.questions"),
        ('"13.30", "7.30"', '"13.50", "7.30"', "supp_failure_dynamics.failed_turns.step_10"),
    ],
)
def test_a_mistyped_number_is_seen(printed: str, mistyped: str, place: str) -> None:
    text = SOURCE.read_text(encoding="utf-8")
    assert text.count(printed) == 1
    assert place in {slip.place for slip in slips(read_paper(text.replace(printed, mistyped)))} - SLIPS.keys()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"97.50", "73.33"', '97.50, "73.33"', "row 'arpo', column 'amc23_p4' is 97.5: quote it"),
        ('"97.50", "73.33"', '"97.50"', "row 'arpo' has 9 cells, not 10"),
        ('"97.50", "73.33"', '"97,5 %", "73.33"', "is '97,5 %': not a number"),
        ("  tokens: tokens\n", "", "has the unit 'tokens': no such unit"),
    ],
)
def test_a_file_that_cannot_be(old: str, new: str, message: str) -> None:
    text = SOURCE.read_text(encoding="utf-8")
    with pytest.raises(DataError, match=re.escape(message)):
        read_paper(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("executed - wrong", "table 'supp_airline_tools' has no column 'wrong'"),
        ("stated.nothing", "there is no stated number 'nothing'"),
        ("tokens_per_success", "the paper gives no number there"),
        ("supp_airline_tools.executed", "give a line of its table, table.row.column or stated.key"),
    ],
)
def test_a_formula_that_cannot_be(formula: str, message: str) -> None:
    text = SOURCE.read_text(encoding="utf-8").replace("formula: attempted - executed", f'formula: "{formula}"')
    with pytest.raises(DataError, match=re.escape(message)):
        recomputed(read_paper(text))
