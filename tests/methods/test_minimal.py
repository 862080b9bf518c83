"""experiments/minimal.py against the project's own methods: the same paths give the same rows and the same weights."""

import inspect
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import made_paths
import numpy as np
import pytest
import torch
from local_backend import LocalBackend
from transformers import AutoTokenizer

from experiments import minimal
from rtpo.core.chat import ChatFormat
from rtpo.core.contexts import strip_think
from rtpo.core.packing import normalised_weights, training_batches
from rtpo.envs.worlds import limits, worlds
from rtpo.run.cli import composed
from rtpo.run.config import PROJECT, RunConfig, compose_run
from rtpo.types import Group, Role, Rollout, Task, TrainRow, as_ids
from rtpo.verbs import Loss, Update

TASKS = [Task(f"task {i}", "", 0) for i in range(4)]
EXACT = "grpo_exact"
CHAINS = 6
METHODS = {"rtpo": "rtpo", "grpo": "grpo flattened", EXACT: "grpo recorded"}


class ReplayingHarness:
    """Plays recorded paths again and trains as the project does."""

    max_turns = 3

    def __init__(self, backend: LocalBackend, calls: Iterator[list[minimal.Played]]) -> None:
        self._backend, self._calls = backend, calls
        self.rows: list[tuple[TrainRow, float]] = []
        """each with its share of its update"""

    def rollout(self, starts: Sequence[Any], *, n: int, role: Role) -> list[Group]:
        paths, groups = iter(next(self._calls)), []
        for number, start in enumerate(starts):
            task, start_k = (start, 0) if isinstance(start, Task) else (start.task, start.k)
            groups.append(tuple(rollout(next(paths), task, start_k, role, f"{role}{number}.{i}") for i in range(n)))
        assert next(paths, None) is None
        return groups

    def sync(self) -> int:
        return 0

    def update(self, rows: list[TrainRow], loss: Loss, *, epochs: int, minibatches: int) -> Update:
        self.rows += zip(rows, map(np.sum, normalised_weights(rows)), strict=True)
        old = [row.rollout_logprobs[row.mask] for row in rows]
        is_own = loss.old_logprobs == "recompute"
        for packed in training_batches(rows, old, loss, epochs=epochs, count=minibatches, first_uses_own=is_own):
            self._backend.step(packed, None, loss)
        return Update(1, 0, [])


def rollout(path: minimal.Played, task: Task, start_k: int, role: Role, uid: str) -> Rollout:
    turns = [
        made_paths.turn(k, t.boundary.context, t.output, t.feedback, logprobs=np.array(t.logprobs, np.float32))
        for k, t in enumerate(path.turns)
    ]
    return made_paths.rollout(uid, task, turns, path.reward, start_k, role)


def in_float32(turn: minimal.Turn) -> minimal.Turn:
    return replace(turn, logprobs=np.float32(turn.logprobs).tolist())


def config(name: str) -> RunConfig:
    method = "grpo" if name == EXACT else name
    own = ["optimizer.lr=1e-4", *([] if name == "rtpo" else [f"algorithm.chains={CHAINS}"])]
    return compose_run(composed("train", [f"algorithm={name}", f"algorithm.label={method}", *own]))


@pytest.fixture(scope="module")
def chat() -> minimal.Chat:
    return minimal.Chat(AutoTokenizer.from_pretrained(config("rtpo").model.path))


@pytest.mark.parametrize("name", METHODS)
def test_the_same_paths_give_the_same_rows_and_weights(name: str, chat: minimal.Chat) -> None:
    torch.manual_seed(0)
    run = config(name)
    backend, optimized = LocalBackend(run), LocalBackend(run)
    ours, theirs = optimized.model.double(), backend.model.double()  # so that rounding does not decide Adam's steps
    optimizer = torch.optim.AdamW(ours.parameters(), run.optimizer.lr, run.optimizer.betas, weight_decay=0.0)
    calls: list[list[minimal.Played]] = []
    rows: list[minimal.Row] = []
    starts = [minimal.Boundary(world, chat.opening(world.begin())) for world in worlds("toy_math", "train", len(TASKS))]

    def play(starting: Sequence[minimal.Boundary]) -> list[minimal.Played]:
        paths = minimal.rollout(ours, chat, limits("toy_math"), starting)
        calls.append([replace(path, turns=tuple(map(in_float32, path.turns))) for path in paths])
        return calls[-1]

    def learn(learnt: Sequence[minimal.Row]) -> None:
        rows.extend(learnt)
        minimal.update(ours, optimizer, learnt)

    if name == "rtpo":
        settings: Any = run.algorithm_config
        minimal.rtpo_step(starts, play, learn, settings.trunks, settings.group_size - 1)
    else:
        minimal.grpo_step(starts, play, learn, CHAINS, METHODS[name] == "grpo flattened")
    harness = ReplayingHarness(backend, iter(calls))
    run.descriptor.step(harness, TASKS, run.algorithm_config)  # type: ignore[arg-type]

    assert len(rows) == len(harness.rows)
    for mine, (row, weight) in zip(rows, harness.rows, strict=True):
        assert mine.ids == row.ids.tolist()
        assert mine.trained == np.flatnonzero(row.mask).tolist()
        assert row.advantage[row.mask] == pytest.approx(mine.advantage, abs=1e-6)
        assert mine.weight == pytest.approx(weight, rel=1e-5)
    mine_now, theirs_now, before = (
        torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        for model in (ours, theirs, LocalBackend(run).model)
    )
    assert float((mine_now - theirs_now).abs().max()) < 1e-6
    assert float((mine_now - before).abs().max()) > run.optimizer.lr / 2


def test_forks_go_on_from_their_boundary_and_leave_it_as_it_was(chat: minimal.Chat) -> None:
    torch.manual_seed(1)
    model = LocalBackend(config("rtpo")).model
    play = partial(minimal.rollout, model, chat, limits("toy_math"))
    world = worlds("toy_math", "train", 1)[0]
    (trunk,) = play([minimal.Boundary(world, chat.opening(world.begin()))])
    boundary = trunk.turns[-1].boundary
    forks = play([boundary] * 8)
    assert all(fork.turns[: len(boundary.turns)] == boundary.turns for fork in forks)
    assert len({tuple(fork.turns[len(boundary.turns)].output) for fork in forks}) > 1
    again = play([boundary] * 8, temperature=0)
    assert len({fork.reward for fork in again}) == 1


def test_past_thinking_is_stripped_as_the_harness_strips_it(chat: minimal.Chat) -> None:
    tokenizer = AutoTokenizer.from_pretrained(config("rtpo").model.path)
    tags, draw = ChatFormat(tokenizer).tags, random.Random(0)
    special = [tags.open_id, tags.close_id, tags.stop_id, *tags.newline_ids]
    for _ in range(300):
        output = [draw.choice([draw.randrange(len(tokenizer)), draw.choice(special)]) for _ in range(8)]
        assert chat.visible(output) == strip_think(as_ids(output), tags).tolist()


def test_the_page_of_rtpo_shows_the_sweep_as_it_is() -> None:
    assert inspect.getsource(minimal.rtpo_step) in (PROJECT / "docs" / "method" / "rtpo.md").read_text()
    assert len(Path(minimal.__file__).read_text().splitlines()) <= 300
