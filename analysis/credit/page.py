"""The blocks of docs/results/credit.md and anchors.md: studies of which something was predicted."""

from collections.abc import Callable, Mapping
from pathlib import Path

from analysis import since
from analysis.credit import anchors, given_more, variants
from analysis.credit.predictions import Outcome, Prediction, load_predictions, outcomes, predicted_table, summary
from analysis.looks import TASKS
from analysis.pages.own_page import OwnPage, from_records
from analysis.study import tables
from analysis.study.plan import STUDIES
from analysis.study.records import StudyRecords, load_study, missing_lines

Block = Callable[[StudyRecords], str]
CREDIT, ANCHORS = "credit", "anchors"


def credit_page(project: Path) -> OwnPage:
    """What docs/results/credit.md is made of."""
    more: dict[str, Block] = {
        "variants": variants.told,
        "given_more": given_more.told,
        "tables": lambda records: "\n".join(_of_task(records, task) for task in records.tasks),
    }
    return _own_page(project, CREDIT, more, lambda records, one: one)


def anchors_page(project: Path) -> OwnPage:
    """What docs/results/anchors.md is made of."""
    return _own_page(project, ANCHORS, {"choice": anchors.choice, "tested": anchors.gains}, anchors.judged)


def _own_page(
    project: Path, name: str, more: Mapping[str, Block], judged: Callable[[StudyRecords, Prediction], Prediction]
) -> OwnPage:
    """What both have, and `more`. judged: a prediction as it is told by what the study runs."""
    results, file = project / "results" / name, STUDIES / f"{name}.yaml"

    def load() -> StudyRecords:
        return load_study(results, file)

    def found(records: StudyRecords) -> list[Outcome]:
        return outcomes(records, [judged(records, one) for one in load_predictions(results)])

    blocks: dict[str, Block] = {
        "settings": lambda records: tables.settings(file),
        "found": lambda records: "\n".join([*_made(records), summary(found(records))]),
        "predicted": lambda records: tables.shown(predicted_table(found(records), name)),
        "runs": tables.summary,
        "rates": lambda records: tables.shown(tables.rates_table(records, name)),
        "missing": lambda records: "".join(f"- {line}\n" for line in missing_lines(records)) or "Nothing is missing.\n",
    }
    return from_records(load, {**blocks, **more}, lambda records: [])


def _made(records: StudyRecords) -> list[str]:
    """By which code the runs were made."""
    return [f"{note}\n"] if (note := since.note(records.every_run)) else []


def _of_task(records: StudyRecords, task: str) -> str:
    title = f"The credit study, {TASKS[task].lower()}."
    return f"### {TASKS[task]}\n\n{tables.shown(*tables.task_tables(records, task, CREDIT, title))}"
