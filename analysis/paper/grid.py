"""A table as the paper lays it out, with ours below what the paper prints, and the same in long form for programs."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite, isnan

from analysis import since
from analysis.intervals import LEVEL, holm
from analysis.paper.estimates import Estimate, p_value
from analysis.paper.numbers import TEXT, Paper
from analysis.paper.records import NOT_MEASURED, Condition, Missing, Records, stand_ins
from analysis.paper.reproduction import MARK, CellPlan, Reproduction, TablePlan
from analysis.paper.tables import NOT_COMPARED, Made, MadeTable
from analysis.tables import MINUS, NO_VALUE, NOT_RUN, Table, bold, csv_lines, number

TOY = "toy"
TOY_RATE = (
    "All methods share a toy task's learning rate, which was chosen for RTPO alone; docs/results/toy_study.md has "
    "each at a rate of its own."
)
DECIMALS = {"points": 2, "percent": 2, "calls": 1, "questions": 1, "tokens": 1, "turns": 2, "hours": 2, "gpu_hours": 2}
ONE_DECIMAL = ("calls", "questions", "count", "points", "percent")
"""which have one at least, since ours are means"""
INTERVALS = (
    "Brackets: 95 % intervals, t over seeds, widened by what other questions (prompts, steps) would change and never "
    "narrower than over these alone; Wilson's where all answers are alike, and in a mean or difference such a share "
    "counts as certain."
)
ALONE = "Those of 1 seed are over questions alone and say nothing about other seeds."
LONG = (
    *("row", "column", "unit", "value", "low", "high", "n", "of", "seeds", "decoding"),
    *("paper", "printed", "verdict", "why"),
)


def grid(made: MadeTable, records: Records, paper: Paper, reproduction: Reproduction) -> Table:
    """A row for what the paper prints of each of its rows, and one for ours. How many seeds and questions a number is
    of stands with its row or its column, and with itself where it differs from these."""
    cells = {(one.plan.row_title, one.plan.column_title): one for one in made.cells}
    in_order = sorted(made.cells, key=lambda one: made.plan.columns.index(one.plan.column))
    rows, columns = dict.fromkeys(row for row, _ in cells), dict.fromkeys(one.plan.column_title for one in in_order)
    facts = [_common(cells, _seeds, (0, 1)), _common(cells, _units, (1, 0))]

    def of_line(side: int, line: str) -> str:
        return ", ".join(found[line] for chosen, found in facts if chosen == side and line in found)

    def ours(row: str, column: str) -> str:
        if (row, column) not in cells:
            return ""
        one, place = cells[row, column], (row, column)
        own = (_seeds(one), _units(one))
        apart = [text for text, (side, found) in zip(own, facts, strict=True) if text and text != found[place[side]]]
        return _shown(one) + (f" ({', '.join(apart)})" if apart else "")

    lines, has_paper = [], any(one.plan.paper is not None for one in made.cells)
    for row in rows:
        printed = [_printed(cells.get((row, column))) for column in columns]
        if any(printed):
            lines.append((row, "paper", *printed))
        told = ", ".join(word for word in ("ours" * has_paper, of_line(0, row)) if word)
        lines.append(("" if any(printed) else row, told, *(ours(row, column) for column in columns)))
    if any(of_line(1, column) for column in columns):
        lines.append(("n", "", *(of_line(1, column) for column in columns)))
    caption = f"{made.plan.gist} Section {made.plan.section} of the paper. {_profile(made, reproduction)}"
    notes = tuple(_notes(made, records, paper, reproduction))
    return Table(made.key, ("", "", *columns), tuple(lines), caption, notes, labels=2)


def _common(
    cells: Mapping[tuple[str, str], Made], fact: Callable[[Made], str], sides: Sequence[int]
) -> tuple[int, dict[str, str]]:
    """The side, rows (0) or columns (1), whose lines say best what a fact of their cells is, and what they say."""
    choices = []
    for side in sides:
        by_line: dict[str, Counter[str]] = defaultdict(Counter)
        for place, one in cells.items():
            if text := fact(one):
                by_line[place[side]][text] += 1
        found = {line: counts.most_common(1)[0][0] for line, counts in by_line.items()}
        choices.append((sum(counts.total() - counts[found[line]] for line, counts in by_line.items()), side, found))
    return min(choices, key=lambda choice: choice[0])[1:]


def _estimate(made: Made) -> Estimate | None:
    """What is ours and not known exactly."""
    return made.outcome if isinstance(made.outcome, Estimate) and not made.outcome.is_exact else None


def _seeds(made: Made) -> str:
    found = _estimate(made)
    return f"{found.seeds} seed{'s' * (found.seeds != 1)}" if found else ""


def _units(made: Made) -> str:
    found = _estimate(made)
    return ", ".join(f"{count:,} {kind}" for kind, count in _counts(found).items()) if found else ""


def _counts(found: Estimate) -> Mapping[str, int]:
    """How many of what, beside seeds."""
    counts: Counter[str] = Counter()
    for name, count in found.units.items():
        counts[name.partition(" ")[0]] += count
    return {kind: count for kind, count in counts.items() if kind != "runs"}


def _printed(made: Made | None) -> str:
    if made is None or made.plan.paper is None:
        return ""
    printed = made.plan.paper.printed
    return printed if made.plan.unit == TEXT else printed.replace("-", MINUS)


def _shown(made: Made) -> str:
    cell, found = made.plan, made.outcome
    if isinstance(found, Missing):
        return found.kind
    judged = f" {made.verdict}" if cell.paper is not None and made.verdict != NO_VALUE else ""
    if found.is_exact:
        return _exactly(found.value) + judged
    digits = DECIMALS.get(cell.unit, 3 if cell.unit == "ratio" else 1)
    if cell.paper is not None:
        digits = max(cell.paper.decimals, 1 if cell.unit in ONE_DECIMAL else 0)
    sign = cell.unit == "percent" or (cell.paper is not None and cell.paper.printed.startswith(("+", "-")))
    return _with_interval(found, digits, sign) + judged


def _with_interval(found: Estimate, digits: int, sign: bool) -> str:
    value, low, high = (_number(part, digits, sign) for part in (found.value, *found.interval))
    return value if isnan(found.interval[0]) else f"{value} [{low}, {high}]"


def _exactly(value: float) -> str:
    """A setting, in as few digits as it has."""
    return f"{value:,.0f}" if value == int(value) else f"{value:.4g}".replace("e-0", "e−")


def _number(value: float, digits: int, sign: bool) -> str:
    return ("∞" if value > 0 else "−∞") if abs(value) == float("inf") else number(value, digits, sign=sign)


def _profile(made: MadeTable, reproduction: Reproduction) -> str:
    if made.profile == reproduction.profile:
        return f"Profile {made.profile}: the paper's models, tasks and budgets."
    roles = dict.fromkeys(cell.source.task for cell in made.plan.cells if cell.source.task)
    tasks = stand_ins(made.profile)
    told = " and ".join(f"{tasks[role]} stands for {role}" for role in roles if role)
    return f"Profile {made.profile}: {told}. Not the paper's scale, and not to be compared with its numbers."


def _notes(made: MadeTable, records: Records, paper: Paper, reproduction: Reproduction) -> Iterator[str]:
    plan, found = made.plan, [one for one in map(_estimate, made.cells) if one is not None]
    if made.profile == reproduction.profile:
        yield from plan.notes
        if any(cell.source.benchmark for cell in plan.cells):
            given = [paper.statement(key).value.printed for key in ("eval_temperature", "eval_top_p")]
            yield f"The paper's numbers are at temperature {given[0]}, top-p {given[1]}."
    if made.profile == TOY:
        yield TOY_RATE
    yield from decoding_notes(made.cells)
    if any(not one.plan.in_paper for one in made.cells):
        yield f"{MARK.strip()}: not in the paper's table."
    if found:
        yield f"{INTERVALS} {ALONE}" if any(one.seeds == 1 for one in found) else INTERVALS
    conditions = list(_conditions(plan, records))
    runs = [run for one in conditions for group in one.groups.values() for run in group.runs]
    if made.profile == TOY and runs:
        yield since.note(runs)
    if ungraded := sum(one.ungraded for one in dict.fromkeys(found)):
        yield f"{ungraded:,} samples, counted in each cell, could not be graded and are left out."
    missing = [one.outcome for one in made.cells if isinstance(one.outcome, Missing)]
    for why in dict.fromkeys(one.why for one in missing if one.kind == NOT_MEASURED):
        yield f"Not measured: {why}."
    if whys := dict.fromkeys(str(one.not_compared) for one in made.cells if one.verdict == NOT_COMPARED):
        yield f"Not compared: {'; '.join(whys)}."
    if any(one.kind == NOT_RUN for one in missing):
        yield f"Not run: {reproduction.commands(plan.experiments, made.profile)}"
    if left_out := [folder for one in conditions for folder in one.left_out]:
        yield f"Left out, because incomplete: {', '.join(left_out)}."


def decoding_notes(cells: Sequence[Made]) -> Iterator[str]:
    """At which decoding our numbers are."""
    found = [one.outcome for one in cells if isinstance(one.outcome, Estimate)]
    if told := dict.fromkeys(decoding for one in found for decoding in one.decoding):
        yield f"Ours are at {' and '.join(told)}."


def _conditions(plan: TablePlan, records: Records) -> Iterator[Condition]:
    """Those that a table asks for and that were started."""
    places = dict.fromkeys((cell.source.experiment, cell.source.task) for cell in plan.cells if cell.source.quantity)
    for experiment, task in places:
        condition = records.condition(str(experiment), str(task))
        if condition is not None:
            yield condition


# one row against the others


def compared(made: MadeTable) -> Table | None:
    """The differences of one row from the others, paired by seed and question; None without any."""
    if made.plan.compared is None:
        return None
    one, wanted = made.plan.compared
    cells = {(cell.plan.row, cell.plan.column): cell for cell in made.cells}
    columns = [column for column in wanted if (one, column) in cells]
    lines: list[tuple[str, ...]] = []
    for other in dict.fromkeys(row for row, _ in cells if row != one):
        pairs = {column: (_estimate(cells[one, column]), _estimate(cells[other, column])) for column in columns}
        found = {column: pair[0] - pair[1] for column, pair in pairs.items() if pair[0] and pair[1]}
        p_values = {column: p for column, each in found.items() if not isnan(p := p_value(each))}
        adjusted = dict(zip(p_values, holm(list(p_values.values())), strict=True))
        shown = {
            column: _with_interval(each, DECIMALS.get(cells[other, column].plan.unit, 1), True)
            for column, each in found.items()
        }
        told = [bold(text) if adjusted.get(column, 1.0) < 1 - LEVEL else text for column, text in shown.items()]
        if len(told) == len(columns):
            seeds = sorted({each.seeds for each in found.values()})
            lines.append((cells[other, columns[0]].plan.row_title, " or ".join(map(str, seeds)), *told))
    if not lines:
        return None
    title = cells[one, columns[0]].plan.row_title
    header = ("Against", "Seeds", *(cells[one, column].plan.column_title for column in columns))
    caption = f"{title} less each other row of `{made.key}`, paired by seed and question."
    notes = (
        *decoding_notes([cells[one, column] for column in columns]),
        f"{INTERVALS} {ALONE}",
        "Bold: p < 0.05 by Holm's correction over a row, p being one less the level of the widest interval that leaves "
        "no difference out, and where seeds and questions all differ alike the sign test's over seeds; with 1 seed "
        "there is none.",
    )
    return Table(f"{made.key}_compared", header, tuple(lines), caption, notes, labels=2)


# the long form


def long_form(made: MadeTable) -> str:
    """CSV: a line a cell, numbers as numbers. What is not there is empty; a number that is known has itself as
    interval."""
    lines: list[tuple[object, ...]] = [LONG]
    for one in made.cells:
        paper = one.plan.paper
        found = one.outcome if isinstance(one.outcome, Estimate) else None
        why = one.outcome.why if isinstance(one.outcome, Missing) else one.not_compared
        printed = ("", "") if paper is None else (_plain(paper.number), paper.printed)
        lines.append((*_measured(one.plan, found), *printed, one.verdict.replace(NO_VALUE, ""), why or ""))
    return csv_lines(lines)


def _measured(plan: CellPlan, found: Estimate | None) -> tuple[object, ...]:
    place = (plan.row_title.removesuffix(MARK), plan.column_title.removesuffix(MARK), plan.unit)
    if found is None:
        return (*place, *[""] * 7)
    interval = (found.value, found.value) if found.is_exact else found.interval
    counts = _counts(found)
    seeds = "" if found.is_exact else found.seeds
    units = (sum(counts.values()) or "", " and ".join(counts))
    return (*place, *map(_plain, (found.value, *interval)), *units, seeds, " and ".join(found.decoding))


def _plain(value: float | None) -> object:
    return "" if value is None or isnan(value) else f"{value:.10g}" if isfinite(value) else value
