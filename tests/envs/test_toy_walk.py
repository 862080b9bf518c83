"""The toy walk: its places and rewards, and where its return is decided."""

from functools import partial
from typing import Literal

import pytest
from episodes_played import play
from scripted import always, episodes

from rtpo.envs.toy.knowledge import ENTITIES
from rtpo.envs.toy.luck import Luck
from rtpo.envs.toy.walk import LENGTH, PLACES, ToyWalkEnv, WalkSettings, parse_question, problems
from rtpo.toy import variance
from rtpo.types import Feedback, Grade, Message, Task, ToolOutcome, ToolUse

TASK = Task("t", " start e3 from 37 12", "boss neighbour friend neighbour friend friend teacher rival")
RIGHT = TASK.answer.split()
OK = ToolUse("ask", ToolOutcome.OK)


def asking(person: str) -> str:
    return f"<tool_call> {person}</tool_call>"


def walk(replies: list[str], settings: WalkSettings | None = None) -> tuple[list[Feedback], Grade]:
    return play(ToyWalkEnv(settings), TASK, *replies)


def test_each_turn_has_places_of_its_own_and_all_of_them() -> None:
    walks = [parse_question(task.question).places for task in problems("train", 300, seed=0)]
    for turn in range(LENGTH):
        assert {places[turn] for places in walks} == set(ENTITIES[PLACES * turn : PLACES * (turn + 1)])


def test_a_walk_goes_through_its_places_and_ends_after_the_last() -> None:
    feedback, grade = walk([asking(person) for person in RIGHT])
    places = parse_question(TASK.question).places
    assert feedback[:-1] == [Feedback((Message("tool", f" {place}"),), False, (OK,)) for place in places[1:]]
    assert feedback[-1] == Feedback((), True, (OK,))
    assert (grade.reward, grade.detail) == (1.0, "8 of 8 right")


def test_what_asks_nobody_is_an_error_and_the_walk_goes_on() -> None:
    feedback, grade = walk([asking("e3"), *(asking(person) for person in RIGHT[1:])])
    assert feedback[0] == Feedback((Message("tool", " error e12"),), False, (ToolUse("", ToolOutcome.MALFORMED),))
    assert grade.reward == 7 / 8


@pytest.mark.parametrize(
    ("decided", "rewards"),
    [("early", (1.0, 0.5, *[13 / 14] * 7)), ("even", (1.0, *[7 / 8] * 8)), ("late", (1.0, *[13 / 14] * 7, 0.5))],
)
def test_a_wrong_turn_costs_its_weight(decided: Literal["early", "even", "late"], rewards: tuple[float, ...]) -> None:
    wrong = [asking("parent")] * LENGTH
    right = [asking(person) for person in RIGHT]
    played = [right, *([*right[:turn], wrong[turn], *right[turn + 1 :]] for turn in range(LENGTH))]
    assert [walk(path, WalkSettings(decided=decided))[1].reward for path in played] == pytest.approx(rewards)


def test_what_each_turn_adds_to_the_return_is_measured() -> None:
    """Of a coin after each of the 8 turns, which alone tell one path of a prompt from another."""
    lucky = WalkSettings(Luck(tuple(range(LENGTH)), 1.0))

    limits = {"max_turns": LENGTH, "max_turn_tokens": 16, "max_context_tokens": 320}
    play_paths = partial(episodes, always(asking("boss")), make_env=partial(ToyWalkEnv, lucky), **limits)
    measured = variance.measure_turns(play_paths, problems("train", 8, seed=0), LENGTH)
    assert measured.deviation == pytest.approx((LENGTH * 0.25) ** 0.5 / (1 + LENGTH), rel=0.15)
    assert measured.left == pytest.approx([(LENGTH - k) / LENGTH for k in range(LENGTH)], abs=0.25)
    assert measured.reached == [1] * LENGTH
    # 8 paths are in one of two states after the first coin, of 128 after the seventh; then one coin is left
    assert measured.recurring[1] > 0.9 > 0.3 > measured.recurring[-1]
    assert measured.ties[-1] == pytest.approx(0.5, abs=0.25)
