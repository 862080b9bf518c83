"""When too many rewards are missing."""

from collections.abc import Sequence
from typing import Final

from rtpo.core.visible import in_one_line

MOST_UNGRADABLE: Final = 0.01
"""share of rewards that may be missing without a word"""
_SHOWN: Final = 3
_CHARACTERS: Final = 200


def grading_alarm(graded: int, ungradable: int, details: Sequence[str] = ()) -> str | None:
    """A sentence where more than 1 % of the rewards that were asked for could not be had; None otherwise.

    details: why, of some of those that are missing; the first few different ones are told.
    """
    asked = graded + ungradable
    if ungradable <= MOST_UNGRADABLE * asked:
        return None
    shown = [in_one_line(detail, _CHARACTERS) for detail in list(dict.fromkeys(details))[:_SHOWN]]
    why = f" First of them: {'; '.join(shown)}." if shown else ""
    return (
        f"{ungradable} of {asked} rewards ({100 * ungradable / asked:.1f} %) could not be graded, above "
        f"{100 * MOST_UNGRADABLE:g} %: they are left out, which is not a 0.{why}"
    )
