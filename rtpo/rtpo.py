"""RTPO: Reverse-Turn Policy Optimization (Algorithm 1 of the paper).

A step first samples whole paths, the trunks. They are never trained. The state before a trunk's turn k is its boundary
S_k. Phases train one turn each, from the last turn to the first. Phase k gives the engine the newest weights. It then
forks G-1 siblings from every trunk's S_k and samples them to the end. A sibling's advantage is its return minus the
mean over its boundary's siblings, itself included. Only the siblings' turn-k tokens are trained.

With fewer synchronisations, siblings may be stale: an older policy sampled them. Each of their returns then gets an
importance weight: the probability ratio, current to older policy, of the turns after k. This is the off-policy variant
of the paper's additional results.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rtpo.credit import sibling_advantages
from rtpo.rows import trajectory_rows, turn_row
from rtpo.types import Boundary, Group, OldLogprobs, Role, Rollout, Task, TrainRow
from rtpo.verbs import Algorithm, AlgorithmConfig, Harness, TokenClip


@dataclass(frozen=True)
class RTPOConfig(AlgorithmConfig):
    """RTPO's own fields.

    trunks: M, number of trunks for each prompt.
    group_size: G, 3 or more; G-1 siblings are forked from each boundary.
    pool_s0: in phase 0, one group holds all siblings of a prompt, since its trunks share S_0. false: a group for each
        trunk, as in the other phases.
    sync_every: number of phases from one synchronisation to the next. The siblings of these phases are sampled at once.
        null: synchronise only before the first phase (the off-policy variant).
    sync_kl: synchronise before a phase only if KL(engine's policy || current policy) exceeds this, in nats a token, on
        the rows of the previous phase. null: synchronise whatever the KL is.
    tail_low, tail_high: bounds of the importance weight of a stale sibling's later turns (rho_min, rho_max).
    """

    trunks: int
    group_size: int
    pool_s0: bool
    sync_every: int | None
    sync_kl: float | None
    tail_low: float
    tail_high: float

    @property
    def loss(self) -> TokenClip:
        return TokenClip(self.clip_low, self.clip_high, kl=self.kl)


def step(harness: Harness, tasks: Sequence[Task], config: RTPOConfig) -> None:
    """One data step."""
    trunks = [trunk for group in harness.rollout(tasks, n=config.trunks, role=Role.TRUNK) for trunk in group]
    boundaries_by_turn = {
        k: boundaries
        for k in reversed(range(harness.max_turns))
        if (boundaries := [trunk.boundary(k) for trunk in trunks if len(trunk.turns) > k])
    }
    sampled: dict[int, list[Group]] = {}
    version, drift = 0, math.inf
    for k, boundaries in boundaries_by_turn.items():
        if k not in sampled:
            if config.sync_kl is None or drift > config.sync_kl:
                version = harness.sync()
            phases = [phase for phase in boundaries_by_turn if phase <= k][: config.sync_every]
            sampled = fork(harness, {phase: boundaries_by_turn[phase] for phase in phases}, config.group_size - 1)
        siblings = sampled[k]
        is_stale = any(turn.policy_version != version for group in siblings for s in group for turn in s.own_turns)
        returns = stale_returns(harness, siblings, k, config) if is_stale else {}
        rows = sibling_rows(boundaries, siblings, k, pool=config.pool_s0 and k == 0, returns=returns)
        old_logprobs: OldLogprobs = "rollout" if is_stale else "recompute"
        loss = replace(config.loss, old_logprobs=old_logprobs)
        update = harness.update(rows, loss, epochs=config.epochs, minibatches=config.minibatches)
        version = update.policy_version
        if config.sync_kl is not None and rows:
            drifts = [row.rollout_logprobs[row.mask] - new for row, new in zip(rows, harness.score(rows), strict=True)]
            drift = float(np.concatenate(drifts).mean())


def fork(harness: Harness, boundaries: Mapping[int, Sequence[Boundary]], n: int) -> dict[int, list[Group]]:
    """Sample n siblings of every boundary. Returns the groups by phase."""
    groups = iter(harness.rollout([b for phase in boundaries.values() for b in phase], n=n, role=Role.SIBLING))
    return {k: [next(groups) for _ in phase] for k, phase in boundaries.items()}


def stale_returns(harness: Harness, siblings: Sequence[Group], k: int, config: RTPOConfig) -> dict[str, float]:
    """Weighted returns clamp(w) R by uid, for graded siblings with turns after k. w is the product of pi/pi_old over
    the tokens of these turns, in their recorded contexts. It is computed and clamped as log w."""
    continued = [s for group in siblings for s in group if s.is_graded and len(s.turns) > k + 1]
    rows = [row for s in continued for row in trajectory_rows(s, "recorded", 0.0, 1.0, s.uid, first_k=k + 1)]
    log_weight: defaultdict[str, float] = defaultdict(float)
    for row, new in zip(rows, harness.score(rows), strict=True):
        log_weight[row.rollout_uid] += float((new - row.rollout_logprobs[row.mask]).sum(dtype=np.float64))
    low, high = math.log(config.tail_low), math.log(config.tail_high)
    return {s.uid: math.exp(min(max(log_weight[s.uid], low), high)) * s.reward for s in continued}


def sibling_rows(
    boundaries: Sequence[Boundary],
    siblings: Sequence[Group],
    k: int,
    *,
    pool: bool = False,
    returns: Mapping[str, float] | None = None,
) -> list[TrainRow]:
    """Turn-k rows with A = Q - mean over the group's siblings. All siblings have the same weight, spread evenly over
    their tokens (eq. per-turn-obj).

    Q is the sibling's reward, or its entry in `returns`. pool: a group holds all siblings of a prompt, not those of one
    boundary. Ungraded siblings are left out, and so are groups with fewer than two graded siblings.
    """
    groups: defaultdict[str, list[Rollout]] = defaultdict(list)
    for boundary, forked in zip(boundaries, siblings, strict=True):
        name = f"{boundary.task.uid}/{boundary.k}" if pool else boundary.uid
        groups[name] += [sibling for sibling in forked if sibling.is_graded]
    comparable = {name: group for name, group in groups.items() if len(group) > 1}
    weight = 1 / max(1, sum(len(group) for group in comparable.values()))
    values = {s.uid: s.reward for group in comparable.values() for s in group} | dict(returns or {})
    return [
        turn_row(sibling.turns[k], sibling, float(advantage), weight, name)
        for name, group in comparable.items()
        for sibling, advantage in zip(group, sibling_advantages([values[s.uid] for s in group]), strict=True)
    ]


def rollouts_per_task(config: RTPOConfig, max_turns: int) -> int:
    """Worst case: every trunk takes all K turns."""
    return config.trunks * (1 + max_turns * (config.group_size - 1))


def check(config: RTPOConfig) -> list[str]:
    problems = []
    if config.group_size < 3:
        problems.append(
            f"algorithm.group_size is {config.group_size}: G-1 siblings are compared with their own mean, so G = 2 "
            "makes every advantage 0; use 3 or more."
        )
    if config.trunks < 1:
        problems.append(f"algorithm.trunks is {config.trunks}: boundaries come from trunks; use 1 or more.")
    if config.training_context != "recorded":
        problems.append(
            f"algorithm.training_context is {config.training_context}: RTPO trains turn k on the c_k it was sampled "
            "from; use recorded."
        )
    if config.sync_every is not None and config.sync_every < 1:
        problems.append(f"algorithm.sync_every is {config.sync_every}: use 1 or more phases, or null (no limit).")
    if config.sync_kl is not None and (config.sync_kl <= 0 or config.sync_every != 1):
        problems.append(
            f"algorithm.sync_kl is {config.sync_kl} and algorithm.sync_every {config.sync_every}: the KL is checked "
            "before every phase; use sync_kl above 0 with sync_every 1, or sync_kl null."
        )
    if not 0 < config.tail_low <= 1 <= config.tail_high:
        problems.append(
            f"algorithm.tail_low is {config.tail_low} and algorithm.tail_high {config.tail_high}: an unchanged "
            "policy has weight 1; use 0 < tail_low <= 1 <= tail_high."
        )
    return problems


ALGORITHM = Algorithm(
    config=RTPOConfig,
    step=step,
    rollouts_per_task=rollouts_per_task,
    check=check,
    plan="M trunks; G-1 siblings forked at every realised turn boundary",
    credit="return minus the mean of the siblings of the same boundary, no std",
    schedule="turns in reverse; before each (or every few, or only the first) weights are synchronised and siblings "
    "sampled anew; stale returns get clamped importance weights",
    contexts="recorded c_k",
    loss="token clip",
    trained="the siblings' turn-k tokens",
)
