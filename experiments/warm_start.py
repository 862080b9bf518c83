"""Make a toy task's warm-started model: python experiments/warm_start.py --task toy_math --output DIR"""

import argparse
import json
import sys
from dataclasses import fields
from pathlib import Path

from rtpo.errors import RTPOError
from rtpo.toy.warm_start import TASKS, WarmStart, warm_start


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--task", required=True, choices=sorted(TASKS))
    parser.add_argument("--output", required=True, type=Path, help="checkpoint folder to make")
    for field in fields(WarmStart):
        if field.name != "task":
            parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    given = vars(parser.parse_args(arguments))
    output = given.pop("output")
    try:
        record = warm_start(WarmStart(**given), output)
    except RTPOError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps({name: value for name, value in record.items() if name != "loss"}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
