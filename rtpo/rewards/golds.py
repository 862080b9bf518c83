"""Finds golds (reference answers) that no answer can match, since the grader does not call them equal to themselves."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from rtpo.core.names import counted
from rtpo.rewards.grading import GRADER, MathGrader


@dataclass(frozen=True, slots=True)
class UnequalGolds:
    """The rows of a data file with a gold that does not equal itself."""

    count: int  # number of these rows
    line: int  # line number of the first row, from 1
    gold: str  # gold of the first row

    def sentence(self, file: object) -> str:
        return (
            f"{file}: {counted(self.count, 'row')} with a gold that the grader does not find equal to itself, so no "
            f"answer matches it; the first is {self.gold[:80]!r} on line {self.line} (docs/run/tools.md)."
        )


def unequal_golds(rows: Sequence[tuple[str, ...]], grader: MathGrader = GRADER) -> UnequalGolds | None:
    """Compare each gold with itself; None if all equal themselves. rows: the golds of each row. Raises
    InfrastructureError as `MathGrader.grade`."""
    with ThreadPoolExecutor(grader.workers) as threads:
        are_equal = list(threads.map(lambda golds: _all_equal_themselves(golds, grader), rows))
    faulty = [row for row, is_equal in enumerate(are_equal) if not is_equal]
    if not faulty:
        return None
    gold = next(gold for gold in rows[faulty[0]] if not _all_equal_themselves((gold,), grader))
    return UnequalGolds(len(faulty), faulty[0] + 1, gold)


def _all_equal_themselves(golds: tuple[str, ...], grader: MathGrader) -> bool:
    return all(grader.grade((gold,), gold).reward == 1 for gold in golds)
