"""The paper's numbers, and names in what is written beside them; docs/results/claims.md shows what does not agree."""

from collections.abc import Callable
from pathlib import Path

import pytest

from analysis.claims import claims
from analysis.paper import cells
from analysis.paper.numbers import SOURCE, load_paper, read_paper
from analysis.paper.slips import recomputed, slips
from rtpo.errors import RTPOError


def test_a_mistyped_number_is_seen() -> None:
    text = SOURCE.read_text(encoding="utf-8").replace('"+66.78", "2251"', '"+66.87", "2251"')
    known, seen = ({slip.place for slip in slips(paper)} for paper in (load_paper(), read_paper(text)))
    assert seen - known == {"math_knowledge_toolcall_results.rtpo.over_vanilla", "stated.over_vanilla"}


READERS: dict[Path, Callable[[str], object]] = {
    SOURCE: lambda text: recomputed(read_paper(text)),
    cells.SOURCE: lambda text: cells.read_plans(text, load_paper()),
    claims.FILE: claims.read_claims,
}


def test_a_wrong_name_or_number_is_refused() -> None:
    for file, old, new, named in (
        (SOURCE, '"97.50", "73.33"', '97.50, "73.33"', "'amc23_p4'"),
        (SOURCE, '"97.50", "73.33"', '"97.50"', "'arpo'"),
        (SOURCE, "attempted - executed", "attempted - wrong", "'wrong'"),
        (cells.SOURCE, "metric: ended}", "metric: endd}", "'endd'"),
        (cells.SOURCE, "metric: ended}", "metrc: ended}", "metrc is not a field of CellEntry"),
        (cells.SOURCE, "on_rate - off_rate", "on_rate - of_rate", "'gaia.of_rate'"),
        (claims.FILE, 'read: "rtpo.overall_acc', 'read: "rtpo.overal_acc', "'rtpo.overal_acc'"),
        (claims.FILE, "table: math_results", "table: math_result", "'math_result'"),
        (claims.FILE, "theorem: theorem_2a", "teorem: theorem_2a", "teorem is not a field of Part"),
        (claims.FILE, "scale: toy", "scale: tiny", "scale is 'tiny'"),
        (claims.FILE, "math, RTPO's ratio", "math: RTPO's ratio", 'what is "math: RTPO\'s ratio"'),
    ):
        text = file.read_text(encoding="utf-8")
        assert old in text
        with pytest.raises(RTPOError, match=named):
            READERS[file](text.replace(old, new, 1))
