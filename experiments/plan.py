"""What an experiment will cost, before it runs (docs/cluster/planning.md):

    python experiments/plan.py experiment=main_table profile=a100x8
    python experiments/plan.py experiment=drift profile=a100x8 seed=0 --hardware a100x4 --full

What else is given is set for every element, as with experiments/train.py:

    profile=toy                  the machine: a file of configs/profile/
    seed=0                       one instead of all that the experiment varies
"""

import json
import sys
from collections.abc import Sequence

from rtpo.run.command import Parser, command

from rtpo.errors import ConfigError
from rtpo.planning.plan import plan
from rtpo.planning.text import render, summary
from rtpo.run.experiments import experiments


@command
def main(arguments: Sequence[str] | None = None) -> None:
    parser = Parser(__doc__)
    parser.add_argument("overrides", nargs="*", metavar="experiment=NAME [OVERRIDE ...]")
    parser.add_argument("--hardware", metavar="NAME", help="of rtpo/planning/hardware.yaml; default: the profile's")
    parser.add_argument("--full", action="store_true", help="every element, but for seeds, in a line")
    parser.add_argument("--json", action="store_true", help="all of it as JSON, null for what is unknown")
    options = parser.parse_args(arguments)
    name, overrides = _experiment(options.overrides)
    made = plan(name, overrides, options.hardware)
    text = render(made) if options.full else summary(made)
    print(json.dumps(made.as_dict(), indent=1) + "\n" if options.json else text, end="")


def _experiment(overrides: Sequence[str]) -> tuple[str, list[str]]:
    """The experiment's name, and the other overrides. Raises ConfigError without exactly one name."""
    named = [one.removeprefix("experiment=") for one in overrides if one.startswith("experiment=")]
    if len(named) != 1:
        raise ConfigError(f"experiment=<name> is given {len(named)} times: give one of {', '.join(experiments())}.")
    return named[0], [one for one in overrides if not one.startswith("experiment=")]


if __name__ == "__main__":
    sys.exit(main())
