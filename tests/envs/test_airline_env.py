"""The airline adapter on the real tau2-bench, skipped with the reason where it is not installed.

On the stand-in of its data in tests/fixtures/airline, or with TAU2_DATA_DIR=<tau2-bench>/data on the official ones,
which takes minutes.
"""

import asyncio
import json
import random
import re
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from official_airline import FOLDER, needs_tau2

from rtpo.envs.airline.env import AirlineEnv, AirlineSettings, official_tasks, read_airline
from rtpo.envs.airline.tasks import OTHERS, WRITES, read_splits, read_wanted
from rtpo.errors import ConfigError
from rtpo.tools.protocol import render_call
from rtpo.types import Feedback, Grade, StopReason, Task, ToolOutcome

FILE = FOLDER / "tasks.json"
TASKS = read_airline(FILE)
WANTED = read_wanted(FILE)
SCRIPTED = AirlineSettings(user="scripted")
NO_OP = "I cannot do that."
DEEP = render_call("update_reservation_baggages", {"total_baggages": json.loads("[" * 400 + "]" * 400)})
Calls = list[tuple[str, dict[str, Any]]]


def uid(task: Task) -> str:
    return str(task.meta["id"])


def gold_calls(task: Task) -> Calls:
    actions = json.loads(task.meta["row"])["evaluation_criteria"]["actions"] or []
    return [(action["name"], action["arguments"]) for action in actions]


def played(
    task: Task, replies: Sequence[str], env: AirlineEnv | None = None
) -> tuple[list[Feedback], Grade, AirlineEnv]:
    """The episode of these replies, up to its end."""

    async def whole() -> tuple[list[Feedback], Grade, AirlineEnv]:
        desk = env or AirlineEnv(SCRIPTED)
        if env is None:
            await desk.reset(task)
        heard: list[Feedback] = []
        for reply in replies:
            heard.append(await desk.step(reply, StopReason.STOP))
            if heard[-1].done:
                break
        return heard, await desk.grade(), desk

    return asyncio.run(whole())


def replies(calls: Calls, *said: str) -> list[str]:
    """Calls, each a turn, what is to be said, and then nothing until the user leaves."""
    return [*(render_call(name, arguments) for name, arguments in calls), *said, NO_OP, NO_OP]


@needs_tau2
@pytest.mark.parametrize("task", TASKS, ids=uid)
def test_gold_actions_played_twice_are_rewarded_both_times(task: Task) -> None:
    digests = []
    for _ in range(2):
        heard, grade, env = played(task, replies(gold_calls(task), " ".join(["Done.", *task.answer])))
        assert (grade.reward, grade.detail) == (1.0, "")
        assert heard[-1].done
        digests.append(env.snapshot().digest)
        outcomes = [use.outcome for turn in heard for use in turn.calls]
        assert outcomes == [ToolOutcome.OK] * len(gold_calls(task))
    assert digests[0] == digests[1]


@needs_tau2
def test_doing_nothing_scores_exactly_where_the_task_file_says_so() -> None:
    scored = {uid(task) for task in TASKS if played(task, [NO_OP] * 9)[1].reward == 1}
    assert scored == {identity for identity, wanted in WANTED.items() if wanted.no_op_scores}
    splits = read_splits(FILE.with_name("split_tasks.json"))
    if len(TASKS) == 50:  # the official ones
        assert [len(scored & {*splits[name]}) for name in ("train", "test")] == [16, 7]


def package_reward(task: Task, calls: Calls, said: Sequence[str]) -> float:
    """What the package's own evaluators give a dialogue that the user ended."""
    from tau2.data_model.message import AssistantMessage, ToolCall, UserMessage
    from tau2.data_model.tasks import Task as PackageTask
    from tau2.domains.airline.environment import get_environment
    from tau2.evaluator.evaluator_communicate import CommunicateEvaluator
    from tau2.evaluator.evaluator_env import EnvironmentEvaluator

    from rtpo.envs.airline.package import load_package

    live = get_environment(db=deepcopy(load_package().base))
    trajectory: list[Any] = []
    for number, (name, arguments) in enumerate(calls):
        call = ToolCall(id=str(number), name=name, arguments=arguments)
        trajectory += [AssistantMessage(role="assistant", tool_calls=[call]), live.get_response(call)]
    trajectory += [AssistantMessage(role="assistant", content=text) for text in said]
    trajectory.append(UserMessage(role="user", content="###STOP###"))
    row = PackageTask.model_validate_json(task.meta["row"])

    def fresh(solo_mode: bool = False) -> Any:
        return get_environment(db=deepcopy(load_package().base))

    reward = EnvironmentEvaluator.calculate_reward(fresh, row, trajectory).reward
    return float(reward * CommunicateEvaluator.calculate_reward(row, trajectory).reward)


def variants(task: Task) -> list[tuple[Calls, list[str]]]:
    """The gold run, ones that leave out, repeat or change a call or do not say what is wanted, and doing nothing."""
    calls, said = gold_calls(task), [" ".join(["So:", *task.answer])]
    rng = random.Random(uid(task))
    found: list[tuple[Calls, list[str]]] = [(calls, said), (calls, []), ([], said), (calls[::-1], said)]
    found += [(calls[:n] + calls[n + 1 :], said) for n in range(len(calls)) if calls[n][0] in WRITES]
    found += [([*calls, calls[n]], said) for n in range(len(calls)) if calls[n][0] in WRITES]
    others = [call for other in TASKS for call in gold_calls(other) if call[0] in WRITES]
    found += [([*calls, rng.choice(others)], said), ([*calls, ("buy", {}), ("cancel_reservation", {})], said)]
    return found


@needs_tau2
@pytest.mark.parametrize("task", TASKS[:: max(1, len(TASKS) // 6)], ids=uid)
def test_rewards_are_those_of_the_packages_evaluators(task: Task) -> None:
    rewards = []
    for calls, said in variants(task):
        spoken = [*said, NO_OP, NO_OP]
        _, grade, env = played(task, replies(calls, *said))
        heard = [message.text for message in env.snapshot().state.dialogue if message.speaker == "agent"]
        assert heard[1:] == spoken[: len(heard) - 1]
        assert grade.reward == package_reward(task, calls, heard), (calls, said)
        rewards.append(grade.reward)
    assert 1.0 in rewards


def some_calls() -> st.SearchStrategy[Calls]:
    """Calls as the gold ones and as a policy may get them wrong."""
    known = [call for task in TASKS for call in gold_calls(task)]
    users = sorted(set(re.findall(r'"user_id": "(\w+)"', FILE.with_name("db.json").read_text())))[:4]
    broken = [
        ("cancel_reservation", {"reservation_id": "NONE"}),
        ("cancel_reservation", {}),
        ("buy", {"tool_name": "x"}),
        ("update_reservation_baggages", {}),
        ("calculate", {"expression": "2 * (3 + 4)"}),
        ("calculate", {"expression": "x"}),
    ]
    awkward: Calls = []
    for name, arguments in known:
        if name == "update_reservation_baggages":
            awkward.append((name, {**arguments, "nonfree_baggages": arguments["nonfree_baggages"] + 0.5}))
            awkward.append((name, {**arguments, "total_baggages": "three"}))
            awkward.append((name, {**arguments, "total_baggages": [1, {"a": 2}]}))
    awkward += [("send_certificate", {"user_id": user, "amount": 10}) for user in users]
    return st.lists(st.sampled_from([*known, *awkward, *broken]), max_size=6)


@needs_tau2
@settings(max_examples=40 if len(TASKS) < 50 else 8, deadline=None)
@given(script=some_calls(), rest=st.tuples(some_calls(), some_calls()))
def test_calls_answer_and_leave_the_database_as_the_package_does(script: Calls, rest: tuple[Calls, Calls]) -> None:
    """On forks too: the package's own hash of each fork is that of a database of its own with the same calls."""
    from tau2.data_model.message import ToolCall
    from tau2.domains.airline.environment import get_environment

    from rtpo.envs.airline.desk import Changes, open_desk
    from rtpo.envs.airline.package import load_package

    base, desk = load_package().base, open_desk()
    untouched = base.get_hash()

    def followed(changes: Changes, live: Any, calls: Calls) -> Changes:
        for name, arguments in calls:
            response = desk.call(changes, name, arguments)
            expected = live.get_response(ToolCall(name=name, arguments=deepcopy(arguments)))
            assert (response.content, response.failed) == (expected.content, expected.error)
            changes = response.changes
        return changes

    def whole(changes: Changes) -> str:
        return str(desk.database(changes).get_hash())

    trunk = get_environment(db=deepcopy(base))
    fork = followed((), trunk, script)
    ends = []
    for calls in rest:
        own = get_environment(db=deepcopy(trunk.tools.db))
        end = followed(fork, own, calls)
        assert whole(end) == own.get_db_hash()
        ends.append((end, whole(end)))
        assert whole(fork) == trunk.get_db_hash()
        assert base.get_hash() == untouched
    assert (ends[0][0] == ends[1][0]) == (ends[0][1] == ends[1][1])


@needs_tau2
def test_the_opening_is_the_packages() -> None:
    from tau2.domains.airline.environment import get_environment

    from rtpo.envs.airline.package import load_package

    opening = asyncio.run(AirlineEnv(SCRIPTED).reset(TASKS[0]))
    assert [message.role for message in opening.messages] == ["system", "assistant", "user"]
    assert load_package().policy in opening.messages[0].content
    assert opening.messages[1].content == "Hi! How can I help you today?"
    tools = get_environment(db=load_package().base).get_tools()
    assert [json.loads(schema) for schema in opening.tools] == [tool.openai_schema for tool in tools]
    assert {tool.name for tool in tools} == WRITES | OTHERS
    assert {tool.name for tool in tools if tool.name in AirlineEnv(SCRIPTED)._desk.writers} == WRITES


@needs_tau2
@pytest.mark.parametrize(
    ("reply", "outcome", "says"),
    [
        (render_call("buy", {}), ("", ToolOutcome.MALFORMED), "Error: Tool 'buy' not found."),
        (render_call("calculate", {"expression": "9 * * 9"}), ("calculate", ToolOutcome.PROGRAM_ERROR), "powers"),
        (render_call("calculate", {"expression": "(" * 900}), ("calculate", ToolOutcome.PROGRAM_ERROR), "Error"),
        (DEEP, ("", ToolOutcome.MALFORMED), "nested deeper than 20"),
        (render_call("calculate", {"expression": "2 * 3"}), ("calculate", ToolOutcome.OK), "6.0"),
        ("<tool_call>no</tool_call>", ("", ToolOutcome.MALFORMED), "not JSON"),
        (render_call("get_user_details", {"user_id": "\ud800"}), ("get_user_details", ToolOutcome.PROGRAM_ERROR), "?"),
    ],
)
def test_calls_that_fail_are_told(reply: str, outcome: tuple[str, ToolOutcome], says: str) -> None:
    heard, _, env = played(TASKS[0], [reply])
    assert [(use.tool, use.outcome) for use in heard[0].calls] == [outcome]
    assert says in heard[0].messages[0].content
    assert env.snapshot().state.errors == (outcome[1] is not ToolOutcome.OK)


@needs_tau2
def test_too_many_errors_break_the_episode_off() -> None:
    task = next(task for task in TASKS if WANTED[uid(task)].no_op_scores)
    heard, grade, env = played(task, [render_call("buy", {})] * 20)
    assert len(heard) == 10
    assert (heard[-1].done, heard[-1].messages) == (True, ())
    assert (grade.reward, grade.detail) == (0.0, "too many errors")
    with pytest.raises(RuntimeError, match="has ended"):
        played(task, [NO_OP], env)


def test_a_split_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigError, match="no split 'validation'"):
        official_tasks("validation", 1, 0)


def test_tasks_are_read_without_the_package() -> None:
    assert {uid(task): task.answer for task in TASKS} == {one.id: one.figures for one in WANTED.values()}
    assert len({task.question for task in TASKS}) == len(TASKS)
