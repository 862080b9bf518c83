"""The toy study's tables and the generated part of its page, from its run records."""

from analysis.figures.paper_figures import FIGURES
from analysis.figures.sources import STUDY_NAME
from analysis.looks import TASKS
from analysis.study.records import StudyRecords, missing_lines
from analysis.study.tables import rates_table, shown, summary, task_tables
from analysis.tables import NOT_RUN, Table
from analysis.toy_study.claims import beside_table, claims_table, verdict_lines

NAME = "toy_study"
SHOWN = ("success", "consistency", "mismatch_by_turn", "ties")
OTHER_FIGURES = (
    "Of the runs from the first warm start of each task, which the tables have beside those from the second. What each "
    "shows is said on the [page of all figures](figures.md), which has group sizes and synchronisation, too."
)
"""under the title of the study's figures"""


def of_tasks(records: StudyRecords) -> dict[str, list[Table]]:
    """By task, those that have records."""
    made = {}
    for task in records.tasks:
        title = (
            f"The toy study on {TASKS[task].lower()}, each configuration at the learning rate that the plan gives it."
        )
        made[task] = task_tables(records, task, NAME, title)
    return made


def tables(records: StudyRecords) -> list[Table]:
    """Every table of the study that has records."""
    claims = [claims_table(records), beside_table(records)] if records.runs else []
    made = [*claims, *(table for found in of_tasks(records).values() for table in found), rates_table(records, NAME)]
    return [table for table in made if table is not None]


def page(records: StudyRecords) -> str:
    """The generated part of docs/results/toy_study.md, which shows figures of docs/results/figures.md."""
    if not records.runs and not records.search:
        return f"{NOT_RUN}\n"
    claims = [claims_table(records), beside_table(records)] if records.runs else []
    figures = "\n".join(
        f"![{FIGURES[name].title}. Toy scale, not the paper's results.](figure_{name}_{STUDY_NAME}.png)\n"
        for name in SHOWN
    )
    sections = [
        ("## Runs", summary(records)),
        ("## Verdicts", shown(*claims)),
        *((f"## {TASKS[task]}", shown(*found)) for task, found in of_tasks(records).items()),
        ("## Figures", f"{OTHER_FIGURES}\n\n{figures}" if records.runs else f"{NOT_RUN}\n"),
        ("## Learning rates", shown(rates_table(records, NAME))),
        ("## Not run", "".join(f"- {line}\n" for line in missing_lines(records)) or "Nothing is missing.\n"),
    ]
    return "\n".join(f"{title}\n\n{text}" for title, text in sections)


def verdicts(records: StudyRecords) -> str:
    """The claims by verdict."""
    return verdict_lines(records) if records.runs else f"{NOT_RUN}\n"
