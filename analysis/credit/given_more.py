"""RTPO given more of what it has less of than exact GRPO at equal rollouts: generated tokens, and optimizer steps a
turn. Each stands beside RTPO and GRPO with exact contexts, from parts of a study of the walk."""

from statistics import fmean, median

import numpy as np

from analysis import measures
from analysis.credit.variants import BASE, sentences
from analysis.intervals import Interval, interval
from analysis.looks import title_of
from analysis.records import Run, RunGroup
from analysis.study.findings import DECODING, Site
from analysis.study.records import StudyRecords
from analysis.study.tables import CONTROL, generated_tokens, shown
from analysis.tables import INTERVALS, NO_VALUE, Table, number, percent
from rtpo.envs.toy.walk import WalkSettings

PARTS = ("tokens", "updates")
HALF = 0.5
HEADER = (
    *(
        "Task",
        "Configuration",
        "Runs",
        "Optimizer steps of turn 0",
        "Untied turns each, median",
        "Tokens, k",
        "Seconds",
    ),
    *("Success", "The heavy turn right", "Less RTPO", "Less exact GRPO"),
)


def told(records: StudyRecords) -> str:
    """A sentence a configuration, and the table."""
    places = [place for part in PARTS for place in records.planned[part]]
    labels = list(dict.fromkeys(place.configuration.label for place in places))
    of = [Site(records, task) for task in dict.fromkeys(place.task for place in places)]
    return f"{sentences(of, labels)}\n{shown(_table(of, [CONTROL, BASE, *labels]))}"


def _table(of: list[Site], labels: list[str]) -> Table:
    rows = [_row(site, label) for site in of for label in labels]
    caption = (
        "RTPO given more, and what it has less of than exact GRPO: means over runs. Untied turns: those of an "
        "optimizer step with an advantage that is not 0; the median of a run's steps. Success: held-out, "
        "after training at the paper's decoding, in percent. The heavy turn: where the walk is decided early the first "
        "one, where late the last, is worth as much as all others together; the share of samples that earn at least "
        "its worth, in percent. Differences in points, paired by warm start, seed and question. Brackets: 95 % "
        f"intervals over runs and questions. {INTERVALS} Toy scale, not the paper's results."
    )
    return Table("credit_given_more", HEADER, tuple(rows), caption, (), labels=2)


def _row(site: Site, label: str) -> tuple[str, ...]:
    group, planned = site.group(label), len(site.records.places(site.task, label))
    if group is None:
        return (site.title, title_of(label), f"0 of {planned}", *[NO_VALUE] * 4, *[site.absence(label)] * 4)
    costs = [
        (measures.mean_over_runs(group, of_run), scale)
        for of_run, scale in (
            *((_first_turns_steps, 1), (_untied, 1)),
            *((generated_tokens, 1e-3), (measures.training_seconds, 1)),
        )
    ]
    return (
        site.title,
        title_of(label),
        f"{len(group.runs)} of {planned}",
        *(number(value, 0 if scale == 1 else 1, scale) for value, scale in costs),
        percent(site.success(label)),
        percent(heavy_turn(group)),
        *(NO_VALUE if label == other else site.compared(label, other) for other in (BASE, CONTROL)),
    )


def _first_turns_steps(run: Run) -> float:
    updates = [update for step in run.steps for update in step["updates"]]
    return float(sum(update["optimizer_steps"] for update in updates if 0 in update["trained_turns"]))


def _untied(run: Run) -> float:
    return median(measures.untied_turns(run.steps))


def heavy_turn(group: RunGroup) -> Interval | None:
    """The share of held-out samples that earn what the turn is worth that makes half of the return; one that has all
    turns but it counts, too. None where no turn is worth so much."""
    weights = WalkSettings(**{"decided": group.first.config["task"]["settings"]["decided"]}).weights
    if max(weights) / sum(weights) < HALF:
        return None
    tables = []
    for run in group.runs:
        after = run.evaluations[(run.evaluations["when"] == "after") & (run.evaluations["mode"] == DECODING)]
        earned = after.dropna(subset="reward").groupby("task")["reward"]
        tables.append(earned.apply(lambda rewards: fmean(rewards >= HALF)).sort_index())
    same = [table for table in tables if table.index.equals(tables[0].index)]
    if len(same) != len(tables):
        return None
    strata = [str(run.manifest["experiment"]) for run in group.runs]
    return interval(np.stack([table.to_numpy() for table in tables]), strata=strata, share=True)
