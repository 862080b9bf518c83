"""f_k of a task, by turn: the share of the return's variance that is still to come (docs/results/when.md), from the
first step of one run of `vineppo`, or of several with other seeds:

    python experiments/train.py algorithm=vineppo task=toy_math budget.rollouts=128
    python -m analysis.when results/default/vineppo-seed0
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from rtpo.run.command import Parser, command, whole

from analysis.records import by_label, is_finished, load_run
from analysis.tables import UNKNOWN, Table, markdown, number, percent
from analysis.when.shares import FORKING, shares
from rtpo.errors import DataError
from rtpo.run import archives
from rtpo.theory.regimes import break_even


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = Parser(__doc__)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help=f"a run of {FORKING} that has ended")
    parser.add_argument("--group-size", type=whole(3), default=3, help="G of RTPO, for f*; default: %(default)s")
    given = parser.parse_args(arguments)
    print(markdown(still_to_come(given.folders, given.group_size)), end="")
    return 0


def still_to_come(folders: Sequence[Path], group_size: int) -> Table:
    """A row a turn. Raises DataError where a run does not fork all its boundaries, and where two differ in a setting
    besides the seed."""
    folders = [folder.absolute() for folder in folders]
    for folder in folders:
        if not archives.exists(folder / "config.yaml"):
            raise DataError(archives.no_run(folder))
        if not is_finished(folder):
            raise DataError(f"{folder} has not ended: finish it by giving its training command again.")
    runs = [load_run(folder) for folder in folders]
    for run in runs:
        if (name := run.config["algorithm"]["name"]) != FORKING:
            raise DataError(f"{run.folder} is a run of {name}: f_k is read from runs of {FORKING}.")
    groups = by_label(runs)
    if len(groups) > 1:
        raise DataError(f"The runs have the labels {', '.join(g.label for g in groups)}: give those of one label.")
    f, boundaries, reached = shares(groups[0])
    star = break_even(float(reached.sum()), group_size)
    rows = tuple(
        (str(k), UNKNOWN if one is None else percent(one), f"{boundaries[k]:,}", number(reached[k], 1, scale=100))
        for k, one in enumerate(f)
    )
    below = sum(one is not None and one.mean < star for one in f)
    caption = (
        f"f_k in percent before the first update, of {len(runs)} {'run' if len(runs) == 1 else 'runs'}; f_0 is 1. "
        f"Brackets: 95 % intervals over runs, where there are several. f* is {number(star, 3, scale=100)} % at G = "
        f"{group_size} and {number(float(reached.sum()), 2)} turns a chain in the mean: f_k is below it at {below} of "
        f"{len(f)} turns."
    )
    return Table("when_shares_of_runs", ("k", "f_k", "Boundaries", "Chains that reach it, %"), rows, caption, ())


if __name__ == "__main__":
    sys.exit(main())
