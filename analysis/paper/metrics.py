"""What the paper's tables count (metrics.yaml), each a ratio of sums over episodes.

`episodes` are frames with a row an episode: `seed`, `unit` (a question or a prompt of a step), `success` (NaN where it
could not be graded: left out of everything, and counted), and the columns that metrics name.
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
from rtpo.run.reading import SAFE_LOADER

SAMPLES = 4
"""k of P@k and Pass^k"""
AUDIT = ("programs", "valid_programs", "repeated")
"""columns of an audit of calls, which an episode without a call lacks"""
QA = ("f1", "span_f1", "output_hit")
COLUMNS = ("turns", "ended", "cut", "tokens", "attempted", "executed", "ok", "writes")
RENAMED = {"is_ended": "ended", "is_cut": "cut", "generated_tokens": "tokens", "question": "unit"}


@dataclass(frozen=True)
class Metric:
    """`above` over `below`; metrics.yaml says what kinds there are."""

    unit: str
    kind: Literal["mean", "count", "ratio", "sum", "pass@k", "pass^k"]
    above: str
    below: str = "1"
    is_certain: bool = False

    @property
    def scale(self) -> float:
        return 100.0 if self.unit == "points" else 1.0


METRICS: Mapping[str, Metric] = {
    name: Metric(**entry)
    for name, entry in yaml.load(Path(__file__).with_name("metrics.yaml").read_bytes(), SAFE_LOADER).items()
}
RUN_METRICS = {"training_tokens": "tokens", "hours": "hours", "gpu_hours": "gpu_hours", "zero_advantage": "points"}
"""of runs (`records.run_estimate`), with their units"""
UNITS = {name: metric.unit for name, metric in METRICS.items()} | RUN_METRICS


def episodes(answers: pd.DataFrame) -> pd.DataFrame:
    """Episodes as metrics read them, of rows with the columns of `analysis.load`'s answers; a prompt of a step of
    training is a unit of its own."""
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
    """A metric of the episodes of several seeds. `units` names what is random beside seeds, which evaluations of one
    panel share. Raises DataError where calls were not audited and the metric is of their audit."""
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
    """A metric of one run's episodes, shares as shares; NaN where there is none."""
    if frame["success"].isna().all():
        return float("nan")
    return estimate(name, frame.assign(seed=0), "").value / METRICS[name].scale


def _sums(metric: Metric, graded: pd.DataFrame) -> "tuple[pd.Series[float], pd.Series[float]]":
    """What each seed and unit has above and below the line."""
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
