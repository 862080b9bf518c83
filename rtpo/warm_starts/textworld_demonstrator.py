"""A player of TextWorld's games that is shown to a language model.

It takes the shortest way to win from where it is, thinks a short thought made of the game's facts, and slips."""

import os
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from rtpo.envs.base import Env
from rtpo.toy.demonstrator import DemonstratedTurn, Demonstration
from rtpo.types import StopReason, Task

SLIP: Final = "I try something."
"""the thought before a slip"""
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
}
"""by a command's verb. sought: what is handled next, behind doors and lids. object, tool: of the command"""
ON_THE_WAY: Final = ("go ", "open ", "unlock ")
JOINTS: Final = (" with ", " from ", " on ", " into ")


async def demonstrate(task: Task, env: Env, rng: np.random.Generator, max_turns: int, slips: float) -> Demonstration:
    """One episode of `task` in `env`, without stop tokens in its replies. The same state of `rng` gives the same one.

    slips: the share of turns with a command that is drawn from all that the game would take, the right one excepted.
    """
    opening = await env.reset(task)
    game, turns = _Game(task.meta["game"]), list[DemonstratedTurn]()
    done = False
    while not done and len(turns) < max_turns:
        ahead, others = game.ahead, [command for command in game.possible if command != game.ahead[0]]
        slipped = bool(others) and rng.random() < slips
        command = others[int(rng.integers(len(others)))] if slipped else ahead[0]
        reply = f"<think>{SLIP if slipped else thought(ahead, rng)}</think>{command}"
        feedback = await env.step(reply, StopReason.STOP)
        turns.append(DemonstratedTurn(reply, feedback.messages))
        done = feedback.done
        game.play(command)
    game.close()
    return Demonstration(opening, tuple(turns), await env.grade())


def thought(ahead: Sequence[str], rng: np.random.Generator) -> str:
    """What is thought before the first of the commands that win."""
    verb, first, tool = parts(ahead[0])
    handled = [parts(command)[1] for command in ahead if not command.startswith(ON_THE_WAY)]
    sought = handled[0] if handled else parts(ahead[-1])[1]
    ways = THOUGHTS.get(verb, ("I need the {object}.",))
    return ways[int(rng.integers(len(ways)))].format(object=first, tool=tool, sought=sought)


def parts(command: str) -> tuple[str, str, str]:
    """Verb, object and what the object is used with: `unlock box with key` is unlock, box, key."""
    verb, _, rest = command.partition(" ")
    for joint in JOINTS:
        if joint in rest:
            first, _, tool = rest.partition(joint)
            return verb, first, tool
    return verb, rest, ""


class _Game:
    """The package's own view of a game, which knows the shortest way to win."""

    def __init__(self, file: str) -> None:
        os.environ.setdefault("TERM", "dumb")  # without one the package complains
        import textworld

        self._env: Any = textworld.start(file, textworld.EnvInfos(policy_commands=True, admissible_commands=True))
        self._state: Any = self._env.reset()

    @property
    def ahead(self) -> list[str]:
        """The commands that win soonest; a look around where there is no way left."""
        return list(self._state.policy_commands or ()) or ["look"]

    @property
    def possible(self) -> list[str]:
        return sorted(self._state.admissible_commands or ())

    def play(self, command: str) -> None:
        self._state, _, _ = self._env.step(command)

    def close(self) -> None:
        self._env.close()
