"""The claims: what is refused, how parts give a verdict together, and parts of each kind on made-up runs."""

from pathlib import Path

import pytest
from synthetic_runs import write_evaluation
from test_paper_tables import questions, run

from analysis.claims.claims import FILE, parts, read_claims, together
from analysis.tables import NOT_RUN
from rtpo.errors import DataError

SUPPORTED, CONTRADICTED, UNDECIDED = "supported", "contradicted", "undecided"


@pytest.mark.parametrize(
    ("verdicts", "every", "expected"),
    [
        ([], False, "not testable"),
        ([SUPPORTED, NOT_RUN], False, SUPPORTED),
        ([UNDECIDED, SUPPORTED], False, "mixed: supported, undecided"),
        ([SUPPORTED, CONTRADICTED], True, CONTRADICTED),
        ([SUPPORTED, UNDECIDED], True, "mixed: supported, undecided"),
    ],
)
def test_parts_give_a_verdict_together(verdicts: list[str], every: bool, expected: str) -> None:
    assert together(verdicts, every=every) == expected


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('read: "rtpo.overall_acc - grpo', 'read: "rtpo.overal_acc - grpo', "cell 'rtpo.overal_acc' is unknown"),
        ("table: math_results", "table: math_result", "table 'math_result' is unknown; the nearest is math_results"),
        ("recomputed: stated.g4_pass_1", "recomputed: stated.g5_pass_1", "recomputed 'stated.g5_pass_1' is unknown"),
    ],
)
def test_a_name_that_is_not_there_is_refused(old: str, new: str, message: str) -> None:
    text = FILE.read_text(encoding="utf-8")
    assert old in text
    with pytest.raises(DataError, match=message):
        read_claims(text.replace(old, new, 1))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whole panels of on-policy search by three seeds, better on-policy on XBench and alike elsewhere."""
    folder = tmp_path_factory.mktemp("results")
    for label, seed in ((label, seed) for label in ("rtpo", "rtpo_off") for seed in range(3)):
        made = run(folder, "drift_a100x8_search_paper", label, seed)
        for benchmark in ("xbench", "webwalker"):
            right = (4, 0, 4, 0) if benchmark == "xbench" and label == "rtpo" else (4, 0, 0, 0)
            write_evaluation(made, benchmark, questions(benchmark, right))
    return folder


def test_an_order_is_judged_on_our_cells(results: Path) -> None:
    found = parts(results)
    rows = found[(found["claim"] == "continuation") & (found["scale"] == "paper")].set_index("what")
    xbench = rows.loc["XBench, on-policy minus off-policy"]
    assert (xbench["verdict"], xbench["mean"], xbench["n"]) == (SUPPORTED, pytest.approx(25), 3)
    assert rows.loc["WebWalker, on-policy minus off-policy", "verdict"] == UNDECIDED
    assert rows.loc["GAIA, on-policy minus off-policy", "verdict"] == NOT_RUN
