"""How well estimators agree with themselves: gradients of independent batches, at fixed weights
(docs/run/runs.md).

    python experiments/probe.py rtpo rtpo_tree grpo_exact --task toy_math

Each algorithm runs its step on a number of batches, but nothing is trained: what its updates would have followed, over
all their rows at once, is taken as the batch's gradient. Algorithms that ask for the same rollouts get the same ones.
Printed, and written as JSON: the mean cosine over pairs of batches, its jackknife standard error over batches, the
rollouts a batch, and the share of groups without an advantage.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rtpo.run.command import Parser, command, whole

import numpy as np

from rtpo.core.files import utc_now
from rtpo.core.packing import training_batches
from rtpo.harness.budget import Budget, Ledger
from rtpo.harness.diagnostics import zero_advantage
from rtpo.harness.harness import AgentHarness
from rtpo.run.composition import composed
from rtpo.run.config import PROJECT, RunConfig, compose_run
from rtpo.run.model_folder import chat_format
from rtpo.run.records import provenance
from rtpo.run.run import open_harness
from rtpo.run.tasks import load_tasks, take
from rtpo.types import Floats, TrainRow
from rtpo.verbs import Loss, Update

LEAST_BATCHES = 3


class ProbeHarness(AgentHarness):
    """The harness, which instead of training sums up what its updates would follow."""

    gradient: Floats
    tied: list[float]

    def update(
        self, rows: Sequence[TrainRow], loss: Loss, *, epochs: int = 1, minibatches: int = 1, before: bool = False
    ) -> Update:
        if not rows:
            return Update(0, self.policy_version, [])
        known = self.score(rows)
        old = known if loss.old_logprobs == "recompute" else [row.rollout_logprobs[row.mask] for row in rows]
        for packed in training_batches(rows, old, loss, epochs=1, count=1):
            reference = self._backend.reference(packed).logprobs if loss.kl else None
            gradient: Floats = self._backend.gradient(packed, reference, loss)  # type: ignore[attr-defined]
            self.gradient = self.gradient + gradient
        self.tied.append(zero_advantage(rows)["all"])
        return Update(0, self.policy_version, known if before else [])


@dataclass
class Estimator:
    """One algorithm's gradients, one a batch."""

    label: str
    gradients: list[Floats] = field(default_factory=list)
    rollouts: list[int] = field(default_factory=list)
    tied: list[float] = field(default_factory=list)

    def line(self) -> dict[str, Any]:
        cosine, error = mean_cosine(self.gradients)
        return {
            "label": self.label,
            "batches": len(self.gradients),
            "mean_cosine": cosine,
            "jackknife_error": error,
            "rollouts": float(np.mean(self.rollouts)),
            "zero_advantage": float(np.mean(self.tied)) if self.tied else None,
        }


def mean_cosine(gradients: Sequence[Floats]) -> tuple[float, float]:
    """Mean cosine over pairs of gradients, and its jackknife standard error over gradients; a gradient of 0 is at
    cosine 0 to all. Raises ValueError for fewer than three."""
    n = len(gradients)
    if n < LEAST_BATCHES:
        raise ValueError(f"a jackknife over {n} gradients has no error: take {LEAST_BATCHES} or more")
    # a batch without any gradient is a single 0
    stacked = np.stack(np.broadcast_arrays(*gradients)).astype(np.float64)
    norms = np.linalg.norm(stacked, axis=1, keepdims=True)
    units = np.divide(stacked, norms, out=np.zeros_like(stacked), where=norms > 0)
    cosines = units @ units.T
    pairs = cosines.sum() - np.trace(cosines)
    mean = pairs / (n * (n - 1))
    without = np.array([(pairs - 2 * (cosines[i].sum() - cosines[i, i])) / ((n - 1) * (n - 2)) for i in range(n)])
    return float(mean), float(np.sqrt((n - 1) / n * ((without - without.mean()) ** 2).sum()))


def probe(config: RunConfig, batches: int) -> Estimator:
    """The gradients of one configuration, with budget.tasks_per_step tasks a batch."""
    from rtpo.verl_harness.session import open_backend

    backend, algorithm = open_backend(config), config.algorithm_config
    count = config.budget.tasks_per_step
    worst = count * config.descriptor.rollouts_per_task(algorithm, config.task.max_turns)
    ledger = Ledger(Budget(worst * batches))
    harness = open_harness(config, backend, chat_format(config), ledger, ProbeHarness)
    harness.sync()
    tasks, estimator = load_tasks(config.task, config.task.train), Estimator(config.label)
    for batch in range(batches):
        before = harness.ledger.rollouts
        harness.gradient, harness.tied = np.zeros(1, np.float32), []
        harness.begin_step(batch, worst)
        config.descriptor.step(harness, take(tasks, batch * count, count, config.seed), algorithm)
        harness.end_step()
        estimator.gradients.append(harness.gradient)
        estimator.rollouts.append(harness.ledger.rollouts - before)
        estimator.tied += harness.tied
    return estimator


@command
def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = Parser(__doc__)
    parser.add_argument("algorithms", nargs="+", help="configurations of configs/algorithm")
    parser.add_argument("--task", default="toy_math", help="of configs/task; default: %(default)s")
    parser.add_argument("--batches", type=whole(LEAST_BATCHES), default=8, help="of each; default: %(default)s")
    parser.add_argument("--override", action="append", default=[], help="a Hydra override for all of them")
    parser.add_argument("--output", type=Path, default=PROJECT / "results" / "probe", help="folder of the record")
    given = parser.parse_args(arguments)
    given.output.mkdir(parents=True, exist_ok=True)
    configs = [
        compose_run(composed("train", [f"algorithm={name}", f"task={given.task}", *given.override]))
        for name in given.algorithms
    ]
    lines = [probe(config, given.batches).line() for config in configs]
    record = {
        "started": utc_now(),
        **provenance(),
        "task": given.task,
        "model": configs[0].model.name,
        "tasks_per_batch": configs[0].budget.tasks_per_step,
        "seed": configs[0].seed,
        "estimators": lines,
    }
    place = given.output / f"{given.task}-{record['started'].replace(':', '')}.json"
    place.write_text(json.dumps(record, indent=1) + "\n")
    for line in lines:
        print(
            f"{line['label']:>16}  cosine {line['mean_cosine']:+.3f} +- {line['jackknife_error']:.3f}  "
            f"rollouts {line['rollouts']:.0f}  zero advantage {line['zero_advantage']}"
        )
    print(f"record: {place}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
