"""Two configurations of a study compared on a task: the measures, and what the pairs of runs say by the one rule."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from analysis import measures
from analysis.claims.rule import order
from analysis.intervals import Interval
from analysis.looks import TASKS
from analysis.measures import HeldOut
from analysis.records import Run, RunGroup
from analysis.study.records import StudyRecords
from analysis.study.tables import DECODINGS, generated_tokens, mean_context_ratio
from analysis.tables import CONTRADICTED, NO_VALUE, NOT_RUN, SUPPORTED, number, percent, said

DECODING = "paper"
"""at which a task's configurations are compared unless said"""
NOT_PLANNED, NOT_EVALUATED = "not planned", "not evaluated"


def _evaluated(group: RunGroup, mode: str) -> HeldOut | None:
    return measures.held_out(group, "after", mode)


def _success(mode: str, first: RunGroup, second: RunGroup) -> Interval | None:
    one, other = _evaluated(second, mode), _evaluated(first, mode)
    return None if one is None or other is None else measures.difference(one, other)


def _ratio(first: RunGroup, second: RunGroup) -> Interval | None:
    return measures.run_difference(
        first, second, lambda one, other: mean_context_ratio(one) - mean_context_ratio(other)
    )


def _ties(first: RunGroup, second: RunGroup) -> Interval | None:
    share = partial(measures.mean_over_steps, key="zero_advantage")
    return measures.run_difference(first, second, lambda one, other: share(other) - share(one))


def _saved(of: Callable[[Run], float], first: RunGroup, second: RunGroup) -> Interval | None:
    return measures.run_difference(first, second, lambda one, other: 1 - of(one) / of(other))


MEASURES: Mapping[str, tuple[str, Callable[[RunGroup, RunGroup], Interval | None]]] = {
    **{mode: (f"{one.success}, points", partial(_success, mode)) for mode, one in DECODINGS.items()},
    "ratio": ("context ratio × 100", _ratio),
    "ties": ("zero-advantage share, points fewer", _ties),
    "seconds": ("training seconds saved, %", partial(_saved, measures.training_seconds)),
    "tokens": ("generated tokens saved, %", partial(_saved, generated_tokens)),
}
"""by key, of success the decoding: what is compared, and the difference of two groups from `paired`, above 0 where the
first does better"""


@dataclass(frozen=True)
class Finding:
    """What a task says of two configurations. `by_warm_start`: the mean difference on each that has pairs. `outcome` is
    NOT_RUN where no pair of runs is finished."""

    difference: Interval | None
    by_warm_start: tuple[float, ...]
    pairs: int
    planned: int
    outcome: str

    @property
    def shown(self) -> str:
        """The difference in points, and on how many pairs."""
        if self.outcome == NOT_RUN:
            return NOT_RUN
        return f"{percent(self.difference, sign=True)}, {self.pairs} of {self.planned} pairs"


def finding(
    records: StudyRecords, task: str, labels: tuple[str, str], measure: str, *, is_common: bool = False
) -> Finding | None:
    """The first of two configurations less the second, in a key of MEASURES, at rates of their own or at the common
    one. None on a task where the study does not plan one of them."""
    places = [records.places(task, label, is_common=is_common) for label in labels]
    if not all(places):
        return None
    planned = len({(p.experiment, p.seed) for p in places[0]} & {(p.experiment, p.seed) for p in places[1]})
    groups = [records.group(task, label, is_common=is_common) for label in labels]
    if groups[0] is None or groups[1] is None:
        return Finding(None, (), 0, planned, NOT_RUN)
    pair = measures.paired(groups[0], groups[1])
    is_evaluated = measure not in DECODINGS or all(_evaluated(group, measure) is not None for group in pair)
    if not pair[0].runs or not is_evaluated:
        return Finding(None, (), 0, planned, NOT_RUN)
    compare = MEASURES[measure][1]
    difference, count = compare(*pair), len(pair[0].runs)
    of_each = [compare(*each) for each in zip(*map(_by_warm_start, pair), strict=True)]
    means = tuple(each.mean for each in of_each if each is not None)
    return Finding(difference, means, count, planned, order(difference, count))


def _by_warm_start(group: RunGroup) -> list[RunGroup]:
    runs: dict[str, list[Run]] = defaultdict(list)
    for run in group.runs:
        runs[str(run.manifest["experiment"])].append(run)
    return [RunGroup(group.label, tuple(part)) for part in runs.values()]


@dataclass(frozen=True, eq=False)
class Site:
    """A task of a study."""

    records: StudyRecords
    task: str

    @property
    def title(self) -> str:
        return TASKS[self.task]

    def evaluation(self, label: str) -> HeldOut | None:
        """Of a configuration's runs at the paper's decoding."""
        group = self.records.group(self.task, label)
        return None if group is None else _evaluated(group, DECODING)

    def group(self, label: str) -> RunGroup | None:
        """The runs of a configuration that were evaluated so."""
        return None if self.evaluation(label) is None else self.records.group(self.task, label)

    def success(self, label: str) -> Interval | None:
        evaluation = self.evaluation(label)
        return None if evaluation is None else measures.success(evaluation)

    def finding(self, first: str, second: str, measure: str = DECODING) -> Finding | None:
        """The first configuration less the second; None where there are no such runs."""
        found = finding(self.records, self.task, (first, second), measure)
        return None if found is None or found.outcome == NOT_RUN else found

    def absence(self, *labels: str) -> str:
        """Why there is no value for which runs of all these are needed."""
        if not all(self.records.places(self.task, label) for label in labels):
            return NOT_PLANNED
        found = [self.records.group(self.task, label) for label in labels]
        return NOT_EVALUATED if None not in found and None in map(self.group, labels) else NOT_RUN

    def compared(self, first: str, second: str, measure: str = DECODING) -> str:
        """The difference in points, or why there is none."""
        found = self.finding(first, second, measure)
        return self.absence(first, second) if found is None else found.shown


def sites(studies: Sequence[StudyRecords]) -> list[Site]:
    return [Site(records, task) for records in studies for task in records.tasks]


def over_tasks(
    of: Sequence[Site], first: str, second: str, find: Callable[[Site, str, str], Finding | None] = Site.finding
) -> str:
    """What the tasks that have runs of both say together, and on how many others of those that plan them there is
    nothing; NOT_PLANNED where none plans both."""
    found, absent = _gathered(of, first, second, find)
    tasks = len(found) + absent.total()
    said_of = verdict(found) if found else ""
    if 1 < len(found) < len(of) and len({one.outcome for one in found.values()}) == 1:
        said_of += f" on {len(found)} tasks"
    rest = [f"{why} on {count} of {tasks} tasks" for why, count in absent.items()]
    return "; ".join(filter(None, [said_of, *rest])) or NOT_PLANNED


def tally(of: Sequence[Site], first: str, second: str) -> str:
    """On how many of the tasks whose study plans both the first ends above the second, and on how many below it, by how
    many points, or where there is nothing; NOT_PLANNED where none plans both."""
    found, absent = _gathered(of, first, second, Site.finding)
    if not found and not absent:
        return NOT_PLANNED
    ends: dict[str, list[float]] = {SUPPORTED: [], CONTRADICTED: []}
    for one in found.values():
        if one.outcome in ends and one.difference is not None:
            ends[one.outcome].append(one.difference.mean)
    above, below = ends.values()
    told = [f"above on {len(above)} of {len(found) + absent.total()} tasks{_sizes(above)}"]
    told += [f"below on {len(below)}{_sizes(below)}"] * bool(below)
    return ", ".join([*told, *(f"{why} on {count}" for why, count in absent.items())])


def _sizes(means: Sequence[float]) -> str:
    each = [number(mean, 1, scale=100, sign=True) for mean in sorted(means, key=abs)]
    return "" if not each else f" ({each[0]})" if len(each) == 1 else f" ({each[0]} to {each[-1]})"


def _gathered(
    of: Sequence[Site], first: str, second: str, find: Callable[[Site, str, str], Finding | None]
) -> tuple[dict[str, Finding], Counter[str]]:
    """By title, what the tasks say whose study plans both; and why how many of these say nothing."""
    found: dict[str, Finding] = {}
    absent: Counter[str] = Counter()
    for site in of:
        if (one := find(site, first, second)) is not None:
            found[site.title.lower().replace(", ", " ")] = one
        elif (why := site.absence(first, second)) != NOT_PLANNED:
            absent[why] += 1
    return found, absent


def verdict(findings: Mapping[str, Finding]) -> str:
    """What the tasks, by title, say together: where they differ it is mixed."""
    if not findings:
        return NO_VALUE
    kinds: dict[str, dict[str, int]] = defaultdict(dict)
    for task, found in findings.items():
        kinds[found.outcome][task] = found.pairs
    if len(kinds) == 1 and (len(findings) > 1 or NOT_RUN in kinds):
        ((kind, pairs),) = kinds.items()
        return said(kind, pairs.values())
    each = ", ".join(said(f"{kind} on {_listed([*pairs])}", pairs.values()) for kind, pairs in kinds.items())
    return f"mixed: {each}" if len(kinds) > 1 and NOT_RUN not in kinds else each


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
