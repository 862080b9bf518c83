"""The metrics of the paper's tables (metrics.yaml). Each is a ratio of sums over episodes.

`episodes` are frames with one row per episode: `seed`, `unit` (a question, or a prompt of a step), `success`, and the
columns that metrics name. An episode that could not be graded has success NaN, and no metric includes it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import yaml

from analysis.metrics import pass_at_k, pass_hat_k
from analysis.paper.estimates import Estimate, ratio
from rtpo.errors import DataError
from rtpo.run.building import build
from rtpo.run.reading import SAFE_LOADER

SAMPLES = 4
"""k of pass@k and pass^k"""
AUDIT = ("programs", "valid_programs", "repeated")
"""columns of the audit of calls; an episode without a call lacks them"""
QA = ("f1", "span_f1", "output_hit")
COLUMNS = ("turns", "ended", "cut", "tokens", "attempted", "executed", "ok", "writes")
RENAMED = {"is_ended": "ended", "is_cut": "cut", "generated_tokens": "tokens", "question": "unit"}


@dataclass(frozen=True)
class Metric:
    """A metric of graded episodes.

    `mean`: the mean over units of each unit's mean. `count`: that mean times the number of units, as if each question
    had been asked once. `ratio`: the sum of `above` over the sum of `below`. `sum`: the sum over a seed's episodes, as
    a mean over seeds. `pass@k` and `pass^k`: with k = SAMPLES.
    """

    unit: str  # a unit of paper.yaml; points are percent
    kind: Literal["mean", "count", "ratio", "sum", "pass@k", "pass^k"]
    above: str  # an expression of columns
    below: str = "1"
    is_certain: bool = False  # known exactly, without an interval

    @property
    def scale(self) -> float:
        return 100.0 if self.unit == "points" else 1.0


METRICS: Mapping[str, Metric] = {
    name: build(Metric, entry, f"metrics.yaml, {name}")
    for name, entry in yaml.load(Path(__file__).with_name("metrics.yaml").read_bytes(), SAFE_LOADER).items()
}
RUN_METRICS = {"training_tokens": "tokens", "hours": "hours", "gpu_hours": "gpu_hours", "zero_advantage": "points"}
"""units of the metrics of whole runs (`records.run_estimate`)"""
UNITS = {name: metric.unit for name, metric in METRICS.items()} | RUN_METRICS


def episodes(answers: pd.DataFrame) -> pd.DataFrame:
    """Rows of `answers` or of training paths, as episodes. A unit is a question; in training, a prompt of a step."""
    frame = answers.rename(columns=RENAMED | {f"qa_{name}": name for name in QA}).reset_index(drop=True)
    if "parent" in frame:
        frame["unit"] = frame["step"].astype(str) + " " + frame["unit"]
    if "audit" in frame:
        audits = [json.loads(text) if isinstance(text, str) else {} for text in frame.pop("audit")]
        frame = frame.join(pd.DataFrame(audits))
    frame["success"] = (frame["reward"] == 1).astype(float).where(frame["reward"].notna())
    numbers = frame.reindex(columns=[*COLUMNS, *QA, *AUDIT]).astype(float)
    return frame.assign(**{str(name): numbers[name] for name in numbers})


def estimate(name: str, episodes: pd.DataFrame, units: str) -> Estimate:
    """A metric over the episodes of several seeds. units: a name for the units; estimates with the same name are paired
    unit by unit. Raises DataError if the metric needs an audit of calls and the records have none."""
    metric, graded = METRICS[name], episodes[episodes["success"].notna()]
    if any(column in metric.above for column in AUDIT):
        lacking = graded.loc[(graded["attempted"] > 0) & graded["programs"].isna(), "unit"]
        if len(lacking):
            unit = lacking.iloc[0]
            raise DataError(f"{unit} was evaluated before evaluations kept an audit of calls: evaluate again.")
        graded = graded.fillna(dict.fromkeys(AUDIT, 0.0))
    seeds, names = sorted(episodes["seed"].unique()), sorted(episodes["unit"].unique())
    above, below = (part.unstack().reindex(index=seeds, columns=names).fillna(0.0) for part in _sums(metric, graded))
    scale = metric.scale * (len(names) if metric.kind in ("count", "sum") else 1)
    return ratio(above, below, units, scale, is_share=metric.unit == "points")


def value_of(name: str, frame: pd.DataFrame) -> float:
    """A metric of one run's episodes, as a fraction where its unit is points; NaN without a graded episode."""
    if frame["success"].isna().all():
        return float("nan")
    return estimate(name, frame.assign(seed=0), "").value / METRICS[name].scale


def _sums(metric: Metric, graded: pd.DataFrame) -> "tuple[pd.Series[float], pd.Series[float]]":
    """Numerator and denominator of each seed and unit."""
    values: list[Any] = [graded.eval(expression, engine="python") for expression in (metric.above, metric.below)]
    above, below = (
        pd.Series(each, graded.index, dtype=float).groupby([graded["seed"], graded["unit"]]) for each in values
    )
    if metric.kind == "ratio":
        return above.sum(), below.sum()
    if metric.kind in ("mean", "count", "sum"):
        sums = above.sum() if metric.kind == "sum" else above.mean()
        return sums, sums.notna().astype(float)
    counts, estimator = above.size(), pass_at_k if metric.kind == "pass@k" else pass_hat_k
    right = above.sum()[counts >= SAMPLES]
    shares = [estimator(int(counts[place]), int(right[place]), SAMPLES) for place in right.index]
    return pd.Series(shares, right.index, dtype=float), pd.Series(1.0, right.index)
