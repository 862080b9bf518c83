"""Make a toy task's warm-started model (docs/run/tasks.md):

    python experiments/maintenance/warm_start.py --name math --output FOLDER

Settings that are not given are its own.
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_type_hints

from rtpo.run.cli import Parser, command, positive, whole
from rtpo.toy.recipes import WarmStart, recipes
from rtpo.toy.warm_start import warm_start


@command
def main(arguments: list[str] | None = None) -> None:
    known, parser = recipes(), Parser(__doc__)
    parser.add_argument("--name", required=True, choices=sorted(known), help="of rtpo/toy/*_demonstrator.py")
    parser.add_argument("--output", required=True, type=Path, help="checkpoint folder to make")
    for name, kind in get_type_hints(WarmStart).items():
        if name != "task":
            read = positive if kind is float else whole(0 if name == "seed" else 1)
            parser.add_argument(f"--{name.replace('_', '-')}", type=read, default=argparse.SUPPRESS)
    options = vars(parser.parse_args(arguments))
    output = options.pop("output")
    recipe = known[options.pop("name")]
    record = warm_start(replace(recipe, settings=replace(recipe.settings, **options)), output)
    print(json.dumps({name: value for name, value in record.items() if name != "loss"}, indent=1))


if __name__ == "__main__":
    sys.exit(main())
