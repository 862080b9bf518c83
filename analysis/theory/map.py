"""The map of regimes: the predictions of the closed form and the measurements, for docs/results/theory.md.

A difference is RTPO's success minus GRPO's, with a 95 % t interval over seeds.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, fields
from functools import cache

import numpy as np
import pandas as pd

from analysis.stats import Interval, over_seeds
from analysis.tables import cell, number
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
Row = tuple[str, str, str]
NEAR = 1.25
"""the largest factor between a ratio and its prediction that counts as agreement"""
LARGE = 2
"""a run with at most so many data steps has large steps"""


@cache
def records() -> tuple[Manifest, pd.DataFrame, pd.DataFrame]:
    """The manifest, the predictions merged with the trained runs by point, and all measurements. Raises DataError for
    damaged records, and for points without a prediction or a run."""
    manifest, measured = load(FOLDER, "map", KEYS, COMMAND)
    predicted = read_frame(FOLDER / "predicted.jsonl", manifest["predicted_sha256"])
    trained = measured[measured["kind"] == "trained"]
    both = predicted.merge(trained, on=POINT, suffixes=("_predicted", ""))
    if not len(both) == len(predicted) == len(trained):
        raise DataError(f"{FOLDER}: predicted.jsonl and map.jsonl have different points: restore both.")
    return manifest, both, measured


@cache
def places() -> pd.DataFrame:
    """One row per point, with its fields and

    cost, gain, excess      of the closed form (`rtpo.theory.regimes.predicted`)
    large                   whether its steps are large (LARGE)
    expected                the predicted difference
    difference              the measured difference of each seed
    mean, low, high         over seeds
    decided                 the sign of the difference if its interval excludes 0, else 0
    """
    frame = records()[1]
    differences = [np.subtract(*pair) for pair in zip(frame["rtpo"], frame["grpo"], strict=True)]
    intervals = [over_seeds(values) for values in differences]
    return frame.join(pd.DataFrame(intervals)[["mean", "low", "high"]]).assign(
        large=frame["steps"] <= LARGE,
        expected=frame["rtpo_predicted"] - frame["grpo_predicted"],
        difference=differences,
        decided=[_sign(interval) for interval in intervals],
    )


@cache
def noise() -> pd.DataFrame:
    """One row per turn of a frozen task, with the task's fields and

    k, f                    turn and f_k
    gradient                exact, for the right action
    simple                  the ratio of noises by formula (2)
    <method>_exact          the exact noise, formula (1)
    <method>_noise          the measured noise
    <method>_reached        whether its 95 % interval contains the exact noise
    <method>_gradients      the measured gradient of each seed
    """
    _, predicted, measured = records()
    task = ["turns", "luck", "decisions", "group_size"]
    shares = predicted.drop_duplicates(task)[[*task, "f"]]
    rows = []
    for line in measured[measured["kind"] == "frozen"].merge(shares).to_dict("records"):
        point = Point(**{name: line[name] for name in POINT})
        mdp, exact = point.task.mdp(), exact_noise(point)
        turns = pd.DataFrame({"k": range(point.turns), "f": line["f"]}).assign(**asdict(point))
        turns["gradient"] = gradient(mdp, uniform(mdp))[:, 0]
        turns["simple"] = noise_ratio(np.array(line["f"]), point.group_size, point.chains)
        for method in METHODS:
            seeds = pd.DataFrame(line[method])
            noises = pd.DataFrame([over_seeds(values) for values in zip(*seeds["noise"], strict=True)])
            turns[f"{method}_exact"], turns[f"{method}_noise"] = exact[method], noises["mean"]
            turns[f"{method}_reached"] = turns[f"{method}_exact"].between(noises["low"], noises["high"])
            turns[f"{method}_gradients"] = list(zip(*seeds["mean"], strict=True))
        rows.append(turns)
    return pd.concat(rows, ignore_index=True)


# tables of docs/results/theory.md


def summary() -> pd.DataFrame:
    """Each prediction with its measurement."""
    rows = [*_of_noise(noise()), *_of_differences(places()), *_of_tasks(places())]
    return pd.DataFrame(rows, columns=["What", "Predicted", "Measured"])


def _of_noise(frame: pd.DataFrame) -> Iterator[Row]:
    by_exact = np.concatenate([frame[f"{method}_noise"] / frame[f"{method}_exact"] for method in METHODS])
    reached = sum(frame[f"{method}_reached"].sum() for method in METHODS)
    yield "1. Measured noise divided by (1), mean over turns and methods", "1", number(float(by_exact.mean()), 3)
    yield "1. Intervals that contain the value of (1)", f"{len(by_exact)}", f"{reached} of {len(by_exact)}"
    exact = frame["gradient"].to_numpy(np.float64)
    slopes = (exact @ np.array(frame[f"{method}_gradients"].tolist()) / (exact @ exact) for method in METHODS)
    gradients = "; ".join(str(cell(over_seeds(values), 2)) for values in slopes)
    yield "1. Measured over exact gradient: RTPO, GRPO", "1", gradients
    off = np.exp(np.abs(np.log(frame["rtpo_exact"] / frame["grpo_exact"] / frame["simple"])))
    near, lower, low = off <= NEAR, frame["rtpo_noise"] < frame["grpo_noise"], frame["simple"] < 1
    yield f"2. Turns where (1) and (2) agree within a factor of {NEAR:g}", f"{len(off)}", f"{near.sum()} of {len(off)}"
    yield "2. RTPO's noise is lower: turns with f_k below break-even", f"{low.sum()}", f"{(lower & low).sum()}"
    yield "2. RTPO's noise is higher: the other turns", f"{(~low).sum()}", f"{(~lower & ~low).sum()}"


def _of_differences(frame: pd.DataFrame) -> Iterator[Row]:
    ahead = frame["expected"] > 0
    chains = frame[ahead & (frame["decisions"] == "chain")]
    yield "3. Points where RTPO ends above GRPO", f"{ahead.sum()} of {len(frame)}", _decided(frame[ahead])
    counts = f"{len(chains)}, {chains['large'].sum()}"
    yield "3. Chains among these points, and those of them with one or two data steps", counts, _decided(chains)
    first = np.array([_sign(over_seeds(values[:SEEDS])) for values in frame["difference"]])
    for title, decided in ((f"by the first {SEEDS} seeds alone", first), ("by all seeds", frame["decided"])):
        made, agree = (decided != 0).sum(), ((decided != 0) & (decided == np.sign(frame["expected"]))).sum()
        yield f"3. Decided differences with the predicted sign, {title}", f"{made}", f"{agree} of {made}"
    correlation = np.corrcoef(frame["expected"], frame["mean"])[0, 1]
    yield "3. Correlation of predicted and measured difference", "1", number(float(correlation), 2)
    kinds = kinds_of_task()
    reached = kinds["expected"].between(kinds["low"], kinds["high"]).sum()
    yield "3. Kinds of task whose interval contains the prediction", f"{len(kinds)}", f"{reached} of {len(kinds)}"


def _of_tasks(frame: pd.DataFrame) -> Iterator[Row]:
    even, late = frame[frame["decisions"] == "even"], frame[(frame["decisions"] == "late") & (frame["luck"] == "early")]
    yield "4. Even decisions: points with RTPO below", f"{(even['expected'] < 0).sum()} of {len(even)}", _decided(even)
    by_turns = even.groupby("turns")[["expected", "mean"]].mean().loc[list(HORIZONS)]
    title = f"4. Even decisions: mean difference at K = {', '.join(map(str, HORIZONS))}"
    yield title, _listed(by_turns["expected"]), _listed(by_turns["mean"])
    above = f"{(late['expected'] > 0).sum()} of {len(late)}"
    yield "5. Late decisions, early luck: points with RTPO above", above, _decided(late)
    long = frame[(frame["decisions"] == "chain") & (frame["luck"] == "late") & (frame["turns"] >= 8)]
    predicted = _listed(long[f"{method}_predicted"].mean() for method in METHODS)
    ends = _listed(np.mean([np.mean(x) for x in long[method]]) for method in METHODS)
    yield "6. Chains of 8 and 16 turns, late luck: success of RTPO, GRPO", predicted, ends


@cache
def kinds_of_task() -> pd.DataFrame:
    """One row per kind of task and size of steps: the mean difference, predicted and measured (over the seeds that all
    its points have), as numbers and texts, and the numbers of points decided above and below 0."""
    rows = []
    for (decisions, luck, _), part in places().groupby(["decisions", "luck", "large"]):
        seeds = part["difference"].map(len).min()
        interval = over_seeds(np.mean([values[:seeds] for values in part["difference"]], axis=0))
        steps = " or ".join(map(str, sorted(part["steps"].unique())))
        expected, decided = float(part["expected"].mean()), f"{_decided(part)} of {len(part)}"
        row = {"Decisions": decisions, "Luck": luck, "steps": steps, "predicted": number(expected, 2)}
        row |= {"measured": str(cell(interval, 2)), "decided": decided}
        rows.append({**row, "expected": expected, "low": interval.low, "high": interval.high})
    return pd.DataFrame(rows)


def regimes() -> pd.DataFrame:
    """The mean difference of each kind of task, for small and for large steps."""
    columns = {
        f"{steps!s} steps: {title}": kinds.set_index(["Decisions", "Luck"])[title]
        for steps, kinds in kinds_of_task().groupby("steps", sort=False)
        for title in ("predicted", "measured", "decided")
    }
    return pd.DataFrame(columns).reset_index()


def runs() -> pd.DataFrame:
    """The size of the records."""
    made = records()[0]
    rows = [("Measurements", number(made["measurements"], 0)), ("Processor seconds", number(made["cpu_seconds"], 0))]
    return pd.DataFrame(rows, columns=["What", "Value"])


def _decided(frame: pd.DataFrame) -> str:
    return f"{(frame['decided'] > 0).sum()} / {(frame['decided'] < 0).sum()}"


def _listed(values: Iterable[float]) -> str:
    return ", ".join(number(float(value), 2) for value in values)


def _sign(value: Interval) -> int:
    return int(np.sign(value.mean)) if value.low > 0 or value.high < 0 else 0
