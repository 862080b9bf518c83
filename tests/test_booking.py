"""The booking environment: dialogues, rewards, what doing nothing earns, and snapshots."""

import asyncio
import json
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtpo.core.splits import split_of
from rtpo.envs.booking import tasks as booking_tasks
from rtpo.envs.booking.demonstrations import NO_OP, RIGHT_SHARE, scripts
from rtpo.envs.booking.env import BookingEnv
from rtpo.envs.booking.tasks import generate, needs_write, read_tasks, split_key, task_of, wish_of
from rtpo.envs.booking.tools import TOOLS
from rtpo.envs.booking.user import MOST_MESSAGES, answer
from rtpo.errors import ConfigError, DataError
from rtpo.run.config import PROJECT
from rtpo.tools.protocol import render_call
from rtpo.types import Feedback, Grade, StopReason, Task, ToolOutcome

TASKS = generate("train", 70, 0)
KINDS = ("cancel", "bags", "move", "paid", "book", "name", "find")


def play(task: Task, replies: Sequence[str], env: BookingEnv | None = None) -> tuple[list[Feedback], Grade, BookingEnv]:
    """The episode of these replies, up to its end."""

    async def whole() -> tuple[list[Feedback], Grade, BookingEnv]:
        desk = env or BookingEnv()
        if env is None:
            await desk.reset(task)
        heard: list[Feedback] = []
        for reply in replies:
            heard.append(await desk.step(reply, StopReason.STOP))
            if heard[-1].done:
                break
        return heard, await desk.grade(), desk

    return asyncio.run(whole())


def one(kind: str, *, writes: bool | None = None) -> Task:
    return next(t for t in TASKS if wish_of(t).kind == kind and writes in (None, needs_write(t)))


@pytest.mark.parametrize("kind", KINDS)
def test_right_runs_score_and_wrong_ones_do_not(kind: str) -> None:
    for task in TASKS:
        if wish_of(task).kind == kind:
            for number, script in enumerate(scripts(task)):
                heard, grade, _ = play(task, script)
                assert len(heard) == len(script) <= 4
                assert heard[-1].done
                assert grade.reward == (1.0 if number < RIGHT_SHARE else 0.0)
                assert all(use.outcome is ToolOutcome.OK for turn in heard for use in turn.calls)


def test_doing_nothing_scores_where_nothing_is_to_be_written_or_told() -> None:
    earned = Counter()
    for task in TASKS:
        heard, grade, _ = play(task, [NO_OP] * MOST_MESSAGES)
        assert heard[-1].done
        assert grade.reward == (not needs_write(task) and not wish_of(task).figures)
        earned[needs_write(task)] += int(grade.reward or 0)
    assert 0 < earned[False] < len(TASKS) / 2
    assert earned[True] == 0


def test_a_figure_must_be_told_to_the_user() -> None:
    task = one("bags")
    right, figure = scripts(task)[0], wish_of(task).figures[0]
    assert play(task, [*right[:-1], f"<think>{figure}</think>It is done for 7 dollars."])[1].detail == (
        f"the user was not told {figure}"
    )
    assert play(task, [*right[:-1], f"It is done. {figure},00"])[1].reward == 1
    beside = right[1].replace("<tool_call>", f"It is {figure}. <tool_call>")
    assert play(task, [right[0], beside, "Done, 7."])[1].reward == 0


def test_an_episode_that_the_user_has_not_ended_earns_nothing() -> None:
    task = one("name")
    heard, grade, _ = play(task, [NO_OP])
    assert not heard[-1].done
    assert (grade.reward, grade.detail) == (0.0, "the user has not ended the dialogue")


def test_a_step_after_the_end_is_refused() -> None:
    task = one("name")
    _, _, env = play(task, [NO_OP, NO_OP])
    with pytest.raises(RuntimeError, match="has ended"):
        play(task, [NO_OP], env)


def test_an_episode_must_begin_and_snapshots_keep_to_their_task() -> None:
    env = BookingEnv()
    with pytest.raises(RuntimeError, match="no episode"):
        env.snapshot()
    _, _, played = play(TASKS[0], [NO_OP])
    with pytest.raises(ValueError, match="restore it with its own task"):
        env.restore(TASKS[1], played.snapshot())


def test_the_opening_is_short_and_names_the_tools_and_the_wish() -> None:
    for task in TASKS:
        opening = asyncio.run(BookingEnv().reset(task))
        names = [json.loads(schema)["function"]["name"] for schema in opening.tools]
        assert tuple(names) == wish_of(task).tools
        assert opening.messages[-1].content == task.question
        size = sum(len(m.content) for m in opening.messages) + sum(map(len, opening.tools))
        assert size < 1000
        assert {tool for tool, _ in wish_of(task).writes} <= set(names)


CALL = render_call("get_reservation", {"reservation_id": "x"})


@pytest.mark.parametrize(
    ("reply", "outcomes", "says"),
    [
        (CALL, [ToolOutcome.PROGRAM_ERROR], "Error: no reservation x."),
        (f"{CALL}{CALL}", [ToolOutcome.PROGRAM_ERROR, ToolOutcome.REFUSED], "Error: not run"),
        (render_call("book", {}), [ToolOutcome.MALFORMED], "no tool 'book'; use get_reservation, cancel"),
        (render_call("cancel", {}), [ToolOutcome.MALFORMED], "'reservation_id' is a required property"),
        (render_call("cancel", {"reservation_id": 3}), [ToolOutcome.MALFORMED], "3 is not of type 'string'"),
        (render_call("get_reservation", {"reservation_id": "\ud800"}), [ToolOutcome.PROGRAM_ERROR], "no reservation ?"),
        ("<tool_call>\nno json\n</tool_call>", [ToolOutcome.MALFORMED], "not JSON"),
    ],
)
def test_calls_that_cannot_be_are_answered(reply: str, outcomes: list[ToolOutcome], says: str) -> None:
    heard, _, _ = play(one("cancel"), [reply])
    assert [use.outcome for use in heard[0].calls] == outcomes
    assert says in heard[0].messages[-1].content
    assert not heard[0].done


def test_a_call_of_a_tool_that_the_task_does_not_give_is_not_run() -> None:
    task = one("paid")
    identity = {"reservation_id": wish_of(task).reservation_id}
    _, grade, _ = play(task, [render_call("cancel", identity), wish_of(task).figures[0]])
    assert grade.reward == 1


def test_a_reply_that_is_cut_says_nothing_to_the_user() -> None:
    async def cut(reply: str) -> tuple[Feedback, BookingEnv]:
        env = BookingEnv()
        await env.reset(one("cancel"))
        return await env.step(reply, StopReason.LENGTH), env

    for reply in ("I can", CALL[:-9], "<think>\nwell"):
        feedback, env = asyncio.run(cut(reply))
        assert "cut at its token limit" in feedback.messages[0].content
        assert env.snapshot().state.said == ()
    feedback, _ = asyncio.run(cut(CALL))
    assert feedback.calls[0].outcome is ToolOutcome.PROGRAM_ERROR


def test_the_user_answers_questions_believes_and_insists_once() -> None:
    wish = wish_of(one("cancel", writes=True))

    def said(*heard: str, wrote: bool = False, transferred: bool = False) -> str:
        return answer(wish, heard, wrote=wrote, transferred=transferred).text

    assert said("Which reservation?") == f"It is {wish.reservation_id}."
    assert said("Who are you, and what booking is it?") == f"It is {wish.reservation_id}. I am {wish.user_id}."
    assert said("Shall I go on?") == "Yes."
    assert said("It is done.", wrote=True) == "Thanks. ###STOP###"
    assert said("It is done.") == "Please do check again."
    assert said("Is it?", "It is done.") == "Please do check again."
    assert said("No.", "No.") == "Then leave it. ###STOP###"
    assert said("Wait.", transferred=True) == "###TRANSFER###"
    assert said(*["What?"] * MOST_MESSAGES) == "###STOP###"
    asked = wish_of(one("bags"))
    assert answer(asked, ["Done."], wrote=True, transferred=False).text == "Please do check again."
    assert answer(asked, ["Done, 3."], wrote=True, transferred=False).ends


def test_splits_share_no_user_and_fewer_tasks_are_a_prefix() -> None:
    found = {split: generate(split, 80, 3) for split in ("train", "validation", "held_out")}
    users = {split: {split_key(task) for task in tasks} for split, tasks in found.items()}
    assert users["train"].isdisjoint(users["held_out"] | users["validation"])
    assert users["held_out"].isdisjoint(users["validation"])
    assert all(split_of(user) == split for split, names in users.items() for user in names)
    assert generate("train", 20, 3) == found["train"][:20]
    assert generate("train", 20, 4) != found["train"][:20]
    assert [wish_of(task).kind for task in found["train"][:7]] == list(KINDS)
    assert len({task.uid for task in found["train"]}) == 80


def test_what_cannot_be_generated_is_refused() -> None:
    with pytest.raises(ConfigError, match="split 'test' does not exist"):
        generate("test", 1, 0)
    with pytest.raises(ConfigError, match="ask for at least 1"):
        generate("train", 0, 0)


def test_tasks_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    rows = [{"uid": task.uid, "wish": wish_of(task).key} for task in TASKS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_tasks(path) == TASKS


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "line 2 of .* is not JSON"),
        ('{"uid": "x"}', "with the fields uid and wish"),
        ('{"uid": "x", "wish": 3}', "text that is not empty"),
        ('{"uid": "x", "wish": "cancel:NOSUCH"}', "'cancel:NOSUCH' cannot be"),
        ('{"uid": "x", "wish": "sell:R225WZ"}', "of the kinds cancel, bags"),
        ('{"uid": "x", "wish": "bags:R225WZ:9"}', "cannot be"),
        ('{"uid": "x", "wish": "move:R225WZ"}', "cannot be"),
        ('{"uid": "x", "wish": "book:a:b"}', "cannot be"),
        ('{"uid": "u", "wish": "paid:R225WZ"}', "repeats uid 'u'"),
    ],
)
def test_a_line_that_cannot_be_is_named(tmp_path: Path, line: str, why: str) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"uid": "u", "wish": "paid:R225WZ"}\n' + line + "\n")
    with pytest.raises(DataError, match=why):
        read_tasks(path)
    path.write_text("")
    with pytest.raises(DataError, match="is empty"):
        read_tasks(path)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_write_in_one_fork_never_shows_in_another(data: st.DataObject) -> None:
    task = data.draw(st.sampled_from([t for t in TASKS if needs_write(t)]))
    right = scripts(task)[0]
    _, _, env = play(task, right[:1])
    fork = env.snapshot()
    kept = pickle.dumps(fork)
    writer, reader = BookingEnv(), BookingEnv()
    writer.restore(task, fork)
    reader.restore(task, fork)
    before = reader.snapshot()
    _, grade, _ = play(task, right[1:], writer)
    assert grade.reward == 1
    assert reader.snapshot() == before == fork
    assert pickle.dumps(fork) == kept
    _, grade, _ = play(task, [NO_OP, NO_OP], reader)
    assert grade.reward == 0


def test_a_snapshot_is_small_and_restores_in_another_process() -> None:
    task = one("book")
    _, _, env = play(task, scripts(task)[0][:2])
    snapshot = env.snapshot()
    stored = pickle.dumps((snapshot, wish_of(task).key, task.uid, scripts(task)[0][2]))
    assert len(pickle.dumps(snapshot)) < 3000
    program = (
        "import asyncio, pickle, sys\n"
        "from rtpo.envs.booking.tasks import task_of\n"
        "from rtpo.envs.booking.env import BookingEnv\n"
        "from rtpo.types import StopReason\n"
        "snapshot, key, uid, reply = pickle.load(sys.stdin.buffer)\n"
        "env = BookingEnv()\n"
        "env.restore(task_of(key, uid), snapshot)\n"
        "same = env.snapshot().digest == snapshot.digest\n"
        "done = asyncio.run(env.step(reply, StopReason.STOP)).done\n"
        "print(same, done, asyncio.run(env.grade()).reward)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], input=stored, capture_output=True, cwd=PROJECT, check=True)
    assert ran.stdout.decode().split() == ["True", "True", "1.0"]


PIECES = (
    *("<tool_call>", "</tool_call>", "<think>", "</think>", '{"name": "cancel", "arguments": ', '{"reservation_id": '),
    *(
        '"RXV76R"',
        "}",
        "{",
        "[",
        "]",
        ":",
        ",",
        '"',
        "\\",
        "1e999",
        "NaN",
        "null",
        "\ud800",
        "\x00",
        "é",
        "?",
        " ",
        "\n",
    ),
)
VALUES: st.SearchStrategy[object] = st.one_of(
    st.sampled_from(
        ["RXV76R", "F100", "2024-05-16", "basic", "x" * 5000, "\ud800", None, True, 2.0, 10**400, -1, 1e308]
    ),
    st.recursive(st.integers(), lambda inner: st.lists(inner, max_size=2), max_leaves=4),
)
NAMES = ("reservation_id", "user_id", "flight", "date", "cabin", "bags", "origin", "destination", "summary", "self")


@settings(max_examples=300, deadline=None)
@given(
    task=st.sampled_from(TASKS),
    script=st.lists(
        st.tuples(
            st.one_of(
                st.lists(st.sampled_from(PIECES), max_size=25).map("".join),
                st.builds(
                    render_call, st.sampled_from([*TOOLS, "buy"]), st.dictionaries(st.sampled_from(NAMES), VALUES)
                ),
            ),
            st.sampled_from(list(StopReason)),
        ),
        max_size=4,
    ),
)
def test_no_reply_breaks_an_episode(task: Task, script: list[tuple[str, StopReason]]) -> None:
    async def check() -> None:
        env = BookingEnv()
        await env.reset(task)
        for reply, stop in script:
            feedback = await env.step(reply, stop)
            assert feedback.done or feedback.messages
            for message in feedback.messages:
                message.content.encode()
            copy = pickle.loads(pickle.dumps(env.snapshot()))
            env.restore(task, copy)
            assert env.snapshot() == copy
            if feedback.done:
                break
        assert (await env.grade()).reward in (0, 1)

    asyncio.run(check())


def test_the_gold_of_a_task_is_what_its_writes_make() -> None:
    for task in TASKS:
        wish = wish_of(task)
        changed = {record.key[0] for record in booking_tasks.gold(wish.key).changed}
        assert bool(changed) == needs_write(task)
        assert task_of(wish.key, task.uid) == task
