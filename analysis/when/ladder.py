"""The ladder of ingredients (docs/method/ladder.md) on the tasks of studies, at the paper's decoding: where each
rung ends, what a step up is worth, and what it costs."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import measures
from analysis.experiment import OF_FREE, has_free
from analysis.intervals import Interval
from analysis.looks import TASKS, Style, styles, title_of
from analysis.plots import Entry, Framed, Line, Panel, handle, points, sheet
from analysis.records import RunGroup
from analysis.study.findings import Finding, finding
from analysis.study.records import StudyRecords
from analysis.tables import INTERVALS, NOT_RUN, Table, number, percent

DECODING = "paper"
NOT_PLANNED, NOT_EVALUATED = "not planned", "not evaluated"
ABSENT = (
    f"“{NOT_PLANNED}”: by the task's study; “{NOT_EVALUATED}”: there are runs, made without an evaluation at this "
    "decoding."
)
RUNGS = {
    "a": "grpo",
    "b": "grpo_exact",
    "c": "grpo_state_values",
    "d": "grpo_state_values_reverse",
    "e": "grpo_state_values_fresh",
    "f": "rtpo",
}
AFFORDABLE = ("gigpo", "anchored", "vineppo", "critic", "rtpo_tree")
"""what c has for nothing, paid for"""
ROWS = {
    **{label: rung for rung, label in RUNGS.items() if rung in "abc"},
    **dict.fromkeys(AFFORDABLE, ""),
    **{label: rung for rung, label in RUNGS.items() if rung in "def"},
}
"""by configuration, in the order of tables and figure, its rung"""
STEPS = {
    "Contexts": ("b", "a"),
    "Credit at its ceiling": ("c", "b"),
    "Order": ("d", "c"),
    "Freshness": ("e", "d"),
    "The charged plan": ("f", "b"),
}
NOTE = (
    "Toy scale, not the paper's results. Held-out success at the paper's decoding; bars: 95 % intervals over the runs "
    "of each warm start and questions. a to f: rungs. Hollow: with rollouts beside the budget, no method."
)
COST = (
    *("Task", "Configuration", "Runs", "Rollouts", "Free rollouts", "Optimizer steps", "Tokens, k", "Free tokens, k"),
    "Seconds",
)


@dataclass(frozen=True, eq=False)
class Site:
    """A task of a study."""

    records: StudyRecords
    task: str

    @property
    def title(self) -> str:
        return TASKS[self.task]

    def group(self, label: str) -> RunGroup | None:
        """The runs of a configuration that were evaluated at the paper's decoding."""
        group = self.records.group(self.task, label)
        return None if group is None or measures.held_out(group, "after", DECODING) is None else group

    def success(self, label: str) -> Interval | None:
        group = self.group(label)
        evaluation = group and measures.held_out(group, "after", DECODING)
        return measures.success(evaluation) if evaluation else None

    def finding(self, first: str, second: str) -> Finding | None:
        """The first configuration less the second; None where there are no such runs."""
        found = finding(self.records, self.task, (first, second), DECODING)
        return None if found is None or found.outcome == NOT_RUN else found

    def absence(self, *labels: str) -> str:
        """Why there is no value for which runs of all these are needed."""
        if not all(self.records.places(self.task, label) for label in labels):
            return NOT_PLANNED
        found = [self.records.group(self.task, label) for label in labels]
        return NOT_EVALUATED if None not in found and None in map(self.group, labels) else NOT_RUN


def sites(studies: Sequence[StudyRecords]) -> list[Site]:
    return [Site(records, task) for records in studies for task in records.tasks]


def groups(of: Sequence[Site]) -> list[RunGroup]:
    """Those that the figure shows."""
    return [group for site in of for label in ROWS if (group := site.group(label)) is not None]


def rungs_table(of: Sequence[Site]) -> Table:
    """A row a configuration, a column a task."""

    def cell(site: Site, label: str) -> str:
        group = site.group(label)
        return site.absence(label) if group is None else f"{percent(site.success(label))}, {len(group.runs)} runs"

    rows = [(rung, title_of(label), *(cell(site, label) for site in of)) for label, rung in ROWS.items()]
    caption = (
        "Held-out success after training at the paper's decoding, in percent. Brackets: 95 % intervals over runs and "
        f"questions. {INTERVALS} {ABSENT} Without a letter: affordable baselines beside c. Toy scale, not the paper's "
        "results."
    )
    return Table("when_rungs", ("Rung", "Configuration", *(site.title for site in of)), tuple(rows), caption, (), 2)


def worth_table(of: Sequence[Site]) -> Table:
    """A row a step of the ladder, and an affordable baseline; a column a task."""
    pairs = {f"{name}, {one} − {other}": (RUNGS[one], RUNGS[other]) for name, (one, other) in STEPS.items()}
    pairs |= {f"{title_of(label)}, less b": (label, RUNGS["b"]) for label in AFFORDABLE}
    rows = [(name, *(_worth(site, *pair) for site in of)) for name, pair in pairs.items()]
    caption = (
        "What each ingredient is worth: differences in success after training at the paper's decoding, in points, "
        f"paired by warm start, seed and question. Brackets: 95 % intervals over runs and questions. {INTERVALS} "
        f"{ABSENT}"
    )
    return Table("when_worth", ("Step", *(site.title for site in of)), tuple(rows), caption, ())


def _worth(site: Site, first: str, second: str) -> str:
    if (found := site.finding(first, second)) is None:
        return site.absence(first, second)
    return f"{percent(found.difference, sign=True)}, {found.pairs} of {found.planned} pairs"


def cost_table(of: Sequence[Site]) -> Table:
    """A row for each configuration of a task that has runs."""
    rows = [
        (site.title, title_of(label), str(len(group.runs)), *_costs(group))
        for site in of
        for label in ROWS
        if (group := site.group(label)) is not None
    ]
    caption = (
        "What a run costs, in the mean: rollouts charged and beside the budget, optimizer steps, generated tokens, and "
        f"seconds without evaluation, two runs side by side on one machine. {OF_FREE}"
    )
    return Table("when_cost", COST, tuple(rows), caption, (), labels=2)


def _costs(group: RunGroup) -> Iterator[str]:
    for key, scale in (
        *(("rollouts", 1.0), ("free_rollouts", 1.0), ("optimizer_steps", 1.0)),
        *(("generated_tokens", 1e-3), ("free_tokens", 1e-3)),
    ):
        of_runs = [float(run.ledger.get(key, 0)) for run in group.runs]
        yield number(sum(of_runs) / len(of_runs), 0 if scale == 1 else 1, scale)
    yield number(measures.mean_over_runs(group, measures.training_seconds), 0)


def draw(of: Sequence[Site]) -> Figure:
    """A panel for each task that has runs, a row a configuration that has some."""
    with_runs = [site for site in of if any(site.group(label) for label in ROWS)]
    labels = [label for label in reversed(ROWS) if any(site.group(label) for site in with_runs)]
    looks = styles(labels)
    panels = [_panel(site, labels, looks, is_first=not place) for place, site in enumerate(with_runs)]
    return sheet([panels], 0.25 * len(labels) + 0.6, NOTE, _entries())


def _panel(site: Site, labels: Sequence[str], looks: dict[str, Style], *, is_first: bool) -> Panel:
    lines: list[Line] = []
    hollow: list[Framed] = []
    for place, label in enumerate(labels):
        group, found = site.group(label), site.success(label)
        if group is None or found is None:
            continue
        mean, low, high = (100 * end for end in (found.mean, found.low, found.high))
        lines.append(Line(points([mean], [place]).assign(left=low, right=high), looks[label], bars=True))
        if has_free([group]):
            hollow.append(partial(_hollow, x=mean, y=place, look=looks[label]))
    names = [textwrap.fill(f"{ROWS[label]}  {title_of(label)}".strip(), 36) for label in labels] if is_first else []
    framed: list[Framed] = [
        *hollow,
        partial(Axes.set_yticks, ticks=range(len(labels)), labels=names or [""] * len(labels), fontsize=5.5),
        partial(Axes.set, xlim=(-3, 103), ylim=(-0.6, len(labels) - 0.4)),
    ]
    return Panel(site.title.replace(", ", ",\n"), lines, "Success, %", framed=framed)


def _hollow(axes: Axes, x: float, y: float, look: Style) -> None:
    axes.plot([x], [y], look.marker, markerfacecolor="white", markeredgecolor=look.colour, zorder=4)


def _entries() -> list[Entry]:
    filled, line = handle(Style(0, "all rollouts charged", "0.3", "o", ""))
    hollow, other = handle(Style(0, "rollouts beside the budget: a ceiling", "0.3", "o", ""))
    hollow.set(markerfacecolor="white", markeredgecolor="0.3", markeredgewidth=1.0)
    return [(filled, line), (hollow, other)]
