"""Made-up runs of the paper's experiments, for the tests of its figures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import synthetic_runs
from synthetic_runs import answers, step, write_run


def update(kl: float, turns: tuple[int, ...] = (0,), context: float | None = None) -> dict[str, Any]:
    """An update whose KL is made by the context but for kl - context, in all its turns alike."""
    part = kl if context is None else context
    of_turns = {
        f"mismatch/turn_{k}/{name}/kl_k1": value
        for k in turns
        for name, value in (("context", part), ("engine", kl - part))
    }
    return synthetic_runs.update(10, kl, 0.5, turns=turns, context_kl=part) | of_turns


def write_paper_run(
    results: Path,
    experiment: str,
    label: str,
    seed: int = 0,
    *,
    profile: str = "toy",
    task: str = "toy_math",
    updates: Sequence[Sequence[dict[str, Any]]] = ((update(0.0),),),
    rewards: Sequence[float] = (1.0, 0.0),
) -> Path:
    """A run with `updates` of each step, which takes 10 rollouts. `rewards`: of the questions held out, after training;
    before it all are 0."""
    steps = [step(place, 10 * place, 0.5, list(each)) for place, each in enumerate(updates, start=1)]
    held_out = {f"q{place}": [reward] for place, reward in enumerate(rewards)}
    evaluations = [
        *answers("before", "sampled", {question: [0.0] for question in held_out}),
        *answers("after", "sampled", held_out, len(steps)),
    ]
    totals = {
        "budget": {"rollouts": 10 * len(steps)},
        "rollouts": 10 * len(steps),
        "generated_tokens": 400 * len(steps),
        "optimizer_steps": len(steps),
        "syncs": len(steps) + 1,
        "seconds": {"evaluate": 10.0},
    }
    manifest = {"profile": profile, "task": task, "wall_seconds": 100.0, "ledger": totals}
    config = {"algorithm": {"label": label, "group_size": 3}}
    place = f"{experiment}_{profile}_{task}"
    return write_run(results, label, seed, steps, evaluations, manifest=manifest, config=config, experiment=place)
