"""The booking desk: its database and tools, dialogues, rewards, what doing nothing earns, and snapshots."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from episodes_played import play
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import NO_OP, RIGHT_SHARE, booking_traces

from rtpo.core.splits import split_of
from rtpo.envs.booking import world
from rtpo.envs.booking.env import BookingEnv
from rtpo.envs.booking.world import KINDS, MOST_MESSAGES, TOOLS, Database, Departure, Reservation, generate, wish_of
from rtpo.errors import DataError
from rtpo.tools.protocol import render_call
from rtpo.types import Grade, StopReason, Task, ToolOutcome

TASKS = generate("train", 40, 0)


def one(kind: str, *, writes: bool | None = None) -> Task:
    return next(t for t in TASKS if wish_of(t).kind == kind and writes in (None, bool(wish_of(t).writes)))


def test_right_runs_score_and_wrong_ones_do_not() -> None:
    for task in TASKS:
        for number, script in enumerate(booking_traces(task)):
            heard, grade = play(BookingEnv(), task, *script)
            assert len(heard) == len(script) <= 4
            assert heard[-1].done
            assert grade.reward == (number < RIGHT_SHARE)
            assert all(use.outcome is ToolOutcome.OK for turn in heard for use in turn.calls)


def test_doing_nothing_scores_where_nothing_is_to_be_written_or_told() -> None:
    idle = []
    for task in TASKS:
        heard, grade = play(BookingEnv(), task, *[NO_OP] * MOST_MESSAGES)
        assert heard[-1].done
        assert grade.reward == (not wish_of(task).writes and not wish_of(task).figures)
        idle.append(grade.reward)
    assert 0 < sum(idle) < len(TASKS) / 2


def test_the_seat_to_book_is_the_only_cheapest_one() -> None:
    for wish in map(wish_of, generate("train", 400, 0)):
        if wish.kind == "book":
            cheapest, other, *_ = sorted((seat.price, seat.flight) for seat in Database().free(*wish.about))
            ((_, booked),) = wish.writes
            assert cheapest[1] == booked["flight"]
            assert cheapest[0] < other[0]


def test_a_figure_must_be_told_to_the_user() -> None:
    task = one("cancel", writes=True)
    read, cancel, _ = booking_traces(task)[0]
    figure = wish_of(task).figures[0]

    def graded(*replies: str) -> Grade:
        return play(BookingEnv(), task, read, *replies)[1]

    thought = graded(cancel, f"<think>{figure}</think>It is done for 7 dollars.")
    assert thought.detail == f"the user was not told {figure}"
    assert graded(cancel, read, f"It is done. {figure[0]},{figure[1:]}").reward == 1
    assert graded(cancel.replace("<tool_call>", f"It is {figure}. <tool_call>"), "Done, 7.").reward == 0


CALL = render_call("get_reservation", {"reservation": "x"})


@pytest.mark.parametrize(
    ("reply", "outcomes", "says"),
    [
        (CALL, [ToolOutcome.PROGRAM_ERROR], "Error: no reservation x."),
        (f"{CALL}{CALL}", [ToolOutcome.PROGRAM_ERROR, ToolOutcome.REFUSED], "Error: not run"),
        (render_call("book", {}), [ToolOutcome.MALFORMED], "no tool 'book'; use get_reservation, cancel"),
        (render_call("get_reservation", {"reservation": "\ud800"}), [ToolOutcome.PROGRAM_ERROR], "no reservation ?"),
    ],
)
def test_calls_that_cannot_be_are_answered(reply: str, outcomes: list[ToolOutcome], says: str) -> None:
    heard, _ = play(BookingEnv(), one("cancel"), reply)
    assert [use.outcome for use in heard[0].calls] == outcomes
    assert says in heard[0].messages[-1].content
    assert not heard[0].done


def test_the_user_answers_questions_believes_and_insists_once() -> None:
    cancel, booking = wish_of(one("cancel", writes=True)), wish_of(one("book"))
    again, yes = "Please do check again.", f"Yes. I am {cancel.user}."
    for wish, heard, wrote, said in (
        (cancel, ["Which reservation?"], False, f"It is {cancel.about[0]}."),
        (cancel, ["Shall I go on?"], False, yes),
        (booking, ["Which?"], False, f"Yes. I am {booking.user}."),
        (cancel, ["It is done, 3."], True, "Thanks. ###STOP###"),
        (cancel, ["It is done."], True, again),
        (cancel, ["It is done, 3."], False, again),
        (cancel, ["Is it?", "It is done."], False, again),
        (cancel, ["No.", "No."], False, "Then leave it. ###STOP###"),
        (cancel, ["What?"] * (MOST_MESSAGES - 1), False, yes),
        (cancel, ["What?"] * MOST_MESSAGES, False, "###STOP###"),
        (booking, ["Done."], True, "Thanks. ###STOP###"),
    ):
        assert world.answer(wish, heard, wrote=wrote) == said


def test_splits_share_no_user_and_fewer_tasks_are_a_prefix() -> None:
    found = {split: generate(split, 80, 3) for split in ("train", "validation", "held_out")}
    for split, tasks in found.items():
        assert {split_of(world.split_key(task)) for task in tasks} == {split}
        assert len({task.uid for task in tasks}) == 80
    assert generate("train", 20, 3) == found["train"][:20] != generate("train", 20, 4)
    assert [wish_of(task).kind for task in found["train"][: len(KINDS)]] == list(KINDS)


WRONG = {
    '{"uid": "x"}': "wish",
    '{"uid": "", "wish": "paid:R1007"}': "uid must be text",
    '{"uid": "x", "wish": "paid:R1007", "hint": 1}': "no others",
    '{"uid": "x", "wish": 3}': "wish",
    '{"uid": "x", "wish": "cancel:NOSUCH"}': "cancel:NOSUCH",
    '{"uid": "x", "wish": "cancel:R1007:1"}': "cancel:R1007:1",
    '{"uid": "x", "wish": "sell:R1007"}': "kinds",
    '{"uid": "x", "wish": "book:nobody:ATL:BOS:2024-05-16"}': "book:nobody",
    '{"uid": "u", "wish": "paid:R1007"}': "uid 'u'",
}


@pytest.mark.parametrize("line", WRONG)
def test_a_line_that_cannot_be_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"uid": "u", "wish": "paid:R1007"}\n' + line + "\n")
    with pytest.raises(DataError, match=WRONG[line]):
        world.read_tasks(path)


VALUES: st.SearchStrategy[object] = st.one_of(
    st.sampled_from(["R1007", "ATLBOS0", "2024-05-16", "x" * 5000, "\ud800", None, True, 2.0, 10**400, 1e308]),
    st.recursive(st.integers(), lambda inner: st.lists(inner, max_size=2), max_leaves=4),
)
NAMES = ("reservation", "user", "flight", "date", "origin", "destination", "self")
CALLED = st.builds(render_call, st.sampled_from([*TOOLS, "buy"]), st.dictionaries(st.sampled_from(NAMES), VALUES))


@settings(max_examples=100)
@given(st.sampled_from(TASKS), st.lists(st.tuples(CALLED, st.sampled_from(list(StopReason))), max_size=4))
def test_no_call_breaks_an_episode(task: Task, script: list[tuple[str, StopReason]]) -> None:
    """Replies of rubbish are in test_protocol.py."""

    async def check() -> None:
        env = BookingEnv()
        await env.reset(task)
        for reply, stop in script:
            feedback = await env.step(reply, stop)
            assert feedback.messages
            assert all(message.content.encode() for message in feedback.messages)
        assert (await env.grade()).reward in (0, 1)

    asyncio.run(check())


CALLS = st.one_of(
    st.sampled_from(["R1007", "R1008", "NEW1", "NEW2"]).map(lambda key: ("cancel", {"reservation": key})),
    st.sampled_from(["ATLBOS0", "ATLBOS1"]).map(
        lambda flight: ("book", {"user": "ava_0", "flight": flight, "date": "2024-05-16"})
    ),
)
SCRIPTS = st.lists(CALLS, max_size=5)


def run(database: Database, script: list[tuple[str, dict[str, Any]]]) -> Database:
    for name, arguments in script:
        with suppress(world.ToolError):
            database, _ = TOOLS[name].run(database, arguments)
    return database


def records(database: Database) -> dict[str, Any]:
    return dict(world.base()) | {record.key: record for record in database.changed}


def places(all_records: Iterable[Any]) -> int:
    """Free and taken ones."""
    return sum(r.seats if isinstance(r, Departure) else r.status == "booked" for r in all_records)


@settings(max_examples=50)
@given(before=SCRIPTS, one=SCRIPTS, other=SCRIPTS)
def test_forks_are_isolated_and_equal_by_content_and_keep_seats_and_money(before: Any, one: Any, other: Any) -> None:
    """A free seat becomes a passenger's or the other way round; a cancelled reservation has cost nothing."""
    fork = run(Database(), before)
    kept = records(fork)
    first, second = run(fork, one), run(fork, other)
    assert records(fork) == kept
    assert (first == second) == (records(first) == records(second))
    assert fork.put(*world.base().values()).changed == tuple(r for r in fork.changed if r.key.startswith("NEW"))
    after = records(first).values()
    assert places(after) == places(world.base().values())
    assert all(r.paid == 0 for r in after if isinstance(r, Reservation) and r.status == "cancelled")
    assert min(record.seats for record in after if isinstance(record, Departure)) >= 0
