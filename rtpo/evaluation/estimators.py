"""Estimators of success from several samples a question.

Of a question with n graded samples, c of them right:

    pass@k = 1 - C(n-c, k) / C(n, k)   one of k is right (Chen et al. 2021, unbiased)
    pass^k = C(c, k) / C(n, k)         all of k are right (tau-bench, unbiased)
    avg@k  = c / n                     the mean of k

Each is the mean, over all ways to take k of the n samples, of what it says. A sample that could not be graded is none
of the n.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rtpo.errors import DataError

Counts = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class SampleCounts:
    """Of each question, in the order of `questions`: samples that were graded (n), those right among them (c), and
    those that could not be graded. All [questions]."""

    questions: tuple[str, ...]
    graded: Counts
    right: Counts
    ungradable: Counts


@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    """values: of each question, [questions]. mean: over questions. ungradable: samples left out, of all questions."""

    name: str
    mean: float
    values: Values
    ungradable: int


def count_samples(rewards: Mapping[str, Sequence[float | None]]) -> SampleCounts:
    """Counts of each question's rewards: 1, 0, or None where there is none.

    Raises DataError without a question, and for a reward that is neither: these estimators count successes.
    """
    if not rewards:
        raise DataError("there are no questions: give the rewards of one or more")
    for question, given in rewards.items():
        for reward in given:
            if reward not in (0, 1, None):
                raise DataError(
                    f"question {question!r} has a reward of {reward}: successes are counted, so rewards are 0, 1 or "
                    "none; score it by exact match or by a judge"
                )
    columns = (
        [sum(reward is not None for reward in given) for given in rewards.values()],
        [sum(reward == 1 for reward in given) for given in rewards.values()],
        [sum(reward is None for reward in given) for given in rewards.values()],
    )
    graded, right, ungradable = (np.array(column, np.int64) for column in columns)
    return SampleCounts(tuple(rewards), graded, right, ungradable)


def pass_at_k(counts: SampleCounts, k: int) -> Estimate:
    """That one of k samples is right. Raises DataError for a question with fewer than k graded samples."""
    _check(counts, k, f"pass@{k}")
    return _estimate(counts, f"pass@{k}", 1 - _all_from(counts.graded - counts.right, counts.graded, k))


def pass_hat_k(counts: SampleCounts, k: int) -> Estimate:
    """pass^k, that all of k samples are right. Raises DataError for a question with fewer than k graded samples."""
    _check(counts, k, f"pass^{k}")
    return _estimate(counts, f"pass^{k}", _all_from(counts.right, counts.graded, k))


def avg_at_k(counts: SampleCounts, k: int) -> Estimate:
    """The mean of k samples. Raises DataError for a question with fewer than k graded samples."""
    _check(counts, k, f"avg@{k}")
    return _estimate(counts, f"avg@{k}", counts.right / counts.graded)


def _all_from(part: Counts, whole: Counts, k: int) -> Values:
    """C(part, k) / C(whole, k): that k of the whole, taken without return, are all of the part."""
    drawn = np.arange(k)
    shares = np.maximum(part[:, None] - drawn, 0) / (whole[:, None] - drawn)
    return np.asarray(shares.prod(axis=1), np.float64)


def _check(counts: SampleCounts, k: int, name: str) -> None:
    if k < 1:
        raise DataError(f"{name}: k is {k}; use 1 or more")
    short = np.flatnonzero(counts.graded < k)
    if len(short):
        first = int(short[0])
        raise DataError(
            f"{name} takes k = {k} graded samples a question, and question {counts.questions[first]!r} has n = "
            f"{counts.graded[first]} ({counts.ungradable[first]} could not be graded); so have {len(short)} of "
            f"{len(counts.graded)} questions: take more samples, or a smaller k"
        )


def _estimate(counts: SampleCounts, name: str, values: Values) -> Estimate:
    return Estimate(name, float(values.mean()), values, int(counts.ungradable.sum()))
