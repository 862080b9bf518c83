"""The contract of every registered environment (rtpo/envs/base.py)."""

import asyncio
import pickle
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from official_airline import FOLDER, needs_tau2

from rtpo.envs.airline.env import AirlineSettings, read_airline
from rtpo.envs.base import Env, NoSettings, Settings
from rtpo.envs.booking.tasks import task_of
from rtpo.envs.math import MathSettings
from rtpo.envs.registry import ENVIRONMENTS, make_env
from rtpo.envs.search import SearchEnvSettings
from rtpo.errors import ConfigError
from rtpo.tools.python.tool import PythonSettings
from rtpo.tools.search.replay import ReplaySettings
from rtpo.tools.search.tool import SearchSettings
from rtpo.types import Feedback, Grade, Snapshot, StopReason, Task

MAX_TURNS = 4
Reply = tuple[str, StopReason]
Trace = list[tuple[Feedback, str]]

RECORDING = str(Path(__file__).parent / "fixtures" / "recording.json")
SETTINGS: dict[str, Settings] = {
    "airline": AirlineSettings(user="scripted"),
    "math": MathSettings(),
    "math in a session": MathSettings(python=PythonSettings(session=True)),
    "search": SearchEnvSettings(SearchSettings("replay", replay=ReplaySettings(RECORDING, "empty"))),
}
CASES = sorted({*ENVIRONMENTS, *SETTINGS})
"""environments, some with more than one choice of settings"""
MARKS = {"airline": needs_tau2} | dict.fromkeys(("math", "math in a session"), pytest.mark.needs("bwrap"))
PARAMETERS = [pytest.param(case, marks=MARKS[case]) if case in MARKS else case for case in CASES]
TASKS = {
    "airline": read_airline(FOLDER / "tasks.json")[1],
    "booking": task_of("bags:R8ARDG:1", "booking/bags"),
    "math": Task(uid="gsm8k/0", question="A pen costs $3. What do 4 cost?", answer=("12",)),
    "search": Task(uid="hotpotqa/0", question="What is the capital of Norway?", answer=("Oslo", "Oslo, Norway")),
    "toy_knowledge": Task(
        uid="toy_knowledge/train/e53bossrivalfriendfrom37", question=" find e53 boss rival friend from 37", answer="e30"
    ),
    "toy_math": Task(uid="toy_math/held_out/12+5*3", question=" compute 12 + 5 * 3", answer=27),
}
REPLIES = {
    "airline": (
        '<think>\nread</think>\n<tool_call>\n{"name": "get_user_details", "arguments": {"user_id": "ann_bell_1"}}\n'
        "</tool_call>",
        '<tool_call>\n{"name": "cancel_reservation", "arguments": {"reservation_id": "RES001"}}\n</tool_call>',
        '<tool_call>\n{"name": "send_certificate", "arguments": {"user_id": "ann_bell_1", "amount": 5}}\n</tool_call>',
        '<tool_call>\n{"name": "cancel_reservation", "arguments"',
        "<think>\nmaybe",
        "Which reservation is it?",
        "<think>\ndone\n</think>\n\nIt is done.",
        "",
    ),
    "booking": (
        '<think>\nread</think>\n<tool_call>\n{"name": "get_reservation", "arguments": {"reservation_id": "R8ARDG"}}\n'
        "</tool_call>",
        '<tool_call>\n{"name": "change_bags", "arguments": {"reservation_id": "R8ARDG", "bags": 3}}\n</tool_call>',
        '<tool_call>\n{"name": "change_bags", "arguments": {"reservation_id": "R8ARDG", "bags": 4}}\n</tool_call>',
        '<tool_call>\n{"name": "change_bags", "arguments"',
        "<think>\nmaybe",
        "Which reservation is it?",
        "<think>\ndone\n</think>\n\nIt is done for 50 dollars.",
        "",
    ),
    "math": (
        '<think>\n3*4\n</think>\n\n<tool_call>\n{"name": "python", "arguments": {"code": "3*4"}}\n</tool_call>',
        '<tool_call>\n{"name": "python", "arguments": {"code": 3}}\n</tool_call>',
        '<tool_call>\n{"name": "python", "arguments"',
        "<think>\n3*4",
        "<think>\n12\n</think>\n\nThey cost \\boxed{12}.",
        "\\boxed{\\frac{12}{2}}",
        "12",
        "",
    ),
    "math in a session": (
        '<tool_call>\n{"name": "python", "arguments": {"code": "x = 3"}}\n</tool_call>',
        '<tool_call>\n{"name": "python", "arguments": {"code": "x = x * 4\\nx"}}\n</tool_call>',
        "\\boxed{12}",
    ),
    "search": (
        '<tool_call>\n{"name": "search", "arguments": {"query": "Capital of  Norway"}}\n</tool_call>',
        '<tool_call>\n{"name": "search", "arguments": {"query": "elsewhere"}}\n</tool_call>',
        '<tool_call>\n{"name": "search", "arguments": {"query": ""}}\n</tool_call>\n<tool_call>\n'
        '{"name": "python", "arguments": {"code": "1+1"}}\n</tool_call>',
        "<think>\nOslo\n</think>\n\n\\boxed{oslo, norway}",
        "\\boxed{Bergen}",
        "",
    ),
    "toy_knowledge": (
        "<think> first e53 then boss</think><tool_call> search e53 boss</tool_call>",
        "<think> e53 boss is e36 then rival</think><tool_call> search e36 rival</tool_call>",
        "<think> first e53 then boss</think><tool_call> search e53</tool_call>",
        "<tool_call> search e53",
        "<think> first e53",
        "<think> e17 friend is e30 so answer e30</think> answer\\boxed{ e30}",
        " answer\\boxed{ e3}",
        "",
    ),
    "toy_math": (
        "<think> first 5 * 3</think><tool_call> 5 * 3</tool_call>",
        "<think> 5 * 3 is 15 then 12 + 15</think><tool_call> 12 + 15</tool_call>",
        "<think> first 5 * 3</think><tool_call> 12 + 5 * 3</tool_call>",
        "<tool_call> 5 * 3",
        "<think> first 5 * 3",
        "<think> 12 + 15 is 27 so answer 27</think> answer\\boxed{ 27}",
        " answer\\boxed{ 3}",
        "",
    ),
}


def fresh(case: str) -> Env:
    return make_env(case.split()[0], SETTINGS.get(case, NoSettings()), MAX_TURNS)


def task_of_case(case: str) -> Task:
    return TASKS[case.split()[0]]


def replies(name: str) -> st.SearchStrategy[list[Reply]]:
    reply = st.tuples(st.sampled_from(REPLIES[name]), st.sampled_from(list(StopReason)))
    longest = 2 if "math" in name else MAX_TURNS
    return st.lists(reply, min_size=1, max_size=longest)


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


async def replay(name: str, snapshot: Snapshot, script: Sequence[Reply]) -> tuple[str, Trace, Grade]:
    env = fresh(name)
    env.restore(task_of_case(name), snapshot)
    digest = env.snapshot().digest
    trace, _ = await play(env, script)
    return digest, trace, await env.grade()


def test_every_environment_has_a_task_and_replies_here() -> None:
    assert set(TASKS) == set(ENVIRONMENTS)
    assert set(REPLIES) == set(CASES)


def test_unknown_environment_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'chess' does not exist: use one of .*toy_math"):
        make_env("chess", NoSettings(), MAX_TURNS)


@pytest.mark.parametrize("name", PARAMETERS)
@settings(max_examples=25)
@given(data=st.data())
def test_a_restored_episode_continues_as_the_first_did(name: str, data: st.DataObject) -> None:
    script = data.draw(replies(name))

    async def check() -> None:
        env = fresh(name)
        await env.reset(task_of_case(name))
        trace, snapshots = await play(env, script)
        grade = await env.grade()
        for k, snapshot in enumerate(snapshots):
            for _ in range(2):
                again = await replay(name, snapshot, script[k:])
                assert again == (snapshot.digest, trace[k:], grade)

    asyncio.run(check())


@pytest.mark.parametrize("name", PARAMETERS)
@settings(max_examples=25)
@given(data=st.data())
def test_a_snapshot_is_not_changed_by_what_follows(name: str, data: st.DataObject) -> None:
    before, others = data.draw(replies(name)), data.draw(replies(name))

    async def check() -> None:
        env = fresh(name)
        await env.reset(task_of_case(name))
        _, snapshots = await play(env, before)
        stored = [pickle.dumps(snapshot) for snapshot in snapshots]
        for snapshot in snapshots:
            await replay(name, snapshot, others)
        assert [pickle.dumps(snapshot) for snapshot in snapshots] == stored

    asyncio.run(check())


@pytest.mark.parametrize("name", PARAMETERS)
@settings(max_examples=25)
@given(data=st.data())
def test_digests_are_equal_exactly_when_states_are(name: str, data: st.DataObject) -> None:
    scripts = data.draw(replies(name)), data.draw(replies(name))

    async def check() -> None:
        found = []
        for script in scripts:
            env = fresh(name)
            await env.reset(task_of_case(name))
            _, snapshots = await play(env, script)
            found += [*snapshots, env.snapshot()]
        for one in found:
            for other in found:
                assert (one.digest == other.digest) == (one.state == other.state)

    asyncio.run(check())


@pytest.mark.parametrize("name", PARAMETERS)
def test_an_unpickled_snapshot_restores(name: str) -> None:
    async def check() -> None:
        env = fresh(name)
        await env.reset(task_of_case(name))
        await env.step(REPLIES[name][0], StopReason.STOP)
        snapshot = env.snapshot()
        copy = pickle.loads(pickle.dumps(snapshot))
        script = [(reply, StopReason.STOP) for reply in REPLIES[name][1:]]
        assert await replay(name, copy, script) == await replay(name, snapshot, script)

    asyncio.run(check())
