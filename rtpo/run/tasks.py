"""The tasks of a run: generated or read from a file, and taken in a seeded order, epoch after epoch."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from rtpo.core.chat import ChatFormat
from rtpo.core.names import counted
from rtpo.core.seeds import generator
from rtpo.core.splits import split_of
from rtpo.data.registry import REGISTRY
from rtpo.envs.registry import ENVIRONMENTS
from rtpo.errors import ConfigError, DataError
from rtpo.harness.episodes import opening_context
from rtpo.run.config import PROJECT, DataConfig, TaskConfig
from rtpo.types import Task


def load_tasks(task: TaskConfig, data: DataConfig) -> list[Task]:
    """Load one of a task's data sets. Raises ConfigError, DataError."""
    environment = ENVIRONMENTS[task.env]
    if data.file is not None:
        _check_prepared(Path(data.file))
        tasks = environment.read(Path(data.file))
        if data.split != "all":
            tasks = [each for each in tasks if split_of(environment.split_key(each)) == data.split]
        if not tasks:
            raise DataError(
                f"{data.file} has no task in the split {data.split!r}, which is a function of the problem: use a "
                "longer file, or split: all."
            )
        return tasks[: data.count]
    if environment.generate is None:
        raise ConfigError(f"task.env {task.env} reads its tasks from a file: name one with data=<file>.")
    assert data.count is not None  # `compose_run` checks it
    return environment.generate(data.split, data.count, data.seed)


def taken_tasks(config: TaskConfig, train: Sequence[Task], held_out: Sequence[Task]) -> str:
    """A sentence that says on how many of the known tasks a run trains, and on how many it is evaluated."""
    return f"tasks: {_taken(config, 'train', train)} for training, {_taken(config, 'held_out', held_out)} held out"


def _taken(config: TaskConfig, part: str, tasks: Sequence[Task]) -> str:
    data: DataConfig = getattr(config, part)
    if data.file is None:
        return f"{len(tasks)} generated"
    limit = f", task.{part}.count={data.count}" if data.count is not None else ""
    rows = len(ENVIRONMENTS[config.env].read(Path(data.file)))
    return f"{len(tasks)} of {rows} of {data.file} (split {data.split}{limit})"


def _check_prepared(file: Path) -> None:
    """Raises DataError if a file is missing that experiments/prepare_data.py can make."""
    known = REGISTRY.get(file.stem)
    if known is not None and known.parse is not None and not file.exists():
        folder = "" if file.parent == PROJECT / "data" else f" --folder {file.parent}"
        raise DataError(
            f"data file {file} cannot be read (No such file or directory): python experiments/prepare_data.py "
            f"{file.stem}{folder} makes it."
        )


def take(tasks: Sequence[Task], start: int, count: int, seed: int) -> list[Task]:
    """Tasks `start` to `start + count` of the endless stream in which each epoch is a new permutation of the tasks.
    Across the end of an epoch they may hold a task twice. Methods that group paths by prompt then have a group for each
    copy, which the records count as one. RTPO with `pool_s0` has one group for both."""
    chosen = []
    for position in range(start, start + count):
        epoch, index = divmod(position, len(tasks))
        if position == start or index == 0:
            order = generator(seed, "order", epoch).permutation(len(tasks))
        chosen.append(tasks[int(order[index])])
    return chosen


def check_splits(env: str, train: Sequence[Task], held_out: Sequence[Task], tasks_per_step: int) -> None:
    """Raises DataError if training and held-out tasks share a problem (an equal `split_key` of the environment `env`),
    or if there are fewer training tasks than a step takes."""
    key = ENVIRONMENTS[env].split_key
    shared = {key(task) for task in train} & {key(task) for task in held_out}
    if shared:
        raise DataError(
            f"task.train and task.held_out share {counted(len(shared), 'problem')}, such as {min(shared)!r}: take "
            f"them out of one of the two, or choose another split or file. Problems of {env} are equal if the "
            "split_key of its ENVIRONMENT in rtpo/envs is."
        )
    if len(train) < tasks_per_step:
        raise DataError(
            f"task.train has {counted(len(train), 'task')} and budget.tasks_per_step is {tasks_per_step}: a step "
            "would hold a task twice."
        )


def check_prompts(tasks: Sequence[Task], config: TaskConfig, chat: ChatFormat) -> None:
    """Refuse a prompt over the limit before anything starts. Raises DataError naming the task."""

    async def check_all() -> None:
        for task in tasks:
            opening_context(chat, await config.make_env().reset(task), task, config.limits)

    asyncio.run(check_all())
