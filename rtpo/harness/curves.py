"""The training curves. All methods share them, whatever the phases of their steps, so one panel can compare methods.

curves.yaml alone defines them. Counts are running totals, since steps of different methods differ in rollouts. A mean
over updates or calls is weighted by their sizes. A curve without a value in a step is left out.
"""

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rtpo.harness.diagnostics import first_calls, outcome
from rtpo.types import Group, Termination, ToolOutcome

X_AXIS = "train/rollouts"
"""the x-axis of every curve"""
SPANS: dict[str, range] = {
    **{f"{k:02d}": range(k, k + 1) for k in range(4)},
    "04_07": range(4, 8),
    "08_15": range(8, 16),
    "16_up": range(16, sys.maxsize),
}
"""the turns (or updates of a step) that share a curve, by the text that stands for them in its key. So a larger K adds
no curve"""
Line = Mapping[str, Any]
Value = float | None | Mapping[str, float | None]
LARGEST_KEY = "mismatch/engine/largest"
TURNS = "turns"
"""`Curve.weight` of a mean over the turns sampled in a step's rollout calls"""


@dataclass(frozen=True)
class Curve:
    """A row of curves.yaml. A step's value is a number of its line, a mean over its updates, a mean over the turns of
    its rollout calls, or the result of a function."""

    key: str
    """the curve's name; with angle brackets, as in `parts/turn_<turn>/kl`, the names of several curves"""
    unit: str
    meaning: str
    source: str
    """name in FUNCTIONS, or key of a number in the line, in each update or in each rollout call; `<k>` is the turn"""
    weight: str = ""
    """key of the weights in a mean over updates; TURNS for a mean over turns; else empty. With a function: a remark"""

    def value(self, line: Line) -> Value:
        """The value in a line of steps.jsonl; by name for a key with angle brackets. None: the step has none."""
        if self.source in FUNCTIONS:
            return FUNCTIONS[self.source](line)
        if self.weight == TURNS:
            return _per_turn(line["rollout_calls"], self.source)
        if not self.weight:
            value: Value = line[self.source]
            return value
        updates = line["updates"]
        if "<phase>" in self.key:
            return {
                name: _mean(updates[span.start : span.stop], self.source, self.weight) for name, span in SPANS.items()
            }
        if "<turn>" in self.key:
            trained = {k for update in updates for k in update["trained_turns"]}
            turns = {name: [k for k in trained if k in span] for name, span in SPANS.items()}
            return {name: _mean(updates, self.source, self.weight, members) for name, members in turns.items()}
        return _mean(updates, self.source, self.weight)


def step_curves(line: Line) -> dict[str, float]:
    """The curves' values in a line of steps.jsonl, and what the algorithm recorded."""
    values: dict[str, float | None] = {f"algorithm/{name}": value for name, value in line["algorithm"].items()}
    for curve in CURVES:
        value = curve.value(line)
        if isinstance(value, Mapping):
            begin, _, rest = curve.key.partition("<")
            values |= {begin + name + rest.partition(">")[2]: number for name, number in value.items()}
        else:
            values[curve.key] = value
    return {key: float(value) for key, value in values.items() if value is not None}


def evaluation_curves(mode: str, groups: Sequence[Group]) -> dict[str, float]:
    """Success and mean reward of a held-out evaluation's graded rollouts; empty if none was graded. mode: name of the
    decoding, such as `greedy`."""
    measured = outcome([rollout.reward for group in groups for rollout in group if rollout.is_graded])
    named = {"success": measured["success"], "reward": measured["mean_reward"]}
    return {f"evaluation/{mode}/{name}": value for name, value in named.items() if value is not None}


def _mean(updates: Iterable[Line], key: str, weight: str, turns: Iterable[int] = (0,)) -> float | None:
    """The mean of the updates' `key`, weighted by their `weight`. Updates that lack either are left out. turns: the
    values of `<k>` in both keys."""
    pairs = [
        [_number(update, name.replace("<k>", str(k))) for name in (key, weight)] for update in updates for k in turns
    ]
    known = [(value, size) for value, size in pairs if value is not None and size]
    return sum(value * size for value, size in known) / sum(size for _, size in known) if known else None


def _number(entry: Line, name: str) -> float | None:
    """The entry's number. A dot leads into a dictionary, as in `zero_advantage.all`."""
    key, _, below = name.partition(".")
    value: Any = entry.get(key)
    return value.get(below) if below and value is not None else value


def _per_turn(calls: Sequence[Line], source: str) -> float | None:
    turns = sum(call["turns"] for call in calls)
    return sum(_number(call, source) or 0 for call in calls) / turns if turns else None


def _turns(line: Line) -> float | None:
    """Mean number of turns of the step's first paths that ended."""
    calls = first_calls(line["rollout_calls"])
    ended = sum(call["rollouts"] - call["terminations"].get(Termination.OPEN, 0) for call in calls)
    return sum(call["path_turns"] for call in calls) / ended if ended else None


def _ratio(line: Line) -> float | None:
    kl = _mean(line["updates"], "mismatch/kl_k1", "trained_tokens")
    return None if kl is None else math.exp(-kl)


FUNCTIONS: dict[str, Callable[[Line], Value]] = {
    "=ratio": _ratio,
    "=largest": lambda line: max(
        (update[LARGEST_KEY] for update in line["updates"] if LARGEST_KEY in update), default=None
    ),
    "=turns": _turns,
    "=tools": lambda line: {
        outcome.value: _per_turn(line["rollout_calls"], f"tools.{outcome.value}") for outcome in ToolOutcome
    },
    "=learning_rate": lambda line: next(
        (update["lr"] for update in reversed(line["updates"]) if update["optimizer_steps"]), None
    ),
}
"""values that `Curve.source` and `Curve.weight` cannot describe"""
CURVES = tuple(Curve(**row) for row in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")))
