"""Luck, a setting of the toy tasks: returns that differ for reasons which no turn of the policy caused.

After some turns the environment tosses a coin. It is part of the state, so that whoever goes on from there has it, and
of nothing that the policy sees. A path's coins come from its own seed: siblings share those that were tossed before
their boundary and toss their own after it.
"""

from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge, MultipleOf

from rtpo.core.bounds import Natural, Positive
from rtpo.core.seeds import stream_seed
from rtpo.envs.base import Settings
from rtpo.envs.episode import Answering


@dataclass(frozen=True)
class Luck:
    """turns: those after which a coin is tossed, the first being 0; none without luck. size: what heads is worth, where
    the answer is worth 1. faces: of a coin, half of them heads; with a large number two paths are hardly ever in the
    same state after a toss, and a return's mean and variance are those of two faces."""

    turns: tuple[Natural, ...] = ()
    size: Positive = 1.0
    faces: Annotated[int, Ge(2), MultipleOf(2)] = 2

    def problems(self, path: str) -> list[str]:
        problems = []
        if len(set(self.turns)) < len(self.turns):
            problems.append(f"{path}.turns is {list(self.turns)}: name each turn once.")
        if not self.turns and self != Luck():
            problems.append(f"{path} has no turns and so no coin: name turns, or leave size and faces out.")
        return problems

    def toss(self, path_seed: int, turn: int) -> int:
        """The face that this path's coin shows after `turn`: the odd ones are heads, of two faces True."""
        face = (stream_seed(path_seed, "luck", turn) + 1) % self.faces
        return face == 1 if self.faces == 2 else face

    def reward(self, answer: float, coins: tuple[int, ...]) -> float:
        """The answer's reward and the coins', as a share of all that there is to have. A coin that the episode ended
        before is worth its mean, so that nothing is earned by going on."""
        earned = heads(coins) + (len(self.turns) - len(coins)) / 2
        return (answer + self.size * earned) / (1 + self.size * len(self.turns))


@dataclass(frozen=True)
class ToySettings(Settings):
    luck: Luck = field(default_factory=Luck)

    def problems(self, path: str) -> list[str]:
        return self.luck.problems(f"{path}.luck")


@dataclass(frozen=True, slots=True)
class Lucky(Answering):
    """coins: the faces of those tossed so far."""

    coins: tuple[int, ...] = ()


def heads(coins: tuple[int, ...]) -> int:
    """How many of these faces are heads."""
    return sum(face % 2 for face in coins)
