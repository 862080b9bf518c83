"""A demonstrator of TextWorld games for language models.

It plays the shortest solution from the current state, thinks a short thought about the game's facts, and may slip."""

import os
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from rtpo.envs.base import Env
from rtpo.toy.demonstrator import DemonstratedTurn, Demonstration
from rtpo.types import StopReason, Task

SLIP: Final = "I try something."
"""the thought before a random command"""
THOUGHTS: Final = {
    "go": (
        "I seek the {sought}. I go {object}.",
        "No {sought} here yet. I look {object}.",
        "I go {object} for the {sought}.",
    ),
    "take": ("The {object} is here. I take it.", "I see the {object} and need it.", "I need the {object}."),
    "open": ("The {object} is closed. I open it.", "I seek the {sought}. I open the {object}.", "I open the {object}."),
    "unlock": ("The {object} is locked. I have the {tool}.", "The {tool} fits the {object}."),
    "lock": ("I have the {tool}. I lock the {object}.", "The {tool} fits the {object}."),
    "close": ("The {object} is open. I close it.",),
    "eat": ("I have the {object}. I eat it.", "Now I can eat the {object}."),
    "drop": ("I have the {object}. I drop it here.", "This is where the {object} goes."),
    "put": ("I have the {object}. It goes on the {tool}.", "The {object} goes on the {tool}."),
    "insert": ("I have the {object}. It goes into the {tool}.", "The {object} goes into the {tool}."),
    "look": ("I look around.",),
}
"""thoughts by the command's verb. {object} and {tool} are in the command; {sought} is the next object to handle"""
ON_THE_WAY: Final = ("go ", "open ", "unlock ")
"""beginnings of commands that only lead to the object to handle"""
JOINTS: Final = (" with ", " from ", " on ", " into ")
"""words between a command's object and its tool"""


async def demonstrate(task: Task, env: Env, rng: np.random.Generator, max_turns: int, slips: float) -> Demonstration:
    """Play one episode of `task` in `env`. Replies have no stop tokens. Equal states of `rng` give equal episodes.

    slips: share of turns with a wrong command, drawn from all valid commands except the right one.
    """
    opening = await env.reset(task)
    game, turns = _Game(task.meta["game"]), list[DemonstratedTurn]()
    done = False
    while not done and len(turns) < max_turns:
        solution = game.solution
        wrong_commands = [command for command in game.possible if command != solution[0]]
        slipped = bool(wrong_commands) and rng.random() < slips
        command = wrong_commands[int(rng.integers(len(wrong_commands)))] if slipped else solution[0]
        reply = f"<think>{SLIP if slipped else thought(solution, rng)}</think>{command}"
        feedback = await env.step(reply, StopReason.STOP)
        turns.append(DemonstratedTurn(reply, feedback.messages))
        done = feedback.done
        game.play(command)
    game.close()
    return Demonstration(opening, tuple(turns), await env.grade())


def thought(solution: Sequence[str], rng: np.random.Generator) -> str:
    """A thought before the first command. solution: the remaining commands."""
    verb, handled_object, tool = parts(solution[0])
    handled = [parts(command)[1] for command in solution if not command.startswith(ON_THE_WAY)]
    sought = handled[0] if handled else parts(solution[-1])[1]
    sentences = THOUGHTS[verb]
    return sentences[int(rng.integers(len(sentences)))].format(object=handled_object, tool=tool, sought=sought)


def parts(command: str) -> tuple[str, str, str]:
    """A command's verb, object and tool: `unlock box with key` gives unlock, box, key."""
    verb, _, rest = command.partition(" ")
    for joint in JOINTS:
        if joint in rest:
            first, _, tool = rest.partition(joint)
            return verb, first, tool
    return verb, rest, ""


class _Game:
    """A game in TextWorld's own environment, which knows the shortest solution."""

    def __init__(self, file: str) -> None:
        os.environ.setdefault("TERM", "dumb")  # TextWorld warns without this variable
        import textworld

        self._env: Any = textworld.start(file, textworld.EnvInfos(policy_commands=True, admissible_commands=True))
        self._state: Any = self._env.reset()

    @property
    def solution(self) -> list[str]:
        """The rest of the shortest solution; `look` if the game can no longer be won."""
        return list(self._state.policy_commands or ()) or ["look"]

    @property
    def possible(self) -> list[str]:
        return sorted(self._state.admissible_commands or ())

    def play(self, command: str) -> None:
        self._state, _, _ = self._env.step(command)

    def close(self) -> None:
        self._env.close()
