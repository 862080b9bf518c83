"""Comparisons of methods with their intervals: the paper's from its printed numbers alone, and ours from records."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isnan

from analysis.intervals import fisher, holm, newcombe, wilson
from analysis.looks import title_of
from analysis.paper.estimates import Cells, Estimate, estimate, improvement, interquartile_mean, p_value
from analysis.paper.numbers import Paper, PaperTable
from analysis.paper.records import Records
from analysis.paper.reproduction import Methods, Printed, Source
from analysis.paper.tables import TOY, TOY_RATE
from analysis.tables import INTERVALS, NO_VALUE, ONE_SEED, Table, number
from rtpo.data.registry import REGISTRY
from rtpo.errors import DataError

PRINTED = "printed_comparisons"
LEVEL = 0.05


@dataclass(frozen=True)
class Difference:
    """Two printed counts of one family, `one` of `of` against `other` of `of`, and the p-values of their equality."""

    family: str
    what: str
    one_title: str
    other_title: str
    one: int
    other: int
    of: int
    p: float
    holm: float


def printed_differences(paper: Paper, families: Sequence[Printed]) -> list[Difference]:
    """Every comparison of every family, Holm's correction within it. Raises DataError for a percentage of what there is
    no number of."""
    return [one for family in families for one in _family(paper, family)]


def _family(paper: Paper, family: Printed) -> list[Difference]:
    table = paper.table(family.table)
    lines, over = table.lines(family.side), table.lines("columns" if family.side == "rows" else "rows")
    found: list[tuple[str, str, int, int, int]] = []
    for line, (of, times) in family.over.items():
        whole = times * _questions(paper, table, line, of)
        for other in family.others:
            counts = [_count(table, family.side, name, line, whole) for name in (family.one, other)]
            found.append((over[line].title, lines[other].title, counts[0], counts[1], whole))
    p_values = [fisher(one, whole, other, whole) for _, _, one, other, whole in found]
    return [
        Difference(family.name, what, lines[family.one].title, title, one, other, whole, p, adjusted)
        for (what, title, one, other, whole), p, adjusted in zip(found, p_values, holm(p_values), strict=True)
    ]


def _questions(paper: Paper, table: PaperTable, line: str, of: str) -> int:
    if of in table.columns:
        value = table.value(line, of)
    elif of in paper.stated:
        value = paper.statement(of).value
    elif of in REGISTRY:
        return REGISTRY[of].rows
    else:
        raise DataError(f"Table {table.key!r}, {line!r} is of {of!r}: name a column, a stated number or a benchmark.")
    if value is None or value.number is None:
        raise DataError(f"Table {table.key!r}, {line!r}: the paper has no number {of!r}.")
    return int(value.number)


def _count(table: PaperTable, side: str, name: str, line: str, whole: int) -> int:
    """A printed count, or the count nearest to a printed percentage."""
    row, column = (name, line) if side == "rows" else (line, name)
    value = table.value(row, column)
    if value is None or value.number is None:
        raise DataError(f"Table {table.key!r} prints no number at {row!r}, {column!r}: leave it out.")
    return round(value.number) if value.unit == "questions" else round(value.number * whole / 100)


def printed_table(paper: Paper, families: Sequence[Printed]) -> Table:
    """The paper's own comparisons."""
    differences = printed_differences(paper, families)
    rows = []
    for one in differences:
        low, high = newcombe(one.one, one.of, one.other, one.of)
        rows.append(
            (
                one.family,
                one.what,
                f"{one.one_title} {_share(one.one, one.of)}",
                f"{one.other_title} {_share(one.other, one.of)}",
                f"{_points((one.one - one.other) / one.of)} [{_points(low)}, {_points(high)}]",
                _p(one.p),
                _p(one.holm),
            )
        )
    return Table(
        PRINTED,
        ("Family", "On", "Method", "Against", "Difference, points", "Fisher's p", "Holm's p"),
        tuple(rows),
        "The paper's comparisons from its printed numbers alone: counts of successes with Wilson's 95 % interval, "
        "their difference with Newcombe's, Fisher's exact test, and Holm's correction within the family.",
        (
            "A count is the printed one, or that nearest to the printed percentage: a mean of several evaluations "
            "counts as one.",
            "The tests take the two sets of answers as independent. They are to the same questions, which a paired "
            "test could use; printed totals do not allow one. The four episodes of an airline task are not "
            "independent, which makes these p-values too small. Training seeds are in none of the printed numbers.",
            "F1 scores (HotpotQA, 2Wiki) are no counts and are left out.",
        ),
    )


def printed_sentence(paper: Paper, families: Sequence[Printed]) -> str:
    """How many of the paper's comparisons chance alone would hardly give."""
    found = printed_differences(paper, families)
    alone, together = (sum(p < LEVEL for p in values) for values in ([d.p for d in found], [d.holm for d in found]))
    left = "; ".join(f"{d.one_title} against {d.other_title}, {d.what}" for d in found if d.holm < LEVEL)
    return (
        f"Of the paper's {len(found)} comparisons below, {alone} have p < {LEVEL} taken alone, and {together} after "
        f"Holm's correction within their family: {left or 'none'}."
    )


def _share(count: int, of: int) -> str:
    low, high = wilson(count / of, of)
    return f"{count:,}/{of:,} [{number(low, 1, scale=100)}, {number(high, 1, scale=100)}]"


def _points(share: float) -> str:
    return number(share, 1, scale=100, sign=True)


def _p(value: float) -> str:
    return NO_VALUE if isnan(value) else "< 0.001" if value < 0.001 else number(value, 3)


# ours


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
