"""What the map's recursion (docs/results/map.md, eq. 4) says of toy walk with luck, method by method, before it is run.

A place is one logit: the lead of the right person over the others, first where the warm start's demonstrator has it.
All chains of a prompt meet the same places, each turn's being its own; so a place learns from one prompt in `PLACES`,
and methods differ in how many prompts their budget buys and in the noise of a turn's gradient there. Each method has
the step size that is best for it, as each has its own learning rate.
"""

from dataclasses import dataclass
from math import log, sqrt

import numpy as np

from rtpo.theory.mdp import Table
from rtpo.theory.regimes import moved, right

BUDGETS = (300, 600, 1200)
"""rollouts in which a table learns what the network may in the credit study's. The middle one was set by trials that
trained the network where the walk is decided evenly, by exact GRPO and by the ceiling: with it the closed form is where
exact GRPO was at the end of its trial"""
NONE = 0.03
"""of a success: a smaller difference at the middle budget is predicted as none"""
STEP_SIZES = np.geomspace(0.05, 2000, 120)
METHODS = (
    "grpo_exact",
    "rtpo",
    "rtpo_tree",
    "grpo_state_values",
    "anchored",
    "gigpo",
    "vineppo",
    "critic",
)


@dataclass(frozen=True)
class Walk:
    """weights: what each turn is worth, [K], summing to 1. luck: what heads of the coin after turn 0 is worth besides.
    places: of each turn. chances: of the right person, and of the other that it competes with, for each kind of place;
    shares: how common these are. temperature: of the evaluation. faces: of the coin.
    """

    weights: tuple[float, ...]
    luck: float
    places: int
    chances: tuple[tuple[float, float], ...]
    shares: tuple[float, ...]
    temperature: float
    faces: int = 2

    @property
    def turns(self) -> int:
        return len(self.weights)

    @property
    def of_answers(self) -> Table:
        """sigma_j^2 of a turn's answer, [K]."""
        known = sum(s * p * (1 - p) for s, (p, _) in zip(self.shares, self.chances, strict=True))
        return known * np.square(self.weights)

    @property
    def of_luck(self) -> float:
        return self.luck**2 / 4

    @property
    def ahead(self) -> Table:
        """E Var(R | S_k), [K]: the coin is tossed in turn 0."""
        return np.cumsum(self.of_answers[::-1])[::-1] + self.of_luck * (np.arange(self.turns) == 0)

    @property
    def together(self) -> Table:
        """The chance that another chain of the prompt has the same state at S_k, [K]: the same people asked so far, and
        the same coin."""
        same = sum(s * (p**2 + q**2) for s, (p, q) in zip(self.shares, self.chances, strict=True))
        return np.array([1.0, *(same**k / self.faces for k in range(1, self.turns))])


@dataclass(frozen=True)
class Plans:
    """How many of what for each prompt: GRPO's chains, and those of the methods that compare them by state; RTPO's
    trunks and group; the tree's trunks with its roots, and forks; VinePPO's chains and continuations a boundary; of the
    anchored chains those that are forks of others at turn 1, and the shrinkage."""

    chains: int
    trunks: int
    group_size: int
    members: int
    forks: int
    vine_chains: int
    continuations: int
    anchored_forks: int = 0
    shrinkage: float = 1.0


def rollouts(method: str, walk: Walk, plans: Plans) -> int:
    """Of a prompt."""
    return {
        "rtpo": plans.trunks * (1 + walk.turns * (plans.group_size - 1)),
        "rtpo_tree": plans.members + plans.forks,
        "vineppo": plans.vine_chains * (1 + plans.continuations * (walk.turns - 1)),
    }.get(method, plans.chains)


def noise(method: str, walk: Walk, plans: Plans) -> Table:
    """The variance of a prompt's estimate of a turn's gradient, [K], without the score's."""
    own, ahead, k = walk.of_answers, walk.ahead, np.arange(walk.turns)
    whole, n = ahead[0], plans.chains
    if method == "rtpo":
        return ahead / (plans.trunks * (plans.group_size - 2))
    if method == "rtpo_tree":  # forks train their later turns too, against one other path; the rest is as GRPO's
        forked = plans.forks * k / (walk.turns - 1)
        before = np.array([0.0, *(np.mean(ahead[1 : j + 1]) for j in k[1:])])
        return (plans.members * whole + forked * 2 * before) / (plans.members - 1 + forked) ** 2
    if method == "vineppo":
        after, m = np.append(ahead[1:], 0.0), plans.continuations
        present = own + walk.of_luck * (k == 0)
        return (present + after / m + np.where(k > 0, ahead / m, whole / plans.vine_chains)) / plans.vine_chains
    if method == "critic":  # it can learn what has been answered, and not the coin, which nobody sees
        return (ahead + walk.of_luck * (k > 0)) / (n - 1)
    others = (n - 1) * walk.together
    if method == "grpo_state_values":
        return np.where(k > 0, ahead / n, whole / (n - 1))
    # later turns against the paths that share S_1 by a fork, and no others; approximate: as if each path had `of_each`
    # of these, and without what the other chains' own later turns add to the prompt's mean, ahead[1] / chains
    if method == "anchored_forks":
        chains = n - plans.anchored_forks
        of_each, kappa = plans.anchored_forks / chains, plans.shrinkage
        baseline = (of_each * ahead[1] + kappa**2 * (whole - ahead[1]) * (1 + 1 / chains)) / (of_each + kappa) ** 2
        return np.where(k > 0, (ahead[1] + baseline) / n, whole / (chains - 1))
    if method == "anchored" and others[1] >= 1:  # shrunk at last to S_1, whose coin and answer are known
        left = whole - own[0] - walk.of_luck
        return np.where(k > 0, left / n * (1 + 1 / (1 + others[1])), whole / (n - 1))
    # two normalised advantages added, the second 0 where nobody else has been; approximate: the noise is that of a step
    # of size 1 at every turn, and the first turn's, where both are the same and their sum is twice as large, no larger
    if method == "gigpo":
        of_group, of_state = 1 / sqrt(whole), others / (others + 1) / np.sqrt(ahead)
        signal = (of_group + of_state) ** 2
        both = of_group**2 * whole + of_state**2 * ahead * (1 + 1 / others) + 2 * of_group * of_state * ahead
        alone = np.exp(-others)
        return np.where(k > 0, 1 / ((1 - alone) * signal / both + alone / whole), whole) / (n - 1)
    return np.full(walk.turns, whole / (n - 1))


def success(method: str, walk: Walk, plans: Plans, budget: float) -> float:
    """The chance that all turns are right once `budget` rollouts were spent, at the step size best for it."""
    visits = budget / rollouts(method, walk, plans) / walk.places
    variances = noise(method, walk, plans)
    speeds = np.ones(walk.turns)
    if method == "anchored_forks":  # a fork does not train the turn before it
        speeds[0] = 1 - plans.anchored_forks / plans.chains
    return max(_learnt(walk, size * speeds, variances, visits) for size in STEP_SIZES)


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
