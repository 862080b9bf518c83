"""The map of regimes: what a closed form predicted of each point, and what was measured. Tables of theory.md.

`places` has a row a point of the map and `noise` one a frozen task; their columns are said there. Differences are the
success of RTPO less that of GRPO, with 95 % t intervals over seeds.
"""

from collections.abc import Iterable, Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.stats import Interval, over_seeds
from analysis.tables import Number, cell, number
from analysis.theory.records import Manifest, load, read_frame
from rtpo.errors import DataError
from rtpo.run.config import PROJECT
from rtpo.theory.luck import gradient
from rtpo.theory.mdps import uniform
from rtpo.theory.regimes import HORIZONS, METHODS, SEEDS, Point, exact_noise, noise_ratio

FOLDER = PROJECT / "results" / "map"
COMMAND = "python experiments/map.py run"
KEYS = ("commits", "cpu_seconds", "measurements", "predicted_sha256")
POINT = [field.name for field in fields(Point)]
KIND = ["decisions", "luck", "large"]
Row = tuple[str, str, str]
NEAR = 1.25
"""a ratio that is predicted within this factor is as predicted"""
LARGE = 2
"""data steps of a run of large steps, at most"""


@cache
def records(folder: Path = FOLDER) -> tuple[Manifest, pd.DataFrame, pd.DataFrame]:
    """The manifest, the predictions and the measurements. Raises DataError for damaged records, and for measurements
    that nothing was predicted of."""
    manifest, measured = load(folder, "map", KEYS, COMMAND)
    predicted = read_frame(folder / "predicted.jsonl", manifest["predicted_sha256"])
    trained = measured[measured["kind"] == "trained"]
    both = predicted.merge(trained, "outer", on=POINT, suffixes=("_predicted", ""), indicator=True)
    if not (both["_merge"] == "both").all():
        raise DataError(f"{folder}: predicted.jsonl and map.jsonl have different points: restore both.")
    return manifest, predicted.merge(trained, on=POINT, suffixes=("_predicted", "")), measured


@cache
def places(folder: Path = FOLDER) -> pd.DataFrame:
    """A row a point: its fields, `large` steps or small, `cost`, `gain` and `excess`, the `expected` difference, each
    seed's measured `difference`, its `mean` with `low` and `high`, and `decided`: the sign of an interval without 0."""
    return judged(records(folder)[1])


def judged(frame: pd.DataFrame) -> pd.DataFrame:
    """With what `places` adds to predictions and measurements."""
    differences = [np.subtract(*pair) for pair in zip(frame["rtpo"], frame["grpo"], strict=True)]
    intervals = [over_seeds(values) for values in differences]
    return frame.join(pd.DataFrame(intervals)[["mean", "low", "high"]]).assign(
        large=frame["steps"] <= LARGE,
        expected=frame["rtpo_predicted"] - frame["grpo_predicted"],
        difference=differences,
        decided=[_sign(interval) for interval in intervals],
    )


@cache
def noise(folder: Path = FOLDER) -> pd.DataFrame:
    """A row a turn of a frozen task: its fields, turn k, f_k, formula (2), and for each method the exact noise (1), the
    measured `noise`, `reached` by its 95 % interval, the exact `gradient`, and the measured one of each seed."""
    _, predicted, measured = records(folder)
    shares = predicted.drop_duplicates(["turns", "luck", "decisions", "group_size"])
    frozen = measured[measured["kind"] == "frozen"].merge(shares[["turns", "luck", "decisions", "group_size", "f"]])
    rows = []
    for _, line in frozen.iterrows():
        point = Point(**line[POINT])
        mdp, exact = point.task.mdp(), exact_noise(point)
        row = {**line[POINT], "k": range(point.turns), "f": line["f"], "gradient": gradient(mdp, uniform(mdp))[:, 0]}
        row["simple"] = noise_ratio(np.array(line["f"]), point.group_size, point.chains)
        for method in METHODS:
            values = np.array([seed["noise"] for seed in line[method]])
            found = [over_seeds(turn) for turn in values.T]
            row |= {f"{method}_exact": exact[method], f"{method}_noise": values.mean(0)}
            row[f"{method}_reached"] = [one.low <= x <= one.high for one, x in zip(found, exact[method], strict=True)]
            row[f"{method}_gradients"] = list(np.array([seed["mean"] for seed in line[method]]).T)
        rows.append(pd.DataFrame(row))
    return pd.concat(rows, ignore_index=True)


# tables of docs/results/theory.md


def summary(folder: Path = FOLDER) -> pd.DataFrame:
    """Each prediction, in numbers, beside what was measured."""
    rows = [*_of_noise(noise(folder)), *_of_differences(places(folder)), *_of_tasks(places(folder))]
    return pd.DataFrame(rows, columns=["What", "Predicted", "Measured"])


def _of_noise(frame: pd.DataFrame) -> Iterator[Row]:
    by_exact = np.concatenate([frame[f"{method}_noise"] / frame[f"{method}_exact"] for method in METHODS])
    reached = sum(frame[f"{method}_reached"].sum() for method in METHODS)
    yield "1. Measured noise divided by (1), mean over turns and methods", "1", number(float(by_exact.mean()), 3)
    yield "1. Intervals that contain the value of (1)", f"{len(by_exact)}", f"{reached} of {len(by_exact)}"
    exact = frame["gradient"].to_numpy(np.float64)
    slopes = (exact @ np.array(frame[f"{method}_gradients"].tolist()) / (exact @ exact) for method in METHODS)
    gradients = "; ".join(str(cell(over_seeds(values), 2)) for values in slopes)
    yield f"1. Measured over exact gradient: {_methods()}", "1", gradients
    off = np.exp(np.abs(np.log(frame["rtpo_exact"] / frame["grpo_exact"] / frame["simple"])))
    near, lower, low = off <= NEAR, frame["rtpo_noise"] < frame["grpo_noise"], frame["simple"] < 1
    yield f"2. Turns where (1) and (2) agree within a factor of {NEAR:g}", f"{len(off)}", f"{near.sum()} of {len(off)}"
    yield "2. RTPO's noise is lower: turns with f_k below the boundary", f"{low.sum()}", f"{(lower & low).sum()}"
    yield "2. RTPO's noise is higher: the other turns", f"{(~low).sum()}", f"{(~lower & ~low).sum()}"


def _of_differences(frame: pd.DataFrame) -> Iterator[Row]:
    ahead = frame["expected"] > 0
    chains = frame[ahead & (frame["decisions"] == "chain")]
    yield "3. Points where RTPO ends above GRPO", f"{ahead.sum()} of {len(frame)}", _decided(frame[ahead])
    counts = f"{len(chains)}, {chains['large'].sum()}"
    yield "3. Chains among these points, and those with one or two data steps", counts, _decided(chains)
    first = np.array([_sign(over_seeds(values[:SEEDS])) for values in frame["difference"]])
    for title, decided in ((f"by the first {SEEDS} seeds alone", first), ("by all seeds", frame["decided"])):
        made, agree = (decided != 0).sum(), ((decided != 0) & (decided == np.sign(frame["expected"]))).sum()
        yield f"3. Decided differences with the predicted sign, {title}", f"{made}", f"{agree} of {made}"
    correlation = np.corrcoef(frame["expected"], frame["mean"])[0, 1]
    yield "3. Correlation of predicted and measured difference", "1", number(float(correlation), 2)
    kinds = kinds_of_task(frame)
    reached = kinds["expected"].between(kinds["low"], kinds["high"]).sum()
    yield "3. Kinds of task whose interval contains the prediction", f"{len(kinds)}", f"{reached} of {len(kinds)}"


def _of_tasks(frame: pd.DataFrame) -> Iterator[Row]:
    even, late = frame[frame["decisions"] == "even"], frame[(frame["decisions"] == "late") & (frame["luck"] == "early")]
    yield "4. Even decisions: points with RTPO below", f"{(even['expected'] < 0).sum()} of {len(even)}", _decided(even)
    by_turns = even.groupby("turns")[["expected", "mean"]].mean().loc[list(HORIZONS)]
    horizons = ", ".join(map(str, HORIZONS))
    title = f"4. Even decisions: mean difference at K = {horizons}"
    yield title, _listed(by_turns["expected"]), _listed(by_turns["mean"])
    above = f"{(late['expected'] > 0).sum()} of {len(late)}"
    yield "5. Late decisions, early luck: points with RTPO above", above, _decided(late)
    long = frame[(frame["decisions"] == "chain") & (frame["luck"] == "late") & (frame["turns"] >= 8)]
    predicted = _listed(long[f"{method}_predicted"].mean() for method in METHODS)
    ends = _listed(np.mean([np.mean(x) for x in long[method]]) for method in METHODS)
    yield f"6. Chains of 8 and 16 turns, late luck: success of {_methods()}", predicted, ends


def kinds_of_task(frame: pd.DataFrame) -> pd.DataFrame:
    """By kind of task: the predicted mean difference, the measured one over the seeds that all its points have, and
    how many points are decided above and below 0."""
    rows = []
    for kind, part in frame.groupby(KIND):
        seeds = part["difference"].map(len).min()
        found = over_seeds(np.mean([values[:seeds] for values in part["difference"]], axis=0))
        steps = " or ".join(map(str, sorted(part["steps"].unique())))
        ends = part["expected"].mean(), found.mean, found.low, found.high
        rows.append((*kind[:2], steps, *ends, _decided(part), len(part)))
    return pd.DataFrame(rows, columns=["decisions", "luck", "steps", "expected", "mean", "low", "high", "decided", "n"])


def regimes(folder: Path = FOLDER) -> pd.DataFrame:
    """The mean of each kind of task, in small and in large steps."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for x in kinds_of_task(places(folder)).to_dict("records"):
        expected, measured = number(x["expected"], 2), str(Number(x["mean"], x["low"], x["high"], 2))
        row = rows.setdefault((x["decisions"], x["luck"]), {"Decisions": x["decisions"], "Luck": x["luck"]})
        cells = {"predicted": expected, "measured": measured, "decided": f"{x['decided']} of {x['n']}"}
        row |= {f"{x['steps']} steps: {title}": text for title, text in cells.items()}
    return pd.DataFrame(rows.values())


def runs(folder: Path = FOLDER) -> pd.DataFrame:
    """How the records were made."""
    made = records(folder)[0]
    rows = [("Measurements", number(made["measurements"], 0)), ("Processor seconds", number(made["cpu_seconds"], 0))]
    return pd.DataFrame(rows, columns=["What", "Value"])


def _decided(frame: pd.DataFrame) -> str:
    return f"{(frame['decided'] > 0).sum()} / {(frame['decided'] < 0).sum()}"


def _methods() -> str:
    return ", ".join(method.upper() for method in METHODS)


def _listed(values: Iterable[float]) -> str:
    return ", ".join(number(float(value), 2) for value in values)


def _sign(value: Interval) -> int:
    return int(np.sign(value.mean)) if value.low > 0 or value.high < 0 else 0
