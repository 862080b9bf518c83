"""The blocks of docs/results/credit.md."""

from collections.abc import Callable
from pathlib import Path

from analysis import since
from analysis.credit.predictions import Outcome, load_predictions, outcomes, predicted_table, summary
from analysis.looks import TASKS
from analysis.pages.own_page import OwnPage, from_records
from analysis.study import tables
from analysis.study.plan import STUDIES
from analysis.study.records import StudyRecords, load_study, missing_lines

NAME = "credit"
STUDY = STUDIES / f"{NAME}.yaml"


def own_page(project: Path) -> OwnPage:
    """What the page is made of."""
    results = project / "results" / NAME

    def load() -> StudyRecords:
        return load_study(results, STUDY)

    def found(records: StudyRecords) -> list[Outcome]:
        return outcomes(records, load_predictions(results))

    blocks: dict[str, Callable[[StudyRecords], str]] = {
        "settings": lambda records: tables.settings(STUDY),
        "found": lambda records: "\n".join([*_made(records), summary(found(records))]),
        "predicted": lambda records: tables.shown(predicted_table(found(records))),
        "runs": tables.summary,
        "tables": lambda records: "\n".join(_of_task(records, task) for task in records.tasks),
        "rates": lambda records: tables.shown(tables.rates_table(records, NAME)),
        "missing": lambda records: "".join(f"- {line}\n" for line in missing_lines(records)) or "Nothing is missing.\n",
    }
    return from_records(load, blocks, lambda records: [])


def _made(records: StudyRecords) -> list[str]:
    """By which code the runs were made."""
    return [f"{note}\n"] if (note := since.note(records.every_run)) else []


def _of_task(records: StudyRecords, task: str) -> str:
    title = f"The credit study, {TASKS[task].lower()}."
    return f"### {TASKS[task]}\n\n{tables.shown(*tables.task_tables(records, task, NAME, title))}"
