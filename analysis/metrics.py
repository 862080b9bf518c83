"""What tables and figures show of runs, as functions of frames (analysis/load.py).

A configuration is the `Frames` of its runs. A number of each run is a series by run. Runs are paired by their place:
the experiment, which is a warm start, and the seed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.load import Frames
from analysis.run_folder import WHEN
from analysis.stats import Interval, interval
from rtpo.errors import DataError

RECORDED = "algorithm/"
"""before the name of a number that an algorithm recorded (`harness.log`)"""
SECONDS = "seconds_"
"""before the name of a phase"""
PROGRESS = ("rollouts", "generated_tokens", "seconds")
"""what a run had used by the end of a step; seconds without evaluation"""
PLACE = ["experiment", "seed"]


@dataclass(frozen=True, eq=False)
class HeldOut:
    """An evaluation of a configuration. success: [(experiment, seed), question], the share of a question's graded
    samples with reward 1; NaN where none was graded. samples: of each question."""

    success: pd.DataFrame
    samples: int


@lru_cache(maxsize=2048)
def held_out(group: Frames, when: str, mode: str) -> HeldOut | None:
    """A configuration's own evaluation `when` and by `mode`; None where none of its runs has it. Raises DataError
    unless its runs have the same questions and as many samples of each."""
    levels = group.questions.index
    table = group.questions[(levels.get_level_values("when") == when) & (levels.get_level_values("mode") == mode)]
    if not len(table):
        return None
    table = table.droplevel(["when", "mode", "step"])
    success = table["success"].unstack(["split", "question"]).sort_index(axis=1)
    sizes, counts = table["samples"].unique(), table.groupby("run").size()
    if len(sizes) != 1 or len(counts) != len(group.runs) or (counts != success.shape[1]).any():
        raise DataError(
            f"The runs of {group.label!r} ({', '.join(group.names)}) differ in the questions or samples of their "
            f"{mode} evaluation {when!r}: evaluate them alike."
        )
    return HeldOut(success.loc[group.names].set_axis(_places(group)), int(sizes[0]))


@lru_cache(maxsize=2048)
def _places(group: Frames) -> pd.MultiIndex:
    return pd.MultiIndex.from_frame(group.runs[PLACE])


def success(evaluation: HeldOut) -> Interval | None:
    """Mean success over the questions graded in all runs, with the interval for the runs' warm starts; None without
    any. `low` and `high` are NaN where all questions have the same share between 0 and 1."""
    table = evaluation.success.dropna(axis="columns")
    return interval(table.to_numpy(), strata=_warm_starts(table), share=True) if table.size else None


def by_warm_start(evaluation: HeldOut) -> "pd.Series[float]":
    """The mean of `success` by experiment."""
    table = evaluation.success.dropna(axis="columns")
    return table.mean(axis="columns").groupby("experiment", sort=False).mean()


def differences(first: HeldOut, second: HeldOut) -> pd.DataFrame:
    """second - first, [(experiment, seed), question], of the runs that both have and the questions graded in all of
    them. Raises DataError unless both have the same questions."""
    if not first.success.columns.equals(second.success.columns):
        places = sorted({*first.success.index, *second.success.index})
        raise DataError(f"The evaluations to compare of {places} have different questions: run again.")
    before = first.success
    if not before.index.equals(second.success.index):
        before = before.reindex(second.success.index)
    return (second.success - before).dropna(how="all").dropna(axis="columns")


def difference(first: HeldOut, second: HeldOut) -> Interval | None:
    """The mean of `differences` with its interval; None without any. `low` and `high` are NaN where all are equal."""
    table = differences(first, second)
    return interval(table.to_numpy(), strata=_warm_starts(table)) if table.size else None


@lru_cache(maxsize=2048)
def paired(first: Frames, second: Frames) -> tuple[Frames, Frames]:
    """The runs of both that have a partner of the same experiment and seed, in one order; both empty where none has.
    Raises DataError for partners that started from different weights."""
    runs, others = (
        dict(zip(_places(group), zip(group.names, group.runs["model_sha256"], strict=True), strict=True))
        for group in (first, second)
    )
    pairs = [(*run, *others[place]) for place, run in runs.items() if place in others]
    for run, weights, other, other_weights in pairs:
        if weights != other_weights:
            raise DataError(f"{run} and {other} started from different weights: an experiment has one warm start.")
    return first.of(run for run, *_ in pairs), second.of(other for _, _, other, _ in pairs)


def run_interval(group: Frames, values: npt.ArrayLike) -> Interval | None:
    """The mean of a number a run, in the order of the group's runs; None where all are NaN. The interval is over runs
    alone, those of a warm start compared with each other; none where no warm start has two runs."""
    numbers = pd.Series(np.asarray(values, dtype=np.float64), _places(group)).dropna()
    return interval(numbers.to_numpy()[:, None], strata=_warm_starts(numbers.to_frame())) if len(numbers) else None


def _warm_starts(table: pd.DataFrame) -> list[str]:
    return list(table.index.get_level_values("experiment"))


# training


def training_curve(frames: Frames) -> pd.DataFrame:
    """A row a step, [run, step]: tasks, rollouts, success, mean_reward, kl, kl_context, kl_engine, ratio, entropy,
    ties, residual, rollout_tokens, turn_tokens, seconds_<phase> of the step, algorithm/<name>; NaN where a step has no
    value.

    `rollouts` are those charged before the step, with which its first weights were trained: 0 for the first step. A
    step with several updates weighs their KL and entropy by trained tokens and their ties by rows. The ratio is
    exp(-kl), the geometric mean over the same tokens. `residual` is the mean over updates that have one. Tokens are
    those sampled for a path and for a turn.
    """
    return frames.derived(_training_curves)


def _training_curves(frames: Frames) -> pd.DataFrame:
    steps = frames.steps.drop_duplicates(["run", "step"]).set_index(["run", "step"])
    trained = frames.steps[frames.steps["rows"] > 0] if "rows" in frames.steps else frames.steps.iloc[:0]
    by_run = steps.groupby("run", sort=False)
    curve = pd.DataFrame(
        {
            "tasks": steps["tasks"],
            "rollouts": by_run["rollouts"].shift(fill_value=0).astype(float),
            **{key: steps[key].astype(float) for key in ("success", "mean_reward")},
            **{key: _weighted(trained, key, "trained_tokens") for key in ("kl", "kl_context", "kl_engine", "entropy")},
            "ties": _weighted(trained, "ties", "rows"),
            "residual": trained["residual"].astype(float).groupby([trained["run"], trained["step"]]).mean(),
            "rollout_tokens": steps["sampled_tokens"] / steps["sampled_rollouts"],
            "turn_tokens": steps["sampled_tokens"] / steps["sampled_turns"],
        },
        index=steps.index,
    )
    for column in map(str, steps.columns):
        if column.startswith(SECONDS):
            totals = steps[column].fillna(0.0).groupby("run", sort=False)
            curve[column] = totals.diff().fillna(totals.transform("first")).where(totals.cumcount() > 0, steps[column])
        elif column.startswith(RECORDED):
            curve[column] = steps[column].astype(float)
    curve["ratio"] = np.exp(-curve["kl"])
    return curve


def _weighted(updates: pd.DataFrame, key: str, weight: str) -> "pd.Series[float]":
    """The weighted mean over the updates of a step; NaN where one has no value."""
    values, weights = updates[key].astype(float), updates[weight].astype(float)
    keys = [updates["run"], updates["step"]]
    mean = (values * weights).groupby(keys).sum() / weights.groupby(keys).sum()
    return mean.where(values.isna().groupby(keys).sum() == 0)


def recorded(frames: Frames) -> list[str]:
    """The columns of `training_curve` that an algorithm of any of these runs recorded."""
    columns = [column for column in map(str, frames.steps.columns) if column.startswith(RECORDED)]
    return sorted(column for column in columns if frames.steps[column].notna().any())


def mean_over_steps(group: Frames, key: str) -> "pd.Series[float]":
    """The mean of a column of `training_curve` over all steps that have a value, by run."""
    return training_curve(group).reindex(columns=[key])[key].groupby("run").mean().reindex(group.names)


def context_ratio(group: Frames) -> "pd.Series[float]":
    """exp(-KL) of the part of the KL that the training context makes, the KL averaged over steps, by run."""
    return mean_over_steps(group, "kl_context").map(lambda kl: float(np.exp(-kl)))


def last_entropy(group: Frames) -> "pd.Series[float]":
    """Of the last step that trained, nats a token, by run; NaN where none was measured."""
    return training_curve(group)["entropy"].dropna().groupby("run").last().reindex(group.names)


def whole_steps(frames: Frames) -> pd.DataFrame:
    """`training_curve` without steps of fewer tasks than the run's fullest: the last, where the budget was nearly used
    up."""
    curve = training_curve(frames)
    return curve[curve["tasks"] == curve["tasks"].groupby("run").transform("max")]


def spread(table: pd.DataFrame) -> pd.DataFrame:
    """x, and mean, low and high over the columns, which are runs, where all have a value."""
    return _over_columns(table.dropna())


def _over_columns(table: pd.DataFrame) -> pd.DataFrame:
    columns = {"mean": table.mean(axis=1), "low": table.min(axis=1), "high": table.max(axis=1)}
    return pd.DataFrame({"x": table.index.to_numpy(float), **{k: v.to_numpy(float) for k, v in columns.items()}})


def curve_over_runs(group: Frames, key: str) -> pd.DataFrame:
    """A column of `training_curve` against rollouts, over whole steps: x, mean, low and high over the runs. One run
    keeps its own points; several are interpolated to common points, where all of them have values."""
    curve = whole_steps(group).reindex(columns=["rollouts", key]).dropna()
    curves = [part for _, part in curve.groupby("run", sort=False)]
    if not curves:
        return pd.DataFrame({"x": [], "mean": [], "low": [], "high": []})
    points = _common_points([part["rollouts"].to_numpy() for part in curves])
    return spread(pd.DataFrame({n: np.interp(points, c["rollouts"], c[key]) for n, c in enumerate(curves)}, points))


def by_turn(group: Frames, key: str = "kl") -> pd.DataFrame:
    """A column of updates by turn, such as kl, kl_context, kl_engine or ties: x, which is the turn k, and mean, low and
    high over the runs. A run's value is the mean over its steps, a step's over its updates that train turn k."""
    columns = {k: f"{key}_{k}" for k in trained_turns(group) if f"{key}_{k}" in group.steps}
    trained = group.steps[group.steps["rows"] > 0]
    by_step = trained.groupby(["run", "step"])[list(columns.values())].mean()
    return _over_columns(by_step.groupby("run").mean().set_axis(list(columns), axis=1).T.dropna(how="all"))


def trained_turns(frames: Frames) -> list[int]:
    """The turns k that any update of any run trained."""
    marks = [column for column in map(str, frames.steps.columns) if column.startswith("is_trained_")]
    return sorted(int(mark.removeprefix("is_trained_")) for mark in marks if frames.steps[mark].eq(True).any())


# success over training


@lru_cache(maxsize=2048)
def held_out_curve(group: Frames, mode: str = "sampled") -> pd.DataFrame:
    """Held-out success by a mode against PROGRESS: mean, low and high, a 95 % interval over the runs of each warm start
    and questions.

    Each run's success on each question, and what it had used, are interpolated between its evaluations to common
    rollouts: as many points as the run with the fewest evaluations has, from 0 to where the first run ends. Tokens and
    seconds are means over runs. No rows where a run has no evaluation. Raises DataError unless all evaluations have the
    same questions.
    """
    columns = pd.Index([*PROGRESS, "mean", "low", "high"])
    curves = [_evaluations(group.of([name]), mode) for name in group.names]
    if not curves or not min(len(used) for used, _ in curves):
        return pd.DataFrame(columns=columns, dtype=float)
    if any(not table.columns.equals(curves[0][1].columns) for _, table in curves):
        raise DataError(f"The runs of {group.label!r} differ in the questions of their evaluations: evaluate alike.")
    points = _common_points([used["rollouts"].to_numpy() for used, _ in curves])
    costs = np.mean([_at(points, used, used) for used, _ in curves], axis=0)
    tables = np.stack([_at(points, used, table) for used, table in curves])
    graded = ~np.isnan(tables).any(axis=(0, 1))
    rows = []
    for place, cost in enumerate(costs):
        found = interval(tables[:, place, graded], strata=list(group.runs["experiment"]), share=True)
        rows.append([*cost, found.mean, found.low, found.high])
    return pd.DataFrame(rows, columns=columns)


def _evaluations(run: Frames, mode: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What a run had used at each of its evaluations, [step, PROGRESS], and its success there, [step, questions]."""
    table = run.questions[run.questions.index.get_level_values("mode") == mode]["success"]
    order = pd.Categorical(table.index.get_level_values("when"), WHEN, ordered=True)
    # the evaluation after training comes last and takes the place of another at the same step
    success = table.droplevel(["run", "when", "mode"]).to_frame().assign(when=order).sort_values("when", kind="stable")
    success = success[~success.index.duplicated(keep="last")]["success"].unstack(["split", "question"])
    steps = run.steps.drop_duplicates("step").set_index("step")
    used = pd.DataFrame({key: steps[key] for key in PROGRESS[:2]})
    used["seconds"] = steps["wall_seconds"] - steps["seconds_evaluate"] if len(steps) else 0.0
    used.loc[0] = 0.0
    return used.loc[success.index].astype(float), success.sort_index(axis=1)


def _at(points: npt.NDArray[np.float64], used: pd.DataFrame, values: pd.DataFrame) -> npt.NDArray[np.float64]:
    """`values`, [evaluations, columns], at common rollouts."""
    weights = np.stack([np.interp(points, used["rollouts"], row) for row in np.eye(len(used))], axis=1)
    return np.asarray(weights @ values.to_numpy())


def _common_points(rollouts: Sequence[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    """Those of a single run; of several as many as the shortest has, evenly over what all cover."""
    if len(rollouts) == 1:
        return rollouts[0]
    start, end = max(points[0] for points in rollouts), min(points[-1] for points in rollouts)
    return np.linspace(min(start, end), end, min(len(points) for points in rollouts))


# several samples of a question, of which n were graded and c are right: the mean over all ways to take k of the n


def pass_at_k(n: int, c: int, k: int) -> float:
    """That one of k is right (Chen et al. 2021, unbiased)."""
    return 1 - pass_hat_k(n, n - c, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """That all of k are right (tau-bench, unbiased)."""
    return comb(c, k) / comb(n, k)
