"""The paper's numbers: all tables, lookup, what agrees with what, and the page."""

import re
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest
import yaml

from analysis.paper.__main__ import main
from analysis.paper.numbers import SOURCE, Paper, load_paper, read_paper
from analysis.paper.slips import recomputed, slips
from rtpo.errors import DataError
from rtpo.run.records import SAFE_LOADER

SHAPES = {
    "math_knowledge_toolcall_results": (4, 21),
    "math_results": (4, 10),
    "on_off_policy_hit": (4, 6),
    "recheck_output_hit": (15, 6),
    "all-hparams": (5, 12),
    "acc_only_results": (4, 8),
    "supp_airline_training": (5, 5),
    "supp_airline_test": (5, 6),
    "supp_airline_tools": (4, 5),
    "supp_group_sensitivity": (2, 6),
    "supp_group_cost": (2, 7),
    "supp_trunk_distribution": (7, 1),
    "supp_failure_dynamics": (9, 5),
    "supp_training_tokens": (3, 3),
    "supp_wall_clock": (2, 4),
    "supp_compute_matched": (9, 2),
    "supp_inference_budget": (3, 5),
    "supp_math_tool_calls": (3, 4),
    "supp_gsm8k_audit": (10, 2),
    "supp_sync_results": (5, 3),
    "supp_budget": (5, 4),
}
"""rows and columns by LaTeX label: the paper has 21 labelled tables, six of them before the supplement"""
UNEVEN = {"all-hparams", "supp_gsm8k_audit"}
"""whose rows have different numbers"""
SLIPS = {
    "math_results.arpo.overall_p1": "78.17",
    "math_results.seeupo.overall_p1": "76.34",
    "math_results.rtpo_ca.overall_p1": "79.15",
    "math_results.arpo.overall_p4": "83.24",
    "math_results.tree_grpo.overall_p4": "84.02",
    "math_results.rtpo_ca.overall_p4": "86.57",
    "supp_airline_training.grpo.step_30": "31.25",
    "supp_airline_training.grpo.step_50": "31.25",
    "supp_airline_training.seeupo.step_10": "31.25",
    "supp_airline_training.seeupo.step_30": "14.84",
    "supp_group_sensitivity.g4.zero_advantage": "84.42",
    "supp_group_cost.g4.training_tokens": "1,269,310.5",
    "stated.abstract_over_grpo": "+14.80",
    "stated.abstract_over_seeupo": "+6.90",
    "stated.over_grpo": "+14.80",
    "stated.over_seeupo": "+6.90",
    "stated.ratio_math_steps": "78.1",
    "stated.on_policy_gaia": "+25.00",
    "stated.on_policy_webwalker": "+58.33",
    "stated.on_policy_xbench": "+87.50",
    "stated.on_policy_hle": "-2.68",
    "stated.arpo_tau": "0.4",
    "stated.single_trunk": "4",
    "stated.example_downstream": "400",
    "comparisons.best_on_all_eight.amc23_acc": "0 (a tie)",
    "comparisons.fewest_calls.oe_math_calls": "-77",
    "comparisons.fewer_math_calls.math500_calls": "-81",
    "comparisons.fewer_math_calls.gsm8k_calls": "-423",
    "comparisons.fewer_math_calls.math_calls": "-551",
    "comparisons.clear_lead.two_wiki": "-0.19",
    "comparisons.sibling_tokens.training_tokens": "-0.99974",
}
"""every number and order of the paper that its own numbers do not give, with what they give"""
KINDS = {"arithmetic": 8, "reading": 8, "order": 7, "expectation": 8}


@pytest.fixture(scope="module")
def paper() -> Paper:
    return load_paper()


def test_the_papers_tables_are_all_there(paper: Paper) -> None:
    assert {key: (len(table.rows), len(table.columns)) for key, table in paper.tables.items()} == SHAPES
    assert len(SHAPES) == 21
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
        ("math_knowledge_toolcall_results", "rtpo", "overall_acc", "61.66", 61.66, "points"),
        ("math_knowledge_toolcall_results", "rtpo", "knowledge_calls", "1480", 1480, "calls"),
        ("math_knowledge_toolcall_results", "vanilla", "over_vanilla", "+00.00", 0, "percent"),
        ("math_results", "rtpo_ca", "amc23_p4", "100.0", 100, "points"),
        ("math_results", "tree_grpo", "amc23_p4", "96.67", 96.67, "points"),
        ("recheck_output_hit", "hle_humanities", "delta", "-4.69", -4.69, "points"),
        ("all-hparams", "tree_grpo", "parameters", "M=4, N=3, L=1", None, "text"),
        ("supp_airline_test", "seeupo", "truncation", "98.75", 98.75, "points"),
        ("supp_group_sensitivity", "g4", "coefficient", "2/3", 2 / 3, "ratio"),
        ("supp_group_cost", "g4", "training_tokens", "2,139,039", 2139039, "tokens"),
        ("supp_trunk_distribution", "length", "trunks", "5.39", 5.39, "turns"),
        ("supp_failure_dynamics", "no_signal", "step_50", "0.00", 0, "points"),
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
    assert (value.mean_printed, value.exact, value.deviation) == ("50.74", Fraction("50.74"), Fraction("1.12"))
    decimals = {column: paper.value("math_results", "rtpo_ca", column) for column in ("amc23_p1", "amc23_p4")}
    assert [value.decimals for value in decimals.values() if value] == [2, 1]
    main_table = paper.value("math_knowledge_toolcall_results", "grpo", "oe_math_acc")
    assert main_table is not None
    assert main_table.deviation is None


def test_numbers_of_the_prose(paper: Paper) -> None:
    assert len(paper.stated) == 158
    known = {
        "abstract_over_grpo": 21.5,
        "ratio_grpo_math_end": 0.97,
        "ratio_seeupo_knowledge_end": 0.89,
        "ratio_grpo_knowledge_end": 0.83,
        "math_hours": 15,
        "knowledge_hours": 5,
        "math_rollouts": 80_000,
        "learning_rate": 1e-6,
        "hours_over_grpo": 41.3,
        "success_cheaper_than_tree_grpo": 38.2,
    }
    assert {key: paper.statement(key).value.number for key in known} == known


def test_names_that_are_not_there(paper: Paper) -> None:
    with pytest.raises(DataError, match="there is no table 'main'; there are math_knowledge_toolcall_results, "):
        paper.value("main", "rtpo", "overall_acc")
    with pytest.raises(DataError, match="table 'math_results' has no row 'rtpo'; there are arpo, "):
        paper.value("math_results", "rtpo", "overall_p1")
    with pytest.raises(DataError, match="table 'math_results' has no column 'overall'; there are "):
        paper.value("math_results", "rtpo_ca", "overall")
    with pytest.raises(DataError, match="there is no stated number 'headline'"):
        paper.statement("headline")
    assert paper.value("supp_airline_tools", "seeupo", "tokens_per_success") is None


def test_exactly_these_do_not_agree(paper: Paper) -> None:
    found = slips(paper)
    assert {slip.place: slip.recomputed for slip in found} == SLIPS
    assert len(found) == len(SLIPS)
    assert Counter(slip.kind for slip in found) == KINDS


def test_how_much_is_recomputed(paper: Paper) -> None:
    by_table = Counter(each.place.partition(".")[0] for each in recomputed(paper))
    assert by_table == {
        "math_knowledge_toolcall_results": 20,
        "math_results": 40,
        "on_off_policy_hit": 12,
        "recheck_output_hit": 75,
        "all-hparams": 7,
        "acc_only_results": 56,
        "supp_airline_training": 20,
        "supp_airline_test": 25,
        "supp_airline_tools": 11,
        "supp_group_sensitivity": 12,
        "supp_group_cost": 13,
        "supp_trunk_distribution": 13,
        "supp_failure_dynamics": 55,
        "supp_training_tokens": 7,
        "supp_wall_clock": 6,
        "supp_compute_matched": 20,
        "supp_inference_budget": 15,
        "supp_math_tool_calls": 12,
        "supp_gsm8k_audit": 6,
        "supp_sync_results": 20,
        "supp_budget": 15,
        "stated": 108,
        "comparisons": 43,
    }


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
        ('"97.50", "73.33"', '"97.50"', "row 'arpo' has 9 cells and 10 columns"),
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
        ("executed ** 2", "only + - * / and"),
        ("median(executed)", "only + - * / and"),
        ("executed -", "cannot be read"),
        ("stated.nothing", "there is no stated number 'nothing'"),
        ("tokens_per_success", "the paper gives no number there"),
        ("supp_airline_tools.executed", "give a line of its table, table.row.column or stated.key"),
    ],
)
def test_a_formula_that_cannot_be(formula: str, message: str) -> None:
    text = SOURCE.read_text(encoding="utf-8").replace("formula: attempted - executed", f'formula: "{formula}"')
    with pytest.raises(DataError, match=re.escape(message)):
        recomputed(read_paper(text))


def test_the_page_is_what_the_numbers_give(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0
    page = tmp_path / "page.md"
    assert main(["--check", "--page", str(page)]) == 1
    assert "python -m analysis.paper" in capsys.readouterr().err
    assert main(["--page", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert [key for key in SHAPES if f"| `{key}` |" not in text] == []
    assert [place for place, value in SLIPS.items() if not re.search(f"`{place}`.* {re.escape(value)} ", text)] == []
    page.write_text(text.replace("78.17", "78.15"), encoding="utf-8")
    assert main(["--check", "--page", str(page)]) == 1
