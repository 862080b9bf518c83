"""Warns if too many rewards are missing."""

from collections.abc import Sequence
from typing import Final

from rtpo.core.names import counted
from rtpo.core.visible import in_one_line

MOST_UNGRADABLE: Final = 0.01
"""largest share of missing rewards without a warning"""
_SHOWN: Final = 3
_CHARACTERS: Final = 200


def grading_alarm(graded: int, ungradable: int, details: Sequence[str] = ()) -> str | None:
    """A warning if more than 1 % of the rewards are missing, else None. details: reasons for missing rewards. The
    warning quotes the first three different reasons."""
    total = graded + ungradable
    if ungradable <= MOST_UNGRADABLE * total:
        return None
    shown = [in_one_line(detail, _CHARACTERS) for detail in list(dict.fromkeys(details))[:_SHOWN]]
    why = f" First of them: {'; '.join(shown)}." if shown else ""
    return (
        f"{ungradable} of {counted(total, 'reward')} ({100 * ungradable / total:.1f} %) could not be graded, above "
        f"{100 * MOST_UNGRADABLE:g} %: they are left out, not counted as 0.{why}"
    )
