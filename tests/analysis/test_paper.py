"""The paper's numbers: all tables, lookup, what agrees with what, and the page."""

import csv
import re
from collections import Counter
from pathlib import Path

import pytest

from analysis.paper.numbers import SOURCE, Paper, load_paper, read_paper
from analysis.paper.slips import KINDS, frame, recomputed, slips
from rtpo.errors import DataError

SLIPS = dict(csv.reader((Path(__file__).parents[1] / "golden" / "slips.csv").read_text().splitlines()[1:]))
"""every number and order of the paper that its own numbers do not give, with what they give"""
COUNTS = {"arithmetic": 8, "reading": 8, "order": 7, "expectation": 8}


@pytest.fixture(scope="module")
def paper() -> Paper:
    return load_paper()


def test_exactly_these_do_not_agree(paper: Paper) -> None:
    found = slips(paper)
    assert {slip.place: slip.recomputed for slip in found} == SLIPS
    assert Counter(slip.kind for slip in found) == COUNTS
    assert {kind: len(frame(kind)) for kind in KINDS} == COUNTS


@pytest.mark.parametrize(
    ("printed", "mistyped", "place"),
    [
        ('"+66.78", "2251"', '"+66.87", "2251"', "math_knowledge_toolcall_results.rtpo.over_vanilla"),
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
        ("attempted - executed", "executed - wrong", "table 'supp_airline_tools' has no column 'wrong'"),
        ("attempted - executed", "tokens_per_success", "the paper gives no number there"),
    ],
)
def test_a_file_that_cannot_be_is_refused(old: str, new: str, message: str) -> None:
    text = SOURCE.read_text(encoding="utf-8").replace(old, new, 1)
    with pytest.raises(DataError, match=re.escape(message)):
        recomputed(read_paper(text))
