"""Runs of RTPO that collapsed on toy knowledge: the course of each, the same seeds run again, and on how many turns a
step of the optimizer rests."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from analysis.measures import held_out, mean_success, untied_turns
from analysis.pages.markdown import ruled
from analysis.records import Run, RunGroup, load_runs
from analysis.study.records import learning_rate
from analysis.tables import NO_VALUE, NOT_RUN, number

RESULTS = Path("results", "collapse")
COLLAPSED = "rtpo"
"""the label of the runs as they were recorded in the study"""
FEW = 8
"""untied turns, of four pairs of siblings"""
COURSE = (
    *("Step", "Rollouts", "Success: trunks, %", "siblings of turn 0, %", "Optimizer steps", "Untied turns each"),
    *("Gradient norm", "Clipped, %", "Ratio", "Entropy: turn 0", "later turns", "Turns cut, %", "Tokens a turn"),
)
RUNS = (
    *("Run", "Learning rate", "Tasks a step", "Optimizer steps", "Untied turns each, median", f"on {FEW} or fewer, %"),
    *("Success: before, %", "least on the way, %", "after, %", "greedy before, %", "after, %", "Entropy at the end"),
)


def page(project: Path) -> str:
    """All runs beside one another, then the course of each that collapsed."""
    runs = load_runs(project / RESULTS)
    if not runs:
        return f"{NOT_RUN}\n"
    courses = (
        f"`{_name(run)}`, data step by data step:\n\n{ruled(COURSE, map(_course, run.steps))}"
        for run in runs
        if run.label == COLLAPSED
    )
    return "\n".join([ruled(RUNS, map(_run, runs)), *courses])


def _run(run: Run) -> Sequence[str]:
    untied = untied_turns(run.steps)
    return (
        f"`{_name(run)}`",
        f"{learning_rate(run):g}",
        f"{run.config['budget']['tasks_per_step']}",
        f"{run.ledger['optimizer_steps']}",
        number(median(untied), 0),
        number(100 * fmean(turns <= FEW for turns in untied), 0),
        _success(run, "before", "sampled"),
        _least(run),
        *(_success(run, *at) for at in (("after", "sampled"), ("before", "greedy"), ("after", "greedy"))),
        number(fmean(update["entropy"] for update in run.steps[-1]["updates"] if update["rows"]), 2),
    )


def _course(step: Mapping[str, Any]) -> Sequence[str]:
    calls, taken = step["rollout_calls"], _taken(step)
    updates = [update for update in step["updates"] if update["rows"]]
    first = [call for call in calls if call["role"] == "sibling" and set(call["start_turns"]) == {"0"}]
    turns = sum(call["turns"] for call in calls)
    return (
        f"{step['step']}",
        number(step["rollouts"], 0),
        number(100 * step["success"], 0),
        _mean([100 * call["success"] for call in first], 0),
        f"{sum(update['optimizer_steps'] for update in taken)}",
        _range(untied_turns([step]), 0),
        _range((update["grad_norm"] for update in taken), 2),
        _range((100 * update["clip_fraction"] for update in taken), 1),
        _mean([update["mismatch/ratio_gm"] for update in updates], 3),
        _mean([update["entropy"] for update in updates if update["trained_turns"] == [0]], 2),
        _mean([update["entropy"] for update in updates if update["trained_turns"] != [0]], 2),
        number(100 * sum(call["stops"].get("length", 0) for call in calls) / turns, 1),
        number(sum(call["generated_tokens"] for call in calls) / turns, 1),
    )


def _taken(step: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The updates that took a step of the optimizer."""
    return [update for update in step["updates"] if update["optimizer_steps"]]


def _least(run: Run) -> str:
    """Of the evaluations on the way."""
    found = run.by_question.get(("during", "sampled"))
    return NOT_RUN if found is None else number(100 * found["success"].groupby("step").mean().min(), 0)


def _success(run: Run, when: str, mode: str) -> str:
    evaluation = held_out(RunGroup(run.label, (run,)), when, mode)
    return NOT_RUN if evaluation is None else number(100 * mean_success(evaluation), 0)


def _mean(values: Sequence[float], digits: int) -> str:
    return number(fmean(values), digits) if values else NO_VALUE


def _range(values: Iterable[float], digits: int) -> str:
    shown = [number(value, digits) for value in sorted(values)]
    return NO_VALUE if not shown else shown[0] if shown[0] == shown[-1] else f"{shown[0]} to {shown[-1]}"


def _name(run: Run) -> str:
    return f"{run.folder.parent.name}/{run.folder.name}"
