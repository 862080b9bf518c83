"""The toy study's tables and the generated part of its page, from its run records."""

from analysis import measures
from analysis.figures.paper_figures import FIGURES
from analysis.figures.sources import STUDY_NAME
from analysis.looks import TASKS
from analysis.records import Run, RunGroup
from analysis.study.records import StudyRecords, missing_lines
from analysis.study.tables import CONTROL, DECODINGS, rates_table, shown, summary, task_tables
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
        ("## Runs", "\n".join([summary(records), *_worse(records)])),
        ("## Verdicts", shown(*claims)),
        *((f"## {TASKS[task]}", shown(*found)) for task, found in of_tasks(records).items()),
        ("## Figures", f"{OTHER_FIGURES}\n\n{figures}" if records.runs else f"{NOT_RUN}\n"),
        ("## Learning rates", shown(rates_table(records, NAME))),
        ("## Not run", "".join(f"- {line}\n" for line in missing_lines(records)) or "Nothing is missing.\n"),
    ]
    return "\n".join(f"{title}\n\n{text}" for title, text in sections)


def _worse(records: StudyRecords) -> list[str]:
    """The runs that ended below where their model began, if exact GRPO's were evaluated before training."""
    mode = records.study.decoding
    untrained = [
        group
        for task in records.tasks
        if (group := records.group(task, CONTROL)) and measures.held_out(group, "before", mode)
    ]
    if not untrained:
        return []
    found = [f"`{run.folder.parent.name}/{run.folder.name}`" for run in records.runs if _fell(run, untrained, mode)]
    kept = "; they stay in every mean and interval" if found else ""
    return [
        f"Runs that ended below where their model began, {DECODINGS[mode].said}, by a 95 % interval over questions: "
        f"{', '.join(found) or 'none'}{kept}.\n"
    ]


def _fell(run: Run, untrained: list[RunGroup], mode: str) -> bool:
    after = measures.held_out(RunGroup(run.label, (run,)), "after", mode)
    for group in untrained:
        before = measures.held_out(group, "before", mode)
        if after is not None and before is not None and run.manifest["task"] == group.first.manifest["task"]:
            change = measures.difference(before, after)
            return change is not None and change.high < 0
    return False


def verdicts(records: StudyRecords) -> str:
    """The claims by verdict."""
    return verdict_lines(records) if records.runs else f"{NOT_RUN}\n"
