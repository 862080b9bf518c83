"""What an algorithm records of a step and keeps for the next. Whole steps of a method that does both are in
test_durable.py and test_crashes.py."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted import RecordingHarness, scripted_harness, solver

from rtpo.errors import AlgorithmError, DataError
from rtpo.types import StopReason


def in_a_step() -> RecordingHarness:
    return scripted_harness(solver(0.4))


def nested(depth: int) -> list[Any]:
    return [nested(depth - 1)] if depth else []


REFUSED: list[tuple[str, Any]] = [("a", value) for value in (float("nan"), 10**400, True, None, "1", np.ones(2))]
REFUSED += [(name, 1) for name in ("", "a b", "/a", "a/", "a//b", "é", "a\n", "success", "mean_reward", "seconds")]


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_only_a_finite_number_is_recorded_under_a_plain_name_that_a_step_has_not(name: str, value: Any) -> None:
    harness = in_a_step()
    with pytest.raises(AlgorithmError, match=r"harness\.log\("):
        harness.log(name, value)
    assert harness.numbers == {}


def test_a_name_is_recorded_once_a_step() -> None:
    harness = in_a_step()
    harness.log("a", np.float32(0.5))
    assert harness.numbers == {"a": 0.5}
    assert type(harness.numbers["a"]) is float
    with pytest.raises(AlgorithmError, match=r"harness\.log\('a'\)"):
        harness.log("a", 1.0)
    harness.end_step()
    harness.begin_step(1, 10)
    harness.log("a", 2.0)
    assert harness.end_step().numbers == {"a": 2.0}


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)
NOT_PLAIN = [{"a": [1, (2, 3)]}, np.ones(2), StopReason.STOP, {1: 2}, [float("nan")], nested(20), CIRCLE]


@pytest.mark.parametrize("value", NOT_PLAIN, ids=["tuple", "array", "enum", "key", "nan", "deep", "circle"])
def test_state_that_is_not_plain_ends_the_step_and_is_named(value: Any) -> None:
    harness = in_a_step()
    harness.state["x"] = value
    with pytest.raises(AlgorithmError, match=r"state\['x'\]"):
        harness.end_step()


PLAIN = {"text": "é\ud800\n", "floats": [0.1 + 0.2, 5e-324, -0.0], "int": 2**70, "rest": [True, None, {}, nested(17)]}


def test_a_save_has_the_state_that_its_step_began_with_bit_for_bit(tmp_path: Path) -> None:
    harness = in_a_step()
    harness.state.update(PLAIN)
    harness.end_step()
    harness.begin_step(1, 10)
    harness.state["int"] += 1
    harness.log("n", 2)
    saved = pickle.dumps(harness.save(tmp_path))
    again = in_a_step()
    again.load(tmp_path, pickle.loads(saved))
    assert repr(again.state) == repr(PLAIN)
    assert (again.numbers, again.step) == ({"n": 2.0}, 1)
    older = {name: value for name, value in pickle.loads(saved).items() if name != "numbers"}
    with pytest.raises(DataError, match="version"):
        again.load(tmp_path, older)
