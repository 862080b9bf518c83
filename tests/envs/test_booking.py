"""The booking desk: its tasks, dialogues and rewards, what doing nothing earns, and forks of its database."""

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
from rtpo.envs.booking.env import BookingEnv, tells
from rtpo.envs.booking.world import KINDS, MOST_MESSAGES, TOOLS, Database, Departure, Reservation, generate, wish_of
from rtpo.errors import DataError
from rtpo.tools.protocol import render_call
from rtpo.types import Grade, Task, ToolOutcome

TASKS = generate("train", 40, 0)


def wanting(kind: str, *, writes: bool | None = None) -> Task:
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
    task = wanting("cancel", writes=True)
    read, cancel, _ = booking_traces(task)[0]
    figure = wish_of(task).figures[0]

    def graded(*replies: str) -> Grade:
        return play(BookingEnv(), task, read, *replies)[1]

    thought = graded(cancel, f"<think>{figure}</think>It is done for 7 dollars.")
    assert thought.detail == f"the user was not told {figure}"
    assert graded(cancel, read, f"It is done. You get ${figure}.00.").reward == 1
    assert graded(cancel, read, f"It is done. {figure[0]},{figure[1:]}").reward == 0
    assert graded(cancel, read, f"It is done. 2{figure} dollars").reward == 0
    assert graded(cancel.replace("<tool_call>", f"It is {figure}. <tool_call>"), "Done, 7.").reward == 0


TELLING = (
    "{}",
    "{}.",
    "{}.00",
    "{} dollars",
    "${}",
    "US${}.0",
    "USD{}",
    "{}USD",
    "R{}",
    "€{}!",
    "-{}",
    "*{}*",
    "7, {}, 8",
)
OTHER = ("2{}", "{}5", "R{}5", "R2{}", "{}.50", "2,{}", "2.{}", "{},000", "{}000 dollars", "0.{}", "{},5")


@pytest.mark.parametrize("figure", ["100", "64", "399", "1100", "1,100", "25300", "1,025,300"])
def test_a_figure_is_told_as_a_number_of_its_own(figure: str) -> None:
    asked = figure.replace(",", "")
    assert [text for text in TELLING if not tells(asked, text.format(figure))] == []
    assert [text for text in OTHER if tells(asked, text.format(figure))] == []
    assert not tells(asked, "Options " + ",".join(asked))
    assert tells(asked, f"Not 2{figure} or {figure}7 but {figure}")


def test_a_second_call_of_a_reply_is_not_run_and_an_answer_can_be_encoded() -> None:
    heard, _ = play(BookingEnv(), wanting("cancel"), render_call("get_reservation", {"reservation": "\ud800"}) * 2)
    assert [use.outcome for use in heard[0].calls] == [ToolOutcome.PROGRAM_ERROR, ToolOutcome.REFUSED]
    assert "no reservation ?" in heard[0].messages[0].content


def test_splits_share_no_user_and_fewer_tasks_are_a_prefix() -> None:
    splits = {split: generate(split, 80, 3) for split in ("train", "validation", "held_out")}
    for split, tasks in splits.items():
        assert {split_of(world.split_key(task)) for task in tasks} == {split}
        assert len({task.uid for task in tasks}) == 80
    assert generate("train", 20, 3) == splits["train"][:20] != generate("train", 20, 4)
    assert [wish_of(task).kind for task in splits["train"][: len(KINDS)]] == list(KINDS)


WRONG = {
    '{"uid": "", "wish": "paid:R1007"}': "uid",
    '{"uid": "x", "wish": "paid:R1007", "hint": 1}': "hint",
    '{"uid": "x", "wish": "cancel:NOSUCH"}': "cancel:NOSUCH",
    '{"uid": "x", "wish": "book:nobody:ATL:BOS:2024-05-16"}': "book:nobody",
    '{"uid": "u", "wish": "paid:R1007"}': "uid 'u'",
}


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"uid": "u", "wish": "paid:R1007"}\n' + line + "\n")
    with pytest.raises(DataError, match=f"line 2 of .*tasks.jsonl.*{WRONG[line]}"):
        world.read_tasks(path)


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
@given(before=SCRIPTS, then=SCRIPTS, other=SCRIPTS)
def test_forks_are_isolated_and_equal_by_content_and_keep_seats_and_money(before: Any, then: Any, other: Any) -> None:
    """A free seat becomes a passenger's or the other way round; a cancelled reservation has cost nothing."""
    fork = run(Database(), before)
    kept = records(fork)
    first, second = run(fork, then), run(fork, other)
    assert records(fork) == kept
    assert (first == second) == (records(first) == records(second))
    assert fork.put(*world.base().values()).changed == tuple(r for r in fork.changed if r.key.startswith("NEW"))
    after = records(first).values()
    assert places(after) == places(world.base().values())
    assert all(r.paid == 0 for r in after if isinstance(r, Reservation) and r.status == "cancelled")
    assert min(record.seats for record in after if isinstance(record, Departure)) >= 0
