"""Episodes: what the engine receives, where they can be forked, how they end, and in which order they ask."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import scripted
from methods import UngradableEnv
from scripted import CALL_1, CALL_2, CHAT, RIGHT, TASK, Reply, Script, always, in_turn, solver

from rtpo.engines.base import BatchingEngine, Generation, Request, Sampling
from rtpo.envs.toy.math import ToyMathEnv, problems
from rtpo.errors import DataError, InfrastructureError
from rtpo.harness.episodes import EpisodeWorld, Plan, run_episodes
from rtpo.types import (
    Boundary,
    Feedback,
    Grade,
    GradeOutcome,
    Role,
    Rollout,
    RolloutContext,
    StopReason,
    Task,
    Termination,
    as_ids,
)

QUESTION = "<|im_start|> user\n compute 12 + 5 * 3<|im_end|>\n<|im_start|> assistant\n"
AFTER_FIRST = "\n<|im_start|> user\n<tool_response> 15</tool_response><|im_end|>\n<|im_start|> assistant\n"
AFTER_ERROR = "\n<|im_start|> user\n<tool_response> error</tool_response><|im_end|>\n<|im_start|> assistant\n"
TASKS = problems("train", 12, seed=3)
CONTEXTS = pytest.mark.parametrize("rollout_context", ["strip_think", "full"])


def world_of(script: Script, **settings: Any) -> tuple[EpisodeWorld, scripted.ScriptedEngine]:
    engine = scripted.ScriptedEngine(script)
    return scripted.make_world(engine, **settings), engine


def run(world: EpisodeWorld, *plans: Plan) -> list[Rollout]:
    def unexpected(retry: str) -> None:
        raise AssertionError(f"an episode was begun again: {retry}")

    return run_episodes(world, plans, Sampling(), unexpected)


def path(script: Script, start: Task | Boundary = TASK, turns: int | None = None, **settings: Any) -> Rollout:
    world, _ = world_of(script, **settings)
    return run(world, Plan("path", start, Role.CHAIN, turns))[0]


def content(turn: Any) -> tuple[Any, ...]:
    arrays = (turn.context_ids, turn.output_ids, turn.logprobs, turn.feedback_ids)
    return (turn.k, turn.stop, turn.calls, turn.snapshot.digest, *(array.tobytes() for array in arrays))


def test_contexts_in_words() -> None:
    replies = (CALL_1, CALL_2, RIGHT)
    stripped, full = (path(in_turn(*replies), rollout_context=mode) for mode in ("strip_think", "full"))
    assert CHAT.decode(stripped.turns[0].context_ids) == CHAT.decode(full.turns[0].context_ids) == QUESTION
    without = QUESTION + "<tool_call> 5 * 3</tool_call><|im_end|>" + AFTER_FIRST
    assert CHAT.decode(stripped.turns[1].context_ids) == without
    assert CHAT.decode(full.turns[1].context_ids) == QUESTION + CALL_1 + "<|im_end|>" + AFTER_FIRST
    assert CHAT.decode(stripped.turns[2].context_ids).count("think") == 0
    assert CHAT.decode(full.turns[2].context_ids).count("</think>") == 2
    for rollout in (stripped, full):
        assert [CHAT.decode(turn.output_ids) for turn in rollout.turns] == [f"{reply}<|im_end|>" for reply in replies]
        assert CHAT.decode(rollout.turns[0].feedback_ids) == AFTER_FIRST
        assert len(rollout.turns[2].feedback_ids) == 0
        assert (rollout.termination, rollout.reward) == (Termination.ANSWERED, 1.0)


def test_each_turn_has_its_own_seed_and_another_root_gives_others() -> None:
    seeds: list[list[int]] = []
    for root in (0, 0, 1):
        world, engine = world_of(in_turn(*[CALL_1, CALL_2, RIGHT] * 2), seed=root)
        run(world, Plan("a", TASK, Role.CHAIN), Plan("b", TASK, Role.CHAIN))
        seeds.append([request.seed for request in engine.requests])
        assert [request.route for request in engine.requests] == ["a"] * 3 + ["b"] * 3  # in no lock-step
    assert seeds[0] == seeds[1]
    assert len({*seeds[0], *seeds[2]}) == 12


@CONTEXTS
def test_a_fork_from_every_boundary_starts_where_the_trunk_was(rollout_context: RolloutContext) -> None:
    """And what is recorded of each turn is what the engine received."""
    trunk = path(in_turn(CALL_1, CALL_2, RIGHT), rollout_context=rollout_context)
    for k in range(3):
        boundary = trunk.boundary(k)
        world, engine = world_of(solver(0.5), rollout_context=rollout_context)
        siblings = run(world, *(Plan(f"sibling{j}", boundary, Role.SIBLING) for j in range(6)))
        for sibling in siblings:
            assert (sibling.start_k, sibling.parent_uid) == (k, trunk.uid)
            assert sibling.turns[:k] == trunk.turns[:k]
            assert sibling.turns[k].context_ids.tobytes() == trunk.turns[k].context_ids.tobytes()
            assert sibling.turns[k].snapshot.digest == trunk.turns[k].snapshot.digest
            asked = [request.context_ids.tobytes() for request in engine.requests if request.session == sibling.uid]
            assert asked == [turn.context_ids.tobytes() for turn in sibling.own_turns]
        assert len({sibling.turns[k].output_ids.tobytes() for sibling in siblings}) > 1
        assert {request.route for request in engine.requests} == {trunk.uid}  # where its keys and values are
        engine.failures = 2  # and tried again
        (again,) = run_episodes(world, [Plan("again", boundary, Role.SIBLING)], Sampling(), on_retry=print)
        assert (again.start_k, again.turns[:k], again.parent_uid) == (k, trunk.turns[:k], trunk.uid)
        assert again.turns[k].context_ids.tobytes() == trunk.turns[k].context_ids.tobytes()
    with pytest.raises(IndexError, match="3"):
        trunk.boundary(3)


def test_all_turns_of_a_path_count_towards_the_turn_limit() -> None:
    trunk = path(in_turn(CALL_1, CALL_2, RIGHT))
    for k in range(3):
        sibling = path(always(CALL_1), trunk.boundary(k))
        assert (len(sibling.turns), len(sibling.own_turns)) == (3, 3 - k)
        assert sibling.termination is Termination.TURN_LIMIT
        assert (sibling.reward, sibling.tip) == (0.0, None)
        assert [len(turn.feedback_ids) > 0 for turn in sibling.turns] == [True, True, False]


@CONTEXTS
def test_a_truncated_turn_is_closed_in_the_next_context(rollout_context: RolloutContext) -> None:
    for cut, stripped in (("<think> first 5", ""), ("<think> first</think> answer 5", " answer 5")):
        rollout = path(in_turn(scripted.Cut(cut), RIGHT), rollout_context=rollout_context)
        first, second = rollout.turns
        assert (first.stop, second.stop) == (StopReason.LENGTH, StopReason.STOP)
        assert CHAT.decode(first.output_ids) == cut
        left = stripped if rollout_context == "strip_think" else cut
        assert CHAT.decode(second.context_ids) == QUESTION + left + "<|im_end|>" + AFTER_ERROR
        assert rollout.reward == 1.0


@pytest.mark.parametrize(("room", "turns", "last_length"), [(0, 1, 12), (1, 2, 1), (11, 2, 11), (12, 2, 12)])
def test_a_path_ends_where_the_context_is_full(room: int, turns: int, last_length: int) -> None:
    """c_1 has 32 ids: 14 of the question, 6 of the first call and 12 of its feedback; each reply has 12."""
    world, engine = world_of(in_turn(CALL_1, CALL_2), max_context_tokens=32 + room)
    (rollout,) = run(world, Plan("path", TASK, Role.CHAIN))
    assert (rollout.termination, rollout.reward) == (Termination.CONTEXT_LIMIT, 0.0)
    assert len(rollout.turns) == len(engine.requests) == turns
    assert len(rollout.turns[-1].output_ids) == last_length
    assert all(len(turn.context_ids) + len(turn.output_ids) <= 32 + room for turn in rollout.turns)


def test_a_path_whose_context_is_full_is_graded_by_its_environment() -> None:
    class HalfRight(ToyMathEnv):
        async def grade(self) -> Grade:
            return Grade(GradeOutcome.GRADED, 0.5)

    rollout = path(in_turn(CALL_1, CALL_2), max_context_tokens=33, make_env=HalfRight)
    assert (rollout.termination, rollout.reward) == (Termination.CONTEXT_LIMIT, 0.5)


@pytest.mark.parametrize("is_fork", [False, True])
def test_an_engine_that_fails_for_good_is_an_error_and_no_grade(is_fork: bool) -> None:
    start = path(in_turn(CALL_1, CALL_2, RIGHT), turns=1).tip if is_fork else TASK
    assert start is not None

    def silent(context: str, rng: np.random.Generator) -> Reply:
        raise InfrastructureError("the engine does not answer")

    world, engine = world_of(silent)
    with pytest.raises(InfrastructureError, match="does not answer"):
        run_episodes(world, [Plan("path", start, Role.CHAIN)], Sampling(), lambda _: None)
    assert len(engine.requests) == 3


def test_a_prompt_over_its_limit_is_refused() -> None:
    with pytest.raises(DataError, match=r"task\.max_prompt_tokens"):
        path(always(RIGHT), max_prompt_tokens=13)
    assert path(always(RIGHT), max_prompt_tokens=14).reward == 1.0


@CONTEXTS
@pytest.mark.parametrize("stride", [1, 2])
def test_a_path_taken_some_turns_at_a_time_is_the_whole_one(rollout_context: RolloutContext, stride: int) -> None:
    for task in TASKS:

        def by_context(context: str, rng: np.random.Generator) -> Reply:
            return solver(0.4)(context, np.random.default_rng(len(context)))

        whole = path(by_context, task, rollout_context=rollout_context)
        part = path(by_context, task, stride, rollout_context=rollout_context)
        while part.tip is not None:
            assert (part.termination, part.grade.outcome) == (Termination.OPEN, GradeOutcome.PENDING)
            assert (part.tip.is_tip, part.tip.k, part.tip.rollout_uid) == (True, len(part.turns), part.uid)
            assert part.boundary(part.tip.k) is part.tip
            part = path(by_context, part.tip, stride, rollout_context=rollout_context)
        assert [content(turn) for turn in part.turns] == [content(turn) for turn in whole.turns]
        assert (part.termination, part.grade) == (whole.termination, whole.grade)


@dataclass
class Calculator:
    """One that does not answer its first `failures` calls and takes up to `delay` seconds for each, drawn by `seed`. It
    notes the seeds of the paths that call it."""

    failures: int = 0
    delay: float = 0.0
    seed: int = 0
    path_seeds: list[int | None] = field(default_factory=list)

    def make_env(self) -> Callable[[], ToyMathEnv]:
        calculator, rng = self, np.random.default_rng(self.seed)

        class CalculatorEnv(ToyMathEnv):
            async def step(self, reply: str, stop: StopReason) -> Feedback:
                calculator.path_seeds.append(self.path_seed)
                await asyncio.sleep(float(rng.uniform(0, calculator.delay)))
                if calculator.failures:
                    calculator.failures -= 1
                    raise InfrastructureError("the calculator does not answer")
                return await super().step(reply, stop)

        return CalculatorEnv


def by_progress(context: str, rng: np.random.Generator) -> Reply:
    """The right reply, found from the context alone."""
    return (CALL_1, CALL_2, RIGHT)[context.count("<tool_response>")]


@pytest.mark.parametrize(("failures", "requests"), [(2, 5), (99, 3)])
def test_an_episode_that_a_tool_broke_is_begun_again_up_to_twice(failures: int, requests: int) -> None:
    world, engine = world_of(by_progress, make_env=Calculator(failures).make_env())
    noted: list[str] = []
    try:
        (rollout,) = run_episodes(world, [Plan("path", TASK, Role.CHAIN)], Sampling(), noted.append)
        assert (rollout.reward, len(rollout.turns)) == (1.0, 3)
        assert len({request.seed for request in engine.requests}) == 3
    except InfrastructureError:
        assert failures == 99
    assert noted == ["path: the calculator does not answer"] * 2
    assert len(engine.requests) == requests


def test_a_fault_of_the_code_is_raised_as_it_is_and_never_retried() -> None:
    def broken(context: str, rng: np.random.Generator) -> Reply:
        raise ZeroDivisionError("a bug")

    world, engine = world_of(broken)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        run(world, *(Plan(str(i), TASK, Role.CHAIN) for i in range(3)))
    sessions = [request.session for request in engine.requests]
    assert len(sessions) == len(set(sessions))


def calls_of(delays: int, *, lock_step: bool, failures: int = 0) -> tuple[list[list[str]], list[Rollout]]:
    """The sessions of each call of the engine, and the rollouts, where tools take these delays."""
    engine, calls = scripted.ScriptedEngine(solver(0.3)), []

    async def call(requests: list[Request]) -> list[Generation]:
        calls.append([request.session for request in requests])
        return [await engine.generate(request) for request in requests]

    make_env = Calculator(failures, delay=0.01, seed=delays).make_env()
    world = replace(scripted.make_world(engine, make_env=make_env), engine=BatchingEngine(call), lock_step=lock_step)
    plans = [Plan(f"0.{i}", task, Role.CHAIN) for i, task in enumerate(TASKS[:6])]
    return calls, run_episodes(world, plans, Sampling(), lambda what: None)


def test_in_lock_step_calls_do_not_depend_on_how_long_tools_take() -> None:
    first, rollouts = calls_of(0, lock_step=True)
    turns = [len(rollout.turns) for rollout in rollouts]
    assert [len(call) for call in first] == [sum(count > k for count in turns) for k in range(len(first))]
    for delays in (1, 2):
        assert calls_of(delays, lock_step=True)[0] == first
    assert calls_of(1, lock_step=False)[0] != first
    calls, again = calls_of(0, lock_step=True, failures=1)  # which holds up the others, and ends
    assert sum(map(len, calls)) == 1 + sum(len(rollout.turns) for rollout in again)
    assert all(call == sorted(call) for call in (*first, *calls))
    with pytest.raises(InfrastructureError, match="does not answer"):
        calls_of(0, lock_step=True, failures=1000)


def test_a_path_has_a_seed_of_its_own_and_an_evaluation_has_none() -> None:
    seeds = []
    for uid, role in (("a", Role.CHAIN), ("a", Role.CHAIN), ("b", Role.CHAIN), ("a", Role.EVAL)):
        calculator = Calculator()
        run(world_of(by_progress, make_env=calculator.make_env())[0], Plan(uid, TASK, role))
        (seed,) = {*calculator.path_seeds}
        seeds.append(seed)
    assert seeds[0] == seeds[1] != seeds[2]
    assert seeds[3] is None


def test_an_ungraded_path_has_no_reward() -> None:
    with pytest.raises(ValueError, match="path has no reward"):
        _ = path(always(RIGHT), make_env=UngradableEnv).reward


def test_an_engine_answers_one_list_at_a_time_and_the_next_has_all_that_was_asked_meanwhile() -> None:
    calls, running = list[int](), 0

    async def call(requests: list[Request]) -> list[Generation]:
        nonlocal running
        running += 1
        assert running == 1
        calls.append(len(requests))
        later = [asyncio.create_task(ask(number)) for number in range(4)] if len(requests) == 3 else []
        await asyncio.sleep(0.1)
        running -= 1
        meanwhile.extend(later)
        return [Generation(each.context_ids, np.zeros(1, np.float32), 0, StopReason.STOP, None) for each in requests]

    engine, meanwhile = BatchingEngine(call, delay=0.01), list[asyncio.Task[None]]()

    async def ask(number: int) -> None:
        ids = as_ids([number])
        assert (await engine.generate(Request(ids, Sampling(), 0, "", ""))).output_ids is ids

    async def ask_all(count: int) -> None:
        await asyncio.gather(*(ask(number) for number in range(count)))
        await asyncio.gather(*meanwhile)

    asyncio.run(ask_all(3))
    assert calls == [3, 4]
    meanwhile.clear()
    engine._delay = 3600
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(ask_all(1), 0.001))
    engine._delay = 0.01
    asyncio.run(ask_all(2))  # without what a cancelled episode asked
    assert calls[2:] == [2]
