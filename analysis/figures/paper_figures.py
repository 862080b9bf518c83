"""The paper's figures, and those of what its tables tell over training, each from the runs of one source.

`FIGURES` says of each which runs it needs (analysis/figures/sources.py); `analysis/figures/page.py` puts them into
docs/results/figures.md, which says what they show.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from matplotlib.figure import Figure

from analysis.figures.shared import CONTROLS, IN_PAPER, OTHERS, Rows
from analysis.figures.sources import Part, Source
from analysis.figures.supplement import budget, failures, group_size, synchronisation
from analysis.figures.training import consistency, mismatch_by_turn, success_and_cost, ties


@dataclass(frozen=True)
class PaperFigure:
    """rows: by role in the paper, the configurations shown. least: how many of them a row needs. stands_for: the
    paper's figure or table."""

    title: str
    stands_for: str
    rows: Mapping[str, tuple[Part, ...]]
    draw: Callable[[Rows, Source], Figure]
    needs_paths: bool = False
    least: int = 1


_MAIN = tuple(Part("main_table", labels) for labels in (IN_PAPER, CONTROLS))
_WITH_OTHERS = (*_MAIN, Part("main_table", OTHERS, needed=False))
_AIRLINE = Part("airline", ("rtpo", "grpo", "seeupo_flat", "tree_grpo", "refuel"))
_GROUPS = (Part("main_table", ("rtpo",)), Part("ablations", ("rtpo_g4",)))
_SYNC = (Part("sync", ("rtpo", "rtpo_sync_2", "rtpo_sync_kl", "rtpo_off")),)


def _both(parts: tuple[Part, ...]) -> dict[str, tuple[Part, ...]]:
    return {"math": parts, "search": parts}


FIGURES: Mapping[str, PaperFigure] = {
    "consistency": PaperFigure("Ratio and KL over training", "fig:two_results", _both(_MAIN), consistency),
    "mismatch_by_turn": PaperFigure(
        "Ratio and KL by turn and part", "none; splits fig:two_results", _both(_MAIN), mismatch_by_turn
    ),
    "success": PaperFigure(
        "Success against cost",
        "none; beside tab:supp_training_tokens and tab:supp_wall_clock",
        _both(_WITH_OTHERS),
        success_and_cost,
    ),
    "ties": PaperFigure(
        "Zero-advantage rate by turn over training",
        "none; beside tab:supp_group_sensitivity",
        _both((Part("main_table", IN_PAPER),)),
        ties,
    ),
    "budget": PaperFigure(
        "Tokens and tool use over training",
        "tab:supp_budget",
        {**_both(_MAIN), "airline": (_AIRLINE,)},
        budget,
        needs_paths=True,
    ),
    "failures": PaperFigure(
        "Failure dynamics",
        "tab:supp_failure_dynamics",
        {**_both((Part("main_table", ("rtpo",)),)), "airline": (Part("airline", ("rtpo",)),)},
        failures,
        needs_paths=True,
    ),
    "group_size": PaperFigure(
        "Group size",
        "tab:supp_group_sensitivity and tab:supp_group_cost",
        {**_both(_GROUPS), "airline": (Part("airline", ("rtpo", "rtpo_g4")),)},
        group_size,
        least=2,
    ),
    "synchronisation": PaperFigure("Synchronisation", "tab:supp_sync_results", _both(_SYNC), synchronisation, least=2),
}


def select(figure: PaperFigure, source: Source) -> Rows:
    """The rows of a figure that a source has enough runs for. Raises DataError as `analysis.records` does."""
    planned = {role: parts for role, parts in figure.rows.items() if source.plans(role, parts)}
    rows = {role: source.row(role, parts, figure.needs_paths) for role, parts in planned.items()}
    drawn = {role: row for role, row in rows.items() if len(row.groups) >= figure.least}
    return Rows(drawn, tuple(row for role, row in rows.items() if role not in drawn))
