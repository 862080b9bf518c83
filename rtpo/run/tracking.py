"""What tracking backends are told of a run, by one set of names (docs/results/metrics.md), and what the run is
called there."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rtpo.errors import ConfigError
from rtpo.harness.diagnostics import outcome
from rtpo.run.config import RunConfig
from rtpo.types import Group

BACKENDS = ("wandb", "tensorboard", "file")
_TOTALS = (
    *("success", "mean_reward"),
    *("rollouts", "generated_tokens", "trained_tokens", "optimizer_steps", "wall_seconds"),
)


class Track(Protocol):
    """Where a run's numbers are mirrored."""

    def log(self, data: dict[str, float], step: int) -> None: ...


def check_backends(config: RunConfig) -> None:
    """Raises ConfigError for a backend that there is none of."""
    unknown = [name for name in config.profile.track if name not in BACKENDS]
    if unknown:
        raise ConfigError(
            f"profile.track is {list(config.profile.track)}: no backend {unknown[0]!r}; there are "
            f"{', '.join(BACKENDS)}, and [] for none."
        )


def tracked_name(config: RunConfig) -> str:
    """`<experiment>/<label>-seed<two digits or more>`, so that runs sort by seed."""
    return f"{config.experiment_name}/{config.label}-seed{config.seed:02d}"


def tracked_step(line: Mapping[str, Any]) -> dict[str, float]:
    """A line of steps.jsonl as flat numbers."""
    flat = {key: line[key] for key in _TOTALS} | {f"seconds/{phase}": s for phase, s in line["seconds"].items()}
    for update in line["updates"]:
        place = "_".join(str(k) for k in update["trained_turns"]) or "empty"
        flat |= {f"update_{place}/{key}": value for key, value in update.items() if isinstance(value, int | float)}
    flat |= {f"algorithm/{name}": value for name, value in line["algorithm"].items()}
    return {key: float(value) for key, value in flat.items() if value is not None}


def tracked_evaluation(mode: str, groups: Sequence[Group]) -> dict[str, float]:
    """Success and mean reward of a held-out evaluation's graded rollouts; nothing where none was graded."""
    found = outcome([rollout.reward for group in groups for rollout in group if rollout.is_graded])
    return {f"evaluation/{mode}/{key}": value for key, value in found.items() if value is not None}


def tracked_ledger(ledger: Mapping[str, Any]) -> dict[str, float]:
    """A ledger's totals, `ledger/<key>`, with nested keys below."""
    return {f"ledger/{key}": value for key, value in _flat(ledger)}


def _flat(tree: Mapping[str, Any]) -> list[tuple[str, float]]:
    flat = []
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat += [(f"{key}/{below}", number) for below, number in _flat(value)]
        elif value is not None:
            flat.append((key, float(value)))
    return flat
