"""An algorithm's notes: its place in the run, the numbers that it records and the state that it keeps across steps.

State is kept as JSON, written at the end of a step and read at the start of the next. So a step finds the same state
whether or not the run stopped before it. A save inside a step has the state of the step's start, since resuming runs
the step again.
"""

import json
import math
import re
from dataclasses import fields
from numbers import Real
from typing import Any

from rtpo.errors import AlgorithmError
from rtpo.harness.budget import Ledger
from rtpo.harness.diagnostics import outcome

NAME = re.compile(r"[\w.-]+(/[\w.-]+)*", re.ASCII)
RESERVED = frozenset({*(field.name for field in fields(Ledger)), *outcome([])})
"""names that an algorithm's numbers may not have: the ledger's fields, and the keys of `outcome`"""
DEEPEST = 20
NO_REFERENCE = (
    "the step asked for the initial policy, which this run does not keep: set needs_reference=True in the ALGORITHM of "
    "the algorithm's file, or give its config's loss a kl above 0."
)


class StepNotes:
    """Base class of the verbs' implementations. numbers: the numbers that the current step recorded."""

    def __init__(self) -> None:
        self._step = 0
        self._budget_share = 0.0
        self.numbers: dict[str, float] = {}
        self._state_json = "{}"
        self._state: dict[str, Any] = {}

    @property
    def step(self) -> int:
        return self._step

    @property
    def budget_share(self) -> float:
        return self._budget_share

    @property
    def state(self) -> dict[str, Any]:
        return self._state

    def log(self, name: str, value: float) -> None:
        if not NAME.fullmatch(name):
            raise AlgorithmError(
                f"harness.log({name!r}): a name has letters, digits, '_', '-' and '.', and '/' between parts."
            )
        if name in RESERVED:
            raise AlgorithmError(f"harness.log({name!r}): the ledger or the step's outcome has this name; use another.")
        if name in self.numbers:
            raise AlgorithmError(f"harness.log({name!r}): step {self.step} has this number already; log it only once.")
        self.numbers[name] = _number(name, value)

    def _open_notes(self, step: int, budget_share: float) -> None:
        self._step, self._budget_share, self.numbers = step, budget_share, {}
        self._read_state()

    def _close_notes(self) -> None:
        """Keep the state as JSON. Raises AlgorithmError, naming the entry, if JSON changes it or it is too deep."""
        for key, value in self._state.items():
            entry, why = {key: value}, ""
            try:
                if repr(json.loads(json.dumps(entry, allow_nan=False))) != repr(entry):
                    why = "JSON changes it"
                elif _depth(value) >= DEEPEST:
                    why = f"it is nested deeper than {DEEPEST}"
            except (TypeError, ValueError, RecursionError) as error:
                why = str(error)
            if why:
                raise AlgorithmError(
                    f"harness.state[{key!r}] cannot be saved ({why}): use dict with str keys, list, str, int, finite "
                    "float, bool and None (float(x) and x.tolist() convert from numpy)."
                )
        self._state_json = json.dumps(self._state)

    def _read_state(self) -> None:
        self._state = json.loads(self._state_json)


def _number(name: str, value: Any) -> float:
    try:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else None
    except OverflowError:
        number = math.inf
    if number is None or not math.isfinite(number):
        raise AlgorithmError(f"harness.log({name!r}) was given {value!r}: log a finite number, or nothing.")
    return number


def _depth(value: Any) -> int:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, parts), default=0)
