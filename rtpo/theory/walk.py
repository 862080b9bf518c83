"""What the map's recursion (docs/results/theory.md, eq. 4) says of toy walk with luck, method by method.

A place is one logit: the lead of the right person over the others. Each turn has places of its own, which all chains
of a prompt meet, so a place learns from one prompt in `places`. Methods differ in how many prompts their budget buys
and in the noise of a turn's gradient. Each method has the step size that is best for it.
"""

from dataclasses import dataclass, replace
from math import log, sqrt

import numpy as np

from rtpo.theory.mdp import Table
from rtpo.theory.regimes import moved, right

STEP_SIZES = np.geomspace(0.05, 2000, 120)
METHODS = ("grpo_exact", "grpo_state_values", "rtpo", "anchored_forks", "gigpo", "vineppo")


@dataclass(frozen=True)
class Walk:
    """weights: what each turn is worth, [K], summing to 1. luck: what heads of the coin after `luck_turn` is worth
    besides. places: of each turn. chances: of the right person, and of the other that it competes with, for each kind
    of place; shares: how common these are. temperature: of the evaluation. faces: of the coin.
    """

    weights: tuple[float, ...]
    luck: float
    places: int
    chances: tuple[tuple[float, float], ...]
    shares: tuple[float, ...]
    temperature: float
    faces: int = 2
    luck_turn: int = 0

    @property
    def turns(self) -> int:
        return len(self.weights)

    @property
    def of_answers(self) -> Table:
        """sigma_j^2 of a turn's answer, [K]."""
        known = sum(s * p * (1 - p) for s, (p, _) in zip(self.shares, self.chances, strict=True))
        return known * np.square(self.weights)

    @property
    def of_luck(self) -> Table:
        """The variance that the coin adds in each turn, [K]."""
        return self.luck**2 / 4 * (np.arange(self.turns) == self.luck_turn)

    @property
    def ahead(self) -> Table:
        """E Var(R | S_k), [K]."""
        return np.cumsum((self.of_answers + self.of_luck)[::-1])[::-1]

    @property
    def together(self) -> Table:
        """The chance that another chain of the prompt has the same state at S_k, [K]: the same people asked so far, and
        the same coin."""
        same = sum(s * (p**2 + q**2) for s, (p, q) in zip(self.shares, self.chances, strict=True))
        k = np.arange(self.turns)
        return same**k / np.where((k > self.luck_turn) & (self.luck > 0), self.faces, 1)


@dataclass(frozen=True)
class Plans:
    """How many of what for each prompt. chains: of GRPO and of the methods that compare them by state, forks included.
    trunks, group_size: RTPO's M and G. vine_chains, continuations: VinePPO's, the second at each boundary. forks: of
    the anchored chains. fork_turns: the chance that a fork begins at each turn, [K]. shrinkage: kappa.
    """

    chains: int = 16
    trunks: int = 1
    group_size: int = 3
    vine_chains: int = 4
    continuations: int = 1
    forks: int = 8
    fork_turns: tuple[float, ...] = ()
    shrinkage: float = 0.25


def rollouts(method: str, walk: Walk, plans: Plans) -> int:
    """Of a prompt."""
    return {
        "rtpo": plans.trunks * (1 + walk.turns * (plans.group_size - 1)),
        "vineppo": plans.vine_chains * (1 + plans.continuations * (walk.turns - 1)),
    }.get(method, plans.chains)


def noise(method: str, walk: Walk, plans: Plans) -> Table:
    """The variance of a prompt's estimate of a turn's gradient, [K], in units of the squared score."""
    ahead, k, n = walk.ahead, np.arange(walk.turns), plans.chains
    whole = ahead[0]
    if method == "rtpo":
        return ahead / (plans.trunks * (plans.group_size - 2))
    if method == "vineppo":
        present, after, m = walk.of_answers + walk.of_luck, np.append(ahead[1:], 0.0), plans.continuations
        return (present + after / m + np.where(k > 0, ahead / m, whole / plans.vine_chains)) / plans.vine_chains
    if method == "grpo_state_values":
        return np.where(k > 0, ahead / n, whole / (n - 1))
    if method == "anchored_forks":
        return _of_forks(walk, plans)
    if method == "gigpo":
        return _of_gigpo(walk, n)
    return np.full(walk.turns, whole / (n - 1))


def trained_share(method: str, walk: Walk, plans: Plans) -> Table:
    """The share of a prompt's paths that sampled turn k themselves, [K]: forks did not sample the turns before them."""
    if method != "anchored_forks":
        return np.ones(walk.turns)
    return 1 - plans.forks / plans.chains * (1 - np.cumsum(plans.fork_turns))


def _of_forks(walk: Walk, plans: Plans) -> Table:
    """From its fork on, a fork and its parent have each other's return as baseline at the fork's state, shrunk by kappa
    to the prompt's mean; every other path has the prompt's mean. Each chain has one fork."""
    ahead, kappa, chains = walk.ahead, plans.shrinkage, plans.chains - plans.forks
    whole, chances = ahead[0], np.array(plans.fork_turns)
    baseline = (ahead + kappa**2 * (whole - ahead) * (1 + 1 / chains)) / (1 + kappa) ** 2
    begun = np.cumsum(chances)
    paired = 2 * plans.forks * np.cumsum(chances * (ahead + baseline))
    alone = (plans.chains - 2 * plans.forks) + plans.forks * (1 - begun)
    return (paired + alone * whole * chains / (chains - 1)) / (chains + plans.forks * begun) ** 2


def _of_gigpo(walk: Walk, n: int) -> Table:
    """Two normalised advantages added, the second 0 where nobody else has been. Approximate: the noise is that of a
    step of size 1 at every turn, and the first turn's, where both are the same and their sum is twice as large, no
    larger."""
    ahead, others, k = walk.ahead, (n - 1) * walk.together, np.arange(walk.turns)
    whole = ahead[0]
    of_group, of_state = 1 / sqrt(whole), others / (others + 1) / np.sqrt(ahead)
    signal = (of_group + of_state) ** 2
    both = of_group**2 * whole + of_state**2 * ahead * (1 + 1 / others) + 2 * of_group * of_state * ahead
    alone = np.exp(-others)
    return np.where(k > 0, 1 / ((1 - alone) * signal / both + alone / whole), whole) / (n - 1)


def success(method: str, walk: Walk, plans: Plans, budget: float) -> float:
    """The chance that all turns are right once `budget` rollouts were spent, at the step size best for it."""
    visits = budget / rollouts(method, walk, plans) / walk.places
    variances, shares = noise(method, walk, plans), trained_share(method, walk, plans)
    return max(_learnt(walk, size * shares, variances, visits) for size in STEP_SIZES)


def budget_of(method: str, walk: Walk, plans: Plans, reached: float) -> float:
    """The rollouts after which `method` has this success, by bisection. Raises ValueError for a success that none of 1
    to 100,000 rollouts gives."""
    low, high = 1.0, 1e5
    if not success(method, walk, plans, low) <= reached <= success(method, walk, plans, high):
        raise ValueError(f"{method} reaches {reached:.3f} with no budget of {low:g} to {high:g} rollouts")
    while high / low > 1.01:
        middle = sqrt(low * high)
        low, high = (middle, high) if success(method, walk, plans, middle) < reached else (low, middle)
    return sqrt(low * high)


def told(walk: Walk, plans: Plans, turn: int) -> Plans:
    """All forks at one turn."""
    return replace(plans, fork_turns=tuple(float(k == turn) for k in range(walk.turns)))


def uniform(walk: Walk, plans: Plans) -> Plans:
    """Each fork at one of the turns 1 to K-1."""
    return replace(plans, fork_turns=tuple((k > 0) / (walk.turns - 1) for k in range(walk.turns)))


def _learnt(walk: Walk, sizes: Table, variances: Table, visits: float) -> float:
    """A last visit that comes to some places only moves a lead by so much less."""
    parts = [min(1.0, visits - i) for i in range(int(np.ceil(visits)))]
    chances = np.zeros(walk.turns)
    for share, (p, q) in zip(walk.shares, walk.chances, strict=True):
        leads = []
        for stake, size, variance in zip(walk.weights, sizes, variances, strict=True):
            lead = log(p / q), 0.0
            for part in parts:
                lead = moved(*lead, part * size * stake, part * size**2 * variance)
            leads.append(lead)
        mean, spread = np.array(leads).T
        chances += share * right(mean / walk.temperature, spread / walk.temperature**2)
    return float(chances.prod())
