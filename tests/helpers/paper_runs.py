"""Made-up runs of the paper's experiments, for the tests of its figures."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import synthetic_runs
from synthetic_runs import answers, step, write_manifest, write_run


def update(
    kl: float, turns: tuple[int, ...] = (0,), tied: float = 0.5, context: float | None = None, tokens: int = 10
) -> dict[str, Any]:
    """An update whose KL is made by the context but for kl - context, in all its turns alike."""
    part = kl if context is None else context
    of_turns = {
        f"mismatch/turn_{k}/{name}/kl_k1": value
        for k in turns
        for name, value in (("context", part), ("engine", kl - part))
    }
    return synthetic_runs.update(tokens, kl, tied, turns=turns, context_kl=part) | of_turns


def path(reward: float | None, turns: int = 2, **changes: Any) -> dict[str, Any]:
    """A path that began at a task, of ten tokens a turn."""
    return {
        "step": 1,
        "parent": None,
        "start_k": 0,
        "role": "trunk",
        "task": "q/0",
        "termination": "answered",
        "grade": "ungradable" if reward is None else "graded",
        "reward": reward,
        "detail": "",
        "turns": turns,
        "cut_turns": 0,
        "generated_tokens": 10 * turns,
        "calls": {},
    } | changes


def calls(attempted: int, ok: int) -> dict[str, dict[str, int]]:
    return {"python": {"attempted": attempted, "executed": ok, "ok": ok, "failed": attempted - ok}}


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
    paths: Sequence[dict[str, Any]] = (),
    ledger: dict[str, Any] | None = None,
    group_size: int = 3,
    seconds: float = 100.0,
    folder: str | None = None,
) -> Path:
    """A run with `updates` of each step, which takes 10 rollouts. `rewards`: of the questions held out, after training;
    before it all are 0. `folder`: in place of the experiment's."""
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
    manifest = {"profile": profile, "task": task, "wall_seconds": seconds, "ledger": totals | (ledger or {})}
    config = {"algorithm": {"label": label, "group_size": group_size}}
    place = folder or f"{experiment}_{profile}_{task}"
    made = write_run(results, label, seed, steps, evaluations, manifest=manifest, config=config, experiment=place)
    if paths:
        (made / "paths.jsonl").write_text("".join(json.dumps(line) + "\n" for line in paths))
        write_manifest(made, json.loads((made / "manifest.json").read_text()))
    return made
