"""Download and convert the paper's training and evaluation sets, and make text games (docs/run/data.md):

    python experiments/prepare_data.py                         all sets
    python experiments/prepare_data.py math_train math500      these sets
    python experiments/prepare_data.py --from gaia=FILE        a set from a local file
    python experiments/prepare_data.py --list                  all sets, and which are here
    python experiments/prepare_data.py textworld               games for task=textworld
    python experiments/prepare_data.py textworld --games train=64 held_out=32

Each set goes to <folder>/<name>.jsonl; a run reads it with data=<folder>/<name>.jsonl. Games go to <folder>/textworld/,
and are made only if they are named. If a set fails, the command goes on with the others, and ends with exit status 1.
"""

import argparse
import sys
from pathlib import Path

from rtpo.core.names import counted
from rtpo.core.visible import visible
from rtpo.data.prepare import DataFolder
from rtpo.data.registry import REGISTRY, UNVERIFIED
from rtpo.envs.textworld.env import TextWorldSettings
from rtpo.envs.textworld.games import SPLITS
from rtpo.envs.textworld.making import make_games
from rtpo.errors import DataError, RTPOError
from rtpo.rewards.golds import UnequalGolds
from rtpo.run.cli import Parser, aligned, command, composed, whole_number
from rtpo.run.config import PROJECT, RunConfig, read_tree
from rtpo.run.records import RunFolder

COLUMNS = ("Name", "Role", "Task", "Rows", "Status", "Checksum", "Revision", "Licence")


GAMES = {"train": 512, "validation": 64, "held_out": 128}
"""default number of games by split"""
GAME_TASKS = ("textworld", "textworld_short", "textworld_treasure")


def games(text: str) -> tuple[str, int]:
    """An argument's type: SPLIT=NUMBER."""
    split, _, number = text.partition("=")
    if split not in SPLITS:
        raise argparse.ArgumentTypeError(f"{text!r} is not SPLIT=NUMBER: the splits are {', '.join(SPLITS)}")
    return split, whole_number(1)(number)


def stand_in(text: str) -> tuple[str, Path]:
    """An argument's type: NAME=FILE, a set and a local file in place of its download."""
    name, _, file = text.partition("=")
    if not file:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FILE")
    return name, Path(file)


@command
def main(arguments: list[str] | None = None) -> int:
    parser = Parser(__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="name",
        help=f"sets to prepare; default: all of {', '.join(REGISTRY)}; or tasks to make games for: "
        f"{', '.join(GAME_TASKS)}",
    )
    parser.add_argument(
        "--from",
        dest="stand_ins",
        action="append",
        default=[],
        metavar="NAME=FILE",
        type=stand_in,
        help="prepare the set NAME from a local FILE; can be repeated",
    )
    parser.add_argument(
        "--accept-other",
        action="store_true",
        help="take --from files with another checksum or number of rows; the manifest says so",
    )
    parser.add_argument(
        "--games",
        nargs="+",
        type=games,
        metavar="SPLIT=NUMBER",
        help=f"how many games to make, of the splits {', '.join(SPLITS)}; default: "
        f"{' '.join(f'{split}={number}' for split, number in GAMES.items())}",
    )
    parser.add_argument("--folder", type=Path, default=PROJECT / "data", help="where the files go; default: data/")
    parser.add_argument("--list", action="store_true", help="print the status and source of every set; prepare nothing")
    options = parser.parse_args(arguments)
    folder = DataFolder(options.folder)
    stand_ins, counts = dict(options.stand_ins), dict(options.games or GAMES.items())
    if games_of := stand_ins.keys() & {*GAME_TASKS}:
        raise DataError(f"--from {min(games_of)}: games are made, not read from a file")
    if len(stand_ins) < len(options.stand_ins):
        raise DataError("--from names a set twice: give one file for each")
    if options.games and len(counts) < len(options.games):
        raise DataError("--games names a split twice: give one number for each")
    names = {*options.names, *stand_ins}
    if unknown := sorted(names - REGISTRY.keys() - {*GAME_TASKS}):
        raise DataError(f"no set is named {', '.join(unknown)}: there are {', '.join((*REGISTRY, *GAME_TASKS))}")
    game_tasks = [task for task in GAME_TASKS if task in names]
    if options.games and not game_tasks:
        raise DataError(f"--games is for the games of a task: name one of {', '.join(GAME_TASKS)}")
    if options.list:
        print(table(folder))
        return 0
    options.folder.mkdir(parents=True, exist_ok=True)
    with RunFolder(options.folder).held():
        for task in game_tasks:
            prepare_games(task, options.folder, counts)
        sets = names - {*GAME_TASKS} if names else set(REGISTRY)
        return prepare(folder, sets, stand_ins, options.accept_other) if sets else 0


def prepare_games(task: str, folder: Path, counts: dict[str, int]) -> None:
    """Make the games that a task's settings describe."""
    config = read_tree(RunConfig, composed("train", [f"task={task}"])).task
    settings = config.env_settings
    assert isinstance(settings, TextWorldSettings)
    assert config.train.file is not None
    place = folder / Path(config.train.file).parent.relative_to(PROJECT / "data")
    in_order: dict[str, int] = {split: counts[split] for split in SPLITS if split in counts}
    make_games(place, settings.games, in_order)
    for split, number in in_order.items():
        print(f"{task}: {counted(number, 'game')} in {place / f'{split}.jsonl'}", flush=True)


def prepare(folder: DataFolder, names: set[str], stand_ins: dict[str, Path], accept_other: bool) -> int:
    """Prepare sets, evaluation sets first; returns the exit status. A training set is prepared again if the evaluation
    sets that it was compared with have changed."""
    status = 0
    for name, dataset in sorted(REGISTRY.items(), key=lambda item: item[1].role == "train"):
        if name not in names and (dataset.role == "eval" or folder.status(name) != "stale"):
            continue
        if dataset.parse is None and name not in stand_ins:
            print(f"{name}: nothing to download, it comes with a package: install {dataset.source} (docs/run/tasks.md)")
            continue
        try:
            manifest = folder.prepare(name, stand_ins.get(name), accept_other)
        except RTPOError as error:
            print(visible(str(error)), file=sys.stderr)
            status = 1
        else:
            dropped = "".join(f", {count} dropped ({reason})" for reason, count in manifest.dropped.items())
            print(f"{name}: {folder.status(name)}, {counted(manifest.rows, 'row')}{dropped}", flush=True)
            if isinstance(manifest.unequal_golds, UnequalGolds):
                print(manifest.unequal_golds.sentence(folder.file(name)), file=sys.stderr)
    return status


def table(folder: DataFolder) -> str:
    """The registry with each set's status, in columns, and its sources and notes below."""
    rows = [COLUMNS]
    for name, dataset in REGISTRY.items():
        checksum = "-" if dataset.parse is None else _short(dataset.sha256)
        count, revision = str(dataset.sample or dataset.rows), _short(dataset.revision)
        rows.append((name, dataset.role, dataset.kind, count, folder.status(name), checksum, revision, dataset.licence))
    notes = [
        f"{name}: {dataset.source}{f', gated by {dataset.gate}' if dataset.gate else ''}\n  {dataset.note}".rstrip()
        for name, dataset in REGISTRY.items()
    ]
    return "\n".join([aligned(rows), "", *notes])


def _short(checksum: str) -> str:
    return checksum if checksum == UNVERIFIED else checksum[:12]


if __name__ == "__main__":
    sys.exit(main())
