"""Say what an experiment will cost before it runs (docs/cluster/gpus.md):

    python experiments/plan.py main_table profile=a100x8
    python experiments/plan.py drift profile=h200x1 seed=0
    python experiments/plan.py 'ablate_*' profile=a100x8

An element is one run of the experiment. Further arguments are settings of experiments/train.py for
every element.
"""

import sys
from collections.abc import Sequence

from rtpo.planning.plan import plan, summary
from rtpo.run.cli import Parser, command


@command
def main(arguments: Sequence[str] | None = None) -> None:
    parser = Parser(__doc__)
    parser.add_argument("experiment", help="a file of configs/experiment/, such as main_table, or a pattern of names")
    parser.add_argument("overrides", nargs="*", default=[], help="settings for every element, such as seed=1")
    options = parser.parse_intermixed_args(arguments)
    print(summary(plan(options.experiment, options.overrides)), end="")


if __name__ == "__main__":
    sys.exit(main())
