"""Measure which turns of its games decide the return of a model with an adapter (docs/run/language_model.md):

    python experiments/maintenance/turns.py --name quests_0 --output outputs/turns.json
    python experiments/maintenance/turns.py --name quests_1 --task textworld_short --output outputs/turns.json

On one processor without bf16 this takes three quarters of an hour for eight turns.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from experiments.prepare_data import GAME_TASKS
from rtpo.core.files import write_whole
from rtpo.core.names import counted
from rtpo.envs.textworld.games import read_games
from rtpo.errors import DataError
from rtpo.run.cli import PROJECT, Parser, command, composed, folder, whole_number
from rtpo.run.config import RunConfig, read_tree
from rtpo.warm_starts.adapter import measure_turns
from rtpo.warm_starts.recipes import SHIPPED, adapter_recipes

DATA = PROJECT / "data"


@command
def main(arguments: list[str] | None = None) -> None:
    parser, recipes = Parser(__doc__), adapter_recipes()
    parser.add_argument("--name", required=True, choices=sorted(recipes), help="name of the adapter")
    parser.add_argument(
        "--task", default="textworld", choices=GAME_TASKS, help="task whose training games to play; default: textworld"
    )
    parser.add_argument("--output", required=True, type=Path, help="file to write")
    parser.add_argument(
        "--base", type=folder, help="the model's folder", default=DATA / "models" / "smollm2-135m-instruct"
    )
    parser.add_argument("--count", type=whole_number(1), default=24, help="how many training games to play")
    options = parser.parse_args(arguments)
    if options.output.exists() or not options.output.parent.is_dir():
        raise DataError(f"{options.output} is no new file in a folder: name one.")
    task = read_tree(RunConfig, composed("train", [f"task={options.task}"])).task
    assert task.train.file is not None
    games = read_games(Path(task.train.file))[: options.count]
    if len(games) < options.count:
        raise DataError(f"{task.train.file} has {counted(len(games), 'game')}: give a smaller --count.")
    turns = asdict(measure_turns(options.base, SHIPPED / options.name, task, games))
    write_whole(options.output, (json.dumps(turns, indent=1) + "\n").encode())
    print(json.dumps(turns))


if __name__ == "__main__":
    sys.exit(main())
