"""Toy tasks and TextWorld behind the four methods that experiments/minimal.py needs: begin, step, copy and reward."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from rtpo.envs.registry import ENVIRONMENTS, make_env
from rtpo.types import Message, StopReason, Task

TASKS = Path(__file__).resolve().parents[2] / "configs" / "task"
Messages = list[dict[str, str]]


class TaskWorld:
    """An episode of one task. Messages are dicts with role and content, as a chat template takes them."""

    def __init__(self, name: str, task: Task, max_turns: int) -> None:
        self._name, self._task, self._max_turns = name, task, max_turns
        self._env = make_env(name, ENVIRONMENTS[name].settings(), max_turns)

    def begin(self) -> Messages:
        """Begin the episode; returns the first messages."""
        return _as_dicts(asyncio.run(self._env.reset(self._task)).messages)

    def step(self, reply: str, is_cut: bool) -> Messages | None:
        """The messages that answer a reply; None if the episode ended. is_cut: the reply reached its token limit."""
        feedback = asyncio.run(self._env.step(reply, StopReason.LENGTH if is_cut else StopReason.STOP))
        return None if feedback.done else _as_dicts(feedback.messages)

    def copy(self) -> "TaskWorld":
        """An independent copy with the same state."""
        world = TaskWorld(self._name, self._task, self._max_turns)
        world._env.restore(self._task, self._env.snapshot())
        return world

    def reward(self) -> float:
        """The episode's reward so far."""
        reward = asyncio.run(self._env.grade()).reward
        assert reward is not None
        return reward


def limits(name: str) -> tuple[int, int, int]:
    """A task's max_turns, max_turn_tokens and max_context_tokens, from configs/task/."""
    settings: dict[str, Any] = yaml.safe_load((TASKS / f"{name}.yaml").read_text())["task"]
    return settings["max_turns"], settings["max_turn_tokens"], settings["max_context_tokens"]


def worlds(name: str, split: str, count: int, data: str | Path = "") -> list[TaskWorld]:
    """A world for each of at most `count` tasks of a split. data: a folder with files such as train.jsonl, for tasks
    that are not generated. Raises DataError for a file that cannot be read."""
    environment, turns = ENVIRONMENTS[name], limits(name)[0]
    generate = environment.generate
    tasks = generate(split, count, 0) if generate else environment.read(Path(data, f"{split}.jsonl"))[:count]
    return [TaskWorld(name, task, turns) for task in tasks]


def _as_dicts(messages: Sequence[Message]) -> Messages:
    return [{"role": message.role, "content": message.content} for message in messages]
