"""`python hostile_run.py ISOLATION` runs the hostile programs of an isolation, and prints as JSON what went wrong: of
what those are after, and of any program's time."""

import json
import os
import sys

from hostile_programs import HOSTILE, MESSAGES, World

from rtpo.tools.python.tool import close_pools
from rtpo.types import ToolOutcome


def main() -> None:
    """All but those that meet a limit of time, where the user makes no difference."""
    chosen = MESSAGES if sys.argv[1] == "limits" else HOSTILE
    programs = {name: hostile for name, hostile in chosen.items() if ToolOutcome.TIMEOUT not in hostile.outcomes}
    with World() as world:
        found = {name: clauses for name, hostile in programs.items() if (clauses := world.escapes(hostile))}
        late = world.lasting(HOSTILE | MESSAGES, sys.argv[1])
        print(json.dumps({"user": os.getuid(), "programs": len(programs), "found": found, "late": late}))
    close_pools()


if __name__ == "__main__":
    main()
