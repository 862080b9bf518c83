"""What an agent that does nothing earns on the airline's tasks, and what the others ask for:

    python experiments/maintenance/airline_no_op.py FOLDER

FOLDER holds tasks.json and split_tasks.json, such as tau2-bench's data/tau2/domains/airline. The package is not needed.
"""

import sys
from pathlib import Path

from rtpo.run.command import Parser, command

from rtpo.envs.airline.tasks import read_splits, read_wanted, split_counts


@command
def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = Parser(__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(arguments).folder
    found = split_counts(read_wanted(folder / "tasks.json"), read_splits(folder / "split_tasks.json"))
    print(f"{'split':8} {'tasks':>5} {'doing nothing scores':>20} {'need a write':>12} {'need a figure alone':>19}")
    for split, counts in found.items():
        no_op = f"{counts.no_op} ({100 * counts.no_op_rate:.1f} %)"
        print(f"{split:8} {counts.tasks:5} {no_op:>20} {counts.write:12} {counts.figure_alone:19}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
