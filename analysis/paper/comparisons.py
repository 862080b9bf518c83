"""Methods against one another on our records, with intervals."""

from dataclasses import replace
from math import isnan

from analysis.intervals import holm
from analysis.looks import title_of
from analysis.paper.estimates import Cells, Estimate, estimate, improvement, interquartile_mean, p_value
from analysis.paper.records import Records
from analysis.paper.reproduction import Methods, Source
from analysis.paper.tables import TOY, TOY_RATE
from analysis.tables import INTERVALS, NO_VALUE, ONE_SEED, Table, number


def methods_table(records: Records, methods: Methods) -> Table | None:
    """One method against each other on every benchmark that both were evaluated on, paired by seed and question; None
    without any."""
    rows: list[tuple[str, ...]] = []
    ungraded = 0
    one_title = title_of(methods.one)
    for other in methods.others:
        pairs = {name: pair for name, pair in _pairs(records, methods, other).items() if pair is not None}
        if not pairs:
            continue
        differences = {name: estimate(one) - estimate(two) for name, (one, two) in pairs.items()}
        p_values = {name: p_value(difference) for name, difference in differences.items()}
        tested = [name for name, p in p_values.items() if not isnan(p)]
        adjusted = dict(zip(tested, holm([p_values[name] for name in tested]), strict=True))
        for name, difference in differences.items():
            ungraded += difference.ungraded
            shown = _interval(difference, 1, sign=True)
            count = f"{sum(difference.units.values()):,}"
            p_shown = (_p(p_values[name]), _p(adjusted.get(name, float("nan"))))
            rows.append((title_of(other), name, "difference, points", *shown, str(difference.seeds), count, *p_shown))
        ones, twos = [pair[0] for pair in pairs.values()], [pair[1] for pair in pairs.values()]
        over = (
            ("probability of improvement", improvement(ones, twos), 3, False),
            ("interquartile mean, its own", interquartile_mean(twos), 1, False),
            (f"interquartile mean of {one_title}", interquartile_mean(ones), 1, False),
        )
        for what, found, digits, sign in over:
            count = f"{sum(found.units.values()):,}"
            shown = _interval(found, digits, sign)
            rows.append((title_of(other), "all of them", what, *shown, str(found.seeds), count, NO_VALUE, NO_VALUE))
    if not rows:
        return None
    notes = [
        "p: one less the level of the widest interval that leaves no difference out, and where seeds and questions all "
        "differ alike the sign test's over seeds. With 1 seed there is none. Holm's correction is over the benchmarks "
        "of one method.",
        "Probability of improvement: that a run of the first method scores more than a run of the other on the same "
        "benchmark, all taken at random, a tie counting half (Agarwal et al. 2021). Its interval is over seeds alone.",
        "Interquartile mean: of the scores of all seeds on all benchmarks, without the lowest and the highest quarter.",
        f"Intervals: {INTERVALS[len('They are ') :]}",
    ]
    if records.profile == TOY:
        notes.insert(0, TOY_RATE)
    if ungraded:
        notes.append(f"{ungraded:,} samples, counted in each comparison, could not be graded and are left out.")
    return Table(
        f"comparisons_{methods.experiment}_{records.profile}",
        ("Against", "On", "What", "Value", "95 % interval", "Seeds", "Questions", "p", "Holm's p"),
        tuple(rows),
        f"{one_title} against other methods of the experiment {methods.experiment}, profile {records.profile}: its "
        "score less theirs, paired by seed and question, over the seeds that both have.",
        tuple(notes),
    )


def _pairs(records: Records, methods: Methods, other: str) -> dict[str, tuple[Cells, Cells] | None]:
    found: dict[str, tuple[Cells, Cells] | None] = {}
    for name, source in methods.sources.items():
        there = records.stand_in(source)
        cells = [_cells(records, replace(there, label=label)) for label in (methods.one, other)]
        shown = there.benchmark or name
        if shown in found or cells[0] is None or cells[1] is None:
            continue
        common = [seed for seed in cells[0].seeds if seed in cells[1].seeds]
        if common:
            found[shown] = (cells[0].of(common), cells[1].of(common))
    return found


def _cells(records: Records, source: Source) -> Cells | None:
    found = records.cells(source)
    return found if isinstance(found, Cells) else None


def _interval(found: Estimate, digits: int, sign: bool) -> tuple[str, str]:
    low, high = found.interval
    alone = ONE_SEED if found.seeds == 1 else ""
    shown = f"[{number(low, digits, sign=sign)}, {number(high, digits, sign=sign)}]{alone}"
    return number(found.value, digits, sign=sign), NO_VALUE if isnan(low) else shown


def _p(value: float) -> str:
    return NO_VALUE if isnan(value) else "< 0.001" if value < 0.001 else number(value, 3)
