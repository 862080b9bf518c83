"""Each method against GRPO with exact contexts, training time at equal rollouts; contexts that engines share."""

from collections.abc import Iterator
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from experiments.speed.shared import Case, configuration, endless_harness, spread, step_lines
from experiments.training import train
from rtpo.run.run import StopRequest

ROLLOUTS = 2048
TIME_LIMITS = {"rtpo": 0.6, "rtpo_tree": 1.1, "tree_grpo_exact": 1.1, "arpo_exact": 1.1, "seeupo": 1.8}
CONTROL = "grpo_exact"


def measure(repeats: int) -> Iterator[Case]:
    """Training time against GRPO with exact contexts, all in turns; and how much of the contexts the engine computed,
    rather than took from its cache or from an equal context of the batch."""
    runs: dict[str, list[dict[str, Any]]] = {label: [] for label in (CONTROL, *TIME_LIMITS)}
    # waits for the engine's process, whose start is not training
    endless_harness(configuration())[0].sync()
    with TemporaryDirectory() as folder:
        for repeat in range(repeats):
            for label in runs:
                runs[label].append(method_run(label, f"{folder}/{repeat}"))
    # a run may end a few rollouts below its budget
    cost = {label: [1e3 * run["seconds"] / run["rollouts"] for run in done] for label, done in runs.items()}
    for label, limit in TIME_LIMITS.items():
        yield Case(
            f"training time, {label} / {CONTROL}",
            median(cost[label]) / median(cost[CONTROL]),
            "x",
            limit,
            False,
            f"{spread(cost[label])} / {spread(cost[CONTROL])} ms a rollout, {ROLLOUTS} rollouts",
            {"runs": {CONTROL: runs[CONTROL], label: runs[label]}},
        )
    for label, done in runs.items():
        computed, needed = (median(run[name] for run in done) for name in ("prefilled_tokens", "requested_tokens"))
        yield Case(
            f"context tokens computed / needed, {label}",
            computed / needed,
            "x",
            1.0,
            False,
            f"{computed:,.0f} / {needed:,.0f} tokens, {ROLLOUTS} rollouts",
            {"runs": done},
        )


def method_run(label: str, results: str) -> dict[str, Any]:
    """What one run cost."""
    config = configuration(
        *(f"algorithm={label}", f"results={results}"),
        *(f"budget.rollouts={ROLLOUTS}", "task.held_out.count=1", "evaluation.greedy=false"),
    )
    from rtpo.verl_harness.session import open_backend

    before = open_backend(config).engine_states()
    last = step_lines(train(config, StopRequest()).path)[-1]
    after = open_backend(config).engine_states()
    return (
        {"seconds": last["wall_seconds"] - last["seconds"]["evaluate"]}
        | {name: last[name] for name in ("rollouts", "generated_tokens", "trained_tokens", "optimizer_steps")}
        | last["seconds"]
        | {
            name: sum(getattr(state, name) for state in after) - sum(getattr(state, name) for state in before)
            for name in ("prefilled_tokens", "requested_tokens")
        }
    )
