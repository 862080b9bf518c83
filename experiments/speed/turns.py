"""What a generated turn costs outside the decoder: transport, environments, bookkeeping."""

import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from experiments.speed.shared import Case, configuration, endless_harness, spread
from rtpo.harness.harness import AgentHarness
from rtpo.run.tasks import load_tasks
from rtpo.types import Role, Task

CHAINS = 16
"""of each task"""


def measure(repeats: int) -> list[Case]:
    config = configuration("algorithm=grpo")
    harness, backend = endless_harness(config)
    harness.begin_step(0, 10**8)
    harness.sync()
    tasks = load_tasks(config.task, replace(config.task.train, count=64 * (repeats + 1)))
    return [turn_case(harness, backend, tasks, episodes, repeats) for episodes in (256, 512)]


def turn_case(harness: AgentHarness, backend: Any, tasks: Sequence[Task], episodes: int, repeats: int) -> Case:
    calls = []
    prompts = episodes // CHAINS
    for call in range(repeats + 1):
        before = generate_seconds(backend)
        start = time.perf_counter()
        groups = harness.rollout(tasks[call * prompts : (call + 1) * prompts], n=CHAINS, role=Role.CHAIN)
        seconds = time.perf_counter() - start
        turns = sum(len(rollout.turns) for group in groups for rollout in group)
        calls.append({"seconds": seconds, "decoder": generate_seconds(backend) - before, "turns": turns})
    costs = [1e3 * (call["seconds"] - call["decoder"]) / call["turns"] for call in calls[1:]]
    decoder = [1e3 * call["decoder"] / call["turns"] for call in calls[1:]]
    return Case(
        f"a turn outside the decoder, {episodes} episodes",
        median(costs),
        "ms",
        0.5,
        False,
        f"{spread(costs)}; the decoder takes {spread(decoder)} ms a turn",
        {"episodes": episodes, "calls": calls},
    )


def generate_seconds(backend: Any) -> float:
    return sum(state.generate_seconds for state in backend.engine_states())
