"""Sentences of a run's log, and lines of its records."""

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from rtpo.core.files import sha256
from rtpo.harness.diagnostics import path_facts
from rtpo.harness.step_log import Trained
from rtpo.types import Rollout

TIED_STEPS = 3
"""steps in a row, all tied, after which a run warns"""


def is_tied(line: Mapping[str, Any]) -> bool:
    """Whether all groups of a step tied. line: the step's record."""
    return all(update["tied_rows"] == update["rows"] for update in line["updates"])


def tie_sentence(line: Mapping[str, Any]) -> str:
    """A warning with the likely cause of tied steps. line: the last step's record."""
    success = line["success"]
    if success is None:
        cause = "no rollout was graded: read the grades' details in paths.jsonl"
    elif success == 0:
        cause = (
            "no rollout succeeds: the model may not know the task's format of answers or calls, its turns may be cut "
            "(task.max_turn_tokens, task.max_turns), or the tasks may be too hard; read rollouts.jsonl"
        )
    elif success == 1:
        cause = "every rollout succeeds: the tasks are too easy for this model"
    else:
        cause = "each task is always solved or never: use more rollouts a task, or a higher sampling.temperature"
    return (
        f"in the last {TIED_STEPS} steps all rewards of each group were equal, so no group had an advantage. Likely, "
        f"{cause}. budget.tied_steps=N ends a run after N such steps."
    )


def percent(share: float | None) -> str:
    return "unknown" if share is None else f"{100 * share:.1f} %"


def duration(seconds: float) -> str:
    """40 s, 12 min, 15 h 20 min, 2.4 days."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours >= 48:
        return f"{seconds / 86400:,.1f} days"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def model_sha256(folder: str) -> dict[str, str]:
    """Checksums of a model folder's weight files."""
    return {path.name: sha256(path) for path in sorted(Path(folder).glob("*.safetensors"))}


def tokenizer_sha256(folder: Path) -> dict[str, str]:
    """Checksums of a model folder's tokenizer files, of those that it has."""
    names = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
    return {name: sha256(folder / name) for name in names if (folder / name).exists()}


def sample_line(step: int, rollout: Rollout, trained: Sequence[Trained] = ()) -> dict[str, Any]:
    """A rollout's record: its token ids, where it was forked, and its entries of `trained`."""
    return path_facts(step, rollout) | {
        "turns": [
            {
                "k": turn.k,
                "policy_version": turn.policy_version,
                "context_ids": turn.context_ids.tolist(),
                "output_ids": turn.output_ids.tolist(),
                # a server does not tell log-probs; JSON has no NaN
                "logprobs": [round(value, 4) if isfinite(value) else None for value in turn.logprobs.tolist()],
                "stop": turn.stop.value,
                "calls": [[use.tool, use.outcome.value] for use in turn.calls],
                "feedback_ids": turn.feedback_ids.tolist(),
            }
            for turn in rollout.own_turns
        ],
        "trained": [
            {"update": row.update, "k": row.k, "advantage": round(row.advantage, 6), "group": row.group}
            for row in trained
            if row.rollout_uid == rollout.uid
        ],
    }
