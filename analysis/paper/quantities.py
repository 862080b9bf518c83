"""What the paper's tables count, each a ratio of sums over episodes or one number of a run.

What could not be graded is left out of all of them, and counted.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.evaluation import Sample, graded, pass_at_k, pass_hat_k
from analysis.measures import training_seconds
from analysis.paper.estimates import Cells
from analysis.records import Run
from rtpo.errors import DataError

EARLY_TURNS = (1, 2, 3, 5)
"""turns within which failures are counted"""
SAMPLES = 4
"""episodes of an airline test task; k of P@k and Pass^k"""
POINTS = 100.0
HOUR = 3600.0
Pair = tuple[float, float]


@dataclass(frozen=True)
class Quantity:
    """Of the graded samples of one unit, `of` gives what is summed above and below the line; both 0 where the unit has
    none. unit: one of the paper's.

    total: the ratio is a mean over units and is shown times their number, so that it is a count over the panel.
    certain: it is known without an interval.
    """

    unit: str
    of: Callable[[Sequence[Sample]], Pair]
    scale: float = 1.0
    share: bool = False
    total: bool = False
    certain: bool = False


def _mean(value: Callable[[Sample], float]) -> Callable[[Sequence[Sample]], Pair]:
    """The mean over units of the mean over samples."""
    return lambda samples: (sum(map(value, samples)) / len(samples), 1.0) if samples else (0.0, 0.0)


def _pooled(above: Callable[[Sample], float], below: Callable[[Sample], float]) -> Callable[[Sequence[Sample]], Pair]:
    """The ratio of the sums over all samples."""
    return lambda samples: (float(sum(map(above, samples))), float(sum(map(below, samples))))


def _sum(value: Callable[[Sample], float]) -> Callable[[Sequence[Sample]], Pair]:
    """The sum over all samples, with `total`."""
    return lambda samples: (float(sum(map(value, samples))), 1.0)


def _of_samples(estimator: Callable[[int, int, int], float], k: int) -> Callable[[Sequence[Sample]], Pair]:
    """No value with fewer than k samples."""
    return lambda samples: (
        (estimator(len(samples), sum(bool(one.success) for one in samples), k), 1.0)
        if len(samples) >= k
        else (0.0, 0.0)
    )


def _qa(name: str) -> Callable[[Sequence[Sample]], Pair]:
    return lambda samples: _mean(lambda one: (one.qa or {})[name])([one for one in samples if one.qa is not None])


def _audit(name: str) -> Callable[[Sample], float]:
    def of(one: Sample) -> float:
        if one.audit is None and one.attempted:
            raise DataError(f"{one.unit} was evaluated before evaluations kept an audit of calls: evaluate again.")
        return float((one.audit or {}).get(name, 0))

    return of


def _success(one: Sample) -> float:
    return float(bool(one.success))


def _one(sample: Sample) -> float:
    return 1.0


def _points(of: Callable[[Sequence[Sample]], Pair]) -> Quantity:
    return Quantity("points", of, POINTS, share=True)


def _count(unit: str, value: Callable[[Sample], float]) -> Quantity:
    """Once through the panel: the mean over a question's samples, over all questions."""
    return Quantity(unit, _mean(value), total=True)


QUANTITIES: Mapping[str, Quantity] = {
    "pass_at_1": _points(_mean(_success)),
    "pass_at_4": _points(_of_samples(pass_at_k, SAMPLES)),
    "pass_all_4": _points(_of_samples(pass_hat_k, SAMPLES)),
    "f1": _points(_qa("f1")),
    "span_f1": _points(_qa("span_f1")),
    "hit_rate": _points(_qa("output_hit")),
    "hits": Quantity("questions", _qa("output_hit"), total=True),
    "questions": Quantity("questions", lambda samples: (1.0, 1.0), total=True, certain=True),
    "calls": _count("calls", lambda one: one.executed),
    "calls_attempted": _count("calls", lambda one: one.attempted),
    "calls_ok": _count("calls", lambda one: one.ok),
    "all_attempted": Quantity("calls", _sum(lambda one: one.attempted), total=True),
    "all_ok": Quantity("calls", _sum(lambda one: one.ok), total=True),
    "all_errors": Quantity("calls", _sum(lambda one: one.attempted - one.ok), total=True),
    "execution": Quantity("points", _pooled(lambda one: one.ok, lambda one: one.attempted), POINTS, share=True),
    "calls_each": Quantity("calls", _pooled(lambda one: one.attempted, _one)),
    "writes_each": Quantity("ratio", _pooled(lambda one: one.writes, _one)),
    "tokens_each": Quantity("tokens", _pooled(lambda one: one.tokens, _one)),
    "tokens_per_success": Quantity("tokens", _pooled(lambda one: one.tokens, _success)),
    "successes_per_1k": Quantity("ratio", _pooled(_success, lambda one: one.tokens), 1000),
    "ended": _points(_mean(lambda one: one.ended)),
    "cut": _points(_mean(lambda one: one.cut)),
    # of first paths
    "success": Quantity("points", _pooled(_success, _one), POINTS, share=True),
    "ended_failed": Quantity("points", _pooled(lambda one: one.ended and not one.success, _one), POINTS, share=True),
    "no_signal": Quantity("points", _pooled(lambda one: not one.ended, _one), POINTS, share=True),
    **{
        f"failed_{k}": Quantity(
            "points",
            _pooled(lambda one, k=k: not one.success and one.turns <= k, _one),  # type: ignore[misc]
            POINTS,
            share=True,
        )
        for k in EARLY_TURNS
    },
    "turns": Quantity("turns", _pooled(lambda one: one.turns, _one)),
    "success_turns": Quantity("turns", _pooled(lambda one: one.turns * _success(one), _success)),
    "failed_turns": Quantity(
        "turns",
        _pooled(lambda one: one.turns * (1 - _success(one)), lambda one: 1 - _success(one)),
    ),
    # of an audit
    "audited": Quantity("count", _mean(_one), total=True, certain=True),
    "using": _points(_mean(lambda one: one.attempted > 0)),
    "zero_calls": _count("count", lambda one: one.attempted == 0),
    "one_call": _count("count", lambda one: one.attempted == 1),
    "more_calls": _count("count", lambda one: one.attempted > 1),
    "with_calls": _count("count", lambda one: one.attempted > 0),
    "correct_with_calls": _count("count", lambda one: one.attempted * _success(one) > 0),
    "programs": _count("calls", _audit("programs")),
    "valid_programs": _count("calls", _audit("valid_programs")),
    "repeated": _count("count", lambda one: _audit("repeated")(one) > 0),
}
"""of episodes"""


def cells_of(quantity: Quantity, episodes: Sequence[Sequence[Sample]], seeds: tuple[int, ...], units: str) -> Cells:
    """A quantity of each run's episodes. Units go by name, so that runs on one panel share them."""
    names = {name: column for column, name in enumerate(sorted({one.unit for run in episodes for one in run}))}
    sums = np.zeros((2, len(episodes), len(names)))
    ungraded, used = 0, set()
    for row, run in enumerate(episodes):
        by_unit: dict[str, list[Sample]] = defaultdict(list)
        for one in run:
            by_unit[one.unit].append(one)
        for name, samples in by_unit.items():
            there = graded(samples)
            ungraded += len(samples) - len(there)
            if there:
                sums[:, row, names[name]] = quantity.of(there)
                used.add(name)
    scale = quantity.scale * (len(names) if quantity.total else 1)
    return Cells(sums[0], sums[1], seeds, units, len(used), scale, quantity.share, ungraded)


def by_order(run: Sequence[Sample]) -> list[Sample]:
    """Episodes of units that are their run's own, which go by their order in it to be set beside another run's."""
    places = {unit: str(place) for place, unit in enumerate(dict.fromkeys(one.unit for one in run))}
    return [replace(one, unit=places[one.unit]) for one in run]


def ratio(name: str, samples: Sequence[Sample]) -> float:
    """A quantity of one run's episodes, not scaled; NaN where there is none."""
    cells = cells_of(QUANTITIES[name], [samples], (0,), "")
    return float(cells.above.sum() / cells.below.sum()) if cells.below.any() else float("nan")


# of a run


@dataclass(frozen=True)
class RunQuantity:
    """Of a run, what is summed above and below the line for each of its `units`: the run itself, which only other seeds
    can tell about, or its steps."""

    unit: str
    of: Callable[[Run], Sequence[Pair]]
    units: str = "runs"
    scale: float = 1.0


def gpus(run: Run) -> int:
    """That the run trained on; 0 on CPUs."""
    profile: Mapping[str, Any] = run.config["profile"]
    return int(profile["processes"]) * int(profile["nodes"]) if profile["platform"] == "cuda" else 0


def _gpu_hours(run: Run) -> list[Pair]:
    count = gpus(run)
    return [(count * training_seconds(run) / HOUR, 1.0) if count else (0.0, 0.0)]


def _zero_advantage(run: Run) -> list[Pair]:
    """Rows weigh, since records count no groups; a group is smaller where a sibling could not be graded."""
    trained = [[update for update in step["updates"] if update["rows"]] for step in run.steps]
    return [
        (
            sum(update["rows"] * update["zero_advantage"]["all"] for update in updates),
            float(sum(update["rows"] for update in updates)),
        )
        for updates in trained
    ]


RUN_QUANTITIES: Mapping[str, RunQuantity] = {
    "training_tokens": RunQuantity("tokens", lambda run: [(float(run.ledger["generated_tokens"]), 1.0)]),
    "hours": RunQuantity("hours", lambda run: [(training_seconds(run) / HOUR, 1.0)]),
    "gpu_hours": RunQuantity("gpu_hours", _gpu_hours),
    "zero_advantage": RunQuantity("points", _zero_advantage, "steps", POINTS),
}


def run_cells(quantity: RunQuantity, runs: Sequence[Run]) -> Cells:
    """Of several runs. A run with fewer steps than another counts nothing for those that it lacks."""
    pairs = [quantity.of(run) for run in runs]
    sums = np.zeros((2, len(runs), max(map(len, pairs))))
    for row, of_run in enumerate(pairs):
        for column, pair in enumerate(of_run):
            sums[:, row, column] = pair
    there = int((sums[1] > 0).any(axis=0).sum())
    return Cells(sums[0], sums[1], seeds_of(runs), quantity.units, there, quantity.scale)


def seeds_of(runs: Sequence[Run]) -> tuple[int, ...]:
    """In their order."""
    return tuple(int(run.manifest["seed"]) for run in runs)
