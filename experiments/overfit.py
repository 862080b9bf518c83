"""Make a byte-level model that has a few problems of a maths file by heart, in under a minute:

    python experiments/overfit.py --data FILE
    python experiments/train.py task=math data=FILE

The problems are the first of the file's train split, as task.train.count takes them. They need GSM8K's annotations
(`<<48/2=24>>`), which give the calls.
"""

import argparse
import json
import sys
from pathlib import Path

from rtpo.config import PROJECT
from rtpo.errors import RTPOError
from rtpo.math_data import read_math
from rtpo.splits import split_of
from rtpo.toy.byte_model import Overfit, overfit
from rtpo.types import Task


def problems(file: Path, count: int) -> list[Task]:
    """The first `count` problems of a file's train split. Raises DataError."""
    return [task for task in read_math(file) if split_of(task.question) == "train"][:count]


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path, help="file of problems, in GSM8K's schema")
    parser.add_argument("--count", type=int, default=2, help="problems to learn (task.train.count)")
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--output", type=Path, default=PROJECT / "outputs" / "byte_model", help="model folder to make")
    given = parser.parse_args(arguments)
    try:
        record = overfit(problems(given.data, given.count), given.output, Overfit(steps=given.steps))
    except RTPOError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(record))
    return 0


if __name__ == "__main__":
    sys.exit(main())
