"""Evidence for the paper's claims from whole runs, of the paper's profile or of the toy study."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from analysis import measures
from analysis.claims.evidence import TASKS, Evidence, many
from analysis.claims.rule import OURS, Part, equality, order
from analysis.claims.toy import MEASURES, PAPER, Claim, finding
from analysis.intervals import Interval
from analysis.labels import title_of
from analysis.records import Run, RunGroup, read_lines
from analysis.tables import NOT_RUN, number, percent
from rtpo.harness.diagnostics import EXECUTED

TIES = 0.05
"""slack of a zero-advantage rate"""
LATE = 5
"""the last and the first of so many parts of training are compared"""


# runs, at either scale


def runs_equal(what: str, group: RunGroup | None, value: Callable[[Run], float], closed: float, slack: float) -> Part:
    """That a number of each run is `closed`."""
    claimed = f"{what}, claimed {closed:g} with slack {slack:g}"
    return _of_runs(claimed, group, value, lambda found, runs: equality(found, runs, closed, slack), 3)


def runs_positive(what: str, group: RunGroup | None, value: Callable[[Run], float]) -> Part:
    """That a number of each run is above 0."""
    return _of_runs(what, group, value, order, 4, sign=True)


def _of_runs(
    what: str,
    group: RunGroup | None,
    value: Callable[[Run], float],
    judge: Callable[[Interval | None, int], str],
    digits: int,
    sign: bool = False,
) -> Part:
    if group is None:
        return Part(what, "", NOT_RUN)
    found = measures.run_difference(group, group, lambda run, _: value(run))
    runs = len(group.runs)
    return Part(what, _plain(found, digits, sign, many(runs, "run")), judge(found, runs), count=runs, of="runs")


def pairs_differ(
    what: str,
    groups: tuple[RunGroup | None, RunGroup | None],
    value: Callable[[Run, Run], float],
    judge: Callable[[Interval | None, int], str] = order,
    digits: int = 3,
) -> Part:
    """What a number of each pair of runs of one seed says."""
    if groups[0] is None or groups[1] is None:
        return Part(what, "", NOT_RUN)
    first, second = measures.paired(groups[0], groups[1])
    if not first.runs:
        return Part(what, "", NOT_RUN)
    found = measures.run_difference(first, second, value)
    pairs = len(first.runs)
    return Part(what, _plain(found, digits, True, many(pairs, "pair")), judge(found, pairs), count=pairs)


def _plain(found: Interval | None, digits: int, sign: bool, runs: str) -> str:
    if found is None:
        return f"no value, {runs}"
    mean, low, high = (number(part, digits, sign=sign) for part in (found.mean, found.low, found.high))
    return f"{mean} [{low}, {high}], {runs}" if found.low == found.low else f"{mean} in all, {runs}"


def ratio(run: Run) -> float:
    """Training over rollout probability of a token, in the geometric mean over tokens and steps."""
    return float(np.exp(-measures.mean_over_steps(run, "kl_k1")))


def ratio_gained(run: Run) -> float:
    """The ratio of the last fifth of the steps less that of the first."""
    values = measures.training_curve(run)["ratio_gm"].dropna().to_numpy()
    part = max(1, len(values) // LATE)
    return float(values[-part:].mean() - values[:part].mean()) if len(values) > 1 else float("nan")


def ratio_below(evidence: Evidence, role: str, label: str, what: str) -> Part:
    """RTPO's context ratio above another's at the paper's scale, measured as in the toy study."""
    groups = [evidence.group(role, one) for one in ("rtpo", label)]
    if groups[0] is None or groups[1] is None:
        return Part(what, "", NOT_RUN)
    first, second = measures.paired(groups[0], groups[1])
    if not first.runs:
        return Part(what, "", NOT_RUN)
    found, pairs = MEASURES["ratio"][1](first, second), len(first.runs)
    return Part(what, _plain(found, 3, True, many(pairs, "pair")), order(found, pairs), count=pairs)


def tied_as_expected(groups: tuple[RunGroup | None, RunGroup | None], what: str) -> Part:
    """That the zero-advantage rates of G = 3 and of G = 4 are 1 - 2 E[p(1-p)] and 1 - 3 E[p(1-p)] of one p, in the
    first data step, before which both have the same weights."""

    def beyond(three: Run, four: Run) -> float:
        small, large = (_first_tied(run) for run in (three, four))
        return large - (1 - 1.5 * (1 - small))

    claimed = f"{what}, claimed 0 with slack {TIES:g}"
    return pairs_differ(claimed, groups, beyond, lambda found, pairs: equality(found, pairs, 0.0, TIES))


def _first_tied(run: Run) -> float:
    return float(measures.training_curve(run)["zero_advantage"].iloc[0])


# the toy study


def study_pair(
    first: str, second: str, measure: str = "success", *, ours: bool = False, turned: str = ""
) -> Callable[[Evidence], list[Part]]:
    """The toy study's finding on two configurations, a part a task on which it plans both. `turned`: the claim is that
    the first does worse, in these words."""

    aside = OURS if ours else ""

    def parts(evidence: Evidence) -> list[Part]:
        made = []
        for task, title in TASKS.items():
            found = finding(evidence.study, task, Claim("", PAPER, first, second, measure))
            if found is None:
                continue
            what = turned or f"{title_of(first)} less {title_of(second)}, {MEASURES[measure][0]}"
            what = f"{title}, {what}"
            if found.outcome == NOT_RUN:
                made.append(Part(what, "", NOT_RUN, aside))
                continue
            difference = _negative(found.difference) if turned else found.difference
            each = f"{found.pairs} of {found.planned} planned pairs ({_places(evidence, task, first, second)})"
            if measure == "success" and difference is not None:
                each += f", {difference.questions} questions"
            said = order(difference, found.pairs)
            made.append(Part(what, f"{percent(difference, sign=True)}, {each}", said, aside, found.pairs))
        return made

    return parts


def _places(evidence: Evidence, task: str, *labels: str) -> str:
    planned = [{(one.experiment, one.seed) for one in evidence.study.places(task, label)} for label in labels]
    starts, seeds = ({place[i] for place in planned[0] & planned[1]} for i in (0, 1))
    return f"{many(len(seeds), 'seed')} × {many(len(starts), 'warm start')}"


def _negative(found: Interval | None) -> Interval | None:
    return found and replace(found, mean=-found.mean, low=-found.high, high=-found.low)


def study_group(evidence: Evidence, task: str, label: str) -> RunGroup | None:
    """The finished runs of a configuration of the toy study."""
    return evidence.study.group(task, label)


def calls_each(run: Run) -> float:
    """Calls that a tool ran, a held-out episode after training. Raises DataError for damaged records."""
    lines = read_lines(run.folder / "evaluations.jsonl", run.manifest["files"], ("when", "mode", "tools"))
    chosen = [line for line in lines if (line["when"], line["mode"]) == ("after", "sampled")]
    names = {outcome.value for outcome in EXECUTED}
    ran = [sum(count for name, count in line["tools"].items() if name in names) for line in chosen]
    return float(np.mean(ran)) if ran else float("nan")
