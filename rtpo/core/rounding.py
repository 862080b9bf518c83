"""Whether two ways to compute the same numbers differ only by rounding. A third way measures the rounding.

The third way is the same computation with every position moved by SHIFT. Rotary attention depends only on distances, so
exact numbers would not change, but every product is rounded anew. The difference is the floor; it holds for any
precision and any hardware.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SHIFT = 61
TIMES = 3
"""a difference of more floors than this is a fault"""


@dataclass(frozen=True, slots=True)
class RoundingError:
    """Root mean square and 99.9 % quantile of the absolute differences of numbers computed twice, in their unit."""

    rms: float
    tail: float

    def __str__(self) -> str:
        return f"{self.rms:.2g} (99.9 %: {self.tail:.2g})"

    def is_beyond(self, floor: "RoundingError") -> bool:
        return not (self.rms <= TIMES * floor.rms and self.tail <= TIMES * floor.tail)


def difference(values: npt.ArrayLike, others: npt.ArrayLike) -> RoundingError:
    """The differences between two arrays of one shape."""
    gaps = np.abs(np.asarray(values, np.float64) - np.asarray(others, np.float64))
    return RoundingError(math.sqrt(float((gaps**2).mean())), float(np.quantile(gaps, 0.999)))
