"""What an algorithm knows of its step, records and keeps: the same in every life of the verbs."""

import pickle
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import remembering
from conftest import compose_config
from scripted import TASK, RecordingHarness, scripted_harness, solver
from tables import random_mdp

from rtpo.algorithms import configured
from rtpo.errors import AlgorithmError, DataError
from rtpo.harness.budget import Budget, Ledger
from rtpo.harness.durable import DurableHarness
from rtpo.harness.notes import StepNotes
from rtpo.planning.hardware import Episodes
from rtpo.planning.sketch import Sketch
from rtpo.theory.tabular import TabularHarness, start_task, tasks
from rtpo.types import StopReason
from rtpo.verbs import Harness

CONFIG = configured("rtpo", kl=0.02)
WORST = remembering.PHASES * remembering.CHAINS
STEPS = 3
Life = Callable[[], Iterator[tuple[Harness, StepNotes]]]
"""Steps of the method, each done when it is left: what the algorithm is given, and what keeps its notes."""


def on_an_engine() -> Iterator[tuple[Harness, StepNotes]]:
    harness = scripted_harness(solver(0.4), budget=STEPS * WORST, reserve=0)
    harness.end_step()
    for step in range(STEPS):
        harness.begin_step(step, WORST)
        harness.sync()
        remembering.step(harness, [TASK], CONFIG)
        yield harness, harness
        assert harness.end_step().numbers == harness.numbers


def durable() -> Iterator[tuple[Harness, StepNotes]]:
    harness = scripted_harness(solver(0.4), budget=STEPS * WORST, reserve=0)
    harness.end_step()
    for step in range(STEPS):
        harness.begin_step(step, WORST)
        harness.sync()
        wrapped = DurableHarness(harness, [], lambda done: None)
        remembering.step(wrapped, [TASK], CONFIG)
        yield wrapped, harness
        harness.end_step()


def on_a_table() -> Iterator[tuple[Harness, StepNotes]]:
    mdp = random_mdp(0)
    harness = TabularHarness(mdp, Ledger(Budget(STEPS * WORST)), learning_rate=0.1)
    for step in range(STEPS):
        harness.begin_step(step, WORST)
        harness.sync()
        remembering.step(harness, tasks(mdp)[:1], CONFIG)
        yield harness, harness
        harness.end_step()


def in_a_plan() -> Iterator[tuple[Harness, StepNotes]]:
    harness = Sketch(compose_config(), SHAPE)
    for step in range(STEPS):
        harness.begin_step(step, WORST)
        harness._budget_share = step / STEPS
        harness.sync()
        remembering.step(harness, [start_task(0)], CONFIG)
        yield harness, harness
        harness.end_step()


SHAPE = Episodes(2.0, 16, 40, 4, 0.5)


@pytest.mark.parametrize("life", [on_an_engine, durable, on_a_table, in_a_plan])
def test_a_method_knows_its_step_and_share_records_and_keeps_its_state(life: Life) -> None:
    shares = []
    for number, (harness, notes) in enumerate(life()):
        shares.append(harness.budget_share)
        assert harness.step == number
        assert harness.state["shares"] == shares
        assert harness.state["phases"] == (number + 1) * remembering.PHASES
        assert set(notes.numbers) == {*(f"mean_reward/phase_{k}" for k in range(3)), "phases", "first_share", "share"}
        assert notes.numbers["phases"] == harness.state["phases"]
        assert notes.numbers["mean_reward/phase_2"] == harness.state["mean_reward"]
    assert shares == [step / STEPS for step in range(STEPS)]


def test_a_plan_takes_its_shares_over_the_whole_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    log = Sketch.log
    monkeypatch.setattr(
        Sketch,
        "log",
        lambda self, name, value: (seen.append(value) if name == "share" else None, log(self, name, value)),
    )
    monkeypatch.setattr("rtpo.algorithms.algorithms", lambda: {"rtpo": "remembering"})
    sketch = Sketch(compose_config("algorithm=rtpo", "budget.tasks_per_step=4"), SHAPE).take_steps()
    assert (sketch.steps, sketch.ledger.rollouts) == (4, 16 * WORST)
    assert seen == [0.125, 0.375, 0.625, 0.875]


def in_a_step() -> RecordingHarness:
    return scripted_harness(solver(0.4))


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), 10**400, True, None, "1", 1j, np.ones(2), Decimal("1")])
def test_only_finite_numbers_are_recorded(value: Any) -> None:
    harness = in_a_step()
    with pytest.raises(AlgorithmError, match=r"harness\.log\('a'\) was given .*: record one finite number"):
        harness.log("a", value)
    assert harness.numbers == {}


@pytest.mark.parametrize("value", [3, -0.25, np.float32(0.5), np.int64(7)])
def test_numbers_are_recorded_as_floats(value: Any) -> None:
    harness = in_a_step()
    harness.log("a/b-c_d.e", value)
    assert harness.numbers == {"a/b-c_d.e": float(value)}
    assert type(harness.numbers["a/b-c_d.e"]) is float


@pytest.mark.parametrize("name", ["", "a b", "/a", "a/", "a//b", "é", "a\n"])
def test_a_name_that_a_backend_could_change_is_refused(name: str) -> None:
    with pytest.raises(AlgorithmError, match="a name is of letters, digits"):
        in_a_step().log(name, 1.0)


@pytest.mark.parametrize("name", ["success", "mean_reward", "rollouts", "seconds", "optimizer_steps"])
def test_names_of_a_steps_own_numbers_are_refused(name: str) -> None:
    with pytest.raises(AlgorithmError, match="every step records a number of this name"):
        in_a_step().log(name, 1.0)


def test_a_name_is_recorded_once_a_step() -> None:
    harness = in_a_step()
    harness.log("a", 1.0)
    with pytest.raises(AlgorithmError, match=r"harness\.log\('a'\): step 0 has recorded it already"):
        harness.log("a", 1.0)
    harness.end_step()
    harness.begin_step(1, 10)
    harness.log("a", 2.0)
    assert harness.end_step().numbers == {"a": 2.0}


def nested(depth: int) -> list[Any]:
    return [nested(depth - 1)] if depth else []


def in_itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"a": [1, (2, 3)]}, r"harness\.state\['x'\]\['a'\]\[1\] is of the type tuple"),
        (np.float64(1.0), r"harness\.state\['x'\] is of the type float64"),
        (np.ones(2), "of the type ndarray"),
        (StopReason.STOP, "of the type StopReason"),
        ({1: 2}, r"harness\.state\['x'\] has the key 1: a key is a str"),
        (float("nan"), r"harness\.state\['x'\] is nan"),
        (nested(20), "nested deeper than 20, or holds itself"),
        (in_itself(), "nested deeper than 20, or holds itself"),
        (10**5000, "cannot be written as JSON"),
    ],
    ids=["tuple", "numpy", "array", "enum", "key", "nan", "deep", "circle", "long"],
)
def test_state_that_is_not_plain_ends_the_step_in_a_sentence(value: Any, sentence: str) -> None:
    harness = in_a_step()
    harness.state["x"] = value
    with pytest.raises(AlgorithmError, match=sentence):
        harness.end_step()


PLAIN = {
    "text": "é\ud800\n",
    "floats": [0.1 + 0.2, 5e-324, -0.0, 1e308],
    "int": 2**70,
    "rest": [True, None, {}, nested(17)],
}


def test_plain_state_goes_through_a_save_bit_for_bit(tmp_path: Path) -> None:
    harness = in_a_step()
    harness.state.update(PLAIN)
    harness.end_step()
    saved = pickle.dumps(harness.save(tmp_path))
    again = in_a_step()
    again.load(tmp_path, pickle.loads(saved))
    assert repr(again.state) == repr(PLAIN)


def test_nothing_but_state_leads_from_step_to_step() -> None:
    """What a list is shared with, a save would not know."""
    harness, outside = in_a_step(), [1]
    harness.state["a"] = harness.state["b"] = outside
    harness.end_step()
    outside.append(2)
    harness.begin_step(1, 10)
    harness.state["a"].append(3)
    assert harness.state == {"a": [1, 3], "b": [1]}


def test_a_save_inside_a_step_has_the_state_that_the_step_began_with(tmp_path: Path) -> None:
    harness = in_a_step()
    harness.state["n"] = 1
    harness.end_step()
    harness.begin_step(1, 10)
    harness.state["n"] += 1
    harness.log("n", 2)
    saved = pickle.dumps(harness.save(tmp_path))
    again = in_a_step()
    again.load(tmp_path, pickle.loads(saved))
    assert (again.state, again.numbers, again.step) == ({"n": 1}, {"n": 2.0}, 1)


def test_a_save_of_another_version_is_refused(tmp_path: Path) -> None:
    harness = in_a_step()
    state = harness.save(tmp_path)
    del state["numbers"]
    with pytest.raises(DataError, match="another version's save"):
        harness.load(tmp_path, state)
