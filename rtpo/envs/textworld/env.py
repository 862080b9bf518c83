"""TextWorld: text games, in which a reply is a thought and one command (docs/run/tasks.md).

The state is the list of commands so far, because games are deterministic.
"""

import asyncio
import re
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, Final, Literal

from rtpo.core.bounds import Count
from rtpo.envs.base import Environment, Settings
from rtpo.envs.episode import Episode
from rtpo.envs.textworld.games import INSTALL, LOST, WON, Family, read_games
from rtpo.envs.textworld.interpreter import interpreters
from rtpo.errors import MachineError
from rtpo.tools.protocol import visible_text
from rtpo.types import Feedback, Grade, GradeOutcome, Message, Opening, StopReason, Task

INSTRUCTIONS: Final = (
    "You play a text game. Think in a few words, then write one command, such as: look, inventory, go east, "
    "examine key, take key, take key from box, drop key, open box, close box, unlock box with key, lock box with key, "
    "put key on table, insert key into box, eat apple."
)
VERBS: Final = frozenset(
    {"look", "l", "inventory", "i", "goal", "help", "examine", "x", "wait", "z"}
    | {"go", "n", "e", "s", "w", "north", "east", "south", "west"}
    | {"take", "get", "pick", "drop", "put", "insert", "open", "close", "lock", "unlock", "eat"}
)
"""allowed first words of a command, without those that control the interpreter, such as `save` and `restart`"""
NO_COMMAND: Final = ""
"""sent to the game for a reply without a command; the game then asks for one"""
_COMMAND = re.compile(r"[a-z0-9][a-z0-9' -]{0,99}")
_BANNER = re.compile(r"\A.*\\\$\$[^\n]*\n\s*\n", re.DOTALL)
_STATUS = re.compile(r"\s*>?\s*-= [^\n]* =-\d+/\d+\s*\Z|\s*>\s*\Z")
_BLANK = re.compile(r"\s*\n\s*")


@dataclass(frozen=True)
class TextWorldSettings(Settings):
    """Settings of the textworld task."""

    games: Family = field(default_factory=Family)  # that experiments/prepare_data.py makes; a run ignores it
    interpreters: Count | None = None  # processes that play all episodes; null: one per available CPU

    def problems(self, path: str) -> list[str]:
        return self.games.problems(f"{path}.games")

    def check(self) -> dict[str, Any]:
        """Raises MachineError without the packages."""
        for package in ("textworld", "jericho"):
            if find_spec(package) is None:
                raise MachineError(
                    f"The textworld task needs the package {package}, which is not installed: {INSTALL}."
                )
        return {package: version(package) for package in ("textworld", "jericho")}


@dataclass(frozen=True, slots=True)
class State:
    """An episode's state."""

    uid: str  # the task's
    commands: tuple[str, ...] = ()  # one per reply, NO_COMMAND for a reply without a command
    ended: Literal["", "won", "lost"] = ""  # empty while the game runs


class TextWorldEnv(Episode[State]):
    """One game, which ends when it is won or lost. The reward is 1 if it is won."""

    def __init__(self, settings: TextWorldSettings) -> None:
        super().__init__()
        self._interpreters = interpreters(settings.interpreters)

    async def reset(self, task: Task) -> Opening:
        opening = await self._ask(task, ())
        self._task, self._state = task, State(task.uid)
        return Opening((Message("system", INSTRUCTIONS), Message("user", shown_text(_BANNER.sub("", opening)))))

    async def step(self, reply: str, stop: StopReason) -> Feedback:
        """See `rtpo.envs.base.Env`. Raises InfrastructureError, and changes nothing, if the interpreter fails."""
        task = self._active_task()
        commands = (*self._state.commands, command_of(reply, stop))
        text = await self._ask(task, commands)
        ended: Literal["", "won", "lost"] = "won" if WON in text else "lost" if LOST in text else ""
        self._state = replace(self._state, commands=commands, ended=ended)
        return Feedback((), done=True) if ended else Feedback((Message("user", shown_text(text)),), done=False)

    async def grade(self) -> Grade:
        self._current_task()
        return Grade(GradeOutcome.GRADED, float(self._state.ended == "won"), self._state.ended or "not ended")

    async def _ask(self, task: Task, commands: tuple[str, ...]) -> str:
        return await asyncio.to_thread(self._interpreters.answer, task.meta["game"], commands)


def command_of(reply: str, stop: StopReason) -> str:
    """The command after a reply's thinking; NO_COMMAND if the reply was cut or has not exactly one command."""
    text = visible_text(reply).strip().rstrip(".").lower()
    words = text.split()
    is_whole = stop is StopReason.STOP and _COMMAND.fullmatch(text) is not None
    return text if is_whole and words[0] in VERBS and "then" not in words else NO_COMMAND


def shown_text(text: str) -> str:
    """A game's text without the status line, the prompt and empty lines."""
    return _BLANK.sub("\n", _STATUS.sub("", text).strip())


ENVIRONMENT = Environment(
    lambda settings, max_turns: TextWorldEnv(settings),
    read_games,
    split_key=lambda task: str(task.meta["texts"]),
    settings=TextWorldSettings,
)
