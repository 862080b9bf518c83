"""TextWorld's games as tasks: families of games, and the JSONL files that list games (`making` writes them)."""

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
"""in the order of making: a game whose texts occur in an earlier split of the same call is dropped"""
_SEEDS: Final = 1_000_000
"""seeds per split"""


@dataclass(frozen=True)
class Family:
    """A kind of game and its size. `quests` ask for a chain of actions. `treasure` asks to take the right object."""

    kind: Literal["quests", "treasure"] = "quests"
    rooms: tuple[Count, Count] = (1, 3)  # least and most
    objects: Count = 4  # for `quests` alone: objects beside those of the quest
    length: tuple[Count, Count] = (2, 4)  # least and most commands of a quest; some games can be won with fewer

    def problems(self, path: str) -> list[str]:
        ranges = {"rooms": self.rooms, "length": self.length}
        problems = [
            f"{path}.{name} is ({least}, {most}): give the least first."
            for name, (least, most) in ranges.items()
            if least > most
        ]
        if self.kind == "treasure" and self.rooms[0] < 2:
            problems.append(f"{path}.rooms begins with {self.rooms[0]}: a treasure hunt has two rooms or more.")
        return problems


@dataclass(frozen=True, slots=True)
class GameRow:
    """A line of a JSONL file of games."""

    uid: str
    game: str  # path of the story file, relative to the JSONL file's folder
    goal: str
    walkthrough: tuple[str, ...]  # the shortest solution's commands
    sha256: str  # of the story file
    texts: str  # checksum of the game's texts along the walkthrough; equal texts mean equal games


def first_seed(split: str) -> int:
    """The seed of a split's first game. Splits have disjoint ranges of seeds."""
    return _SEEDS * (1 + SPLITS.index(split))


def write_games(path: Path, rows: Iterable[GameRow]) -> None:
    """Write a JSONL file of games, whole or not at all."""
    write_whole(path, "".join(json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in rows).encode())


def read_games(path: Path) -> list[Task]:
    """Read tasks from a JSONL file of games. Raises DataError naming the line, also if a game is missing or damaged."""
    if not path.exists():
        raise DataError(f"file of games {path} does not exist: python experiments/prepare_data.py TASK makes it.")

    def task(row: Mapping[str, Any]) -> Task:
        file = path.parent / str(row["game"])
        with readable("game", file):
            digest = sha256(file)
        if digest != row["sha256"]:
            raise DataError(f"the game {file} is damaged (its sha256 is {digest}): remove it and make it again")
        if not isinstance(row["goal"], str) or not row["goal"].strip():
            raise DataError("goal must be text that is not empty")
        walkthrough = row["walkthrough"]
        if not isinstance(walkthrough, list) or {type(each) for each in walkthrough} != {str}:
            raise DataError("walkthrough must be a list of commands that is not empty")
        if not isinstance(row["texts"], str) or not row["texts"]:
            raise DataError("texts must be a checksum")
        return Task(row["uid"], row["goal"], tuple(walkthrough), {"game": str(file.resolve()), "texts": row["texts"]})

    return read_task_file(path, ("game", "goal", "walkthrough", "sha256", "texts"), task)
