"""Measure the noise of RTPO's and of exact GRPO's gradient at about equal rollouts, before any training
(docs/run/language_model.md#a-possible-reason):

    python experiments/maintenance/gradient_noise.py --model data/models/smollm2-quests-0 --output outputs/noise.json

Exact GRPO compares 17 whole paths of a game. RTPO compares the two siblings of each turn of a trunk, of which there are
eight at most, all under the same weights. A trunk that ends early has fewer siblings. Neither divides by the standard
deviation, and each turn's loss is averaged over its tokens, so the two gradients have the same mean. On two processors
with bf16 this takes about twenty minutes.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from experiments.training import check_and_load
from rtpo.core.files import write_whole
from rtpo.core.names import counted
from rtpo.core.packing import pack
from rtpo.credit import sibling_advantages
from rtpo.errors import DataError
from rtpo.harness.budget import Budget, Ledger
from rtpo.harness.harness import AgentHarness
from rtpo.rows import turn_row
from rtpo.run.cli import Parser, command, composed, folder, whole_number
from rtpo.run.config import RunConfig, compose_run
from rtpo.run.lines import model_sha256
from rtpo.run.run import open_harness
from rtpo.types import Floats, Group, Role, Rollout, Task, TrainRow
from rtpo.verbs import TokenClip
from rtpo.warm_starts.recipes import AdapterNoise, GradientMeasures

TOGETHER = 8
"""games that are played at the same time"""
SIBLINGS = 2
"""siblings of each turn, as with RTPO's G = 3"""

Gradient = Callable[[Sequence[TrainRow]], Floats]
"""takes rows with advantages, at least one"""


@dataclass
class Total:
    """A sum of gradients."""

    value: Floats | None = None  # None is 0

    def add(self, gradient: Floats | None) -> float:
        """Add a gradient in place; returns its squared norm."""
        if gradient is None:
            return 0.0
        self.value = gradient.copy() if self.value is None else np.add(self.value, gradient, out=self.value)
        return float(np.vdot(gradient, gradient))

    def inner(self, other: "Total") -> float:
        """The inner product of two sums."""
        return 0.0 if self.value is None or other.value is None else float(np.vdot(self.value, other.value))


def measure(harness: AgentHarness, gradient: Gradient, games: Sequence[Task]) -> GradientMeasures:
    """Play the games for either method under the current weights, and take the gradients of each game."""
    grpo, rtpo = Total(), Total()
    of_grpo, of_rtpo, of_turns, inner = list[float](), list[float](), list[list[float]](), list[float]()
    for chains, forks in play(harness, games):
        whole, turns = Total(), Total()
        rows = [row for k in range(harness.max_turns) for row in rows_of(chains, k)]
        whole.add(gradient(rows) if rows else None)
        by_turn = [rows_of(siblings, k) for k, siblings in enumerate(forks)]
        of_turns.append([turns.add(gradient(rows) if rows else None) for rows in by_turn])
        of_grpo.append(grpo.add(whole.value))
        of_rtpo.append(rtpo.add(turns.value))
        inner.append(whole.inner(turns))
        print(f"game {len(inner)} of {len(games)}", flush=True)
    return GradientMeasures(
        grpo=of_grpo,
        rtpo=of_rtpo,
        rtpo_turns=of_turns,
        inner=inner,
        grpo_sum=grpo.inner(grpo),
        rtpo_sum=rtpo.inner(rtpo),
        inner_sum=grpo.inner(rtpo),
    )


def play(harness: AgentHarness, games: Sequence[Task]) -> Iterator[tuple[Group, list[Group]]]:
    """Each game's whole paths, and the siblings of each turn of a trunk; none if the trunk has no such turn."""
    for first in range(0, len(games), TOGETHER):
        part = games[first : first + TOGETHER]
        harness.sync()  # the engine may have slept while gradients were computed
        chains = harness.rollout(part, n=1 + SIBLINGS * harness.max_turns, role=Role.CHAIN)
        trunks = [group[0] for group in harness.rollout(part, n=1, role=Role.TRUNK)]
        turns = [fork(harness, trunks, k) for k in range(harness.max_turns)]
        yield from zip(chains, map(list, zip(*turns, strict=True)), strict=True)


def fork(harness: AgentHarness, trunks: Sequence[Rollout], k: int) -> list[Group]:
    """The siblings of each trunk's turn k."""
    starts = [trunk.boundary(k) for trunk in trunks if len(trunk.turns) > k]
    groups = iter(harness.rollout(starts, n=SIBLINGS, role=Role.SIBLING) if starts else [])
    return [next(groups) if len(trunk.turns) > k else () for trunk in trunks]


def rows_of(group: Group, k: int) -> list[TrainRow]:
    """Turn k of each path that has it. A path's advantage is its return minus the mean of the others' returns, so
    groups of any size give the same gradient in expectation. Paths with advantage 0 are left out."""
    if not group:
        return []
    advantages = sibling_advantages([path.reward for path in group]) * len(group) / (len(group) - 1)
    return [
        turn_row(path.turns[k], path, float(advantage), 1 / len(group), path.task.uid)
        for path, advantage in zip(group, advantages, strict=True)
        if advantage and len(path.turns) > k
    ]


def measure_model(config: RunConfig) -> AdapterNoise:
    """Measure on a configuration's model and training games. Raises as a run does."""
    from rtpo.verl_harness.session import closed_on_failure, open_backend

    games, _, chat = check_and_load(config)
    if (count := config.task.train.count) != len(games):
        raise DataError(f"there are {counted(len(games), 'training game')}, and {count} were asked for: make more.")
    chains = 1 + SIBLINGS * config.task.max_turns
    with closed_on_failure():
        backend, ledger = open_backend(config), Ledger(Budget(2 * chains * len(games)))
        harness = open_harness(config, backend, chat, ledger, AgentHarness)
        harness.begin_step(0, ledger.budget.rollouts)
        measured = measure(harness, lambda rows: backend.gradient(pack(rows), None, TokenClip()), games)
    precision, model = config.profile.precision, model_sha256(config.model.path)
    return AdapterNoise(measured=measured, chains=chains, precision=precision, model=model)


@command
def main(arguments: list[str] | None = None) -> None:
    parser = Parser(__doc__)
    parser.add_argument("--model", required=True, type=folder, help="the model's folder")
    parser.add_argument("--output", required=True, type=Path, help="file to write")
    parser.add_argument("--games", type=whole_number(1), default=24, help="how many training games to play")
    options = parser.parse_args(arguments)
    if options.output.exists() or not options.output.parent.is_dir():
        raise DataError(f"{options.output} is no new file in a folder: name one.")
    settings = [
        "experiment_name=gradient_noise",
        "task=textworld",
        "profile=laptop_lm",
        "algorithm=grpo_exact",
        f"task.train.count={options.games}",
    ]
    together = min(options.games, TOGETHER)
    overrides = [*settings, f"budget.tasks_per_step={together}", f"model.path={options.model}"]
    noise = measure_model(compose_run(composed("train", overrides)))
    write_whole(options.output, (json.dumps(asdict(noise), indent=1) + "\n").encode())


if __name__ == "__main__":
    sys.exit(main())
