"""Episodes: from a task or a boundary to the end (or for some turns), one coroutine each.

All episodes of a call run at once. Those that wait for the engine share its batches. A slow tool delays only its own
episode.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rtpo.core.chat import ChatFormat
from rtpo.core.contexts import next_context
from rtpo.core.names import counted
from rtpo.core.seeds import stream_seed
from rtpo.engines.base import Engine, Request, Sampling
from rtpo.envs.base import Env
from rtpo.errors import DataError, InfrastructureError
from rtpo.harness.lock_step import LockStep
from rtpo.types import (
    Boundary,
    Grade,
    GradeOutcome,
    Ids,
    Opening,
    Role,
    Rollout,
    RolloutContext,
    StopReason,
    Task,
    Termination,
    Turn,
    as_ids,
)

NO_IDS = as_ids([])


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """The limits of an episode, in the notation of `rtpo.types`. Those named tokens are in tokens."""

    max_turns: int  # K
    max_prompt_tokens: int  # of the opening context c_0
    max_turn_tokens: int  # of a sampled turn u_k
    max_context_tokens: int  # of c_k and u_k together
    retries: int = 2  # how often an episode starts again after an infrastructure failure


@dataclass(frozen=True)
class EpisodeWorld:
    """Everything that all episodes share. lock_step: the engine gets all requests at once, in a fixed order."""

    engine: Engine
    chat: ChatFormat
    make_env: Callable[[], Env]
    limits: EpisodeLimits
    rollout_context: RolloutContext
    seed: int
    lock_step: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """One path to sample. `uid` names it and seeds it. turns: the most turns to sample; None: to the end."""

    uid: str
    start: Task | Boundary
    role: Role
    turns: int | None = None


def run_episodes(
    world: EpisodeWorld, plans: Sequence[Plan], sampling: Sampling, on_retry: Callable[[str], None]
) -> list[Rollout]:
    """The rollouts of `plans`, in order. `world.limits` replace `sampling.max_tokens`. `on_retry` gets a sentence for
    each episode that starts again. Raises the error of the first episode that fails."""

    lock_step = LockStep(world.engine, [plan.uid for plan in plans]) if world.lock_step else None
    shared = world if lock_step is None else replace(world, engine=lock_step)

    async def run(plan: Plan) -> Rollout:
        try:
            return await run_episode(shared, plan, sampling, on_retry)
        finally:
            if lock_step is not None:
                lock_step.leave()

    rollouts: list[Rollout] = []

    async def run_all() -> None:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run(plan)) for plan in plans]
        # not returned: at its end asyncio.run formats a result as text, with all arrays in it
        rollouts.extend(task.result() for task in tasks)

    try:
        asyncio.run(run_all())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return rollouts


async def run_episode(world: EpisodeWorld, plan: Plan, sampling: Sampling, on_retry: Callable[[str], None]) -> Rollout:
    """The rollout of one plan; it ignores `world.lock_step`. After an infrastructure failure it starts again, up to
    `limits.retries` times."""
    for attempt in range(world.limits.retries + 1):
        try:
            return await _episode(world, plan, sampling)
        except InfrastructureError as error:
            if attempt == world.limits.retries:
                raise
            on_retry(f"{plan.uid}: {error}")
    raise AssertionError("unreachable")


async def _episode(world: EpisodeWorld, plan: Plan, sampling: Sampling) -> Rollout:
    env, limits = world.make_env(), world.limits
    if plan.role is not Role.EVAL:
        env.path_seed = stream_seed(world.seed, plan.uid, "environment")
    if isinstance(plan.start, Boundary):
        boundary = plan.start
        task, context, turns, parent = boundary.task, boundary.context_ids, list(boundary.history), boundary.rollout_uid
        env.restore(task, boundary.snapshot)
    else:
        task, turns, parent = plan.start, [], None
        context = opening_context(world.chat, await env.reset(task), task, limits)
    start_k = len(turns)
    termination = Termination.TURN_LIMIT

    for k in range(start_k, limits.max_turns):
        room = limits.max_context_tokens - len(context)
        if room < 1:
            termination = Termination.CONTEXT_LIMIT
            break
        if plan.turns is not None and k == start_k + plan.turns:
            termination = Termination.OPEN
            break
        snapshot = env.snapshot()
        request = Request(
            context,
            replace(sampling, max_tokens=min(limits.max_turn_tokens, room)),
            seed=stream_seed(world.seed, plan.uid, k),
            session=plan.uid,
            route=plan.start.rollout_uid if isinstance(plan.start, Boundary) else plan.uid,
        )
        generation = await world.engine.generate(request)
        is_stopped = generation.stop is StopReason.STOP
        reply = world.chat.decode(generation.output_ids[:-1] if is_stopped else generation.output_ids)
        feedback = await env.step(reply, generation.stop)
        is_last = feedback.done or k + 1 == limits.max_turns
        turn = Turn(
            k,
            context,
            generation.output_ids,
            generation.logprobs,
            generation.policy_version,
            generation.stop,
            snapshot,
            NO_IDS if is_last else world.chat.feedback(feedback.messages, generation.stop),
            feedback.calls,
            generation.top_logprobs,
        )
        turns.append(turn)
        if feedback.done:
            termination = Termination.ANSWERED
            break
        if not is_last:
            context = next_context(context, turn.output_ids, turn.feedback_ids, world.chat.tags, world.rollout_context)

    tip, grade = None, Grade(GradeOutcome.PENDING, None)
    if termination is Termination.OPEN:
        tip = Boundary(task, len(turns), context, tuple(turns), env.snapshot(), plan.uid, is_tip=True)
    else:
        grade = await env.grade()
    return Rollout(plan.uid, task, plan.role, start_k, parent, tuple(turns), termination, grade, tip)


def opening_context(chat: ChatFormat, opening: Opening, task: Task, limits: EpisodeLimits) -> Ids:
    """The opening context c_0. Raises DataError if it is over the prompt limit."""
    context = chat.opening(opening)
    if len(context) > limits.max_prompt_tokens:
        raise DataError(
            f"task {task.uid}: its prompt has {counted(len(context), 'token')} and task.max_prompt_tokens is "
            f"{limits.max_prompt_tokens}; raise the limit or leave the task out."
        )
    return context
