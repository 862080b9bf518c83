"""The RTPO tree: an extension of this project, not in the paper.

Like RTPO it forks siblings at turn boundaries in reverse, under the newest weights, and trains in exact contexts.
Unlike RTPO it trains a sibling's later turns too, trains the trunks as members of their prompt's group, and forks only
where the outcome seems open. Each state with several continuations compares them with each other, its baseline shrunk
towards that of the branch that led there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rtpo.rows import trajectory_rows
from rtpo.types import Role, Rollout, Task, TrainRow
from rtpo.verbs import Algorithm, AlgorithmConfig, Harness, TokenClip


@dataclass(frozen=True)
class RTPOTreeConfig(AlgorithmConfig):
    """trunks: for each prompt.
    forks, roots: siblings at later boundaries, and at S_0, for each prompt in the mean; they go to the states, and the
        prompts, whose estimated mean reward p (a chance of success, where rewards are 0 or 1) has the largest p(1-p).
    own_return: lambda, the share of a branch's own return in its value where its next state has several continuations.
    shrinkage: kappa, how many continuations the baseline of the branch before counts for.
    least_spread: the root value v is clipped to [this, 1 - this] before advantages are divided by sqrt(v(1-v)).
    """

    trunks: int
    forks: int
    roots: int
    own_return: float
    shrinkage: float
    least_spread: float

    @property
    def loss(self) -> TokenClip:
        """Trunks are sampled before the fork phases move the policy, hence the engine's log-probs."""
        return TokenClip(self.clip_low, self.clip_high, old_logprobs="rollout", kl=self.kl)


@dataclass
class Tree:
    """A prompt's graded paths: trunks and root siblings, which begin at S_0, and the forks of trunk `uid` at turn k."""

    roots: list[Rollout]
    forks: dict[tuple[str, int], list[Rollout]] = field(default_factory=dict)

    def branches(self, path: Rollout, k: int) -> list[Rollout]:
        """The continuations that meet `path` at the boundary where its branch at k begins."""
        if k == 0:
            return self.roots
        trunk = path.parent_uid if path.start_k == k else path.uid
        own = [root for root in self.roots if root.uid == trunk]
        return own + self.forks.get((str(trunk), k), [])

    def forked(self, path: Rollout) -> list[int]:
        """The later turns at which `path` was forked, in order."""
        return [k for k in range(path.start_k + 1, len(path.turns)) if self.forks.get((path.uid, k))]

    def value(self, path: Rollout, k: int, own_return: float) -> float:
        """q of the branch of `path` that begins at k: lambda R + (1 - lambda) V(next state), or R without one."""
        after = [j for j in self.forked(path) if j > k]
        if not after:
            return path.reward
        there = [self.value(branch, after[0], own_return) for branch in self.branches(path, after[0])]
        return own_return * path.reward + (1 - own_return) * float(np.mean(there))

    def baseline(self, path: Rollout, k: int, config: RTPOTreeConfig) -> float:
        """B = (sum of the other branches' q + kappa B(branch before)) / (n - 1 + kappa); at S_0, where nothing is
        before, the mean of the others; q itself where there is no other."""
        others = [self.value(b, k, config.own_return) for b in self.branches(path, k) if b.uid != path.uid]
        if k == 0:
            return float(np.mean(others)) if others else self.value(path, k, config.own_return)
        trunk = next(root for root in self.roots if root.uid in (path.uid, path.parent_uid))
        before = max((j for j in self.forked(trunk) if j < k), default=0)
        prior = self.baseline(trunk, before, config)
        return (sum(others) + config.shrinkage * prior) / (len(others) + config.shrinkage)

    def advantages(self, path: Rollout, config: RTPOTreeConfig) -> list[float]:
        """One for each turn the path sampled: that of the branch the turn belongs to."""
        root_value = float(np.mean([self.value(root, 0, config.own_return) for root in self.roots]))
        v = float(np.clip(root_value, config.least_spread, 1 - config.least_spread))
        begins = [path.start_k, *self.forked(path)]
        by_branch = {
            k: (self.value(path, k, config.own_return) - self.baseline(path, k, config)) / (v * (1 - v)) ** 0.5
            for k in begins
        }
        return [by_branch[max(k for k in begins if k <= j)] for j in range(path.start_k, len(path.turns))]


def step(harness: Harness, tasks: Sequence[Task], config: RTPOTreeConfig) -> None:
    """One data step."""
    rng = harness.random("forks")
    groups = harness.rollout(tasks, n=config.trunks, role=Role.TRUNK)
    trees = [Tree([trunk for trunk in group if trunk.is_graded]) for group in groups]
    expected = prompt_rewards(trees)
    places = [
        (tree, trunk.boundary(k), (trunk.reward + p) / 2)
        for tree, p in zip(trees, expected, strict=True)
        for trunk in tree.roots
        for k in range(1, len(trunk.turns))
    ]
    order = most_open([p for _, _, p in places], config.forks * len(tasks), rng)
    chosen = [(places[i][0], places[i][1]) for i in order]
    for k in sorted({boundary.k for _, boundary in chosen}, reverse=True):
        here = [(tree, boundary) for tree, boundary in chosen if boundary.k == k]
        harness.sync()
        forked = harness.rollout([boundary for _, boundary in here], n=1, role=Role.SIBLING)
        new = []
        for (tree, boundary), (fork,) in zip(here, forked, strict=True):
            if fork.is_graded:
                tree.forks[(boundary.rollout_uid, k)] = [fork]
                new.append((tree, fork))
        train(harness, new, config)
    harness.sync()
    starts = [group[0].boundary(0) for group in groups]
    shares = spread(expected, config.roots * len(tasks))
    drawn = [start for start, n in zip(starts, shares, strict=True) for _ in range(n)]
    siblings = iter(harness.rollout(drawn, n=1, role=Role.SIBLING) if drawn else [])
    for tree, n in zip(trees, shares, strict=True):
        tree.roots += [sibling for _ in range(n) for sibling in next(siblings) if sibling.is_graded]
    train(harness, [(tree, path) for tree in trees for path in tree.roots], config)


def train(harness: Harness, paths: Sequence[tuple[Tree, Rollout]], config: RTPOTreeConfig) -> None:
    """Update on the turns these paths sampled; each path weighs the same, its tokens equally."""
    rows: list[TrainRow] = [
        row
        for tree, path in paths
        for row in trajectory_rows(path, "recorded", tree.advantages(path, config), 1.0, path.task.uid)
    ]
    harness.update(rows, config.loss, epochs=config.epochs, minibatches=config.minibatches)


def prompt_rewards(trees: Sequence[Tree]) -> list[float]:
    """Estimated mean reward of each prompt, a chance of success where rewards are 0 or 1: of its trunks and one trunk's
    worth of the batch's mean."""
    rewards = [[trunk.reward for trunk in tree.roots] for tree in trees]
    everywhere = [reward for own in rewards for reward in own]
    mean = float(np.mean(everywhere)) if everywhere else 0.5
    return [(sum(own) + mean) / (len(own) + 1) for own in rewards]


def most_open(chances: Sequence[float], count: int, rng: np.random.Generator) -> list[int]:
    """The places with the largest p(1-p), `count` at most; equal ones in a random order."""
    openness = np.array([p * (1 - p) for p in chances])
    return np.lexsort((rng.random(len(openness)), -openness))[:count].tolist()


def spread(chances: Sequence[float], total: int) -> list[int]:
    """`total` whole numbers in proportion to p(1-p), or evenly where none is open; the largest remainders first."""
    weights = np.array([p * (1 - p) for p in chances])
    weights = weights if weights.sum() > 0 else np.ones_like(weights)
    exact = weights / weights.sum() * total
    shares = np.floor(exact).astype(int)
    shares[np.argsort(shares - exact, kind="stable")[: total - shares.sum()]] += 1
    return shares.tolist()


def rollouts_per_task(config: RTPOTreeConfig, max_turns: int) -> int:
    return config.trunks + config.forks + config.roots


def check(config: RTPOTreeConfig) -> list[str]:
    problems = []
    for name, value, least in [("trunks", config.trunks, 1), ("forks", config.forks, 0), ("roots", config.roots, 0)]:
        if value < least:
            problems.append(f"algorithm.{name} is {value}: use {least} or more.")
    if (config.trunks, config.forks, config.roots) == (1, 0, 0):
        problems.append(
            "algorithm.trunks is 1, algorithm.forks 0 and algorithm.roots 0: a lone path has nothing to compare with; "
            "use 1 or more forks or roots, or 2 or more trunks."
        )
    if not 0 <= config.own_return <= 1:
        problems.append(f"algorithm.own_return is {config.own_return}: it is a share; use 0 to 1.")
    if config.shrinkage < 0:
        problems.append(f"algorithm.shrinkage is {config.shrinkage}: use 0 or more.")
    if not 0 < config.least_spread < 0.5:
        problems.append(f"algorithm.least_spread is {config.least_spread}: use a number between 0 and 0.5.")
    if config.training_context != "recorded":
        problems.append(
            f"algorithm.training_context is {config.training_context}: turns are trained on the c_k they were sampled "
            "from; use recorded."
        )
    return problems


ALGORITHM = Algorithm(
    config=RTPOTreeConfig,
    step=step,
    rollouts_per_task=rollouts_per_task,
    check=check,
    plan="M trunks; siblings forked where the outcome seems open, later boundaries first, S_0 last",
    credit="branch value minus the other branches' mean at the same state, shrunk to the branch before; over "
    "sqrt(v(1-v)) of the prompt",
    schedule="turns in reverse; weights synchronised and siblings sampled anew before each; trunks at S_0",
    contexts="recorded c_k",
    loss="token clip",
    trained="a sibling's turns from its fork on, and the trunks",
)
