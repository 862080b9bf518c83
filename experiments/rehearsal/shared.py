"""What the parts of the rehearsal share: what they say, and how it becomes a record."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rtpo.core.files import disk_errors, utc_now, write_whole
from rtpo.errors import RTPOError
from rtpo.run.records import provenance

SCHEMA = 1


@dataclass(frozen=True)
class Line:
    """One thing that was executed. figures: by the titles of their columns; lines of one table have the same. failed: a
    sentence each."""

    what: str
    figures: Mapping[str, int | float | str] = field(default_factory=dict)
    failed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rehearsed:
    """left_out: what the part would execute and did not here, and why, a sentence each."""

    lines: Sequence[Line]
    left_out: Sequence[str] = ()


def measure(part: str, rehearse: Callable[[], Rehearsed], folder: Path) -> list[str]:
    """Write a part's record; what failed in it. A part that cannot be gone through leaves a record that says why."""
    started, wall = utc_now(), time.monotonic()
    try:
        done = rehearse()
    except RTPOError as error:
        done = Rehearsed([Line(part, failed=(str(error),))])
    record = {
        "schema": SCHEMA,
        "part": part,
        "started": started,
        "wall_seconds": time.monotonic() - wall,
        **provenance(),
        **asdict(done),
    }
    with disk_errors(folder):
        write_whole(folder / f"{part}.json", (json.dumps(record, indent=1) + "\n").encode())
    return [f"{line.what}: {why}" for line in done.lines for why in line.failed]
