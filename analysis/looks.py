"""How configuration labels look: their order, names, colours, markers, lines and their widths, the same in every
table and figure. Fonts, axes and grid are in style.mplstyle."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

TITLES = {
    "rtpo": "RTPO",
    "grpo": "GRPO, flattened history (the paper's contexts)",
    "grpo_exact": "GRPO, exact contexts (control)",
    "rtpo_tree": "RTPO tree (extension)",
    "rtpo_off": "RTPO, off-policy",
    "seeupo": "SeeUPO",
    "arpo_exact": "ARPO, exact contexts",
    "tree_grpo_exact": "Tree-GRPO, exact contexts",
    "seeupo_flat": "SeeUPO, flattened history",
    "refuel": "REFUEL",
    "rtpo_full": "RTPO, full history",
    "grpo_full": "GRPO, full history",
    "rtpo_g4": "RTPO, G = 4",
    "rtpo_one_trunk": "RTPO, 1 trunk",
    "grpo_recompute": "GRPO, recomputed log-probs",
    "grpo_token_mean": "GRPO, token mean",
    "arpo": "ARPO, flattened history",
    "tree_grpo": "Tree-GRPO, flattened history",
    "rtpo_sync_2": "RTPO, synchronised every 2 turns",
    "rtpo_sync_kl": "RTPO, synchronised by KL",
    "rtpo_pooled": "RTPO, first turns pooled",
    "arpo_hard": "ARPO, hard advantages",
    "arpo_threshold": "ARPO, branching by threshold",
    "gspo": "GSPO",
    "seeupo_flat_recompute": "SeeUPO, flattened, recomputed log-probs",
    "rtpo_64_steps": "RTPO, 64 optimizer steps",
    "rtpo_tokens": "RTPO, exact GRPO's tokens",
    "rtpo_two_tasks": "RTPO, 2 tasks a step",
    "grpo_exact_28_steps": "GRPO, exact contexts, 28 optimizer steps",
    "grpo_exact_tokens": "GRPO, exact contexts, RTPO's tokens",
    "vanilla": "Vanilla",
    "seeupo_full": "SeeUPO, full history",
    "arpo_full": "ARPO, full history",
    "tree_grpo_full": "Tree-GRPO, full history",
    "grpo_state_values": "GRPO, exact contexts, state values (uncharged)",
    "grpo_state_values_reverse": "GRPO, exact contexts, state values (uncharged), in reverse",
    "grpo_state_values_fresh": "GRPO, exact contexts, state values (uncharged), in reverse, sampled anew",
    "gigpo": "GiGPO",
    "anchored": "GRPO, exact contexts, anchored",
    "anchored_forks": "GRPO, exact contexts, anchored by forks",
    "anchored_forks_little_shrunk": "GRPO, exact contexts, anchored by forks, little shrunk",
    "vineppo": "VinePPO",
    "critic": "GRPO, exact contexts, turn-level critic",
    "rtpo_few": "RTPO, larger groups at fewer boundaries",
    "rtpo_shrunk": "RTPO, baselines shrunk to the prompt's",
    "rtpo_by_luck": "RTPO, larger groups at fewer boundaries, by luck",
}

TASKS = {
    "math_paper": "Math",
    "search_paper": "Knowledge",
    "airline": "Airline",
    "toy_math": "Toy math",
    "toy_knowledge": "Toy knowledge",
    "toy_walk": "Toy walk",
    "walk_early": "Toy walk, decided early",
    "walk_even": "Toy walk, decided evenly",
    "walk_late": "Toy walk, decided late",
    "walk_never": "Toy walk, no state twice",
    "math_luck": "Toy math, luck",
    "knowledge_luck": "Toy knowledge, luck",
}
"""titles of tasks"""

Line = Literal["-", "--", "-.", ":", ""] | tuple[float, tuple[float, ...]]

# Okabe and Ito's palette, without its yellow, which vanishes on paper
BLUE, VERMILION, GREEN, PURPLE, SKY, ORANGE, BLACK = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7"),
    *("#56B4E9", "#E69F00", "#000000"),
)
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, SKY, ORANGE, BLACK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES: tuple[Line, ...] = ("-", (0, (4, 1.5)), (0, (2, 2)), "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
WIDTH = 1.1
"""of a configuration's line, in points"""
THICK, THIN = 1.5, 0.8
"""in the paper's figures: of its methods, and of controls"""

# those that share a figure with all of a study's core, or are the paper's: RTPO's are blue, flattened contexts have
# long dashes
LOOKS: dict[str, tuple[str, str, Line]] = {
    "rtpo": (BLUE, "o", "-"),
    "grpo": (VERMILION, "s", (0, (4, 1.5))),
    "grpo_exact": (GREEN, "^", (0, (2, 2))),
    "rtpo_tree": (SKY, "P", "-"),
    "rtpo_off": (BLUE, "v", (0, (1, 1.3))),
    "seeupo": (PURPLE, "D", "-"),
    "seeupo_flat": (ORANGE, "v", (0, (4, 1.5))),
    "arpo_exact": (ORANGE, "X", "-."),
    "tree_grpo_exact": (BLACK, "*", (0, (5, 1, 1, 1, 1, 1))),
    "grpo_state_values": (GREEN, "D", "-"),
    "gigpo": (ORANGE, "P", "-"),
    "anchored": (PURPLE, "s", "-"),
    "vineppo": (BLACK, "v", ":"),
    "critic": (GREEN, "X", "-."),
}


@dataclass(frozen=True)
class Style:
    """A label as it is shown. `rank` is its place in the order; `line` is a matplotlib line style."""

    rank: int
    title: str
    colour: str
    marker: str
    line: Line


def styles(labels: Iterable[str]) -> dict[str, Style]:
    """The style of each label, in the order of rows and legends.

    The labels of TITLES come first and always look the same; others follow by name, with what comes next.
    """
    present = set(labels)
    order = [*TITLES, *sorted(present - TITLES.keys())]
    return {label: _style(rank, label) for rank, label in enumerate(order) if label in present}


def base_of(label: str) -> str | None:
    """The configuration that a label says what is changed of: the longest of TITLES that it begins with."""
    return max((base for base in TITLES if label.startswith(f"{base}_")), key=len, default=None)


def title_of(label: str) -> str:
    """A label in words."""
    base = base_of(label)
    if label in TITLES or base is None:
        return TITLES.get(label, label)
    return f"{TITLES[base]}, {label.removeprefix(base).replace('_', ' ').strip()}"


def _style(rank: int, label: str) -> Style:
    # 7 colours and 8 markers: no two of 56 ranks look the same
    colour, marker, line = LOOKS.get(
        label, (COLOURS[rank % len(COLOURS)], MARKERS[rank % len(MARKERS)], LINES[rank % len(LINES)])
    )
    return Style(rank=rank, title=title_of(label), colour=colour, marker=marker, line=line)
