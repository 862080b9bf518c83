"""Make a toy task's warm-started model, or the adapter that warm-starts a language model on a task (docs/run/tasks.md):

    python experiments/maintenance/warm_start.py --name math --output FOLDER
    python experiments/maintenance/warm_start.py --name quests_3 --output FOLDER

Settings default to the recipe's. An adapter's recipe cannot be changed here.
"""

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_type_hints

from rtpo.errors import ConfigError
from rtpo.run.cli import PROJECT, Parser, command, folder, positive, whole_number
from rtpo.toy.recipes import recipes
from rtpo.toy.record import WarmStart, WarmStartRecord
from rtpo.toy.warm_start import warm_start
from rtpo.warm_starts.adapter import make_adapter, read_splits
from rtpo.warm_starts.recipes import adapter_recipes

PLACES = {
    "base": PROJECT / "data" / "models" / "smollm2-135m-instruct",
    "games": PROJECT / "data" / "textworld",
}
"""the folders that an adapter is made from, by option: of the model, and of the games"""
LEAST_SHARE = 0.5
"""a model with less than this share of its demonstrator's success has not learnt its task"""


@command
def main(arguments: list[str] | None = None) -> None:
    toy_recipes, adapters, parser = recipes(), adapter_recipes(), Parser(__doc__)
    known = sorted({*toy_recipes, *adapters})
    parser.add_argument("--name", required=True, choices=known, help="name of a toy task's or an adapter's recipe")
    parser.add_argument("--output", required=True, type=Path, help="folder to make")
    language = parser.add_argument_group("for an adapter")
    language.add_argument("--base", type=folder, default=argparse.SUPPRESS, help="the model's folder")
    language.add_argument("--games", type=folder, default=argparse.SUPPRESS, help="the games' folder")
    toy = parser.add_argument_group("for a toy task's model")
    for name, kind in get_type_hints(WarmStart).items():
        if name != "task":
            read = positive if kind is float else whole_number(0 if name == "seed" else 1)
            toy.add_argument(f"--{name.replace('_', '-')}", type=read, default=argparse.SUPPRESS)
    options = vars(parser.parse_args(arguments))
    name, output = options.pop("name"), options.pop("output")
    others = options.keys() - PLACES.keys() if name in adapters else options.keys() & PLACES.keys()
    if others:
        kind = "an adapter" if name in adapters else "a toy task's model"
        options_named = " and ".join(sorted(f"--{each.replace('_', '-')}" for each in others))
        raise ConfigError(f"{kind} is made without {options_named}: leave that out.")
    record: dict[str, Any]
    warning = ""
    if name in adapters:
        places = PLACES | options
        games = read_splits(places["games"] / adapters[name].family)
        record = asdict(make_adapter(adapters[name], places["base"], games, output))
    else:
        recipe = toy_recipes[name]
        toy_record = warm_start(replace(recipe, settings=replace(recipe.settings, **options)), output)
        record = asdict(toy_record)
        warning = why_weak(toy_record)
    print(json.dumps({key: value for key, value in record.items() if key != "loss"}, indent=1))
    if warning:
        print(f"warning: {warning}", file=sys.stderr)


def why_weak(record: WarmStartRecord) -> str:
    """A warning if a toy model succeeds far less often than its demonstrator; "" if not."""
    demonstrator, model = record.demonstrator_success, record.held_out.sampled_success
    if model >= LEAST_SHARE * demonstrator:
        return ""
    return (
        f"the model succeeds in {100 * model:.1f} % of the held-out problems and its demonstrator in "
        f"{100 * demonstrator:.1f} %: it has not learnt the task yet; give more --steps or --cycles."
    )


if __name__ == "__main__":
    sys.exit(main())
