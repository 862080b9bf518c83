"""What tables and figures show, computed from runs."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.intervals import Interval, interval
from analysis.records import WHEN, Run, RunGroup
from rtpo.errors import DataError

RECORDED = "algorithm/"
"""before the name of a number that an algorithm recorded (`harness.log`), as in tracking"""
SECONDS = "seconds/"
"""before the name of a phase"""
NO_ANSWERS = pd.DataFrame({"samples": [], "graded": [], "success": []})


@dataclass(frozen=True, eq=False)
class HeldOut:
    """One evaluation of a configuration.

    success: [runs, questions] share of a question's graded samples with reward 1; NaN where none was graded. A run goes
    by its experiment and seed.
    samples: of each question. ungraded: samples without a grade, in all runs together.
    """

    success: pd.DataFrame
    samples: int
    ungraded: int


@lru_cache(maxsize=512)
def held_out(group: RunGroup, when: str, mode: str) -> HeldOut | None:
    """The evaluation `when` and `mode` of a configuration; None where none of its runs has it. It is computed once a
    group, and not to be changed.

    Raises DataError unless its runs have the same questions and as many samples of each.
    """
    found = [run.by_question.get((when, mode)) for run in group.runs]
    if all(table is None for table in found):
        return None
    tables = [NO_ANSWERS if table is None else table.droplevel("step") for table in found]
    sizes = {int(size) for table in tables for size in table["samples"].unique()}
    if any(not table.index.equals(tables[0].index) for table in tables) or len(sizes) != 1:
        raise DataError(
            f"The runs of {group.label!r} ({', '.join(str(run.folder) for run in group.runs)}) differ in the questions "
            f"or samples of their {mode} evaluation {when!r}: evaluate them alike."
        )
    values = np.stack([table["success"].to_numpy() for table in tables])
    success = pd.DataFrame(values, pd.Index([_place(run) for run in group.runs]), tables[0].index)
    ungraded = sum(int((table["samples"] - table["graded"]).sum()) for table in tables)
    return HeldOut(success, sizes.pop(), ungraded)


def success(evaluation: HeldOut) -> Interval | None:
    """Mean success over the questions graded in all runs; None without any. The interval is for the runs' warm starts.

    Where all questions have the same share between 0 and 1 there is no interval: `low` and `high` are NaN.
    """
    table = evaluation.success.dropna(axis="columns")
    return interval(table.to_numpy(), strata=_warm_starts(table.index), share=True) if table.size else None


def by_warm_start(evaluation: HeldOut) -> list[float]:
    """The mean of `success` for each experiment, in the order of runs."""
    table = evaluation.success.dropna(axis="columns")
    places = _warm_starts(table.index)
    return [
        _mean(table[[place == experiment for place in places]].to_numpy().ravel())
        for experiment in dict.fromkeys(places)
    ]


def mean_success(evaluation: HeldOut) -> float:
    """The mean of `success` alone; NaN without any."""
    return _mean(evaluation.success.dropna(axis="columns").to_numpy().ravel())


def difference(first: HeldOut, second: HeldOut) -> Interval | None:
    """Mean of second - first over the runs that both have, paired by run and question, over the questions graded in
    both; None without any. A run's partner in another configuration is that of the same experiment and seed.

    Where all differences are equal there is no interval: `low` and `high` are NaN. Raises DataError unless
    both have the same questions.
    """
    if not first.success.columns.equals(second.success.columns):
        runs = ", ".join(str(place) for place in dict.fromkeys([*first.success.index, *second.success.index]))
        raise DataError(f"The evaluations to compare of {runs} have different questions: run again.")
    places = [place for place in first.success.index if place in second.success.index]
    one, other = (evaluation.success.loc[places] for evaluation in (first, second))
    graded = one.notna().all() & other.notna().all()
    if not places or not graded.any():
        return None
    return interval((other - one).loc[:, graded].to_numpy(), strata=_warm_starts(places))


def paired(first: RunGroup, second: RunGroup) -> tuple[RunGroup, RunGroup]:
    """The runs of both that have a partner of the same experiment and seed, in one order; both empty where none has.

    Raises DataError for partners that started from different weights.
    """
    by_place = [
        {(run.folder.parent.name, run.manifest["seed"]): run for run in group.runs} for group in (first, second)
    ]
    places = [place for place in by_place[0] if place in by_place[1]]
    for one, other in ((by_place[0][place], by_place[1][place]) for place in places):
        if one.manifest["model_sha256"] != other.manifest["model_sha256"]:
            raise DataError(
                f"{one.folder} and {other.folder} started from different weights: an experiment has one warm start."
            )
    found = [
        RunGroup(group.label, tuple(runs[place] for place in places))
        for group, runs in zip((first, second), by_place, strict=True)
    ]
    return found[0], found[1]


def run_difference(first: RunGroup, second: RunGroup, value: Callable[[Run, Run], float]) -> Interval | None:
    """The mean over the pairs of two groups from `paired` of what `value` gives for a pair; None without any.

    The interval is over runs alone, those of a warm start compared with each other; where no warm start has two pairs
    there is none.
    """
    values = {_place(one): value(one, other) for one, other in zip(first.runs, second.runs, strict=True)}
    places = [place for place in values if not np.isnan(values[place])]
    if not places:
        return None
    return interval([[values[place]] for place in places], strata=_warm_starts(places))


def median_ratio(first: RunGroup, second: RunGroup, value: Callable[[Run], float]) -> float:
    """The median over the pairs of two groups from `paired` of second over first; NaN without pairs."""
    ratios = [value(other) / value(one) for one, other in zip(first.runs, second.runs, strict=True)]
    return median(ratios) if ratios else float("nan")


@lru_cache(maxsize=512)
def training_curve(run: Run) -> pd.DataFrame:
    """One row a step: rollouts, success, mean_reward, kl_k1, ratio_gm, context_kl_k1, entropy, zero_advantage,
    residual, rollout_tokens, turn_tokens, seconds of its phases by their names after SECONDS, and what the algorithm
    recorded by its names after RECORDED; NaN where a step has no value.

    `rollouts` are those charged before the step, with which its first weights were trained: 0 for the first step.
    A step with several updates weighs their KL and entropy by trained tokens and their zero-advantage rates by rows.
    The ratio is exp(-kl_k1), the geometric mean over the same tokens. `context_kl_k1` is the part of the KL that the
    training context makes. `residual` is the mean over the updates that took an optimizer step. Tokens are those
    sampled for a path and for a turn. It is computed once a run, and not to be changed.
    """
    updates = [_trained(step) for step in run.steps]
    kl = [_weighted((u["mismatch/kl_k1"], u["trained_tokens"]) for u in step) for step in updates]
    context = [_weighted((u["mismatch/context/kl_k1"], u["trained_tokens"]) for u in step) for step in updates]
    return pd.DataFrame(
        {
            "rollouts": [0.0, *(float(step["rollouts"]) for step in run.steps)][: len(run.steps)],
            "success": [_number(step["success"]) for step in run.steps],
            # one number in lines of an earlier version
            "mean_reward": [_number(step.get("mean_reward", step["success"])) for step in run.steps],
            "kl_k1": kl,
            "ratio_gm": np.exp(-np.array(kl)),
            "context_kl_k1": context,
            "entropy": [_weighted((_number(u.get("entropy")), u["trained_tokens"]) for u in step) for step in updates],
            "zero_advantage": [_weighted((u["zero_advantage"]["all"], u["rows"]) for u in step) for step in updates],
            "residual": [_mean(u["residual"] for u in step if u.get("residual") is not None) for step in updates],
            "rollout_tokens": [_tokens_each(step, "rollouts") for step in run.steps],
            "turn_tokens": [_tokens_each(step, "turns") for step in run.steps],
        }
        | _seconds(run)
        | {key: [_recorded(step).get(key, float("nan")) for step in run.steps] for key in recorded([run])}
    )


def recorded(runs: Iterable[Run]) -> list[str]:
    """The columns of `training_curve` that an algorithm of any of these runs recorded."""
    return sorted({key for run in runs for step in run.steps for key in _recorded(step)})


def _tokens_each(step: Mapping[str, Any], what: str) -> float:
    calls = step.get("rollout_calls", ())
    count = sum(call[what] for call in calls)
    return sum(call["generated_tokens"] for call in calls) / count if count else float("nan")


def _seconds(run: Run) -> dict[str, npt.NDArray[np.float64]]:
    """Of each step, by phase."""
    totals = pd.DataFrame([step["seconds"] for step in run.steps]).fillna(0.0)
    return {f"{SECONDS}{phase}": np.diff(totals[phase], prepend=0.0) for phase in totals}


def _recorded(step: Mapping[str, Any]) -> dict[str, float]:
    return {RECORDED + name: float(value) for name, value in step.get("algorithm", {}).items()}


def _column(run: Run, key: str) -> pd.DataFrame:
    """`rollouts` and another column of `training_curve`. A run may have recorded none."""
    curve, columns = training_curve(run), ["rollouts", key]
    return curve.reindex(columns=columns) if key.startswith(RECORDED) else curve[columns]


def whole_steps(run: Run) -> list[bool]:
    """Which steps had as many tasks as the run's fullest. The last has fewer where the budget was nearly used up: a
    mean over a few tasks, which curves over training leave out."""
    tasks = [int(step.get("tasks", 0)) for step in run.steps]
    return [count == max(tasks) for count in tasks]


def mean_over_runs(group: RunGroup, value: Callable[[Run], float]) -> float:
    """The mean of what `value` gives for each run, of those where it is defined."""
    return _mean(value(run) for run in group.runs)


def mean_over_steps(run: Run, key: str) -> float:
    """The mean of a column of `training_curve`, over all steps."""
    return _mean(_column(run, key)[key])


def untied_turns(steps: Iterable[Mapping[str, Any]]) -> list[float]:
    """Of each update that took a step of the optimizer, the turns a step with an advantage that is not 0. A row is a
    turn where contexts are exact."""
    taken = [update for step in steps for update in step["updates"] if update["optimizer_steps"]]
    return [float((update["rows"] - update["tied_rows"]) / update["optimizer_steps"]) for update in taken]


def training_seconds(run: Run) -> float:
    """Wall-clock seconds without evaluation."""
    return float(run.manifest["wall_seconds"]) - float(run.ledger["seconds"]["evaluate"])


def curve_over_runs(group: RunGroup, key: str) -> pd.DataFrame:
    """A column of `training_curve` against rollouts, over whole steps: x, mean, low and high over the runs.

    One run keeps its own points. Several are interpolated to common points, where all of them have values.
    """
    curves = [_column(run, key)[whole_steps(run)].dropna() for run in group.runs]
    curves = [curve for curve in curves if len(curve)]
    if not curves:
        return pd.DataFrame({"x": [], "mean": [], "low": [], "high": []})
    points = _common_points([curve["rollouts"].to_numpy() for curve in curves])
    values = np.stack([np.interp(points, curve["rollouts"], curve[key]) for curve in curves])
    return pd.DataFrame(
        {"x": points, "mean": values.mean(axis=0), "low": values.min(axis=0), "high": values.max(axis=0)}
    )


def by_turn(group: RunGroup, value: Callable[[Mapping[str, Any], int], float | None]) -> pd.DataFrame:
    """What `value` gives for an update and turn k: x, which is k; mean, low and high over the runs.

    A run's value is the mean over its steps, and a step's over its updates that train turn k.
    """
    of_runs = [_turn_means(run, value) for run in group.runs]
    turns = sorted({k for means in of_runs for k in means})
    values = [[means[k] for means in of_runs if k in means] for k in turns]
    return pd.DataFrame(
        {
            "x": turns,
            "mean": [float(np.mean(part)) for part in values],
            "low": [min(part) for part in values],
            "high": [max(part) for part in values],
        }
    )


def turn_kl(update: Mapping[str, Any], k: int) -> float | None:
    """K1 over the tokens of turn k, nats a token; None without any."""
    value: float | None = update.get(f"mismatch/turn_{k}/kl_k1")
    return value


PROGRESS: dict[str, Callable[[Mapping[str, Any]], float]] = {
    "rollouts": lambda step: float(step["rollouts"]),
    "generated_tokens": lambda step: float(step["generated_tokens"]),
    "seconds": lambda step: float(step["wall_seconds"]) - float(step["seconds"]["evaluate"]),
}
"""what a run had used by the end of a step; seconds without evaluation"""


def held_out_curve(group: RunGroup, mode: str = "sampled") -> pd.DataFrame:
    """Held-out success in a mode against the keys of PROGRESS: mean, low and high, a 95 % interval over the runs of
    each warm start and questions.

    Each run's success on each question, and what it had used, are interpolated between its evaluations to common
    rollouts: as many points as the run with the fewest evaluations has, from 0 to where the first run ends. Tokens and
    seconds are means over runs. No rows where a run has no evaluation. Raises DataError unless all
    evaluations have the same questions.
    """
    columns = [*PROGRESS, "mean", "low", "high"]
    curves = [_evaluations(run, mode) for run in group.runs]
    if not curves or not min(len(used) for used, _ in curves):
        return pd.DataFrame({column: [] for column in columns})
    if any(not success.columns.equals(curves[0][1].columns) for _, success in curves):
        raise DataError(
            f"The runs of {group.label!r} differ in the questions of their evaluations: evaluate them alike."
        )
    points = _common_points([used["rollouts"].to_numpy() for used, _ in curves])
    costs = np.mean([_at(points, used, used) for used, _ in curves], axis=0)
    tables = np.stack([_at(points, used, success) for used, success in curves])
    graded = ~np.isnan(tables).any(axis=(0, 1))
    strata = _warm_starts(_place(run) for run in group.runs)
    rows = []
    for place, cost in enumerate(costs):
        found = interval(tables[:, place, graded], strata=strata, share=True)
        rows.append([*cost, found.mean, found.low, found.high])
    return pd.DataFrame(rows, columns=pd.Index(columns))


def _evaluations(run: Run, mode: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What a run had used at each of its evaluations in a mode, [evaluations, keys of PROGRESS], and its success there,
    [evaluations, questions]."""
    # the one after training comes last and takes the place of another at the same step
    found = [table for when in WHEN if (table := run.by_question.get((when, mode))) is not None]
    parts = {int(step): table.loc[step] for table in found for step in table.index.unique("step")}
    steps = sorted(parts)
    used = [[get(run.steps[step - 1]) if step else 0.0 for get in PROGRESS.values()] for step in steps]
    success = pd.DataFrame([parts[step]["success"] for step in steps], index=pd.Index(steps))
    return pd.DataFrame(used, columns=pd.Index(list(PROGRESS))), success


def _at(points: npt.NDArray[np.float64], used: pd.DataFrame, values: pd.DataFrame) -> npt.NDArray[np.float64]:
    """`values`, [evaluations, columns], at common rollouts."""
    weights = np.stack([np.interp(points, used["rollouts"], row) for row in np.eye(len(used))], axis=1)
    return np.asarray(weights @ values.to_numpy())


def _turn_means(run: Run, value: Callable[[Mapping[str, Any], int], float | None]) -> dict[int, float]:
    of_steps: dict[int, list[float]] = defaultdict(list)
    for step in run.steps:
        updates = _trained(step)
        for k in {k for update in updates for k in update["trained_turns"]}:
            mean = _mean(
                float("nan") if (one := value(u, k)) is None else one for u in updates if k in u["trained_turns"]
            )
            of_steps[k].append(mean)
    means = {k: _mean(values) for k, values in of_steps.items()}
    return {k: mean for k, mean in means.items() if not np.isnan(mean)}


def _trained(step: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The updates of a step that had rows."""
    return [update for update in step["updates"] if update["rows"]]


def _common_points(rollouts: Sequence[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    """Those of a single run; of several as many as the shortest has, evenly over what all cover."""
    if len(rollouts) == 1:
        return rollouts[0]
    start, end = max(points[0] for points in rollouts), min(points[-1] for points in rollouts)
    return np.linspace(min(start, end), end, min(len(points) for points in rollouts))


def _place(run: Run) -> tuple[str, int]:
    """Where its partners in other configurations lie too."""
    return str(run.manifest["experiment"]), int(run.manifest["seed"])


def _warm_starts(places: Iterable[tuple[str, int]]) -> list[str]:
    """The warm start, which is an experiment, of each run's place."""
    return [experiment for experiment, _ in places]


def _weighted(pairs: Iterable[tuple[float, float]]) -> float:
    table = np.array(list(pairs))
    return float(np.average(table[:, 0], weights=table[:, 1])) if table.size else float("nan")


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def _mean(values: Iterable[float]) -> float:
    defined = [value for value in values if not np.isnan(value)]
    return float(np.mean(defined)) if defined else float("nan")
