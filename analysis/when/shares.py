"""The tasks on the map of regimes: f_k of an untrained policy from records, the paper's settings, and the figure."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import isnan, nan
from statistics import fmean

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.intervals import Interval, interval
from analysis.looks import BLUE, COLOURS, GREEN, MARKERS, ORANGE, Style
from analysis.map.records import Records
from analysis.plots import Framed, Line, Panel, handle, points, sheet
from analysis.records import Run, RunGroup
from analysis.study.findings import NOT_PLANNED, Site
from analysis.tables import INTERVALS, NO_VALUE, UNKNOWN, Table, number, percent
from analysis.when.ladder import RUNGS
from rtpo.planning.data import episodes
from rtpo.run.config import RunConfig
from rtpo.run.experiments import load_experiment
from rtpo.theory.mdp import Table as Array
from rtpo.theory.regimes import break_even

FORKING = "vineppo"
"""the configuration that forks every later boundary of its chains before its first update"""
NEEDED = (FORKING, RUNGS["f"], RUNGS["b"])
"""those whose runs a row of the table is of"""
PLANNED = (
    ("main_table", ("algorithm=rtpo",)),
    (
        "airline",
        (
            "algorithm=rtpo,rtpo_g4",
            "task.settings.server.base_url=http://127.0.0.1:8000/v1",
            "task.settings.server.model=any",
        ),
    ),
)
"""of RTPO at the paper's scale; which user's model serves is no part of the scale"""
GROUP_SIZES = {3: BLUE, 4: ORANGE, 8: GREEN}
NOTE = (
    "(a) Tables of the map in grey, tasks in colour: toy scale, not the paper's results. Left end of a bar: the excess "
    "of the turn with the least to come. Bars up and down, bands: 95 % intervals. (c) From configs/. Filled: the limit "
    "of turns; hollow: the mean turns that plans assume."
)


@dataclass(frozen=True, eq=False)
class Point:
    """A task: f_k by turn, None where it is unknown, on so many boundaries each; reached: the share of chains that take
    turn k. difference: success of RTPO less that of exact GRPO."""

    site: Site
    f: tuple[Interval | None, ...]
    boundaries: tuple[int, ...]
    reached: Array
    group_size: int
    difference: Interval

    @property
    def turns(self) -> float:
        """Of a chain, in the mean: what K is of RTPO's rollouts a trunk."""
        return float(self.reached.sum())

    @property
    def ratios(self) -> Array:
        """f_k by f*, [K], NaN where it is unknown."""
        return np.array([nan if one is None else one.mean for one in self.f]) / break_even(self.turns, self.group_size)

    @property
    def excess(self) -> float:
        """Where all boundaries count alike: above 1 on any task, since f_0 is 1."""
        return float(self.reached @ self.ratios / self.turns)

    @property
    def later(self) -> float:
        """The same without the first turn; NaN where no chain has a second."""
        return float(self.reached[1:] @ self.ratios[1:] / later) if (later := self.reached[1:].sum()) else nan


def shares(group: RunGroup) -> tuple[list[Interval | None], list[int], Array]:
    """f_k, boundaries and the share of chains that take turn k, from the first steps of runs that fork all boundaries.

    f_k is the variance of the returns of those that went on from a boundary of turn k, by the squared deviation from
    their prompt's mean of the returns of the chains that reach turn k: what GRPO's noise there is of. Each is a mean
    over the run's boundaries, or chains, and then over runs; None where the second is 0 or there are none. Intervals
    are over runs, of the ratio's linear part.
    """
    of_runs = [_variances(run) for run in group.runs]
    turns = max(max(lengths) for *_, lengths in of_runs)
    reached = np.mean(
        [[sum(n > k for n in lengths) / len(lengths) for k in range(turns)] for *_, lengths in of_runs], 0
    )
    f: list[Interval | None] = [Interval(1.0, 1.0, 1.0, len(of_runs), 1)]
    boundaries = [sum(len(lengths) for *_, lengths in of_runs)]
    for k in range(1, turns):
        here = [
            (np.mean(own[k]), np.mean(whole[k]), run.manifest["experiment"])
            for run, (own, whole, _) in zip(group.runs, of_runs, strict=True)
            if k in own and k in whole
        ]
        inner, outer = (np.array([one[place] for one in here]) for place in (0, 1))
        if outer.any():
            mean = inner.mean() / outer.mean()
            spread = mean + (inner - mean * outer) / outer.mean()
            f.append(interval(spread[:, None], strata=[one[2] for one in here]))
        else:
            f.append(None)
        boundaries.append(sum(len(own.get(k, ())) for own, _, _ in of_runs))
    return f, boundaries, reached


def _variances(run: Run) -> tuple[dict[int, list[float]], dict[int, list[float]], list[int]]:
    """Of a run's first step: by turn, the variance of the returns from each boundary, of the chain that came to it and
    those that were forked there; by turn, of each chain that reaches it, the squared deviation from the mean of its
    prompt's n chains, times n / (n - 1); the chains' turns."""
    paths = [path for path in run.paths if path["step"] == 1 and path["grade"] == "graded"]
    chains = {path["rollout"]: path for path in paths if path["parent"] is None}
    forked, prompts = defaultdict(list), defaultdict(list)
    for path in paths:
        if path["parent"] is None:
            prompts[path["task"]].append(path)
        elif path["parent"] in chains:
            forked[path["parent"], path["start_k"]].append(path["reward"])
    own: dict[int, list[float]] = defaultdict(list)
    for (parent, k), returns in forked.items():
        own[k].append(float(np.var([chains[parent]["reward"], *returns], ddof=1)))
    whole: dict[int, list[float]] = defaultdict(list)
    for several in (group for group in prompts.values() if len(group) > 1):
        mean = fmean(chain["reward"] for chain in several)
        for chain in several:
            deviation = (chain["reward"] - mean) ** 2 * len(several) / (len(several) - 1)
            for k in range(chain["turns"]):
                whole[k].append(deviation)
    return own, whole, [chain["turns"] for chain in chains.values()]


def point(site: Site) -> Point | None:
    """None without the runs that it takes."""
    forking, siblings = site.group(FORKING), site.group(RUNGS["f"])
    found = site.finding(RUNGS["f"], RUNGS["b"])
    if forking is None or siblings is None or found is None or found.difference is None:
        return None
    f, boundaries, reached = shares(forking)
    group_size = int(siblings.first.config["algorithm"]["group_size"])
    return Point(site, tuple(f), tuple(boundaries), reached, group_size, found.difference)


def shares_table(sites: Sequence[Site], placed: Sequence[Point]) -> Table:
    """A row a task whose study plans runs of all that a row needs."""
    known, turns = {one.site: one for one in placed}, max((len(one.f) for one in placed), default=1)
    header = ("Task", "Turns", "G", "f*", "Boundaries a turn", *(f"f_{k}" for k in range(1, turns)))
    rows = [_row(site, known.get(site), turns) for site in sites if site.absence(*NEEDED) != NOT_PLANNED]
    caption = (
        f"f_k in percent, by turn, at the untrained policy: from the first step of the runs of `{FORKING}`, all of "
        "whose rollouts are sampled before its first update. It is the variance of the returns of the chain that came "
        "to a boundary and its continuation, by the squared deviation from their prompt's mean, times n / (n − 1) for "
        "its n chains, of those that reach turn k; both are means over a run's boundaries and then over runs. f_0 is "
        f"1; “{UNKNOWN}” where the chains that reach a turn do not deviate. Turns: of a chain, in the mean. "
        "Boundaries: the fewest and the most that a turn's f_k rests on. Excess: the mean of f_k by f*, all boundaries "
        "alike, above 1 on any task by f_0 alone; later: without the first turn; least: that of the turn with the "
        "least to come, where it alone counts. Brackets: 95 % intervals over runs, of RTPO less exact GRPO in points "
        f"over questions too. {INTERVALS}"
    )
    return Table("when_shares", (*header, "Excess", "Later", "Least", "RTPO − exact GRPO"), tuple(rows), caption, ())


def _row(site: Site, one: Point | None, turns: int) -> tuple[str, ...]:
    if one is None:
        return site.title, *(turns + 7) * (site.absence(*NEEDED),)
    each = [
        NO_VALUE if k >= len(one.f) else UNKNOWN if (found := one.f[k]) is None else percent(found)
        for k in range(1, turns)
    ]
    later = one.boundaries[1:] or one.boundaries
    return (
        site.title,
        number(one.turns, 2),
        str(one.group_size),
        number(break_even(one.turns, one.group_size), 3),
        f"{min(later):,} to {max(later):,}",
        *each,
        *(UNKNOWN if isnan(value) else number(value, 2) for value in (one.excess, one.later, float(one.ratios.min()))),
        percent(one.difference, sign=True),
    )


@cache
def settings() -> list[tuple[RunConfig, float]]:
    """RTPO's runs at the paper's scale, each with the turns that its plan takes episodes to have."""
    found = []
    for name, overrides in PLANNED:
        for element in load_experiment(name, ["profile=a100x8", "seed=0", *overrides]).elements:
            drawn = episodes(element.run)
            assert drawn is not None
            found.append((element.run, drawn.turns))
    return found


def settings_table() -> Table:
    """A row a setting of the paper."""
    rows = []
    for run, mean in settings():
        turns, one = run.task.max_turns, run.algorithm
        trunks, size = one["trunks"], one["group_size"]
        of_turns = (turns, mean)
        rollouts = [number(trunks * (1 + each * (size - 1)), 0) for each in of_turns]
        stars = [number(break_even(each, size), 3) for each in of_turns]
        rows.append(
            (
                f"{run.label}, {run.task.name}",
                *(str(each) for each in (turns, number(mean, 2), trunks, size)),
                *(" / ".join(both) for both in (rollouts, stars)),
                number(1 / (mean * break_even(mean, size)), 2),
                f"{trunks * (size - 2)} : {rollouts[1]}",
            )
        )
    header = (
        *("Setting", "K at most", "K, mean", "M", "G", "Rollouts a prompt", "f*", "Excess by f_0 alone"),
        "Comparisons a turn, RTPO : GRPO",
    )
    caption = (
        "RTPO as the paper has it, from configs/. K, mean: the turns of an episode that plans assume "
        "(docs/cluster/planning.md): of math and search those at which M trunks and their siblings are as many "
        "rollouts a prompt as the paper counts, of the airline those of the paper's trunks; none was measured here. "
        "Rollouts and f* at the most and at the mean. Excess by f_0 alone: what the mean of f_k by f* is at least "
        "where all boundaries count alike, at the mean; below 1 the plan could win. Comparisons: what M groups of "
        "G − 1 siblings leave beside their own means, M(G − 2), for as many of GRPO's chains as RTPO has rollouts at "
        "the mean."
    )
    return Table("when_settings", header, tuple(rows), caption, ())


def draw(placed: Sequence[Point], regimes: Records) -> Figure:
    """The map's points with the tasks among them, f_k of each task by turn, and f* of the paper's settings."""
    looks = [Style(i, one.site.title, COLOURS[i], MARKERS[i], "-") for i, one in enumerate(placed)]
    apart, chains = Style(0, "tables: decisions apart", "0.75", "o", ""), Style(1, "tables: chains", "0.85", "^", "")
    measured = [place for place in regimes.places if place.measured["rtpo"]]
    lines = []
    for look, is_chain in ((chains, True), (apart, False)):
        here = [place for place in measured if (place.point.decisions == "chain") == is_chain]
        xy = [place.predicted["excess"] for place in here], [place.found.mean for place in here]
        lines.append(Line(points(*xy), look, 0.5))
    for one, look in zip(placed, looks, strict=True):
        at = points([one.excess], [one.difference.mean], [one.difference.low], [one.difference.high])
        lines.append(Line(at.assign(left=one.ratios.min(), right=one.excess), look, bars=True))
    of_turns = [Line(_by_turn(one), look) for one, look in zip(placed, looks, strict=True)]
    both: list[Framed] = [partial(Axes.axhline, y=0, color="0.6", linewidth=0.6)]
    boundary: list[Framed] = [
        partial(Axes.set_xscale, value="log"),
        partial(Axes.axvline, x=1, color="black", linewidth=1.0, label="boundary (3)"),
    ]
    level: list[Framed] = [
        partial(Axes.set_yscale, value="log"),
        partial(Axes.axhline, y=1, color="black", linewidth=1),
    ]
    known = range(1, 25)
    of_sizes = [
        Line(points(known, [break_even(k, size) for k in known]), Style(0, "", colour, "", "-"), label=f"G = {size}")
        for size, colour in GROUP_SIZES.items()
    ]
    panels = [
        Panel("Break-even and tasks", lines, "Excess: mean f_k / f*", "Success, RTPO − exact GRPO", [*both, *boundary]),
        Panel("To come, by turn", of_turns, "Turn k", "f_k / f*", level),
        Panel("f* of the paper's settings", of_sizes, "Turns K", "f*", [_settings, *level[:1]]),
    ]
    return sheet([panels], 2.5, NOTE, [handle(look) for look in (*looks, apart, chains)])


def _by_turn(one: Point) -> pd.DataFrame:
    unit = break_even(one.turns, one.group_size)
    ends = [[nan if each is None else getattr(each, end) / unit for each in one.f] for end in ("mean", "low", "high")]
    return points(range(len(one.f)), *ends)


def _settings(axes: Axes) -> None:
    for run, mean in settings():
        size = run.algorithm["group_size"]
        for turns, face in ((run.task.max_turns, "black"), (mean, "white")):
            axes.plot([turns], [break_even(turns, size)], "D", color="black", markerfacecolor=face, markersize=4)
        if size == min(GROUP_SIZES):  # the others are those of the same tasks, on other curves
            at = run.task.max_turns, break_even(run.task.max_turns, size)
            name = run.task.name.removesuffix("_paper")
            axes.annotate(name, at, (-4, -8), textcoords="offset points", fontsize=6, ha="right")
    axes.set_xlim(left=-3)
