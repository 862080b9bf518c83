"""Every algorithm of the registry that trains, on the scripted engine, and the token ids of its toy replies."""

from typing import Any

import numpy as np
from scripted import RecordingHarness, scripted_harness, solver

from rtpo.algorithms import MODULES, load_algorithm
from rtpo.envs.toy.math_problems import problems
from rtpo.types import Rollout, Termination, TrainRow
from rtpo.verbs import AlgorithmConfig

TASKS = problems("train", 3, seed=5)
NAMES = sorted(name for name in MODULES if load_algorithm(name).loss != "none")
"""those that train"""

# 12 + 5 * 3 in ids: 1 start, 2 stop, 4 5 think, 6 7 call, 8 9 response, 10 11 box, 12 newline, 14 user, 15 assistant,
# 16 compute, 17 +, 19 *, 26 first, 27 then, 30 so, 31 answer, and 38 + n for the number n
QUESTION_IDS = [1, 14, 12, 16, 50, 17, 43, 19, 41, 2, 12, 1, 15, 12]
CALL_FIRST_IDS = [4, 26, 43, 19, 41, 5, 6, 43, 19, 41, 7, 2]
CALL_FIRST_STRIPPED = [6, 43, 19, 41, 7, 2]
RESULT_FIRST_IDS = [12, 1, 14, 12, 8, 53, 9, 2, 12, 1, 15, 12]
CALL_SECOND_IDS = [4, 27, 50, 17, 53, 5, 6, 50, 17, 53, 7, 2]
CALL_SECOND_STRIPPED = [6, 50, 17, 53, 7, 2]
RESULT_SECOND_IDS = [12, 1, 14, 12, 8, 65, 9, 2, 12, 1, 15, 12]
RIGHT_IDS = [4, 30, 31, 65, 5, 31, 10, 65, 11, 2]
WRONG_IDS = [4, 30, 5, 31, 10, 53, 11, 2]

Part = tuple[list[int], float | None]
"""ids, and their advantage; None off the loss mask"""


def config_of(name: str, **fields_: Any) -> Any:
    """An algorithm's configuration, its defaults but without a KL."""
    return load_algorithm(name).config(name, name, **{"kl": 0.0} | fields_)


def one_step(config: AlgorithmConfig, **settings: Any) -> RecordingHarness:
    """A step that reserved the method's worst case: anything beyond raises BudgetExceeded."""
    method = load_algorithm(config.name)
    worst = len(TASKS) * method.rollouts_per_task(config, settings.get("max_turns", 3))
    script = settings.pop("script", solver(0.4))
    harness = scripted_harness(script, reserve=worst, rollout_context=config.rollout_context, **settings)
    method.step(harness, TASKS, config)
    return harness


def finished(harness: RecordingHarness) -> dict[str, list[Rollout]]:
    """The step's ended paths, by task."""
    paths: dict[str, list[Rollout]] = {task.uid: [] for task in TASKS}
    for rollout in harness.rollouts:
        if rollout.termination is not Termination.OPEN:
            paths[rollout.task.uid].append(rollout)
    return paths


def advantage_of(row: TrainRow) -> float:
    """Of a row whose tokens have one."""
    (value,) = np.unique(row.advantage[row.mask])
    return float(value)


def parts_of(row: TrainRow) -> tuple[list[int], list[bool], list[float]]:
    return row.ids.tolist(), row.mask.tolist(), row.advantage.round(3).tolist()


def spelled(*parts: Part) -> tuple[list[int], list[bool], list[float]]:
    """A row's ids, mask and advantages, as `parts_of`."""
    return (
        [i for ids, _ in parts for i in ids],
        [advantage is not None for ids, advantage in parts for _ in ids],
        np.array([advantage or 0.0 for ids, advantage in parts for _ in ids], np.float32).round(3).tolist(),
    )
