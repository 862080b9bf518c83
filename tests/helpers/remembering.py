"""A method that uses all an algorithm may know and keep: chains against a running mean of rewards, in phases, under a
KL that fades with the budget."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rtpo import rtpo
from rtpo.rows import trajectory_rows
from rtpo.types import Role, Task
from rtpo.verbs import AlgorithmConfig, Harness, TokenClip

PHASES, CHAINS = 3, 2


def step(harness: Harness, tasks: Sequence[Task], config: AlgorithmConfig) -> None:
    state = harness.state
    state.setdefault("shares", []).append(harness.budget_share)
    for phase in range(PHASES):
        harness.sync()
        # before the phase, so that what is done twice is seen to be
        state["phases"] = state.get("phases", 0) + 1
        graded = [
            chain for group in harness.rollout(tasks, n=CHAINS, role=Role.CHAIN) for chain in group if chain.is_graded
        ]
        mean = state.get("mean_reward", 0.5)
        rows = [
            row
            for chain in graded
            for row in trajectory_rows(chain, "recorded", chain.reward - mean, 1 / len(graded), chain.task.uid)
        ]
        harness.update(rows, TokenClip(kl=config.kl * (1 - harness.budget_share)))
        state["mean_reward"] = 0.7 * mean + 0.3 * float(np.mean([chain.reward for chain in graded] or [mean]))
        harness.log(f"mean_reward/phase_{phase}", state["mean_reward"])
    harness.log("phases", state["phases"])
    harness.log("step", harness.step)
    harness.log("first_share", state["shares"][0])
    harness.log("share", harness.budget_share)


ALGORITHM = replace(rtpo.ALGORITHM, step=step, rollouts_per_task=lambda config, max_turns: PHASES * CHAINS)
