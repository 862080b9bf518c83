"""At which commits runs were made, and what has changed in the code since that matters to them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from analysis.records import Run


@dataclass(frozen=True)
class Change:
    """A mend of an algorithm. at: when it came, so that later runs have it. touches: whether it matters to a run of
    the algorithm; otherwise: why not."""

    algorithm: str
    at: str
    text: str
    touches: Callable[[Run], bool] = lambda run: True
    otherwise: str = ""


CHANGES = (
    Change(
        "seeupo",
        "2026-11-22T03:45:12+00:00",
        "SeeUPO's advantages are standardised once over all chains of the batch, no longer turn by turn over the "
        "chains that took it",
    ),
    Change(
        "arpo",
        "2026-11-22T03:45:12+00:00",
        "ARPO's draw is clipped, so that at α = 1 it branches always",
        lambda run: float(run.config["algorithm"]["alpha"]) == 1,
        "none of them has α = 1",
    ),
)
"""those that can be told from a run's results; until the runs are made anew their pages say so"""


def commits(runs: Sequence[Run]) -> str:
    """Where runs were made."""
    return ", ".join(
        sorted({f"{run.manifest['commit'][:12]}{' (changed)' if run.manifest['dirty'] else ''}" for run in runs})
    )


def note(runs: Sequence[Run]) -> str:
    """For the top of a page; empty without runs."""
    if not runs:
        return ""
    told = [text for change in CHANGES if (text := _told(change, runs))]
    since = f"What has changed in the code since: {'; '.join(told)}. " if told else ""
    rest = f"No {'other ' if told else ''}change since is known to matter to them."
    return f"The runs were made at commit {commits(runs)}. {since}{rest}"


def _told(change: Change, runs: Sequence[Run]) -> str:
    before = [
        run
        for run in runs
        if run.manifest["algorithm"] == change.algorithm
        and datetime.fromisoformat(run.manifest["started"]) < datetime.fromisoformat(change.at)
    ]
    touched = [run for run in before if change.touches(run)]
    if not before:
        return ""
    labels = ", ".join(f"`{label}`" for label in sorted({run.label.partition("_lr")[0] for run in touched}))
    count = "1 run" if len(touched) == 1 else f"{len(touched)} runs"
    return f"{change.text} ({f'{count}: {labels}' if touched else change.otherwise})"
