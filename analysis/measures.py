"""What tables and figures show, computed from runs."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.intervals import Interval, bootstrap_difference, bootstrap_mean, wilson
from analysis.records import Run, RunGroup
from rtpo.errors import DataError


@dataclass(frozen=True, eq=False)
class HeldOut:
    """One evaluation of a configuration.

    success: [runs, questions] share of a question's graded samples with reward 1; NaN where none was graded.
    samples: of each question. ungraded: samples without a grade, in all runs together.
    """

    success: pd.DataFrame
    samples: int
    ungraded: int


def held_out(group: RunGroup, when: str, mode: str) -> HeldOut | None:
    """The evaluation `when` and `mode` of a configuration; None where none of its runs has it.

    Raises DataError unless its runs have the same questions and as many samples of each.
    """
    lines = [_lines(run.evaluations, when, mode) for run in group.runs]
    if all(part.empty for part in lines):
        return None
    counts = [part.groupby(["split", "task"]).size() for part in lines]
    sizes = {int(size) for count in counts for size in count}
    if any(not count.index.equals(counts[0].index) for count in counts) or len(sizes) != 1:
        raise DataError(
            f"The runs of {group.label!r} ({', '.join(str(run.folder) for run in group.runs)}) differ in the questions "
            f"or samples of their {mode} evaluation {when!r}: evaluate them alike."
        )
    success = pd.DataFrame([_by_question(part) for part in lines], index=[run.folder.name for run in group.runs])
    ungraded = sum(int(part["reward"].isna().sum()) for part in lines)
    return HeldOut(success, sizes.pop(), ungraded)


def success(evaluation: HeldOut) -> Interval | None:
    """Mean success over the questions graded in all runs; None without any.

    Where every answer is alike the bootstrap has no width, and the interval is Wilson's over questions. Where all
    questions have the same share between 0 and 1 there is no interval: `low` and `high` are NaN.
    """
    values = evaluation.success.dropna(axis="columns").to_numpy()
    if not values.size:
        return None
    mean = float(values.mean())
    if values.min() == values.max() and mean in (0.0, 1.0):
        return Interval(mean, *wilson(mean, values.shape[1]), *values.shape)
    return _without_interval(values) if _are_equal(values) else bootstrap_mean(values)


def mean_success(evaluation: HeldOut) -> float:
    """The mean of `success` alone; NaN without any."""
    return _mean(evaluation.success.dropna(axis="columns").to_numpy().ravel())


def gain(before: HeldOut, after: HeldOut) -> Interval | None:
    """Mean change in success, paired by run and question, over the questions graded in both evaluations.

    Where all differences are equal the bootstrap has no width and there is no interval: `low` and `high` are NaN.
    """
    if not before.success.columns.equals(after.success.columns):
        raise DataError(
            f"The evaluations before and after training of {', '.join(before.success.index)} have different questions: "
            "run again."
        )
    graded = before.success.notna().all() & after.success.notna().all()
    if not graded.any():
        return None
    first, second = (evaluation.success.loc[:, graded].to_numpy() for evaluation in (before, after))
    if _are_equal(second - first):
        return _without_interval(second - first)
    return bootstrap_difference(first, second)


def training_curve(run: Run) -> pd.DataFrame:
    """One row a step: rollouts, success, kl_k1, ratio_gm and zero_advantage; NaN where a step has no value.

    `rollouts` are those charged before the step, with which its first weights were trained: 0 for the first step.
    A step with several updates weighs their KL by trained tokens and their zero-advantage rates by rows. The ratio is
    exp(-kl_k1), the geometric mean over the same tokens.
    """
    updates = [[update for update in step["updates"] if update["rows"]] for step in run.steps]
    kl = [_weighted((u["mismatch/kl_k1"], u["trained_tokens"]) for u in step) for step in updates]
    return pd.DataFrame(
        {
            "rollouts": [0.0, *(float(step["rollouts"]) for step in run.steps)][: len(run.steps)],
            "success": [float("nan") if step["success"] is None else float(step["success"]) for step in run.steps],
            "kl_k1": kl,
            "ratio_gm": np.exp(-np.array(kl)),
            "zero_advantage": [_weighted((u["zero_advantage"]["all"], u["rows"]) for u in step) for step in updates],
        }
    )


def mean_over_runs(group: RunGroup, value: Callable[[Run], float]) -> float:
    """The mean of what `value` gives for each run, of those where it is defined."""
    return _mean(value(run) for run in group.runs)


def mean_over_steps(run: Run, key: str) -> float:
    """The mean of a column of `training_curve`."""
    return _mean(training_curve(run)[key])


def training_seconds(run: Run) -> float:
    """Wall-clock seconds without evaluation."""
    return float(run.manifest["wall_seconds"]) - float(run.ledger["seconds"]["evaluate"])


def curve_over_runs(group: RunGroup, key: str) -> pd.DataFrame:
    """A column of `training_curve` against rollouts: mean, low and high over the runs.

    One run keeps its own points. Several are interpolated to common points, where all of them have values.
    """
    curves = [training_curve(run)[["rollouts", key]].dropna() for run in group.runs]
    curves = [curve for curve in curves if len(curve)]
    if not curves:
        return pd.DataFrame({"rollouts": [], "mean": [], "low": [], "high": []})
    points = _common_points([curve["rollouts"].to_numpy() for curve in curves])
    values = np.stack([np.interp(points, curve["rollouts"], curve[key]) for curve in curves])
    return pd.DataFrame(
        {"rollouts": points, "mean": values.mean(axis=0), "low": values.min(axis=0), "high": values.max(axis=0)}
    )


def _common_points(rollouts: Sequence[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    if len(rollouts) == 1:
        return rollouts[0]
    start, end = max(points[0] for points in rollouts), min(points[-1] for points in rollouts)
    return np.linspace(min(start, end), end, min(len(points) for points in rollouts))


def _lines(evaluations: pd.DataFrame, when: str, mode: str) -> pd.DataFrame:
    return evaluations[(evaluations["when"] == when) & (evaluations["mode"] == mode)]


def _by_question(lines: pd.DataFrame) -> pd.Series:
    solved = (lines["reward"] == 1).astype(float).where(lines["reward"].notna())
    return solved.groupby([lines["split"], lines["task"]]).mean()


def _are_equal(values: npt.NDArray[np.float64]) -> bool:
    """Up to float rounding."""
    return bool(np.ptp(values) < 1e-9)


def _without_interval(values: npt.NDArray[np.float64]) -> Interval:
    return Interval(float(values.mean()), float("nan"), float("nan"), *values.shape)


def _weighted(pairs: Iterable[tuple[float, float]]) -> float:
    table = np.array(list(pairs))
    return float(np.average(table[:, 0], weights=table[:, 1])) if table.size else float("nan")


def _mean(values: Iterable[float]) -> float:
    defined = [value for value in values if not np.isnan(value)]
    return float(np.mean(defined)) if defined else float("nan")
