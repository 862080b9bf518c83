"""Make a toy task's warm-started model: python experiments/maintenance/warm_start.py --task toy_math --output DIR

Settings that are not given are the task's own (`rtpo.toy.warm_start.TASKS`).
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, get_type_hints

from rtpo.run.command import Parser, command, whole

from rtpo.core.json_text import parse
from rtpo.errors import DataError
from rtpo.toy.warm_start import TASKS, WarmStart, settings_of, warm_start

TOLERANCE = 0.05


@command
def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = Parser(__doc__)
    parser.add_argument("--task", required=True, choices=sorted(TASKS))
    parser.add_argument("--output", required=True, type=Path, help="checkpoint folder to make")
    for name, kind in get_type_hints(WarmStart).items():
        if name != "task":
            parser.add_argument(
                f"--{name.replace('_', '-')}", type=whole(0) if kind is int else kind, default=argparse.SUPPRESS
            )
    parser.add_argument("--compare", type=Path, help="warm start whose sampled success the new one must be close to")
    given = vars(parser.parse_args(arguments))
    task, output, compared = given.pop("task"), given.pop("output"), given.pop("compare")
    kept = None if compared is None else sampled_success(compared)
    record = warm_start(settings_of(task, **given), output)
    print(json.dumps({name: value for name, value in record.items() if name != "loss"}, indent=1))
    return 0 if kept is None else compare(record, kept)


def sampled_success(folder: Path) -> float:
    """Of the warm start in a folder. Raises DataError."""
    file = folder / "warm_start.json"
    try:
        return float(parse(file.read_bytes())["held_out"]["sampled_success"])
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"{file} has no sampled success ({error}): give the folder of a warm start.") from error


def compare(record: dict[str, Any], old: float) -> int:
    """Exit status 1 when the sampled success differs by more than TOLERANCE from the old one."""
    new = record["held_out"]["sampled_success"]
    verdict = "within" if abs(new - old) <= TOLERANCE else "NOT within"
    print(f"sampled success {new}, kept {old}: {verdict} {TOLERANCE}")
    return int(abs(new - old) > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
