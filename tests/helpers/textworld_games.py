"""Two games of TextWorld for tests, one of each family, made once in a process."""

import os
import tempfile
from functools import cache
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import pytest

from rtpo.envs.textworld.games import INSTALL, Family, first_seed, read_games, write_games
from rtpo.envs.textworld.making import make_game
from rtpo.types import Task

FAMILIES = {"quests": Family("quests", (1, 2), 4, (2, 2)), "treasure": Family("treasure", (5, 5), 4, (2, 2))}
"""the shortest games that there are"""
MISSING = "" if find_spec("textworld") else f"no textworld on this machine: {INSTALL}"
if MISSING and os.environ.get("CI"):
    raise pytest.UsageError(f"CI is set, where nothing is skipped for what is missing, and there is {MISSING}")
needs_textworld = pytest.mark.skipif(bool(MISSING), reason=MISSING)


@cache
def file_of(kind: str, place: int) -> Path:
    """One of the games of a family's training set that can be made."""
    folder = Path(tempfile.mkdtemp(prefix=f"games_{kind}_"))
    (folder / "games").mkdir()
    seeds = range(first_seed("train"), first_seed("train") + 20)
    rows = (row for seed in seeds if (row := make_game(folder / "games", FAMILIES[kind], seed)))
    write_games(folder / "train.jsonl", list(islice(rows, place, place + 1)))
    return folder / "train.jsonl"


def game(kind: str) -> Task:
    return read_games(file_of(kind, 0))[0]


def replies(kind: str) -> tuple[str, ...]:
    """Those that do not go on with the game, more than one command and none among them, and then its solution."""
    beside = ("look", "<think>\nwhat have I?</think>\n\ninventory", "take all", "go east. go west", "save", "")
    return (*beside, *(f"<think>so</think>{command}" for command in game(kind).answer))
