"""The paper's numbers, and names in what is written beside them; docs/results/claims.md shows what does not agree."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from analysis.claims import claims
from analysis.paper import cells
from analysis.paper.numbers import SOURCE, load_paper, read_paper
from analysis.paper.slips import recomputed, slips
from rtpo.errors import DataError


def test_a_mistyped_number_is_seen() -> None:
    text = SOURCE.read_text(encoding="utf-8").replace('"+66.78", "2251"', '"+66.87", "2251"')
    known, found = ({slip.place for slip in slips(paper)} for paper in (load_paper(), read_paper(text)))
    assert found - known == {"math_knowledge_toolcall_results.rtpo.over_vanilla", "stated.over_vanilla"}


READERS: dict[Path, Callable[[str], object]] = {
    SOURCE: lambda text: recomputed(read_paper(text)),
    cells.SOURCE: lambda text: cells.read_plans(text, load_paper()),
    claims.FILE: claims.read_claims,
}


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (SOURCE, '"97.50", "73.33"', '97.50, "73.33"', "row 'arpo', column 'amc23_p4' is 97.5: quote it"),
        (SOURCE, '"97.50", "73.33"', '"97.50"', "row 'arpo' has 9 cells, not 10"),
        (SOURCE, "attempted - executed", "attempted - wrong", "table 'supp_airline_tools' has no column 'wrong'"),
        (cells.SOURCE, "metric: ended}", "metric: endd}", "normal_termination: metric 'endd' is unknown"),
        (cells.SOURCE, "on_rate - off_rate", "on_rate - of_rate", "cell 'gaia.of_rate' is unknown"),
        (claims.FILE, 'read: "rtpo.overall_acc', 'read: "rtpo.overal_acc', "cell 'rtpo.overal_acc' is unknown"),
        (claims.FILE, "table: math_results", "table: math_result", "table 'math_result' is unknown"),
    ],
)
def test_a_name_or_number_that_cannot_be_is_refused(file: Path, old: str, new: str, message: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    with pytest.raises(DataError, match=re.escape(message)):
        READERS[file](text.replace(old, new, 1))
