"""What an agent that does nothing earns on the airline's tasks, and what the others ask for
(docs/run/airline.md):

    python experiments/maintenance/airline_no_op.py FOLDER

FOLDER holds tasks.json and split_tasks.json, such as tau2-bench's data/tau2/domains/airline. The package is not needed.
"""

import sys
from pathlib import Path

from rtpo.run.command import Parser, command

from rtpo.envs.airline.tasks import read_splits, read_wanted
from rtpo.errors import DataError


@command
def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = Parser(__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(arguments).folder
    tasks, splits = read_wanted(folder / "tasks.json"), read_splits(folder / "split_tasks.json")
    print(f"{'split':8} {'tasks':>5} {'doing nothing scores':>20} {'need a write':>12} {'need a figure alone':>19}")
    for split, ids in splits.items():
        if missing := [one for one in ids if one not in tasks]:
            raise DataError(f"split {split!r} names task {missing[0]!r}, which the task file does not have")
        found = [tasks[one] for one in ids]
        idle, write = sum(task.no_op_scores for task in found), sum(task.needs_write for task in found)
        share = f"{idle} ({100 * idle / len(found):.1f} %)"
        print(f"{split:8} {len(found):5} {share:>20} {write:12} {len(found) - idle - write:19}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
