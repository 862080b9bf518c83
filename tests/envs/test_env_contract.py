"""The contract of every registered environment (rtpo/envs/base.py)."""

import asyncio
import pickle
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtpo.envs.base import Env
from rtpo.envs.registry import ENVIRONMENTS, make_env
from rtpo.run.config import PROJECT
from rtpo.types import Feedback, Grade, Snapshot, StopReason

MAX_TURNS = 4
Reply = tuple[str, StopReason]
Trace = list[tuple[Feedback, str]]

CASES = {
    path.stem: import_module(f"environments.{path.stem}")
    for path in Path(__file__).parents[1].glob("environments/*.py")
}
"""the modules of tests/environments: a TASK and REPLIES to it; where they are not the defaults, ENVIRONMENT (the
module's name), SETTINGS, MARKS, LONGEST, the most replies of an episode, and EXAMPLES, how many pairs are drawn"""
PARAMETERS = [pytest.param(name, marks=getattr(CASES[name], "MARKS", ())) for name in sorted(CASES)]


def environment_of(case: str) -> str:
    return str(getattr(CASES[case], "ENVIRONMENT", case))


def fresh(case: str) -> Env:
    """With the seed of one path."""
    name = environment_of(case)
    settings = getattr(CASES[case], "SETTINGS", None)
    env = make_env(name, ENVIRONMENTS[name].settings() if settings is None else settings, MAX_TURNS)
    env.path_seed = 7
    return env


def replies(case: str) -> st.SearchStrategy[list[Reply]]:
    reply = st.tuples(st.sampled_from(CASES[case].REPLIES), st.sampled_from(list(StopReason)))
    return st.lists(reply, min_size=1, max_size=getattr(CASES[case], "LONGEST", MAX_TURNS))


async def play(env: Env, script: Sequence[Reply]) -> tuple[Trace, list[Snapshot]]:
    """The trace of the script's replies, up to the last one the episode takes, and the snapshot before each."""
    trace: Trace = []
    snapshots = []
    for text, stop in script:
        snapshots.append(env.snapshot())
        feedback = await env.step(text, stop)
        trace.append((feedback, env.snapshot().digest))
        if feedback.done:
            break
    return trace, snapshots


def test_every_environment_has_a_task_and_replies() -> None:
    assert {environment_of(case) for case in CASES} == set(ENVIRONMENTS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_snapshots_are_gone_on_from_as_before_unchanged_and_told_apart_by_their_digests(name: str) -> None:
    async def restored(snapshot: Snapshot, script: Sequence[Reply]) -> tuple[str, Trace, Grade]:
        env = fresh(name)
        env.restore(CASES[name].TASK, pickle.loads(pickle.dumps(snapshot)))
        digest = env.snapshot().digest
        trace, _ = await play(env, script)
        return digest, trace, await env.grade()

    async def check(*scripts: list[Reply]) -> None:
        seen: list[Snapshot] = []
        for script in scripts:
            env = fresh(name)
            await env.reset(CASES[name].TASK)
            trace, snapshots = await play(env, script)
            grade = await env.grade()
            seen += [*snapshots, env.snapshot()]
            stored = [pickle.dumps(snapshot) for snapshot in snapshots]
            for k, snapshot in enumerate(snapshots):
                await restored(snapshot, scripts[-1])
                assert await restored(snapshot, script[k:]) == (snapshot.digest, trace[k:], grade)
            assert [pickle.dumps(snapshot) for snapshot in snapshots] == stored
        for first, second in product(seen, seen):
            assert (first.digest == second.digest) == (first.state == second.state)

    @settings(max_examples=getattr(CASES[name], "EXAMPLES", 25))
    @given(replies(name), replies(name))
    def check_all(script: list[Reply], other: list[Reply]) -> None:
        asyncio.run(check(script, other))

    check_all()


@pytest.mark.parametrize("name", PARAMETERS)
def test_misuse_is_refused(name: str) -> None:
    async def check() -> None:
        env, task = fresh(name), CASES[name].TASK
        await env.reset(task)
        with pytest.raises(ValueError, match="task"):
            env.restore(replace(task, uid="another"), env.snapshot())
        script = [(reply, StopReason.STOP) for reply in CASES[name].REPLIES[-2:] * MAX_TURNS]
        trace, _ = await play(env, script)
        assert trace[-1][0].done
        with pytest.raises(RuntimeError, match="has ended"):
            await env.step("", StopReason.STOP)

    asyncio.run(check())


def digests() -> list[str]:
    """After the first reply to every environment that asks nothing of the machine."""

    async def digest(name: str) -> str:
        env = fresh(name)
        await env.reset(CASES[name].TASK)
        await env.step(CASES[name].REPLIES[0], StopReason.STOP)
        return env.snapshot().digest

    return [asyncio.run(digest(name)) for name in sorted(CASES) if not hasattr(CASES[name], "MARKS")]


def test_digests_are_equal_across_processes() -> None:
    program = f"import sys; sys.path += {sys.path}; import test_env_contract as it; print(it.digests())"
    done = subprocess.run([sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(digests())
    assert len(digests()) >= 5
