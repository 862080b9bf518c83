"""Ten sentences on when RTPO pays, each with what the records say of it."""

from collections.abc import Sequence
from math import isnan

from analysis.claims.claims import number as printed
from analysis.looks import title_of
from analysis.paper.numbers import load_paper
from analysis.study.findings import NOT_PLANNED, Site, over_tasks, tally
from analysis.tables import NOT_RUN, UNKNOWN, number
from analysis.when.beside import otherwise
from analysis.when.ladder import AFFORDABLE, AT_TOKENS, RUNGS, planned
from analysis.when.shares import Point, settings
from rtpo.theory.regimes import break_even

FIRST = (
    ("GRPO with exact contexts ends above GRPO on flattened history", "b", "a"),
    ("State values that cost nothing, as baselines, put exact GRPO higher", "c", "b"),
    ("Updating turn by turn in reverse adds to that", "d", "c"),
    ("Sampling anew before each turn adds to that", "e", "d"),
)
"""each that a rung ends above another"""
CHOSEN = "anchored_forks_little_shrunk"
"""by validation, in the study of anchors"""
CHARGED = "RTPO, which pays for its rollouts, ends above GRPO with exact contexts at equal rollouts"
OF_BASELINE = (
    "RTPO ends above GRPO on flattened history, the paper's baseline, at equal rollouts, which holds the contexts of "
    "sentence 1 as well"
)


def in_short(sites: Sequence[Site]) -> str:
    """What the page says, as counts of tasks."""
    flat, exact, ceiling, rtpo = (RUNGS[rung] for rung in "abcf")
    told = [
        f"Against GRPO with exact contexts RTPO ends {tally(sites, rtpo, exact)} at equal rollouts, and "
        f"{tally(sites, AT_TOKENS, exact)} with as many generated tokens.",
        f"Against GRPO on flattened history, the paper's baseline, it ends {tally(sites, rtpo, flat)} at equal "
        f"rollouts; GRPO with exact contexts, for which nothing else changes, {tally(sites, exact, flat)}.",
        f"Credit by state, where it costs nothing, puts exact GRPO {tally(sites, ceiling, exact)}. Of what "
        f"pays for it, GiGPO ends {tally(sites, 'gigpo', exact)}; {title_of(CHOSEN)}, {tally(sites, CHOSEN, exact)}.",
    ]
    told += [
        f"RTPO's own estimator, with rollouts that cost nothing (rung e), ends {tally(sites, RUNGS['e'], exact)}, "
        "against GRPO with exact contexts.",
        f"This is at the paper's decoding. [At others](#at-other-decodings) {otherwise(sites)}",
    ]
    return "".join(f"- {sentence}\n" for sentence in told)


def sentences(sites: Sequence[Site], placed: Sequence[Point]) -> str:
    exact, rtpo = RUNGS["b"], RUNGS["f"]
    told = [
        *(f"{text}: **{over_tasks(sites, RUNGS[one], RUNGS[other])}**." for text, one, other in FIRST),
        f"{CHARGED}: **{over_tasks(sites, rtpo, exact)}**; with as many generated tokens: "
        f"**{over_tasks(sites, AT_TOKENS, exact)}**.",
        f"{OF_BASELINE}: **{over_tasks(sites, rtpo, RUNGS['a'])}**.",
        f"Baselines by state that pay for their rollouts against exact GRPO: {_each(sites, exact)}.",
        f"Those of them that a study runs beside RTPO against it: {_each(sites, rtpo)}.",
        _placed(placed),
        _of_paper(),
    ]
    return "".join(f"{i}. {sentence}\n" for i, sentence in enumerate(told, 1))


def _each(sites: Sequence[Site], other: str) -> str:
    said = {label: tally(sites, label, other) for label in planned(sites, AFFORDABLE)}
    each = [f"{title_of(label)}: **{what}**" for label, what in said.items() if what != NOT_PLANNED]
    return "; ".join(each) or f"**{NOT_PLANNED}**"


def _placed(placed: Sequence[Point]) -> str:
    rule = (
        "By the map, RTPO's gradient of a turn is the better one at equal rollouts where the share f_k of the return's "
        "variance that is still to come there is below f*"
    )
    if not placed:
        return f"{rule}; of the tasks it is **{NOT_RUN}**."
    each = [f"{int((one.ratios < 1).sum())} of {len(one.f)} turns of {one.site.title.lower()}" for one in placed]
    later = [one.later for one in placed if not isnan(one.later)]
    mean = f"{_span(later)} times f*" if later else UNKNOWN
    return (
        f"{rule}: at the untrained policy that is at {'; '.join(each)}, the first turn never among them, since f_0 is "
        f"1 on any task; in the mean over the boundaries after it f_k is {mean}. With the first turn, all boundaries "
        f"alike, it is {_span([one.excess for one in placed])} times f*, and above 1 the plan loses if all turns count "
        "alike."
    )


def _span(values: Sequence[float]) -> str:
    return f"{number(min(values), 1)} to {number(max(values), 1)}"


def _of_paper() -> str:
    """f* of the paper's settings, and how little its airline tables say of f: siblings that tie are the share
    1 - 2 E[Var(R | S_k)], a prompt's variance is 1/4 at most, and one boundary in K is the prompt, where f_0 = 1."""
    stars = [
        f"{number(break_even(mean, run.algorithm['group_size']), 2)} ({run.task.name.removesuffix('_paper')})"
        for run, mean in settings()
        if run.algorithm["group_size"] == 3
    ]
    paper, size = load_paper(), 3
    ties, turns = (
        printed(paper, key)
        for key in ("supp_group_sensitivity.g3.zero_advantage", "supp_trunk_distribution.length.trunks")
    )
    least = 2 * (1 - ties / 100)
    later, star = (least * turns - 1) / (turns - 1), break_even(turns, size)
    return (
        f"f* at the paper's G = {size} and the mean turns that plans assume is {', '.join(stars)}. The paper prints no "
        f"f_k. It prints that {number(ties, 2)} % of its airline boundaries tie, over all of training. If rewards are "
        f"0 or 1 and the rate is of pairs of siblings, f_k is at least {number(least, 2)} in the mean over boundaries, "
        f"of which f_0 = 1 alone makes {number(1 / turns, 2)}. After the first turn this leaves a lower bound of "
        f"{number(later, 2)}, {number(later / star, 1)} times f*, which does not say on which side of f* f_k lies."
    )
