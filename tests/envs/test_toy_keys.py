"""The toy keys: its two ways, what a call leads to, and which paths are in one state."""

import pytest
from episodes_played import play

from rtpo.envs.toy.keys import (
    GUIDES,
    KEEPERS,
    KEEPERS_WAY,
    OPEN_ONE_IN,
    PEOPLE,
    Problem,
    ToyKeysEnv,
    parse_question,
    problems,
    right_key,
)
from rtpo.types import Feedback, Grade, Message, Task, ToolOutcome, ToolUse

TASKS = problems("train", 60, seed=0)
OK = ToolUse("ask", ToolOutcome.OK)


def walk(task: Task, *people: str) -> tuple[list[Feedback], Grade]:
    return play(ToyKeysEnv(), task, *(f"<tool_call> {person}</tool_call>" for person in people))


def right(task: Task) -> list[str]:
    return str(task.answer).split()


def wrong(person: str) -> str:
    return PEOPLE[(PEOPLE.index(person) + 1) % len(PEOPLE)]


def guide_of(problem: Problem) -> str:
    return problem.left if problem.left in GUIDES else problem.right


@pytest.mark.parametrize("task", TASKS[:10])
def test_the_keepers_way_is_right_only_with_its_own_key(task: Task) -> None:
    """Of the six people whose key can be taken, one's opens the gate."""
    calls, problem = right(task), parse_question(task.question)
    feedback, grade = walk(task, *calls)
    places = [problem.place(calls[0], at, kind) for at, kind in enumerate(KEEPERS_WAY)]
    assert feedback == [
        *(Feedback((Message("tool", place),), False, (OK,)) for place in places),
        Feedback((), True, (OK,)),
    ]
    assert grade.reward == 1.0
    rewards = {key: walk(task, *calls[:2], key, *calls[3:])[1].reward for key in PEOPLE}
    assert rewards == {key: float(key == right_key(calls[0])) for key in PEOPLE}


@pytest.mark.parametrize("task", TASKS[:10])
def test_there_is_time_for_one_detour_and_routes_meet_again(task: Task) -> None:
    calls = right(task)
    once = [*calls[:1], wrong(calls[1]), "parent", *calls[2:]]
    twice = [*once[:-2], wrong(once[-2]), "rival", once[-1]]
    assert (walk(task, *once)[1].reward, walk(task, *twice[:6])[1].reward) == (1.0, 0.0)
    assert (len(once), len(twice)) == (6, 7)
    envs = [ToyKeysEnv(), ToyKeysEnv(), ToyKeysEnv()]
    play(envs[0], task, *(f"<tool_call> {person}</tool_call>" for person in calls[:3]), " ")
    for env, path in zip(envs[1:], (once[:4], [*calls[:2], wrong(calls[2])]), strict=True):
        play(env, task, *(f"<tool_call> {person}</tool_call>" for person in path), " ")
    digests = [env.snapshot().digest for env in envs]
    assert digests[0] == digests[1] != digests[2]  # by a detour, and with another key


def test_the_guides_way_needs_no_key_and_ends_at_a_gate_that_is_open_in_one_of_some_problems() -> None:
    through = []
    for task in problems("train", 400, seed=0):
        problem = parse_question(task.question)
        guide = guide_of(problem)
        person = problem.right_call(guide, 0)
        through.append(walk(task, guide, person)[1].reward)
        assert through[-1] == problem.is_open
        feedback, grade = walk(task, guide, wrong(person))
        assert (feedback[-1].done, grade.reward) == (True, 0.0)
    assert sum(map(float, through)) == pytest.approx(400 / OPEN_ONE_IN, abs=4 * (400 / 4) ** 0.5)


def test_a_call_that_names_nobody_here_is_an_error_and_nothing_else_happens() -> None:
    task = TASKS[0]
    calls, problem = right(task), parse_question(task.question)
    nobody = next(person for person in PEOPLE if person not in (problem.left, problem.right))
    feedback, grade = walk(task, nobody, *calls)
    assert feedback[0] == Feedback((Message("tool", " error"),), False, (ToolUse("", ToolOutcome.MALFORMED),))
    assert grade.reward == 1.0
    feedback, grade = walk(task, calls[0], "e3", *calls[1:])
    first = problem.place(calls[0], 0, KEEPERS_WAY[0])
    assert feedback[1] == Feedback((Message("tool", f" error{first}"),), False, (ToolUse("", ToolOutcome.MALFORMED),))
    assert grade.reward == 1.0


def test_one_keeper_and_one_guide_stand_in_the_hall_on_either_side() -> None:
    drawn = [parse_question(task.question) for task in TASKS]
    assert all({problem.left, problem.right} == {problem.keeper, guide_of(problem)} for problem in drawn)
    assert {problem.keeper for problem in drawn} == set(KEEPERS) == {*PEOPLE} - set(GUIDES)
    assert {problem.left in KEEPERS for problem in drawn} == {True, False}
