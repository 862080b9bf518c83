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
from episodes_played import play
from hypothesis import given, settings
from hypothesis import strategies as st
from official_airline import FOLDER, needs_tau2

from rtpo.envs.airline.desk import Changes, open_desk
from rtpo.envs.airline.env import AirlineEnv, AirlineSettings, official_tasks, read_airline
from rtpo.envs.airline.package import load_package
from rtpo.envs.airline.tasks import READ_ONLY, WRITES, read_criteria, read_splits
from rtpo.tools.protocol import render_call
from rtpo.types import Task, ToolOutcome

FILE = FOLDER / "tasks.json"
TASKS = read_airline(FILE)
IS_OFFICIAL = len(TASKS) == 50
WANTED = read_criteria(FILE)
SCRIPTED = AirlineSettings(user="scripted")
NO_OP = "I cannot do that."
Calls = list[tuple[str, dict[str, Any]]]


def uid(task: Task) -> str:
    return str(task.meta["id"])


def gold_calls(task: Task) -> Calls:
    actions = json.loads(task.meta["row"])["evaluation_criteria"]["actions"] or []
    return [(action["name"], action["arguments"]) for action in actions]


def package_environment(database: Any = None) -> Any:
    """The package's own, on a database of its own."""
    from tau2.domains.airline.environment import get_environment

    return get_environment(db=deepcopy(database or load_package().base))


def test_tasks_are_read_without_the_package() -> None:
    assert {uid(task): task.answer for task in TASKS} == {wanted.id: wanted.figures for wanted in WANTED.values()}
    assert len({task.question for task in TASKS}) == len(TASKS)


@needs_tau2
def test_doing_nothing_scores_exactly_where_the_task_file_says_so() -> None:
    scored = {uid(task) for task in TASKS if play(AirlineEnv(SCRIPTED), task, *[NO_OP] * 9)[1].reward == 1}
    assert scored == {identity for identity, wanted in WANTED.items() if wanted.no_op_scores}
    splits = read_splits(FILE.with_name("split_tasks.json"))
    assert [uid(task) for task in official_tasks("held_out", 2, 0)] == list(splits["test"][:2])


def package_reward(task: Task, calls: Calls, said: Sequence[str]) -> float:
    """What the package's own evaluators give a dialogue that the user ended."""
    from tau2.data_model.message import AssistantMessage, ToolCall, UserMessage
    from tau2.data_model.tasks import Task as PackageTask
    from tau2.evaluator.evaluator_communicate import CommunicateEvaluator
    from tau2.evaluator.evaluator_env import EnvironmentEvaluator

    live = package_environment()
    trajectory: list[Any] = []
    for number, (name, arguments) in enumerate(calls):
        call = ToolCall(id=str(number), name=name, arguments=arguments)
        trajectory += [AssistantMessage(role="assistant", tool_calls=[call]), live.get_response(call)]
    trajectory += [AssistantMessage(role="assistant", content=text) for text in said]
    trajectory.append(UserMessage(role="user", content="###STOP###"))
    row = PackageTask.model_validate_json(task.meta["row"])
    reward = EnvironmentEvaluator.calculate_reward(lambda solo_mode=False: package_environment(), row, trajectory)
    return float(reward.reward * CommunicateEvaluator.calculate_reward(row, trajectory).reward)


def variants(task: Task) -> list[tuple[Calls, list[str]]]:
    """Runs that leave out, repeat or change a gold call or do not say what is wanted, and doing nothing."""
    calls, said = gold_calls(task), [" ".join(["So:", *task.answer])]
    rng = random.Random(uid(task))
    runs: list[tuple[Calls, list[str]]] = [(calls, []), ([], said), (calls[::-1], said)]
    runs += [(calls[:n] + calls[n + 1 :], said) for n in range(len(calls)) if calls[n][0] in WRITES]
    runs += [([*calls, calls[n]], said) for n in range(len(calls)) if calls[n][0] in WRITES]
    others = [call for other in TASKS for call in gold_calls(other) if call[0] in WRITES]
    runs += [([*calls, rng.choice(others)], said), ([*calls, ("buy", {}), ("cancel_reservation", {})], said)]
    return runs


@needs_tau2
@pytest.mark.parametrize("task", TASKS, ids=uid)
def test_rewards_are_those_of_the_packages_evaluators_and_1_for_the_gold_calls(task: Task) -> None:
    """The gold calls are played twice, and end in the same state."""
    gold = (gold_calls(task), [" ".join(["Done.", *task.answer])])
    digests = []
    for number, (calls, said) in enumerate([gold, gold, *variants(task)]):
        if number > 1 and IS_OFFICIAL and int(uid(task)) % 8:
            break
        env, spoken = AirlineEnv(SCRIPTED), [*said, NO_OP, NO_OP]
        turns, grade = play(env, task, *(render_call(name, arguments) for name, arguments in calls), *spoken)
        heard = [message.text for message in env.snapshot().state.dialogue if message.speaker == "agent"]
        assert turns[-1].done
        assert heard[1:] == spoken[: len(heard) - 1]
        assert grade.reward == package_reward(task, calls, heard), (calls, said)
        digests.append(env.snapshot().digest)
        if number < 2:
            assert (grade.reward, grade.detail) == (1.0, "")
            assert [use.outcome for turn in turns for use in turn.calls] == [ToolOutcome.OK] * len(calls)
    assert digests[0] == digests[1]


def some_calls() -> st.SearchStrategy[Calls]:
    """Calls as the gold ones and as a policy may get them wrong."""
    known = [call for task in TASKS for call in gold_calls(task)]
    (user, *_) = re.findall(r'"user_id": "(\w+)"', FILE.with_name("db.json").read_text())
    baggage = [arguments for name, arguments in known if name == "update_reservation_baggages"]
    wrong: Calls = [
        ("cancel_reservation", {"reservation_id": "NONE"}),
        ("calculate", {"expression": "2 * (3 + 4)"}),
        ("send_certificate", {"user_id": user, "amount": 10}),
        *(("update_reservation_baggages", arguments | {"total_baggages": "three"}) for arguments in baggage),
        ("buy", {"tool_name": "x"}),
    ]
    return st.lists(st.sampled_from([*known, *wrong]), max_size=6)


@needs_tau2
@settings(max_examples=8 if IS_OFFICIAL else 40, deadline=None)
@given(script=some_calls(), rest=st.tuples(some_calls(), some_calls()))
def test_calls_answer_and_leave_the_database_as_the_package_does(script: Calls, rest: tuple[Calls, Calls]) -> None:
    """On forks too: the package's own hash of each fork is that of a database of its own with the same calls."""
    from tau2.data_model.message import ToolCall

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

    trunk = package_environment()
    fork = followed((), trunk, script)
    ends = []
    for calls in rest:
        own = package_environment(trunk.tools.db)
        end = followed(fork, own, calls)
        ends.append((end, whole(end)))
        assert ends[-1][1] == own.get_db_hash()
        assert whole(fork) == trunk.get_db_hash()
        assert base.get_hash() == untouched
    assert (ends[0][0] == ends[1][0]) == (ends[0][1] == ends[1][1])


@needs_tau2
def test_the_opening_is_the_packages() -> None:
    env = AirlineEnv(SCRIPTED)
    opening = asyncio.run(env.reset(TASKS[0]))
    assert [message.role for message in opening.messages] == ["system", "assistant", "user"]
    assert load_package().policy in opening.messages[0].content
    assert opening.messages[1].content == "Hi! How can I help you today?"
    tools = package_environment().get_tools()
    assert [json.loads(schema) for schema in opening.tools] == [tool.openai_schema for tool in tools]
    assert ({tool.name for tool in tools}, env._desk.writers) == (WRITES | READ_ONLY, WRITES)


@needs_tau2
def test_calls_that_fail_are_told() -> None:
    for name, arguments, outcome, says in (
        ("buy", {}, ToolOutcome.MALFORMED, "Error: Tool 'buy' not found."),
        ("calculate", {"expression": "9 * * 9"}, ToolOutcome.PROGRAM_ERROR, "powers"),
        ("calculate", {"expression": "1+" * 501}, ToolOutcome.PROGRAM_ERROR, "longer than"),
        ("get_user_details", {"user_id": "\ud800"}, ToolOutcome.PROGRAM_ERROR, "?"),
    ):
        env = AirlineEnv(SCRIPTED)
        (feedback,), _ = play(env, TASKS[0], render_call(name, arguments))
        assert [use.outcome for use in feedback.calls] == [outcome]
        assert says in feedback.messages[0].content
        assert env.snapshot().state.errors == 1


@needs_tau2
@pytest.mark.parametrize("wrong", [render_call("buy", {}), "<think>only</think>"])
def test_too_many_errors_break_the_episode_off(wrong: str) -> None:
    task = next(task for task in TASKS if WANTED[uid(task)].no_op_scores)
    turns, grade = play(AirlineEnv(SCRIPTED), task, *[wrong] * 20)
    assert len(turns) == 10
    assert (turns[-1].done, turns[-1].messages) == (True, ())
    assert (grade.reward, grade.detail) == (0.0, "too many errors")
