"""The measurements in tables and figures, as functions of frames (analysis/load.py).

A configuration is the `Frames` of its runs. A number per run is a series indexed by run. Runs with the same experiment
and seed are paired; the runs of an experiment have one warm start.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import comb, nan
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.load import Frames
from analysis.stats import Interval, interval, wilson
from rtpo.errors import DataError

LOGGED = "algorithm/"
"""prefix of columns that an algorithm logged (`harness.log`)"""
SECONDS = "seconds_"
"""prefix of the seconds of a phase"""
COSTS = ("rollouts", "generated_tokens", "seconds")
"""cumulative cost at the end of a step; seconds exclude evaluation"""
PAIRING = ["experiment", "seed"]
"""columns in which paired runs agree"""


@lru_cache(maxsize=2048)
def held_out(group: Frames, when: str, mode: str) -> pd.DataFrame | None:
    """The success rate of each question in the runs' own evaluation, [(experiment, seed), question]: graded samples
    with reward 1 over graded samples. NaN where no sample was graded; None where no run has this evaluation. Raises
    DataError unless all runs have the same questions and numbers of samples."""
    levels = group.questions.index
    table = group.questions[(levels.get_level_values("when") == when) & (levels.get_level_values("mode") == mode)]
    if not len(table):
        return None
    # the rows of a run stand together, its questions in order
    questions, count = table.droplevel(["run", "when", "mode", "step"]).index, len(table) // len(group.names)
    alike = [
        questions[start : start + count].equals(questions[:count]) for start in range(0, len(table), max(1, count))
    ]
    if len(alike) != len(group.names) or not all(alike) or table["samples"].nunique() != 1:
        raise DataError(
            f"The runs of {group.label!r} ({', '.join(group.names)}) differ in the questions or samples of their "
            f"{mode} evaluation {when!r}: evaluate them alike."
        )
    return pd.DataFrame(table["success"].to_numpy().reshape(-1, count), _places(group), questions[:count])


@lru_cache(maxsize=2048)
def _places(group: Frames) -> pd.MultiIndex:
    return pd.MultiIndex.from_frame(group.runs[PAIRING])


def success(evaluation: pd.DataFrame) -> Interval | None:
    """Mean success over the questions graded in all runs, with `stats.interval`; strata are warm starts. None without
    such a question; `low` and `high` are NaN without an interval."""
    return _mean(evaluation, share=True)


def difference(first: pd.DataFrame, second: pd.DataFrame) -> Interval | None:
    """The mean of second - first, with its interval, over common runs and over the questions graded in all of them.
    None without any; `low` and `high` are NaN without an interval. Raises DataError unless both have the
    same questions."""
    if not first.columns.equals(second.columns):
        places = sorted({*first.index, *second.index})
        raise DataError(f"The compared evaluations of {places} have different questions: run them again.")
    return _mean((second - first.reindex(second.index)).dropna(how="all"))


def run_interval(group: Frames, values: npt.ArrayLike) -> Interval | None:
    """The mean of one number per run, in the order of the group's runs; None where all are NaN. The interval is over
    the runs within each warm start, and absent where no warm start has two runs."""
    return _mean(pd.DataFrame(np.asarray(values, float), _places(group)).dropna())


def _mean(table: pd.DataFrame, share: bool = False) -> Interval | None:
    table = table.dropna(axis="columns")
    strata = list(table.index.get_level_values("experiment"))
    return interval(table.to_numpy(), strata=strata, share=share) if table.size else None


@lru_cache(maxsize=2048)
def paired(first: Frames, second: Frames) -> tuple[Frames, Frames]:
    """The runs of both groups that share an experiment and seed, in the same order; empty without such pairs. Raises
    DataError for a pair that started from different weights."""
    runs, others = (group.runs[["run", "model_sha256", *PAIRING]] for group in (first, second))
    pairs = runs.merge(others, on=PAIRING, suffixes=("", "_other"))
    unlike = pairs[pairs["model_sha256"] != pairs["model_sha256_other"]]
    if len(unlike):
        run, other = unlike.iloc[0][["run", "run_other"]]
        raise DataError(f"{run} and {other} started from different weights: an experiment has one warm start.")
    return first.select(pairs["run"]), second.select(pairs["run_other"])


# training


def training_curve(frames: Frames) -> pd.DataFrame:
    """One row per step, [run, step]: tasks, COSTS, success, mean_reward, kl, kl_context, kl_engine, ratio, entropy,
    ties, residual, rollout_tokens, turn_tokens, seconds_<phase> of the step, algorithm/<name>; NaN without a value.

    COSTS are those before the step, so the first step has 0. Over the updates of a step, KL and entropy are means
    weighted by trained tokens, ties is weighted by rows, and `residual` is not weighted. The ratio is exp(-kl), a
    geometric mean over the same tokens. rollout_tokens and turn_tokens: sampled tokens per path and turn.
    """
    return frames.derived(_training_curves)


def _training_curves(frames: Frames) -> pd.DataFrame:
    key = ["run", "step"]
    steps = frames.steps.drop_duplicates(key).set_index(key)
    updates = frames.steps[frames.steps["rows"] > 0].set_index(key)

    def weighted(names: list[str], weight: str) -> pd.DataFrame:
        values, weights = updates[names].astype(float), updates[weight].astype(float)
        sums = values.mul(weights, axis="index").groupby(key).sum(skipna=False)
        return sums.div(weights.groupby(key).sum(), axis="index")

    totals = costs_of(steps)
    charged = totals["rollouts"].groupby("run", sort=False).diff().fillna(totals["rollouts"])
    seconds = steps.filter(regex=f"^{SECONDS}").astype(float)
    curve = steps[["tasks"]].assign(
        **totals.groupby("run", sort=False).shift(fill_value=0),
        success=steps["success"],
        mean_reward=steps["mean_reward"],
        residual=updates["residual"].astype(float).groupby(key).mean(),
        rollout_tokens=steps["sampled_tokens"] / charged,
        turn_tokens=steps["sampled_tokens"] / steps["sampled_turns"],
    )
    curve = (
        curve.join(weighted(["kl", "kl_context", "kl_engine", "entropy"], "trained_tokens"))
        .join(weighted(["ties"], "rows"))
        .join(seconds.fillna(0.0).groupby("run", sort=False).diff().fillna(seconds))
        .join(steps.filter(regex=f"^{LOGGED}"))
        .astype(float)
    )
    return curve.assign(ratio=np.exp(-curve["kl"]))


def logged(frames: Frames) -> list[str]:
    """The columns of `training_curve` that the algorithm of any run logged."""
    is_logged = frames.steps.filter(regex=f"^{LOGGED}").notna().any()
    return sorted(is_logged.index[is_logged])


def mean_over_steps(group: Frames, key: str) -> "pd.Series[float]":
    """The mean of a column of `training_curve` over the steps with a value, by run."""
    return training_curve(group).reindex(columns=[key])[key].groupby("run").mean().reindex(group.names)


def context_ratio(group: Frames) -> "pd.Series[float]":
    """exp(-KL) by run, where KL is the context's part averaged over steps."""
    return mean_over_steps(group, "kl_context").map(lambda kl: float(np.exp(-kl)))


def whole_steps(frames: Frames) -> pd.DataFrame:
    """`training_curve` without incomplete steps. The last step has fewer tasks if the budget is nearly exhausted."""
    curve = training_curve(frames)
    return curve[curve["tasks"] == curve["tasks"].groupby("run").transform("max")]


def spread(table: pd.DataFrame, where: Literal["all", "any"] = "all") -> pd.DataFrame:
    """Mean, minimum (`low`) and maximum (`high`) over runs of a table [x, run]. Its index becomes column `x`. where: a
    row needs a value in `all` runs, or in `any` run."""
    table = table.dropna(how="any" if where == "all" else "all")
    columns = {"mean": table.mean(axis=1), "low": table.min(axis=1), "high": table.max(axis=1)}
    return pd.DataFrame({"x": table.index.to_numpy(float), **{k: v.to_numpy(float) for k, v in columns.items()}})


def curve_over_runs(group: Frames, key: str, cost: str = "rollouts") -> pd.DataFrame:
    """A column of `training_curve` against a cost, without incomplete steps: x, mean, low and high over runs. A single
    run keeps its points; several are interpolated to common points within the range of all."""
    curve = whole_steps(group).reindex(columns=[cost, key]).dropna()
    curves = [part for _, part in curve.groupby("run", sort=False)]
    if not curves:
        return pd.DataFrame({"x": [], "mean": [], "low": [], "high": []})
    points = _common_points([part[cost].to_numpy() for part in curves])
    return spread(pd.DataFrame({n: np.interp(points, c[cost], c[key]) for n, c in enumerate(curves)}, points))


def mean_success(steps: pd.DataFrame) -> float:
    """Success in training over all graded first paths of these data steps, each of which counts alike. NaN without."""
    graded = steps[steps["success_rollouts"] > 0]
    return float(np.average(graded["success"], weights=graded["success_rollouts"])) if len(graded) else nan


def training_success(group: Frames) -> pd.DataFrame:
    """`curve_over_runs` of success. For a single run, `low` and `high` are Wilson's interval over the graded first
    paths of each step, if the records count them."""
    curve = curve_over_runs(group, "success")
    if len(group.names) > 1 or "success_rollouts" not in group.steps:
        return curve
    steps = whole_steps(group).dropna(subset=["success"])
    by_step = group.steps.drop_duplicates("step").set_index("step")["success_rollouts"]
    counts = by_step.reindex(steps.index.get_level_values("step")).to_numpy(float)
    means = curve["mean"].to_numpy(float)
    bounds = [wilson(mean, int(n)) if n >= 1 else (mean, mean) for mean, n in zip(means, counts, strict=True)]
    return curve.assign(low=[low for low, _ in bounds], high=[high for _, high in bounds])


def by_turn(group: Frames, key: str = "kl") -> pd.DataFrame:
    """A column of updates (kl, kl_context, kl_engine or ties) by turn: x is the turn k; mean, low and high are over
    runs. A run's value is the mean over its steps, a step's value the mean over its updates of turn k."""
    updates = group.steps.set_index(["run", "step"]).filter(regex=rf"^{key}_\d+$").astype(float)
    by_run = updates.groupby(["run", "step"]).mean().groupby("run").mean()
    turns = by_run.columns.str.removeprefix(f"{key}_").astype(int)
    return spread(by_run.set_axis(turns, axis=1).T.sort_index(), where="any")


# success over training


@lru_cache(maxsize=2048)
def held_out_curve(group: Frames, mode: str = "sampled") -> pd.DataFrame:
    """Held-out success in a mode against COSTS: mean, and low and high of the 95 % interval over runs and questions.

    Runs are evaluated at different numbers of rollouts, so costs and success on each question are interpolated to
    common numbers. Tokens and seconds are means over runs. Empty if a run has no evaluation. Raises DataError unless
    all evaluations have the same questions.
    """
    columns = pd.Index([*COSTS, "mean", "low", "high"])
    curves = [costs_and_success(group.select([name]), mode) for name in group.names]
    if not curves or not min(len(costs) for costs, _ in curves):
        return pd.DataFrame(columns=columns, dtype=float)
    if any(not table.columns.equals(curves[0][1].columns) for _, table in curves):
        raise DataError(f"The runs of {group.label!r} were evaluated on different questions: use the same questions.")
    points = _common_points([costs["rollouts"].to_numpy() for costs, _ in curves])
    mean_costs = np.mean([_at(points, costs, costs) for costs, _ in curves], axis=0)
    tables = np.stack([_at(points, costs, table) for costs, table in curves])
    graded = ~np.isnan(tables).any(axis=(0, 1))
    rows = []
    for place, cost in enumerate(mean_costs):
        share = interval(tables[:, place, graded], strata=list(group.runs["experiment"]), share=True)
        rows.append([*cost, share.mean, share.low, share.high])
    return pd.DataFrame(rows, columns=columns)


def costs_and_success(run: Frames, mode: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """At each evaluation of a run: its cumulative cost, [step, COSTS], and its success, [step, questions]."""
    table = run.questions["success"]
    table = table[table.index.get_level_values("mode") == mode].droplevel(["run", "mode"])
    # "after" sorts before "during", so the evaluation after training replaces one during training at the same step
    success = table.unstack(["split", "question"]).sort_index(axis=1).droplevel("when")
    success = success[~success.index.duplicated()].sort_index()
    steps = run.steps.drop_duplicates("step").set_index("step")
    costs = costs_of(steps)
    costs.loc[0] = 0.0
    return costs.loc[success.index].astype(float), success


def costs_of(steps: pd.DataFrame) -> pd.DataFrame:
    """COSTS at the end of each of these steps, [steps, COSTS]."""
    seconds = steps["wall_seconds"] - steps["seconds_evaluate"] if len(steps) else 0.0
    return steps[["rollouts", "generated_tokens"]].assign(seconds=seconds)


def _at(points: npt.NDArray[np.float64], costs: pd.DataFrame, values: pd.DataFrame) -> npt.NDArray[np.float64]:
    """`values`, [evaluations, columns], interpolated to the numbers of rollouts `points`."""
    weights = np.stack([np.interp(points, costs["rollouts"], row) for row in np.eye(len(costs))], axis=1)
    return np.asarray(weights @ values.to_numpy())


def _common_points(rollouts: Sequence[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    """The points of a single run. For several runs: evenly spaced points in their common range, as many as the run with
    the fewest has."""
    if len(rollouts) == 1:
        return rollouts[0]
    start, end = max(points[0] for points in rollouts), min(points[-1] for points in rollouts)
    return np.linspace(min(start, end), end, min(len(points) for points in rollouts))


# estimates for a question with n graded samples, c of them right: means over all subsets of k samples


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that at least one of k samples is right (Chen et al. 2021, unbiased)."""
    return 1 - pass_hat_k(n, n - c, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """The chance that all of k samples are right (tau-bench, unbiased)."""
    return comb(c, k) / comb(n, k)
