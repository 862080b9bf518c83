"""The paper's numbers: all tables, lookup, what agrees with what, and the page."""

import csv
import re
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest
import yaml

from analysis.paper.numbers import SOURCE, Paper, load_paper, read_paper
from analysis.paper.slips import KINDS, frame, recomputed, slips
from rtpo.errors import DataError
from rtpo.run.records import SAFE_LOADER

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


@pytest.mark.parametrize(
    ("table", "row", "column", "printed", "number", "unit"),
    [
        ("math_knowledge_toolcall_results", "vanilla", "over_vanilla", "+00.00", 0, "percent"),
        ("math_results", "rtpo_ca", "amc23_p4", "100.0", 100, "points"),
        ("recheck_output_hit", "hle_humanities", "delta", "-4.69", -4.69, "points"),
        ("all-hparams", "tree_grpo", "parameters", "M=4, N=3, L=1", None, "text"),
        ("supp_group_sensitivity", "g4", "coefficient", "2/3", 2 / 3, "ratio"),
        ("supp_group_cost", "g4", "training_tokens", "2,139,039", 2139039, "tokens"),
        ("supp_gsm8k_audit", "correct", "out_of", "36", 36, "count"),
    ],
)
def test_cells(paper: Paper, table: str, row: str, column: str, printed: str, number: float | None, unit: str) -> None:
    value = paper.value(table, row, column)
    assert value is not None
    assert (value.printed, value.number, value.unit) == (printed, number, unit)


def test_deviations_and_decimals(paper: Paper) -> None:
    value = paper.value("acc_only_results", "grpo", "oe_math")
    assert value is not None
    assert (value.exact, value.deviation, value.decimals) == (Fraction("50.74"), Fraction("1.12"), 2)
    whole = paper.value("math_results", "rtpo_ca", "amc23_p4")
    assert whole is not None
    assert (whole.deviation, whole.decimals) == (0, 1)


def test_numbers_of_the_prose(paper: Paper) -> None:
    assert len(paper.stated) == 158
    known = {"abstract_over_grpo": 21.5, "math_rollouts": 80_000, "learning_rate": 1e-6, "hours_over_grpo": 41.3}
    assert {key: paper.statement(key).value.number for key in known} == known
    with pytest.raises(DataError, match="there is no stated number 'headline'"):
        paper.statement("headline")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("main", "rtpo", "overall_acc"), "there is no table 'main'; "),
        (("math_results", "rtpo", "overall_p1"), "table 'math_results' has no row 'rtpo'; the nearest is arpo"),
        (("math_results", "rtpo_ca", "overall"), "table 'math_results' has no column 'overall'; the nearest is "),
    ],
)
def test_names_that_are_not_there(paper: Paper, names: tuple[str, str, str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        paper.value(*names)


def test_exactly_these_do_not_agree(paper: Paper) -> None:
    found = slips(paper)
    assert {slip.place: slip.recomputed for slip in found} == SLIPS
    assert Counter(slip.kind for slip in found) == COUNTS
    assert {kind: len(frame(kind)) for kind in KINDS} == COUNTS


def test_how_much_is_recomputed(paper: Paper) -> None:
    kinds = Counter(each.place.partition(".")[0] for each in recomputed(paper))
    assert set(kinds) == {*paper.tables, "stated", "comparisons"}
    assert (kinds.total(), kinds["stated"], kinds["comparisons"]) == (611, 108, 43)


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


def test_no_key_of_the_file_stands_twice() -> None:
    """YAML lets the second value replace the first without a word."""

    def twice(node: yaml.Node) -> list[str]:
        if not isinstance(node, yaml.MappingNode):
            return []
        keys = Counter(key.value for key, _ in node.value)
        return [key for key, times in keys.items() if times > 1] + [
            key for _, value in node.value for key in twice(value)
        ]

    node = yaml.compose(SOURCE.read_text(encoding="utf-8"), Loader=SAFE_LOADER)
    assert node is not None
    assert twice(node) == []


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
