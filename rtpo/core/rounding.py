"""Whether numbers computed in two ways differ by rounding alone, which a third way measures.

The floor is the same computation with every position moved by SHIFT: rotary attention sees distances alone, so that
exact numbers would not change, and every product is rounded anew. It is a floor of any precision, and of any hardware.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SHIFT = 61
TIMES = 3
"""floors that rounding may reach; a difference beyond them is a fault"""


@dataclass(frozen=True, slots=True)
class RoundingError:
    """Of numbers computed twice: root mean square and 99.9 % quantile of the absolute differences, in their unit."""

    rms: float
    tail: float

    def __str__(self) -> str:
        return f"{self.rms:.2g} (99.9 %: {self.tail:.2g})"

    def is_beyond(self, floor: "RoundingError") -> bool:
        return not (self.rms <= TIMES * floor.rms and self.tail <= TIMES * floor.tail)


def difference(values: npt.ArrayLike, others: npt.ArrayLike) -> RoundingError:
    """Of two arrays of one shape."""
    gaps = np.abs(np.asarray(values, np.float64) - np.asarray(others, np.float64))
    return RoundingError(math.sqrt(float((gaps**2).mean())), float(np.quantile(gaps, 0.999)))
