"""What an experiment will cost, before it runs: `python experiments/plan.py experiment=main_table profile=a100x8`.

    --hardware NAME   the machine that memory is held against (rtpo/planning/hardware.yaml); default: the profile's own
    --json            the plan as JSON, null for what is unknown

Other arguments are overrides, as of experiments/train.py.
"""

import json
import sys
from collections.abc import Sequence

from rtpo.run.command import Parser, command

from rtpo.errors import ConfigError
from rtpo.planning.plan import plan
from rtpo.planning.text import render
from rtpo.run.experiments import experiments


@command
def main(arguments: Sequence[str] | None = None) -> None:
    parser = Parser(__doc__)
    parser.add_argument("overrides", nargs="*", metavar="experiment=NAME [OVERRIDE ...]")
    parser.add_argument("--hardware")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    name, overrides = _experiment(options.overrides)
    made = plan(name, overrides, options.hardware)
    print(json.dumps(made.as_dict(), indent=1) if options.json else render(made), end="\n" if options.json else "")


def _experiment(overrides: Sequence[str]) -> tuple[str, list[str]]:
    """The experiment's name, and the other overrides. Raises ConfigError without exactly one name."""
    named = [one.removeprefix("experiment=") for one in overrides if one.startswith("experiment=")]
    if len(named) != 1:
        raise ConfigError(f"experiment=<name> is given {len(named)} times: give one of {', '.join(experiments())}.")
    return named[0], [one for one in overrides if not one.startswith("experiment=")]


if __name__ == "__main__":
    sys.exit(main())
