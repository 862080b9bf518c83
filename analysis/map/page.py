"""The blocks of docs/results/map.md, and its figure."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path

import numpy as np

from analysis.intervals import Interval, student
from analysis.map.figure import draw
from analysis.map.records import COMMAND, Noise, Place, Records, load, over_seeds
from analysis.pages import markdown
from analysis.pages.own_page import Drawn, OwnPage, from_records
from analysis.plots import records_checksum
from analysis.tables import NOT_RUN, number
from rtpo.theory.mdp import Table
from rtpo.theory.regimes import METHODS, MORE_SEEDS, SEEDS, Point, break_even

RESULTS = Path("results", "map")
TITLES = {"rtpo": "RTPO", "grpo": "GRPO"}
NEAR = 1.25
"""a ratio that is predicted within this factor is as predicted"""
LARGE = 2
"""data steps of a run of large steps, at most"""
FARTHEST = 12
"""departures that are shown"""


def predictions_block(records: Records) -> str:
    """What was predicted, with the closed form's numbers."""
    return "".join(f"{n}. {one}\n" for n, one in enumerate(_predictions(records.places), 1))


def _predictions(places: Sequence[Place]) -> Iterator[str]:
    yield "The measured noise of both gradients is that of (1) at every turn."
    yield (
        f"By turn, noise of RTPO / noise of GRPO is (2) within a factor of {NEAR:g}, and RTPO's is the lower one where "
        "f_k < f* / (1 − 1/N)."
    )
    expected: Callable[[Place], float] = attrgetter("expected")
    ahead = [place for place in places if place.expected > 0]
    early = [place for place in places if (place.point.decisions, place.point.luck) == ("late", "early")]
    chains = [place.point for place in ahead if place.point.decisions == "chain"]
    rest = sum(place not in early for place in ahead) - len(chains)
    yield (
        f"RTPO ends above GRPO where gain > cost: at {len(ahead)} of the {len(places)} points. These are "
        f"{sum(place in early for place in ahead)} of the {len(early)} with late decisions after early luck, at every "
        "horizon, group size and step size, where the excess is "
        f"{number(max(place.predicted['excess'] for place in early), 2)} at most; {len(chains)} chains, "
        f"{sum(point.steps <= LARGE for point in chains)} of them in one or two steps, of "
        f"{max(point.turns for point in chains)} turns at most; and {rest} others."
    )
    even = [place for place in places if place.point.decisions == "even"]
    yield (
        f"With even decisions RTPO is below GRPO at {sum(place.expected < 0 for place in even)} of {len(even)} points, "
        "by more the later luck arises and the longer the horizon. Mean difference by luck: "
        f"{_means(even, 'luck', expected)}; by K: {_means(even, 'turns', expected)}."
    )
    early.sort(key=lambda place: place.expected)
    most = max(place.point.trunks * place.point.steps for place in places)
    full = [place for place in early if place.point.trunks * place.point.steps == most]
    yield (
        "With late decisions after early luck the advantage is largest where GRPO's own noise is large: "
        f"{_foreseen(early[-1])}; {_foreseen(full[-1])} with {most} trunks in all; {_foreseen(early[0])} at the least."
    )
    long = [p for p in places if (p.point.decisions, p.point.luck) == ("chain", "late") and p.point.turns >= 8]
    ends = [number(float(np.mean([place.predicted[method] for place in long])), 2) for method in ("grpo", "rtpo")]
    yield (
        "Chains of 8 and 16 turns with late luck are learnt by neither: GRPO takes the first turn's wrong action, at "
        f"{ends[0]} in the mean, and RTPO drowns in noise, at {ends[1]}; below it at "
        f"{sum(place.expected < 0 for place in long)} of {len(long)}."
    )


def _foreseen(place: Place) -> str:
    return f"{number(place.expected, 2)} ({_named_size(place.point)})"


def found_block(records: Records) -> str:
    """What became of the predictions."""
    if records.manifest is None:
        return f"{NOT_RUN.capitalize()}: {COMMAND} run measures the map.\n"
    found = [[str(n), found] for n, found in enumerate(_found(records), 1)]
    return f"{markdown.ruled(['', 'Found'], found, True)}\n{_rough(records.places)}\n"


def _rough(places: Sequence[Place]) -> str:
    """What t intervals of few outcomes are worth. Successes are between -1 and 1, those of chains apart."""
    apart = [place for place in places if place.point.decisions != "chain"]
    wide = sum(place.found.low < -2 or place.found.high > 2 for place in apart)
    decided = [place for place in places if place.is_decided]
    flat = sum(place.found.low == place.found.high for place in decided)
    return (
        f"Intervals of {SEEDS} outcomes that are each nearly one of few values are rough. Some leave the possible "
        f"range: {wide} of the {len(apart)} with even or late decisions reach past ±2, the most that two successes "
        "there can differ by. Outcomes all alike give an interval without width, which counts as decided wherever it "
        f"is not at 0: {flat} of the {len(decided)}."
    )


def _found(records: Records) -> Iterator[str]:
    places = records.places
    yield _exact(records.noise)
    yield _by_turn(records.noise)
    yield _signs(places)
    even = [place for place in places if place.point.decisions == "even"]
    yield (
        f"Of {len(even)} points with even decisions RTPO is below GRPO at {_count(even, -1)}, above at "
        f"{_count(even, 1)}; the others are undecided. Mean difference by luck: "
        f"{_means(even, 'luck', lambda place: place.found.mean)}."
    )
    early = [place for place in places if (place.point.decisions, place.point.luck) == ("late", "early")]
    yield (
        f"Of {len(early)} points with late decisions after early luck RTPO is above GRPO at {_count(early, 1)}, below "
        f"at {_count(early, -1)}. {_named(max(early, key=lambda place: place.found.mean))} is the largest difference, "
        f"{_named(min(early, key=lambda place: place.found.mean))} the smallest."
    )
    long = [p for p in places if (p.point.decisions, p.point.luck) == ("chain", "late") and p.point.turns >= 8]
    ends = [number(float(np.mean([p.measured[method] for p in long])), 2) for method in ("grpo", "rtpo")]
    yield f"With chains of 8 and 16 turns and late luck GRPO ends at {ends[0]} and RTPO at {ends[1]}, in the mean."


def _exact(noise: Sequence[Noise]) -> str:
    ratios, reached = [], []
    for one in noise:
        for method, values in one.measured.items():
            error = values.std(axis=0, ddof=1) / len(values) ** 0.5
            ratios.append(values.mean(axis=0) / one.exact[method])
            reached.append(np.abs(values.mean(axis=0) - one.exact[method]) <= student(len(values) - 1) * error)
    ratio, within = np.concatenate(ratios), np.concatenate(reached)
    slopes = []
    for method in METHODS:
        product = sum(one.mean[method] @ one.gradient for one in noise) / sum(
            one.gradient @ one.gradient for one in noise
        )
        slopes.append(f"{_interval(over_seeds(np.asarray(product)))} ({TITLES[method]})")
    return (
        f"Measured noise by (1): {number(float(ratio.mean()), 3)} in the mean over {len(ratio)} turns and methods; "
        f"{within.sum()} of as many 95 % intervals over seeds reach it. Signal: the slope of the measured gradient on "
        f"the exact one is {' and '.join(slopes)}."
    )


def _by_turn(noise: Sequence[Noise]) -> str:
    simple = np.concatenate([one.simple for one in noise])
    measured = np.concatenate([one.measured["rtpo"].mean(0) / one.measured["grpo"].mean(0) for one in noise])
    exact = np.concatenate([one.exact["rtpo"] / one.exact["grpo"] for one in noise])
    near, off = np.abs(np.log(exact / simple)) <= np.log(NEAR), np.exp(np.abs(np.log(exact / simple)).max())
    agree, low = (measured < 1) == (simple < 1), simple < 1
    return (
        f"(1) gives (2) within a factor of {NEAR:g} at {near.sum()} of {len(near)} turns, and is off by a factor of "
        f"{number(float(off), 2)} at most. Measured, RTPO has the lower noise at {(measured < 1)[low].sum()} of the "
        f"{low.sum()} turns with f_k below the boundary, and the higher one at {(measured >= 1)[~low].sum()} of the "
        f"{(~low).sum()} others; {agree.sum()} of {len(agree)} as predicted."
    )


def _signs(places: Sequence[Place]) -> str:
    decided = [place for place in places if place.is_decided]
    first = [place for place in map(_of_first_seeds, places) if place.is_decided]
    raised = " and ".join(f"K = {turns}" for turns in MORE_SEEDS)
    ahead = [place for place in places if place.expected > 0]
    kinds = [(float(np.mean([p.expected for p in kind])), over_seeds(mean_by_seed(kind))) for kind in kinds_of(places)]
    reached = sum(found.low <= mean <= found.high for mean, found in kinds)
    expected, measured = (
        np.array(values) for values in zip(*((p.expected, p.found.mean) for p in places), strict=True)
    )
    return (
        f"{len(decided)} of {len(places)} differences are decided (a 95 % t interval over seeds without 0); "
        f"{_agree(decided)} of them have the predicted sign. Seeds at {raised} were raised to "
        f"{' and '.join(str(seeds) for seeds in MORE_SEEDS.values())} after the first {SEEDS} were seen, and intervals "
        f"take these numbers for fixed; the first {SEEDS} seeds alone decide {len(first)}, {_agree(first)} of them "
        f"with the predicted sign. Of {len(ahead)} points where RTPO was predicted above it is "
        f"above at {_count(ahead, 1)} and below at {_count(ahead, -1)}. Correlation of predicted and measured "
        f"difference: {number(float(np.corrcoef(expected, measured)[0, 1]), 2)}; mean distance "
        f"{number(float(np.abs(expected - measured).mean()), 3)}. By kind of task (below), {reached} of {len(kinds)} "
        "intervals reach the prediction."
    )


def _of_first_seeds(place: Place) -> Place:
    return replace(place, measured={method: values[:SEEDS] for method, values in place.measured.items()})


def _agree(places: Iterable[Place]) -> int:
    return sum(place.found.mean * place.expected > 0 for place in places)


def _count(places: Iterable[Place], sign: int) -> int:
    return sum(place.is_decided and sign * place.found.mean > 0 for place in places)


def _means(places: Sequence[Place], field: str, difference: Callable[[Place], float]) -> str:
    """The mean difference by a field of points."""
    groups: dict[object, list[float]] = {}
    for place in places:
        groups.setdefault(getattr(place.point, field), []).append(difference(place))
    return ", ".join(f"{value} {number(float(np.mean(found)), 2)}" for value, found in groups.items())


def _named(place: Place) -> str:
    return f"{_interval(place.found)} ({_named_size(place.point)}; predicted {number(place.expected, 2)})"


def _named_size(point: Point) -> str:
    return f"K = {point.turns}, G = {point.group_size}, M = {point.trunks}, steps {point.steps}"


def regimes_block(records: Records) -> str:
    """The mean of each kind of task, in small and in large steps."""
    if records.manifest is None:
        return f"{NOT_RUN.capitalize()}.\n"
    title = (
        "Success of RTPO less that of GRPO by kind of task, mean over horizons, group sizes and budgets. Points have "
        "seeds in common, so intervals (95 %, t) are over the seeds that all have, of their means over points."
    )
    lines = []
    for places in kinds_of(records.places):
        decisions, luck = places[0].point.decisions, places[0].point.luck
        steps = " or ".join(str(n) for n in sorted({place.point.steps for place in places}))
        found = over_seeds(mean_by_seed(places))
        expected = [place.expected for place in places]
        above = f"{_count(places, 1)} / {_count(places, -1)} of {len(places)}"
        lines.append([decisions, luck, steps, number(float(np.mean(expected)), 2), _interval(found), above])
    header = ["Decisions", "Luck", "Data steps", "Predicted", "Measured", "Points decided above / below 0"]
    return f"{title}\n\n{markdown.ruled(header, lines, True)}"


def kinds_of(places: Sequence[Place]) -> list[list[Place]]:
    """By decisions, luck, and small or large steps."""
    groups: dict[tuple[str, str, bool], list[Place]] = {}
    for place in places:
        point = place.point
        groups.setdefault((point.decisions, point.luck, point.steps <= LARGE), []).append(place)
    return [group for _, group in sorted(groups.items())]


def mean_by_seed(places: Sequence[Place]) -> Table:
    """The mean difference over places, of each seed that all have."""
    seeds = min(len(place.measured[METHODS[0]]) for place in places)
    siblings, chains = (np.array([place.measured[method][:seeds] for place in places]) for method in METHODS)
    return (siblings - chains).mean(axis=0)


def noise_block(records: Records) -> str:
    """Formula (2) and the measured ratio at three turns of each."""
    if records.manifest is None:
        return f"{NOT_RUN.capitalize()}.\n"
    turns = ("First turn", "Middle", "Last")
    header = ["K", "G", "Luck", "f*"]
    header += [title for turn in turns for title in (f"{turn}: S/N, RTPO", "GRPO", "Noise by (2)", "Measured")]
    lines = []
    for one in records.noise:
        point = one.point
        if point.decisions == "even":
            ratio = one.measured["rtpo"].mean(0) / one.measured["grpo"].mean(0)
            columns = [*((one.signal_to_noise(method), 4) for method in METHODS), (one.simple, 2), (ratio, 2)]
            shown = [number(float(values[k]), digits) for k in (0, point.turns // 2, -1) for values, digits in columns]
            size = [f"{point.turns}", f"{point.group_size}", point.luck]
            lines.append([*size, number(break_even(point.turns, point.group_size), 3), *shown])
    title = (
        "Signal to noise of both gradients in a batch of one trunk and its siblings, and of as many chains; noise of "
        "RTPO's by that of GRPO's, by (2) and measured. Even decisions; below 1 RTPO's noise is lower."
    )
    return f"{title}\n\n{markdown.ruled(header, lines, True)}"


def map_block(records: Records) -> str:
    """Every point."""
    title = (
        "Success of RTPO less that of GRPO, predicted / measured, by G, M and data steps; means over seeds. Bold: "
        "decided, with another sign than predicted."
    )
    rows: dict[tuple[str, str, int], dict[tuple[int, int, int], str]] = {}
    for place in records.places:
        point = place.point
        row = rows.setdefault((point.decisions, point.luck, point.turns), {})
        row[point.group_size, point.trunks, point.steps] = _both(place)
    sizes = list(dict.fromkeys(size for row in rows.values() for size in row))
    header = ["Decisions", "Luck", "K", *(f"G = {g}, M = {m}, {_steps(steps)}" for g, m, steps in sizes)]
    lines = [[key[0], key[1], f"{key[2]}", *(row.get(size, "") for size in sizes)] for key, row in sorted(rows.items())]
    return f"{title}\n\n{markdown.ruled(header, lines, True)}"


def _both(place: Place) -> str:
    expected = number(place.expected, 2)
    if not place.measured["rtpo"]:
        return f"{expected} / {NOT_RUN}"
    mean = number(place.found.mean, 2)
    wrong = place.is_decided and place.found.mean * place.expected < 0
    return f"{expected} / **{mean}**" if wrong else f"{expected} / {mean}"


def _steps(steps: int) -> str:
    return "a sweep" if steps == 1 else f"{steps} steps"


def best_block(records: Records) -> str:
    """Each method at its own best step size."""
    if records.manifest is None:
        return f"{NOT_RUN.capitalize()}.\n"
    title = (
        "Each method at the step size that is best for it (data steps in brackets), G = 3 and as many rollouts in all. "
        "The step sizes are chosen on the seeds that are shown."
    )
    groups: dict[tuple[str, str, int], list[Place]] = {}
    most = max(place.point.trunks * place.point.steps for place in records.places)
    for place in records.places:
        point = place.point
        if point.group_size == 3 and point.trunks * point.steps == most:
            groups.setdefault((point.decisions, point.luck, point.turns), []).append(place)
    lines = []
    for (decisions, luck, turns), places in sorted(groups.items()):
        best = [max((_mean(place, method), place.point.steps) for place in places) for method in METHODS]
        shown = [f"{number(mean, 2)} ({steps})" for mean, steps in best]
        lines.append([decisions, luck, f"{turns}", *shown, number(best[0][0] - best[1][0], 2, sign=True)])
    header = ["Decisions", "Luck", "K", "RTPO", "GRPO", "Difference"]
    return f"{title}\n\n{markdown.ruled(header, lines, True)}"


def _mean(place: Place, method: str) -> float:
    return float(np.mean(place.measured[method]))


def departures_block(records: Records) -> str:
    """Where the map is farthest from the closed form."""
    if records.manifest is None:
        return f"{NOT_RUN.capitalize()}.\n"
    columns: list[tuple[str, Callable[[Place], str]]] = [
        ("Decisions", lambda place: place.point.decisions),
        ("Luck", lambda place: place.point.luck),
        ("K, G, M, steps", lambda place: _size(place.point)),
        ("RTPO, predicted", lambda place: number(place.predicted["rtpo"], 2)),
        ("Measured", lambda place: number(_mean(place, "rtpo"), 2)),
        ("GRPO, predicted", lambda place: number(place.predicted["grpo"], 2)),
        ("Measured", lambda place: number(_mean(place, "grpo"), 2)),
        ("Difference, predicted", lambda place: number(place.expected, 2)),
        ("Measured", lambda place: _interval(place.found)),
    ]
    far = sorted(records.places, key=lambda place: -abs(place.found.mean - place.expected))[:FARTHEST]
    lines = [[cell(place) for _, cell in columns] for place in far]
    return markdown.ruled([title for title, _ in columns], lines, True)


def runs_block(records: Records) -> str:
    """How the records were made."""
    if records.manifest is None:
        return f"{NOT_RUN.capitalize()}.\n"
    made = records.manifest
    commits = ", ".join(f"`{commit[:12]}`{' (changed)' if dirty else ''}" for commit, dirty in made["commits"])
    return (
        f"{made['measurements']:,} measurements at {len(records.places)} points and {len(records.noise)} frozen ones "
        f"took {number(made['cpu_seconds'], 0)} s of a processor, at commit {commits}.\n"
    )


BLOCKS: dict[str, Callable[[Records], str]] = {
    "predictions": predictions_block,
    "found": found_block,
    "regimes": regimes_block,
    "noise": noise_block,
    "map": map_block,
    "best": best_block,
    "departures": departures_block,
    "runs": runs_block,
}
"""name to text, given the records"""


def own_page(project: Path) -> OwnPage:
    """What the page is made of."""
    results = project / RESULTS

    def figures(records: Records) -> list[Drawn]:
        checksum = None if records.manifest is None else records_checksum([results / "map.json"])
        return [Drawn("map", partial(draw, records), checksum)]

    return from_records(partial(load, results), BLOCKS, figures)


def _size(point: Point) -> str:
    return f"{point.turns}, {point.group_size}, {point.trunks}, {point.steps}"


def _interval(value: Interval) -> str:
    mean, low, high = (number(one, 2) for one in (value.mean, value.low, value.high))
    return f"{mean} [{low}, {high}]"
