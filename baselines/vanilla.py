"""Vanilla: the model as it is, evaluated and never trained. It uses no rollouts of the budget."""

from collections.abc import Sequence

from rtpo.types import Task
from rtpo.verbs import Algorithm, AlgorithmConfig, Harness


def step(harness: Harness, tasks: Sequence[Task], config: AlgorithmConfig) -> None:
    raise AssertionError("vanilla is never trained, so it has no step")


ALGORITHM = Algorithm(
    config=AlgorithmConfig,
    step=step,
    rollouts_per_task=lambda config, max_turns: 0,
    check=lambda config: [],
    plan="none",
    credit="none",
    schedule="none",
    contexts="none",
    loss="none",
    trained="none",
)
