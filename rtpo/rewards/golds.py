"""Which golds of a file no answer can equal: those that the grader does not find equal to themselves."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from rtpo.core.names import counted
from rtpo.rewards.grading import GRADER, MathGrader


@dataclass(frozen=True, slots=True)
class UnequalGolds:
    """Rows with a gold that does not equal itself. count: how many. line: of the first, from 1. gold: the first one."""

    count: int
    line: int
    gold: str

    def sentence(self, file: object) -> str:
        return (
            f"{file}: {counted(self.count, 'row')} with a gold that does not equal itself for the grader, so that no "
            f"answer is right by it; the first is {self.gold[:80]!r} on line {self.line} (docs/run/tools.md)."
        )


def unequal_golds(answers: Sequence[tuple[str, ...]], grader: MathGrader = GRADER) -> UnequalGolds | None:
    """Of the golds of each row of a file of mathematics; None where each equals itself. Raises InfrastructureError."""
    with ThreadPoolExecutor(grader.workers) as threads:
        are_equal = list(threads.map(lambda golds: _equal_themselves(golds, grader), answers))
    faulty = [row for row, is_equal in enumerate(are_equal) if not is_equal]
    if not faulty:
        return None
    gold = next(gold for gold in answers[faulty[0]] if not _equal_themselves((gold,), grader))
    return UnequalGolds(len(faulty), faulty[0] + 1, gold)


def _equal_themselves(golds: tuple[str, ...], grader: MathGrader) -> bool:
    return all(grader.grade((gold,), gold).reward == 1 for gold in golds)
