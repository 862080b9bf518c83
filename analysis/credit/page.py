"""The blocks of docs/results/credit.md, and its figure."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import measures, since
from analysis.credit.predictions import Outcome, load_predictions, outcomes, predicted_table, summary
from analysis.looks import TASKS, Style, styles
from analysis.pages.room import Drawn, Room, from_records
from analysis.plots import Line, Panel, handle, records_checksum, scaled, sheet, spread_marks
from analysis.study import tables
from analysis.study.plan import STUDIES
from analysis.study.records import StudyRecords, load_study, missing_lines
from analysis.tables import NOT_RUN

NAME = "credit"
STUDY = STUDIES / f"{NAME}.yaml"
NOTE = (
    "Toy scale, not the paper's results. Held-out success at the paper's decoding. Bands: 95 % intervals over the runs "
    "of each warm start and questions."
)


def room(project: Path) -> Room:
    """What the page is made of."""
    results = project / "results" / NAME

    def load() -> StudyRecords:
        return load_study(results, STUDY)

    def found(records: StudyRecords) -> list[Outcome]:
        return outcomes(records, load_predictions(results))

    def figures(records: StudyRecords) -> list[Drawn]:
        checksum = records_checksum([run.folder / "manifest.json" for run in records.runs])
        return [Drawn(NAME, partial(draw, records), checksum)]

    blocks: dict[str, Callable[[StudyRecords], str]] = {
        "settings": lambda records: tables.settings(STUDY),
        "found": lambda records: "\n".join([*_made(records), summary(found(records))]),
        "predicted": lambda records: tables.shown(predicted_table(found(records))),
        "runs": tables.summary,
        "tables": lambda records: "\n".join(_of_task(records, task) for task in records.tasks),
        "success": _picture,
        "rates": lambda records: tables.shown(tables.rates_table(records, NAME)),
        "missing": lambda records: "".join(f"- {line}\n" for line in missing_lines(records)) or "Nothing is missing.\n",
    }
    return from_records(load, blocks, figures)


def _made(records: StudyRecords) -> list[str]:
    """By which code the runs were made."""
    return [f"{note}\n"] if (note := since.note(records.every_run)) else []


def _of_task(records: StudyRecords, task: str) -> str:
    title = f"The credit study, {TASKS[task].lower()}."
    return f"### {TASKS[task]}\n\n{tables.shown(*tables.task_tables(records, task, NAME, title))}"


def _picture(records: StudyRecords) -> str:
    title = "Success at the paper's decoding against rollouts, by configuration. Toy scale, not the paper's results."
    return f"![{title}]({NAME}.png)\n" if records.runs else f"{NOT_RUN}\n"


def draw(records: StudyRecords) -> Figure:
    """Success over rollouts: a panel a task, a line a method."""
    looks = styles(group.label for task in records.tasks for group in tables.methods(records, task))
    panels = [
        Panel(
            TASKS[task],
            _lines(records, task, looks),
            "Training rollouts",
            "Held-out success, %" if not place else "",
            [partial(Axes.set, xlim=(0, None))],
        )
        for place, task in enumerate(records.tasks)
    ]
    return sheet([panels], 2.2, NOTE, [handle(look) for look in looks.values()])


def _lines(records: StudyRecords, task: str, looks: dict[str, Style]) -> list[Line]:
    curves = {
        group.label: measures.held_out_curve(group, records.study.decoding) for group in tables.methods(records, task)
    }
    return [
        Line(
            scaled(curve.assign(x=curve["rollouts"]), 100),
            looks[label],
            marks=spread_marks(len(curve), place, len(curves)),
        )
        for place, (label, curve) in enumerate(curves.items())
    ]
