"""Luck, a setting of the toy tasks. It adds noise to the return, whatever the policy does.

After some turns the environment tosses a coin, which the policy does not see. Coins are part of the state: paths
forked from one state share the coins tossed before the fork, and then toss their own. A path's seed decides its coins.
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
    """Which coins are tossed and what they are worth. With more faces, fewer paths share a state after a toss.
    The return's mean and variance do not depend on faces."""

    turns: tuple[Natural, ...] = ()  # a coin is tossed after each of these turns, counted from 0; empty: no luck
    size: Positive = 1.0  # reward of heads; that of a right answer is 1
    faces: Annotated[int, Ge(2), MultipleOf(2)] = 2  # of a coin; half of them count as heads

    def problems(self, path: str) -> list[str]:
        problems = []
        if len(set(self.turns)) < len(self.turns):
            problems.append(f"{path}.turns is {list(self.turns)}: name each turn once.")
        if not self.turns and self != Luck():
            problems.append(f"{path} has no turns and so no coin: name turns, or leave size and faces out.")
        return problems

    def toss(self, path_seed: int, turn: int) -> int:
        """Toss this path's coin after `turn`. Odd faces are heads; with two faces the result is a bool, True for
        heads."""
        face = (stream_seed(path_seed, "luck", turn) + 1) % self.faces
        return face == 1 if self.faces == 2 else face

    def reward(self, answer_reward: float, coins: tuple[int, ...]) -> float:
        """The reward of the answer and the coins, as a share of the maximum. A coin that was not tossed, because the
        episode ended, counts with its mean, so a longer episode earns nothing extra."""
        earned = heads(coins) + (len(self.turns) - len(coins)) / 2
        return (answer_reward + self.size * earned) / (1 + self.size * len(self.turns))


@dataclass(frozen=True)
class ToySettings(Settings):
    luck: Luck = field(default_factory=Luck)

    def problems(self, path: str) -> list[str]:
        return self.luck.problems(f"{path}.luck")


@dataclass(frozen=True, slots=True)
class Lucky(Answering):
    """The state of an episode with luck."""

    coins: tuple[int, ...] = ()  # faces of the coins tossed so far


def heads(coins: tuple[int, ...]) -> int:
    """The number of heads among these faces."""
    return sum(face % 2 for face in coins)
