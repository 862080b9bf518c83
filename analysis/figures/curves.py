"""What the paper's figures show of a run over its steps, by turn, and over its first paths."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis import measures
from analysis.evaluation import graded_first_paths, part
from analysis.paper.quantities import RUN_QUANTITIES, ratio, run_cells
from analysis.records import Run, RunGroup

FIFTHS = 5
"""parts of the training that first paths are counted in"""
COLUMNS = ("x", "mean", "low", "high")
Range = tuple[float, float, float]
"""mean, low and high"""


def by_step(group: RunGroup, key: str) -> pd.DataFrame:
    """A column of `measures.training_curve` by data step, from 1: x, mean, low and high over the runs, at the whole
    steps where all runs have a value."""
    return over_runs([_numbered(run)[key] for run in group.runs])


def ties_over_training(group: RunGroup, k: int) -> pd.DataFrame:
    """Share of the groups training turn k whose advantages are all 0, at the whole steps where all runs have one: x,
    the rollouts charged before the step in the mean over the runs; mean, low and high.

    A step's value is over the rows of its updates that train turn k.
    """
    curve = over_runs([_ties(run, k) for run in group.runs])
    rollouts = pd.concat([_numbered(run)["rollouts"] for run in group.runs], axis=1).mean(axis=1)
    return curve.assign(x=rollouts.reindex(curve["x"]).to_numpy(float))


def trained_turns(group: RunGroup) -> list[int]:
    """The turns k that any update of any run trained."""
    return sorted({k for run in group.runs for step in run.steps for u in step["updates"] for k in u["trained_turns"]})


def turn_part_kl(part: str) -> Callable[[Mapping[str, Any], int], float | None]:
    """For `measures.by_turn`: K1 over the tokens of turn k of one `part` of the mismatch, `context` or `engine`."""

    def value(update: Mapping[str, Any], k: int) -> float | None:
        found: float | None = update.get(f"mismatch/turn_{k}/{part}/kl_k1")
        return found

    return value


def ratio_of(kl: pd.DataFrame) -> pd.DataFrame:
    """exp(-KL) of mean, low and high, of which low and high change places."""
    swapped = {"mean": kl["mean"], "low": kl["high"], "high": kl["low"]}
    return kl.assign(**{name: np.exp(-values) for name, values in swapped.items()})


def over_first_paths(group: RunGroup, quantity: str) -> pd.DataFrame:
    """A quantity of each fifth of a run's graded first paths, in the order of training: x, the fifth from 1; mean, low
    and high over the runs. Raises DataError for a run that has none, or whose version kept none."""
    places = range(1, FIFTHS + 1)
    return over_runs(
        pd.Series([ratio(quantity, part(found, place, FIFTHS)) for place in places], places, dtype=float)
        for found in map(graded_first_paths, group.runs)
    )


def over_runs(curves: Iterable[pd.Series]) -> pd.DataFrame:
    """Mean, low and high of several runs' values by x, where all have one."""
    table = pd.concat(list(curves), axis=1).dropna()
    parts_of = (table.index.to_numpy(float), table.mean(axis=1), table.min(axis=1), table.max(axis=1))
    return pd.DataFrame({name: np.asarray(part, float) for name, part in zip(COLUMNS, parts_of, strict=True)})


def spread(group: RunGroup, value: Callable[[Run], float]) -> Range:
    """Mean, least and greatest over the runs of what `value` gives."""
    found = [value(run) for run in group.runs]
    return float(np.mean(found)), min(found), max(found)


def group_size(run: Run) -> int:
    """G of an algorithm that has siblings."""
    return int(run.config["algorithm"]["group_size"])


def zero_advantage(group: RunGroup) -> Range:
    """Share of groups whose advantages are all 0, over all steps of all runs as in the tables, and the least and
    greatest of a run. NaN where nothing was trained."""

    def rate(runs: Sequence[Run]) -> float:
        cells = run_cells(RUN_QUANTITIES["zero_advantage"], runs)
        return float(cells.above.sum() / cells.below.sum()) if cells.below.any() else float("nan")

    found = [rate([run]) for run in group.runs]
    return rate(group.runs), min(found), max(found)


def _numbered(run: Run) -> pd.DataFrame:
    """The whole steps by their numbers."""
    numbers = [int(step["step"]) for step in run.steps]
    return measures.training_curve(run).set_axis(numbers)[measures.whole_steps(run)]


def _ties(run: Run, k: int) -> pd.Series:
    values = {}
    for step in run.steps:
        updates = [update for update in step["updates"] if k in update["trained_turns"]]
        rows = sum(update["rows"] for update in updates)
        tied = sum(update["rows"] * update["zero_advantage"][f"turn_{k}"] for update in updates)
        values[int(step["step"])] = tied / rows if rows else float("nan")
    return pd.Series(values, dtype=float)[measures.whole_steps(run)]
