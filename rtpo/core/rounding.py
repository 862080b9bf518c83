"""Tests whether two computations of the same numbers differ only by rounding. A third computation measures the
rounding.

The third one adds SHIFT to every position. Rotary attention depends only on distances, so the exact result stays the
same, but every product is rounded anew. The floor is how far that moves the numbers; each comparison measures its own.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SHIFT = 61
TIMES = 3
"""a difference above this many times the floor is a fault"""


@dataclass(frozen=True, slots=True)
class Difference:
    """Root mean square and 99.9 % quantile of absolute differences between two computations, in the numbers' unit."""

    rms: float
    tail: float

    def __str__(self) -> str:
        return f"{self.rms:.2g} (99.9 %: {self.tail:.2g})"

    def is_beyond(self, floor: "Difference") -> bool:
        """Whether this difference is a fault: above TIMES the floor, or NaN."""
        return not (self.rms <= TIMES * floor.rms and self.tail <= TIMES * floor.tail)


def difference(values: npt.ArrayLike, others: npt.ArrayLike) -> Difference:
    """The differences between two arrays of one shape."""
    gaps = np.abs(np.asarray(values, np.float64) - np.asarray(others, np.float64))
    return Difference(math.sqrt(float((gaps**2).mean())), float(np.quantile(gaps, 0.999)))
