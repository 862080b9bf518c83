"""What an experiment will cost, before it runs (docs/cluster/planning.md):

    python experiments/plan.py main_table profile=a100x8
    python experiments/plan.py drift profile=a100x8 seed=0 --hardware a100x4 --full

What else is given is set for every element, as with experiments/train.py:

    profile=toy                  the machine: a file of configs/profile/
    seed=0                       one instead of all that the experiment varies
"""

import json
import sys
from collections.abc import Sequence

from rtpo.run.command import Parser, command

from rtpo.planning.plan import plan
from rtpo.planning.text import render, summary


@command
def main(arguments: Sequence[str] | None = None) -> None:
    parser = Parser(__doc__)
    parser.add_argument("experiment")
    parser.add_argument("overrides", nargs="*", default=[], help="Hydra overrides for every element")
    parser.add_argument("--hardware", metavar="NAME", help="of rtpo/planning/hardware.yaml; default: the profile's")
    parser.add_argument("--full", action="store_true", help="every element, but for seeds, in a line")
    parser.add_argument("--json", action="store_true", help="all of it as JSON, null for what is unknown")
    options = parser.parse_intermixed_args(arguments)
    made = plan(options.experiment, options.overrides, options.hardware)
    text = render(made) if options.full else summary(made)
    print(json.dumps(made.as_dict(), indent=1) + "\n" if options.json else text, end="")


if __name__ == "__main__":
    sys.exit(main())
