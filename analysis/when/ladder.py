"""The ladder of ingredients (docs/method/ladder.md) on the tasks of studies, at the paper's decoding: where each
rung ends, what a step up is worth, and what it costs."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from math import ceil

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import measures
from analysis.experiment import OF_FREE, has_free
from analysis.looks import Style, styles, title_of
from analysis.plots import Entry, Framed, Line, Panel, handle, points, sheet
from analysis.records import RunGroup
from analysis.study.findings import NOT_EVALUATED, NOT_PLANNED, Site
from analysis.tables import INTERVALS, Table, number, percent

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
AFFORDABLE = ("gigpo", "anchored", "anchored_forks", "anchored_forks_little_shrunk", "vineppo", "critic", "rtpo_tree")
"""what c has for nothing, paid for"""
AT_TOKENS = "rtpo_tokens"
"""f with the generated tokens of b in place of its rollouts"""
ROWS = {
    **{label: rung for rung, label in RUNGS.items() if rung in "abc"},
    **dict.fromkeys(AFFORDABLE, ""),
    **{label: rung for rung, label in RUNGS.items() if rung in "def"},
    AT_TOKENS: "",
}
"""by configuration, in the order of tables and figure, its rung"""
STEPS = {
    "Contexts": ("b", "a"),
    "Credit at its ceiling": ("c", "b"),
    "Order": ("d", "c"),
    "Freshness": ("e", "d"),
    "The charged plan": ("f", "b"),
}
MOST = 5
"""panels side by side"""
NOTE = (
    "Toy scale, not the paper's results. Held-out success at the paper's decoding; bars: 95 % intervals over the runs "
    "of each warm start and questions. a to f: rungs. Hollow: with rollouts beside the budget, no method."
)
COST = (
    *("Task", "Configuration", "Runs", "Rollouts", "Free rollouts", "Optimizer steps", "Tokens, k", "Free tokens, k"),
    "Seconds",
)


def groups(of: Sequence[Site]) -> list[RunGroup]:
    """Those that the figure shows."""
    return [group for site in of for label in ROWS if (group := site.group(label)) is not None]


def planned(of: Sequence[Site], labels: Iterable[str]) -> list[str]:
    """Of these configurations the rungs, and what a study of the tasks plans."""
    return [
        label
        for label in labels
        if label in RUNGS.values() or any(site.records.places(site.task, label) for site in of)
    ]


def rungs_table(of: Sequence[Site]) -> Table:
    """A row a configuration, a column a task."""

    def cell(site: Site, label: str) -> str:
        group = site.group(label)
        return site.absence(label) if group is None else f"{percent(site.success(label))}, {len(group.runs)} runs"

    rows = [(ROWS[label], title_of(label), *(cell(site, label) for site in of)) for label in planned(of, ROWS)]
    caption = (
        "Held-out success after training at the paper's decoding, in percent. Brackets: 95 % intervals over runs and "
        f"questions. {INTERVALS} {ABSENT} Without a letter: affordable baselines beside c, and "
        "RTPO with as many generated tokens as b. Toy scale, not the paper's results."
    )
    return Table("when_rungs", ("Rung", "Configuration", *(site.title for site in of)), tuple(rows), caption, (), 2)


def worth_table(of: Sequence[Site]) -> Table:
    """A row a step of the ladder, and an affordable baseline; a column a task."""
    pairs = {f"{name}, {one} − {other}": (RUNGS[one], RUNGS[other]) for name, (one, other) in STEPS.items()}
    pairs |= {f"{title_of(label)}, less b": (label, RUNGS["b"]) for label in planned(of, (AT_TOKENS, *AFFORDABLE))}
    rows = [(name, *(site.compared(*pair) for site in of)) for name, pair in pairs.items()]
    caption = (
        "What each ingredient is worth: differences in success after training at the paper's decoding, in points, "
        f"paired by warm start, seed and question. Brackets: 95 % intervals over runs and questions. {INTERVALS} "
        f"{ABSENT}"
    )
    return Table("when_worth", ("Step", *(site.title for site in of)), tuple(rows), caption, ())


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
    columns = len(with_runs) if len(with_runs) <= MOST else ceil(len(with_runs) / 2)
    panels = [_panel(site, labels, looks, is_first=place % columns == 0) for place, site in enumerate(with_runs)]
    rows = [panels[place : place + columns] for place in range(0, len(panels), columns)]
    return sheet(rows, 0.25 * len(labels) + 0.6, NOTE, _entries())


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
