"""Every algorithm of the registry that trains, on the scripted engine, and the token ids of its toy replies."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from scripted import RecordingHarness, scripted_harness, solver

from rtpo.algorithms import algorithms, configured, load_algorithm
from rtpo.envs.toy.math import ToyMathEnv, problems
from rtpo.types import Grade, GradeOutcome, Rollout, Task, Termination, TrainingContext, TrainRow
from rtpo.verbs import AlgorithmConfig

TASKS = problems("train", 3, seed=5)
TRAINED = sorted(name for name in algorithms() if load_algorithm(name).loss != "none")
"""those that train"""
NAMES = [name for name in TRAINED if not load_algorithm(name).is_rung]
"""of these, the methods that are compared"""


class IDS:
    """The question 12 + 5 * 3 and its replies in ids: 1 start, 2 stop, 4 5 think, 6 7 call, 8 9 response, 10 11 box,
    12 newline, 14 user, 15 assistant, 16 compute, 17 +, 19 *, 26 first, 27 then, 30 so, 31 answer, and 38 + n for the
    number n. `before_turn_1` and `before_turn_2` are the contexts of the turns after the first and the second call."""

    question = (1, 14, 12, 16, 50, 17, 43, 19, 41, 2, 12, 1, 15, 12)
    call_1 = (4, 26, 43, 19, 41, 5, 6, 43, 19, 41, 7, 2)
    call_1_stripped = (6, 43, 19, 41, 7, 2)
    result_1 = (12, 1, 14, 12, 8, 53, 9, 2, 12, 1, 15, 12)
    call_2 = (4, 27, 50, 17, 53, 5, 6, 50, 17, 53, 7, 2)
    call_2_stripped = (6, 50, 17, 53, 7, 2)
    result_2 = (12, 1, 14, 12, 8, 65, 9, 2, 12, 1, 15, 12)
    right = (4, 30, 31, 65, 5, 31, 10, 65, 11, 2)
    wrong = (4, 30, 5, 31, 10, 53, 11, 2)
    before_turn_1 = question + call_1_stripped + result_1
    before_turn_2 = before_turn_1 + call_2_stripped + result_2


Part = tuple[tuple[int, ...], float | None]
"""ids, and their advantage; None off the loss mask"""
Spelled = tuple[list[int], list[bool], list[float]]
"""a row's ids, mask and advantages"""


def config_of(name: str, **fields_: Any) -> Any:
    """An algorithm's configuration, its defaults but without a KL, and with few continuations."""
    few = {"continuations": 2} if name == "grpo_state_values" else {}
    return replace(_read(name), **{"kl": 0.0} | few | fields_)


_read = cache(configured)


class UngradableEnv(ToyMathEnv):
    """A grader that cannot tell."""

    async def grade(self) -> Grade:
        return Grade(GradeOutcome.UNGRADABLE, None, "the grader was killed")


def graded(rollout: Rollout, reward: float | None) -> Rollout:
    """With that reward, or with none."""
    return replace(rollout, grade=Grade(GradeOutcome.UNGRADABLE if reward is None else GradeOutcome.GRADED, reward))


def one_step(config: AlgorithmConfig, tasks: Sequence[Task] = TASKS, **settings: Any) -> RecordingHarness:
    """A step that reserved the method's worst case: anything beyond raises BudgetExceeded."""
    method = load_algorithm(config.name)
    worst = len(tasks) * method.rollouts_per_task(config, settings.get("max_turns", 3))
    script = settings.pop("script", solver(0.4))
    harness = scripted_harness(script, reserve=worst, rollout_context=config.rollout_context, **settings)
    harness.backend.has_reference = method.has_reference(config)
    method.step(harness, tasks, config)
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


def parts_of(row: TrainRow) -> Spelled:
    return row.ids.tolist(), row.mask.tolist(), row.advantage.round(3).tolist()


def spelled(*parts: Part) -> Spelled:
    return (
        [i for ids, _ in parts for i in ids],
        [advantage is not None for ids, advantage in parts for _ in ids],
        np.array([advantage or 0.0 for ids, advantage in parts for _ in ids], np.float32).round(3).tolist(),
    )


def spelled_path(context: TrainingContext, *turns: tuple[str, float]) -> list[Spelled]:
    """The rows of a whole path by its turns: what each says, as IDS names it, and its advantage."""
    whole: list[Part] = [(IDS.question, None)]
    before, rows = IDS.question, []
    for reply, advantage in turns:
        ids = getattr(IDS, reply)
        whole.append((ids, advantage))
        rows.append(spelled((before, None), (ids, advantage)))
        if reply.startswith("call"):
            result = getattr(IDS, reply.replace("call", "result"))
            whole.append((result, None))
            before += getattr(IDS, f"{reply}_stripped") + result
    return [spelled(*whole)] if context == "flattened" else rows
