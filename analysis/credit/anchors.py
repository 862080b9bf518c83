"""The study of anchors: which candidate its runs on validation questions choose, and what those that its plan tests do
against GRPO with exact contexts."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pandas as pd

from analysis import measures
from analysis.credit.predictions import Prediction
from analysis.intervals import Interval
from analysis.looks import title_of
from analysis.measures import HeldOut
from analysis.study.findings import Finding, Site, over_tasks, sites
from analysis.study.plan import CORE, Configuration
from analysis.study.records import StudyRecords, learning_rate
from analysis.study.tables import CONTROL, shown
from analysis.tables import INTERVALS, NOT_RUN, SUPPORTED, UNDECIDED, Table, percent, said

CHOICE = "choice"
LEAST_TASKS = 2
"""on which the method is to end above exact GRPO"""


def candidates(records: StudyRecords) -> list[Configuration]:
    return list(dict.fromkeys(place.configuration for place in records.planned[CHOICE]))


def in_test(records: StudyRecords) -> list[str]:
    """The candidates that the plan tests."""
    ones = dict.fromkeys(place.configuration for place in records.planned[CORE])
    return [one.label for one in ones if one.label == one.algorithm != CONTROL]


def judged(records: StudyRecords, one: Prediction) -> Prediction:
    """On validation questions where the plan does not test its configuration."""
    if records.places(one.task, one.configuration):
        return one
    labels = {candidate.algorithm: candidate.label for candidate in candidates(records)}
    first, second = (labels.get(name, name) for name in (one.configuration, one.against))
    return replace(one, configuration=first, against=second)


def choice(records: StudyRecords) -> str:
    """The best of the candidates once all have run, and their table."""
    together = {one: _over_all(records, one.label) for one in candidates(records)}
    left, planned = len(records.unfinished(CHOICE)), len(records.planned[CHOICE])
    means = {one.algorithm: found.mean for one, found in together.items() if found is not None}
    if left or len(means) < len(together):
        told = f"{planned - left} of {planned} runs of the choice are finished: nothing is chosen yet."
    else:
        told = _best(records, max(means, key=means.__getitem__))
    of = sites([records])
    rows = [
        (title_of(one.algorithm), *(_cell(site, one.label) for site in of), percent(found) if found else NOT_RUN)
        for one, found in together.items()
    ]
    caption = (
        "The candidates on validation questions: success at the paper's decoding after training, in percent, finished "
        "of planned runs, and the learning rate. All tasks: every question alike, once all runs of a candidate are "
        f"there. Brackets: 95 % intervals over runs and questions. {INTERVALS} Toy scale, not the paper's results."
    )
    header = ("Candidate", *(site.title for site in of), "All tasks")
    return f"{told}\n\n{shown(Table('anchors_choice', header, tuple(rows), caption, ()))}"


def _best(records: StudyRecords, best: str) -> str:
    tested = in_test(records)
    others = ", ".join(title_of(label) for label in tested if label != best)
    more = f" The plan tests {others}, which the choice did not choose." if others else ""
    told = f"The best over all tasks is **{title_of(best)}** (`{best}`)"
    if best == CONTROL:
        return f"{told}: there is nothing to test.{more}"
    return f"{told}, which the plan {'tests' if best in tested else 'does not test yet'}.{more}"


def _cell(site: Site, label: str) -> str:
    if (group := site.group(label)) is None:
        return site.absence(label)
    planned = len(site.records.places(site.task, label))
    return f"{percent(site.success(label))}, {len(group.runs)} of {planned} runs, {learning_rate(group.first):g}"


def _over_all(records: StudyRecords, label: str) -> Interval | None:
    """Success over the questions of all tasks; None while a run is left. The runs of a seed on the tasks count as one,
    on a task's first warm start or on its second."""
    tables = []
    for site in sites([records]):
        evaluation, places = site.evaluation(label), records.places(site.task, label)
        if evaluation is None or len(evaluation.success) < len(places):
            return None
        order = list(dict.fromkeys(place.experiment for place in places))
        runs = [(order.index(experiment), seed) for experiment, seed in evaluation.success.index]
        tables.append(evaluation.success.set_axis(pd.Index(runs)))
    return measures.success(HeldOut(pd.concat(tables, axis="columns"), 0, 0))


def at_equal_seconds(site: Site, first: str, second: str) -> Finding | None:
    """The first less the second, which says that the first is above where it also took fewer seconds, and that it is
    below where it took more."""
    found, saved = site.finding(first, second), site.finding(first, second, "seconds")
    if found is None or saved is None:
        return None
    return found if found.outcome == saved.outcome else replace(found, outcome=UNDECIDED)


AT: dict[str, tuple[str, Callable[[Site, str, str], Finding | None]]] = {
    "rollouts": ("", Site.finding),
    "generated tokens": ("_tokens", Site.finding),
    "seconds": ("_seconds", at_equal_seconds),
}
"""by what is equal, what the label of a candidate's runs ends with in the plan, and how they are compared"""


def gains(records: StudyRecords) -> str:
    """What each candidate that the plan tests does at equal rollouts, tokens and seconds."""
    if not (labels := in_test(records)):
        return "The plan tests no candidate yet.\n"
    told = "".join(f"- {sentence}\n" for label in labels for sentence in _sentences(records, label))
    rows = [
        (title_of(label), at, *_gain(site, f"{label}{end}", find))
        for label in labels
        for at, (end, find) in AT.items()
        for site in sites([records])
    ]
    header = (
        *("Candidate", "Equal", "Task", "Exact GRPO", "Candidate's", "Difference", "Tokens saved, %"),
        *("Seconds saved, %", "Verdict"),
    )
    caption = (
        "Success on held-out questions at the paper's decoding after training, in percent, and the candidate's less "
        "that of exact GRPO in points, paired by warm start, seed and question. Saved: of exact GRPO's generated "
        "tokens and training seconds, by pair of runs; less than 0 where the candidate took more. Brackets: 95 % "
        f"intervals over runs and questions, of what is saved over runs alone. {INTERVALS} Toy scale, not the paper's "
        "results."
    )
    return f"{told}\n{shown(Table('anchors_tested', header, tuple(rows), caption, (), labels=3))}"


def _sentences(records: StudyRecords, label: str) -> Iterator[str]:
    of = sites([records])
    for at, (end, find) in AT.items():
        found = [find(site, f"{label}{end}", CONTROL) for site in of]
        won = sum(one is not None and one.outcome == SUPPORTED for one in found)
        yield (
            f"{title_of(label)}, above exact GRPO at equal {at}: **{over_tasks(of, f'{label}{end}', CONTROL, find)}**; "
            f"on {won} of {len(of)} tasks; the criterion is {LEAST_TASKS}."
        )


def _gain(site: Site, label: str, find: Callable[[Site, str, str], Finding | None]) -> tuple[str, ...]:
    found = find(site, label, CONTROL)
    successes = (percent(site.success(one)) if site.group(one) else site.absence(one) for one in (CONTROL, label))
    saved = (
        site.absence(label, CONTROL) if one is None else percent(one.difference, sign=True)
        for one in (site.finding(label, CONTROL, measure) for measure in ("tokens", "seconds"))
    )
    verdict = site.absence(label, CONTROL) if found is None else said(found.outcome, [found.pairs])
    return (site.title, *successes, site.compared(label, CONTROL), *saved, verdict)
