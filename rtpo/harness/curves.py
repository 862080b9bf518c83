"""The few numbers that every method's step has, whatever its phases, so that methods share a panel.

CURVES is the one place where they are defined: how each is made of a line of steps.jsonl, and the table of
docs/run/curves.md. What adds up is a total so far, since steps of methods differ in rollouts; a mean is weighed by what
it was taken over; and what a step has no value of is left out.
"""

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rtpo.harness.diagnostics import first_calls, outcome
from rtpo.types import Group, StopReason, Termination, ToolOutcome

X = "train/rollouts"
"""what every curve is drawn against"""
PLACES: dict[str, range] = {
    **{f"{k:02d}": range(k, k + 1) for k in range(4)},
    "04_07": range(4, 8),
    "08_15": range(8, 16),
    "16_up": range(16, sys.maxsize),
}
"""turns, and updates of a step, that share a curve: at every K the same ones, so that their number is bounded"""
Line = Mapping[str, Any]
Value = float | None | Mapping[str, float | None]


@dataclass(frozen=True)
class Curve:
    """A key, or where it has a name in brackets a family of them, which `value` then gives by that name. weighed_by:
    what a step's parts of a mean are weighed by; empty for what is none."""

    key: str
    unit: str
    meaning: str
    weighed_by: str
    value: Callable[[Line], Value]


def step_curves(line: Line) -> dict[str, float]:
    """The curves' values in a line of steps.jsonl, and what the algorithm recorded."""
    found: dict[str, float | None] = {f"algorithm/{name}": value for name, value in line["algorithm"].items()}
    for curve in CURVES:
        value = curve.value(line)
        if isinstance(value, Mapping):
            begin, _, rest = curve.key.partition("<")
            found |= {begin + name + rest.partition(">")[2]: one for name, one in value.items()}
        else:
            found[curve.key] = value
    return {key: float(value) for key, value in found.items() if value is not None}


def evaluation_curves(mode: str, groups: Sequence[Group]) -> dict[str, float]:
    """Of a held-out evaluation's graded rollouts; nothing where none was graded."""
    found = outcome([rollout.reward for group in groups for rollout in group if rollout.is_graded])
    named = {"success": found["success"], "reward": found["mean_reward"]}
    return {f"evaluation/{mode}/{name}": value for name, value in named.items() if value is not None}


def _line(key: str, unit: str, meaning: str, of: str) -> Curve:
    """As it is in the line."""
    return Curve(f"train/{key}", unit, meaning, "", lambda line: line[of])


def _sampled(key: str, unit: str, meaning: str, of: Callable[[Line], float]) -> Curve:
    """A mean over the turns that the step sampled, of what `of` gives for a rollout call."""
    return Curve(f"train/{key}", unit, meaning, "turns", lambda line: _a_turn(line["rollout_calls"], of))


def _trained(key: str, unit: str, meaning: str, of: str, by: str) -> Curve:
    """A mean over the step's updates."""
    return Curve(f"train/{key}", unit, meaning, WEIGHTS[by], lambda line: _mean(line["updates"], of, by))


def _phase(key: str, unit: str, meaning: str, of: str, by: str) -> Curve:
    """A mean over the updates of a place in the step."""

    def value(line: Line) -> Value:
        updates = line["updates"]
        return {
            name: _mean([updates[i] for i in range(len(updates)) if i in at], of, by) for name, at in PLACES.items()
        }

    return Curve(f"parts/phase_<phase>/{key}", unit, meaning, WEIGHTS[by], value)


def _turn(key: str, unit: str, meaning: str, of: str, by: str) -> Curve:
    """A mean over the tokens, or the groups, of a place's turns in all updates; `<k>` in the names is the turn."""

    def value(line: Line) -> Value:
        turns = {k for update in line["updates"] for k in update["trained_turns"]}
        return {name: _mean(line["updates"], of, by, [k for k in turns if k in at]) for name, at in PLACES.items()}

    return Curve(f"parts/turn_<turn>/{key}", unit, meaning, WEIGHTS[by], value)


def _mean(updates: Iterable[Mapping[str, Any]], of: str, by: str, turns: Iterable[int] = (0,)) -> float | None:
    """Of the updates' numbers `of`, weighed by their `by`; those without one do not count."""
    pairs = [[_number(update, name.replace("<k>", str(k))) for name in (of, by)] for update in updates for k in turns]
    known = [(value, weight) for value, weight in pairs if value is not None and weight]
    return sum(value * weight for value, weight in known) / sum(weight for _, weight in known) if known else None


def _number(update: Mapping[str, Any], name: str) -> float | None:
    """`zero_advantage.all` is a number of the update's dictionary `zero_advantage`."""
    key, _, below = name.partition(".")
    found: Any = update.get(key)
    return found.get(below) if below and found is not None else found


def _ratio(line: Line) -> float | None:
    kl = _mean(line["updates"], "mismatch/kl_k1", "trained_tokens")
    return None if kl is None else math.exp(-kl)


def _turns(line: Line) -> float | None:
    calls = first_calls(line["rollout_calls"])
    ended = sum(call["rollouts"] - call["terminations"].get(Termination.OPEN, 0) for call in calls)
    return sum(call["path_turns"] for call in calls) / ended if ended else None


def _a_turn(calls: Sequence[Line], of: Callable[[Line], float]) -> float | None:
    turns = sum(call["turns"] for call in calls)
    return sum(map(of, calls)) / turns if turns else None


def _tools(line: Line) -> Value:
    def of(name: str) -> float | None:
        return _a_turn(line["rollout_calls"], lambda call: call["tools"].get(name, 0))

    return {outcome.value: of(outcome) for outcome in ToolOutcome}


def _learning_rate(line: Line) -> float | None:
    rates: list[float] = [update["lr"] for update in line["updates"] if update["optimizer_steps"]]
    return rates[-1] if rates else None


WEIGHTS = {
    "trained_tokens": "trained tokens",
    "optimizer_steps": "optimizer steps",
    "loss_tokens": "tokens with a loss, over the optimizer steps",
    "groups.all": "groups",
    "turn_tokens.turn_<k>": "trained tokens of the turn",
    "groups.turn_<k>": "groups that train the turn",
}
"""what an update's means are over: the key that has how much, and its name on the page"""
NATS = "nats a token"
CURVES = (
    _line("rollouts", "rollouts", "used so far: what the budget was charged", "rollouts"),
    _line("steps", "steps", "data steps so far", "step"),
    _line("optimizer_steps", "steps", "so far", "optimizer_steps"),
    _line("tokens/generated", "tokens", "sampled so far", "generated_tokens"),
    _line("tokens/trained", "tokens", "given to updates to be trained so far, once each", "trained_tokens"),
    _line(
        "tokens/in_rows",
        "tokens",
        "of the rows given to the trainer so far, each time, contexts included",
        "row_tokens",
    ),
    _line("tokens/computed", "tokens", "that optimizer steps computed so far, contexts included", "computed_tokens"),
    _line("tokens/scored", "tokens", "that the trainer's forward passes alone computed so far", "scored_tokens"),
    _line("tokens/context", "tokens", "of sampled turns' contexts so far", "context_tokens"),
    _line("tokens/prefilled", "tokens", "of contexts that the engine computed so far, if it tells", "prefilled_tokens"),
    _line("wall_seconds", "s", "training and evaluation so far", "wall_seconds"),
    _line("seconds/<phase>", "s", "so far, by what they went into, as in the ledger", "seconds"),
    _line("success", "share", "with reward 1, of the step's first paths that were graded", "success"),
    _line("reward", "reward", "mean over the same paths", "mean_reward"),
    Curve("train/ratio", "ratio", "training over rollout probability: exp(-kl)", "trained tokens", _ratio),
    _trained("kl", NATS, "K1, an estimate of KL(rollout ‖ training policy)", "mismatch/kl_k1", "trained_tokens"),
    _trained("kl_context", NATS, "the training context's part of it", "mismatch/context/kl_k1", "trained_tokens"),
    _trained("kl_engine", NATS, "the engine's part of it", "mismatch/engine/kl_k1", "trained_tokens"),
    _trained("kl_initial", NATS, "to the initial policy; 0 where no KL is asked for", "kl_loss", "optimizer_steps"),
    _trained("loss", "loss", "policy loss, and KL to the initial policy where there is one", "loss", "optimizer_steps"),
    _trained("grad_norm", "norm", "of the gradient before clipping", "grad_norm", "optimizer_steps"),
    _trained("entropy", "nats", "of the policy in the training context", "entropy", "trained_tokens"),
    _trained("clip_share", "share", "tokens whose clipped term is the larger loss", "clip_fraction", "loss_tokens"),
    _trained("zero_advantage", "share", "groups whose advantages are all 0", "zero_advantage.all", "groups.all"),
    Curve("train/lr", "-", "learning rate of the last optimizer step", "", _learning_rate),
    Curve("train/turns", "turns", "of a whole path, over those of the step's first paths that ended", "paths", _turns),
    _sampled("turn_tokens", "tokens", "sampled in a turn", lambda call: call["generated_tokens"]),
    _sampled("context_tokens", "tokens", "of a turn's context", lambda call: call["context_tokens"]),
    _sampled(
        "cut_turns", "share", "turns that met their token limit", lambda call: call["stops"].get(StopReason.LENGTH, 0)
    ),
    Curve("train/calls/<outcome>", "calls a turn", "tool calls, by what became of them", "turns", _tools),
    _turn("kl", NATS, "as `train/kl`", "mismatch/turn_<k>/kl_k1", "turn_tokens.turn_<k>"),
    _turn("kl_context", NATS, "as `train/kl_context`", "mismatch/turn_<k>/context/kl_k1", "turn_tokens.turn_<k>"),
    _turn("kl_engine", NATS, "as `train/kl_engine`", "mismatch/turn_<k>/engine/kl_k1", "turn_tokens.turn_<k>"),
    _turn("zero_advantage", "share", "as `train/zero_advantage`", "zero_advantage.turn_<k>", "groups.turn_<k>"),
    _phase("loss", "loss", "as `train/loss`", "loss", "optimizer_steps"),
    _phase("residual", "-", "squared pair alone: mean squared error", "residual", "optimizer_steps"),
    _phase("grad_norm", "norm", "as `train/grad_norm`", "grad_norm", "optimizer_steps"),
    _phase("entropy", "nats", "as `train/entropy`", "entropy", "trained_tokens"),
    _phase("clip_share", "share", "as `train/clip_share`", "clip_fraction", "loss_tokens"),
)
