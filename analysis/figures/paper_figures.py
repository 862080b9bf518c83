"""The paper's figures, and those of what its tables tell over training, each from the runs of one source.

`FIGURES` says of each what it shows and which runs it needs (analysis/figures/sources.py); `analysis/figures/page.py`
makes docs/results/figures.md of them.
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
    paper's figure or table. caption: for docs/results/figures.md."""

    title: str
    stands_for: str
    caption: str
    rows: Mapping[str, tuple[Part, ...]]
    draw: Callable[[Rows, Source], Figure]
    needs_paths: bool = False
    least: int = 1


_MAIN = tuple(Part("main_table", labels) for labels in (IN_PAPER, CONTROLS))
_WITH_OTHERS = (*_MAIN, Part("main_table", OTHERS, needed=False))
_BOTH = {"math": _MAIN, "search": _MAIN}
_AIRLINE = Part("airline", ("rtpo", "grpo", "seeupo_flat", "tree_grpo", "refuel"))
_MISMATCH = "Measured before each update; all of the difference, also what weights have moved since they sampled. "
DECODING = "sampled at temperature 1 (the tables beside the paper's: at its decoding)"
_CONTROLS = "Thin lines are controls that the paper does not have. "
FIGURES: Mapping[str, PaperFigure] = {
    "consistency": PaperFigure(
        "Ratio and KL over training",
        "fig:two_results",
        "Training over rollout probability (geometric mean a token) and KL (k1, nats a token) of each data step, which "
        f"are one number shown twice: the ratio is exp(−KL). {_MISMATCH}{_CONTROLS}Data steps of different methods "
        "take different numbers of rollouts. Where the readings of the paper's text are marked, its start is "
        "our step 1; it gives none of the KL.",
        _BOTH,
        consistency,
    ),
    "mismatch_by_turn": PaperFigure(
        "Ratio and KL by turn and part",
        "none; splits fig:two_results",
        "The same by turn index. The context part of the KL is what the training context makes, the engine part the "
        "rest: that of the engine and of weights that have moved; they add up to the KL. A turn's value is the mean "
        f"over the updates that train it, then over steps. {_CONTROLS}",
        _BOTH,
        mismatch_by_turn,
    ),
    "success": PaperFigure(
        "Success against cost",
        "none; beside tab:supp_training_tokens and tab:supp_wall_clock",
        f"Success on the run's own held-out questions, {DECODING}, against training rollouts, generated tokens and "
        "training seconds. Between a run's evaluations a question's success, tokens and seconds are interpolated "
        "linearly to common rollouts. Thin lines are controls that the paper does not have, and of the toy study the "
        "rest of its core.",
        {"math": _WITH_OTHERS, "search": _WITH_OTHERS},
        success_and_cost,
    ),
    "ties": PaperFigure(
        "Zero-advantage rate by turn over training",
        "none; beside tab:supp_group_sensitivity",
        "Share of the groups that train a turn whose advantages are all 0; several updates of a step weigh as their "
        "rows. Groups differ in size between methods. A method that "
        "trains whole trajectories has one group for all turns of a prompt.",
        {role: (Part("main_table", IN_PAPER),) for role in ("math", "search")},
        ties,
    ),
    "budget": PaperFigure(
        "Tokens and tool use over training",
        "tab:supp_budget",
        "Tokens and tool calls of a first path (RTPO: of a trunk), and the share of its calls that were executed well, "
        f"by fifth of a run's graded first paths in the order of training. {_CONTROLS}",
        {**_BOTH, "airline": (_AIRLINE,)},
        budget,
        needs_paths=True,
    ),
    "failures": PaperFigure(
        "Failure dynamics",
        "tab:supp_failure_dynamics",
        "How RTPO's trunks end, and how many failed within so many turns, by fifth of a run's graded trunks in the "
        "order of training. Shares are of all trunks of the fifth.",
        {**{role: (Part("main_table", ("rtpo",)),) for role in _BOTH}, "airline": (Part("airline", ("rtpo",)),)},
        failures,
        needs_paths=True,
    ),
    "group_size": PaperFigure(
        "Group size",
        "tab:supp_group_sensitivity and tab:supp_group_cost",
        f"RTPO with G = 3 and G = 4 at equal rollouts: held-out success after training, {DECODING}, the share of "
        "groups whose advantages are all 0 over all steps of all seeds, an update weighing as its rows, and generated "
        "tokens.",
        {
            **{role: (Part("main_table", ("rtpo",)), Part("ablations", ("rtpo_g4",))) for role in _BOTH},
            "airline": (Part("airline", ("rtpo", "rtpo_g4")),),
        },
        group_size,
        least=2,
    ),
    "synchronisation": PaperFigure(
        "Synchronisation",
        "tab:supp_sync_results",
        "RTPO synchronised after every turn, every 2 turns, by KL, and not at all within a step (off-policy "
        f"continuations): held-out success after training, {DECODING}, against synchronisations and training seconds. "
        "The paper has the two endpoints.",
        {role: (Part("sync", ("rtpo", "rtpo_sync_2", "rtpo_sync_kl", "rtpo_off")),) for role in _BOTH},
        synchronisation,
        least=2,
    ),
}
SCHEMATIC = {
    "fig:1": ("the three kinds of instability", "a drawing"),
    "fig:2": ("overview of RTPO", "a drawing; the algorithm is rtpo/rtpo.py"),
    "fig:chat message": (
        "examples of the Qwen3 chat template",
        "`python experiments/maintenance/chat_example.py` prints one",
    ),
    "fig:mathcase": ("a case study in math", "`python -m analysis.view <run> [<run> ...]` shows rollouts side by side"),
    "fig:searchcase": ("a case study in search", "`python -m analysis.view <run> [<run> ...]`, as above"),
}
"""the paper's figures that show no records: what they show, and what there is here"""


def select(figure: PaperFigure, source: Source) -> Rows:
    """The rows of a figure that a source has enough runs for. Raises DataError as `analysis.records` does."""
    planned = {role: parts for role, parts in figure.rows.items() if source.plans(role, parts)}
    rows = {role: source.row(role, parts, figure.needs_paths) for role, parts in planned.items()}
    drawn = {role: row for role, row in rows.items() if len(row.groups) >= figure.least}
    return Rows(drawn, tuple(row for role, row in rows.items() if role not in drawn))
