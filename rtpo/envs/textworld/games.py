"""Games of TextWorld as tasks: the families, and the files of rows that `making` writes."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from rtpo.core.bounds import Count
from rtpo.core.files import readable, sha256, write_whole
from rtpo.data.reading import read_task_file
from rtpo.errors import DataError
from rtpo.types import Task

INSTALL: Final = "python -m pip install -r requirements/lm.txt"
WON: Final = "*** The End ***"
LOST: Final = "*** You lost! ***"
SPLITS: Final = ("held_out", "validation", "train", "demonstrations")
"""in the order in which games are compared: of two with the same texts, the first split keeps its one"""
_SEEDS: Final = 1_000_000
"""a split's share of the seeds"""


@dataclass(frozen=True)
class Family:
    """A kind of game and its size. kind: `quests` (a chain of actions on objects) or `treasure` (find and take one
    object, and not the wrong one). rooms, length: the least and the most of a game's rooms, and of its shortest
    solution's commands. objects: of the quests' world, beside those of the quest."""

    kind: Literal["quests", "treasure"] = "quests"
    rooms: tuple[Count, Count] = (1, 3)
    objects: Count = 4
    length: tuple[Count, Count] = (2, 4)

    def problems(self, path: str) -> list[str]:
        ranges = {"rooms": self.rooms, "length": self.length}
        return [
            f"{path}.{name} is ({least}, {most}): give the least first."
            for name, (least, most) in ranges.items()
            if least > most
        ]


@dataclass(frozen=True, slots=True)
class GameRow:
    """A row of a file of games. game: the story file, from the folder of the rows. walkthrough: its shortest solution.
    sha256: of the story file. texts: checksum of all that the game says to the walkthrough, which tells games apart."""

    uid: str
    game: str
    goal: str
    walkthrough: tuple[str, ...]
    sha256: str
    texts: str


def first_seed(split: str) -> int:
    """Of a split's games. The seeds of different splits never meet."""
    return _SEEDS * (1 + SPLITS.index(split))


def write_games(path: Path, rows: Iterable[GameRow]) -> None:
    """Write a file of games, whole or not at all."""
    write_whole(path, "".join(json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in rows).encode())


def read_games(path: Path) -> list[Task]:
    """The tasks of a file of games. Raises DataError naming the line, for a game that is missing or damaged too."""
    if not path.exists():
        raise DataError(f"file of games {path} does not exist: python experiments/prepare_data.py textworld makes it.")

    def task(row: Mapping[str, Any]) -> Task:
        file = path.parent / str(row["game"])
        with readable("game", file):
            digest = sha256(file)
        if digest != row["sha256"]:
            raise DataError(f"the game {file} is damaged (its sha256 is {digest}): remove it and make it again")
        if not isinstance(row["goal"], str) or not row["goal"].strip():
            raise DataError("goal must be text that is not empty")
        meta = {"game": str(file.resolve()), "texts": row["texts"]}
        return Task(row["uid"], row["goal"], tuple(row["walkthrough"]), meta)

    return read_task_file(path, ("game", "goal", "walkthrough", "sha256", "texts"), task)
