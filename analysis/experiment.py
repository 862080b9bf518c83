"""The runs of one experiment: a table with a row for each configuration."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from analysis import measures
from analysis.evaluation import HELD_OUT, Evaluation, check_alike, decoded, load_evaluation
from analysis.intervals import Interval
from analysis.looks import base_of, title_of
from analysis.measures import HeldOut
from analysis.paper.estimates import estimate
from analysis.paper.quantities import QUANTITIES, cells_of, seeds_of
from analysis.records import (
    Run,
    RunGroup,
    by_label,
    complete_groups,
    incomplete_runs,
    load_run,
    load_runs,
    without_manifest,
)
from analysis.tables import INTERVALS, NOT_RUN, UNKNOWN, Column, Table, build, number, percent
from rtpo.errors import DataError
from rtpo.run import archives

RECORDED_DIGITS = 4
"""of numbers whose size is not known here"""


Cell = Callable[[RunGroup], str]
CONFIGURATION = Column("Configuration", lambda group: title_of(group.label))


def _contexts(group: RunGroup) -> str:
    manifest = group.first.manifest
    return f"{manifest['rollout_context']} / {manifest['training_context']}"


def mean(value: Callable[[Run], float], digits: int, scale: float = 1) -> Cell:
    """Over the runs of a configuration."""
    return lambda group: number(measures.mean_over_runs(group, value), digits, scale)


def _counted(*names: str) -> Cell:
    """Of the ledger's counts of tokens, the sum, in thousands."""

    def cell(group: RunGroup) -> str:
        counts: list[Any] = [run.ledger.get(name) for run in group.runs for name in names]
        return UNKNOWN if None in counts else number(sum(counts) / len(group.runs), 1, scale=1e-3)

    return cell


def _rollouts(group: RunGroup) -> str:
    charged = measures.mean_over_runs(group, lambda run: run.ledger["rollouts"])
    return f"{number(charged, 0)} / {number(group.first.ledger['budget']['rollouts'], 0)}"


def success(when: str, mode: str = "sampled") -> Cell:
    """Success on the evaluation `when` and `mode`, with its interval where answers are sampled."""

    def cell(group: RunGroup) -> str:
        evaluation = measures.held_out(group, when, mode)
        if evaluation is None:
            return NOT_RUN
        if mode == "greedy":
            return number(measures.mean_success(evaluation), 1, scale=100)
        return percent(measures.success(evaluation))

    return cell


def gain(first: HeldOut | None, second: HeldOut | None) -> str:
    """By how much the second is above the first."""
    return NOT_RUN if first is None or second is None else percent(measures.difference(first, second), sign=True)


def _questions(group: RunGroup) -> str:
    evaluation = measures.held_out(group, "after", "sampled")
    return NOT_RUN if evaluation is None else f"{evaluation.success.shape[1]:,} × {evaluation.samples}"


def _both_greedy(group: RunGroup) -> str:
    before, after = (success(when, "greedy")(group) for when in ("before", "after"))
    return NOT_RUN if before == after == NOT_RUN else f"{before} → {after}"


def _kl(group: RunGroup) -> float:
    return measures.mean_over_runs(group, lambda run: measures.mean_over_steps(run, "kl_k1"))


def _caption(groups: Sequence[RunGroup]) -> list[str]:
    return [
        f"Success is the share of held-out samples with reward 1, in percent: sampled at {HELD_OUT}, or greedy.",
        *interval_sentences(groups),
        *_without_interval(groups),
        "KL (k1, nats a token, rollout to training) is measured before each update and averaged over steps; ratio "
        "(training over rollout probability, a token) is exp(−KL) of that average; zero adv. is the share of groups "
        "whose advantages are all 0, in percent (groups differ in size between algorithms); tokens are those sampled, "
        "in rows those of the rows given to the trainer, each time, trainer and engine those that they computed, where "
        "what is shared is computed once; seconds are wall-clock, "
        "evaluation apart. Where there are several seeds, these and the counts are means over them, and the ratio is "
        "exp(−KL) of the mean KL.",
        *_ungraded(groups),
        *_budgets(groups),
        *toy_sentences(groups),
    ]


def _budgets(groups: Sequence[RunGroup]) -> list[str]:
    """That configurations may have used different amounts, where they may."""
    budgets = {json.dumps(run.ledger["budget"], sort_keys=True) for group in groups for run in group.runs}
    return ["The configurations' budgets differ."] if len(budgets) > 1 else []


def interval_sentences(groups: Sequence[RunGroup]) -> list[str]:
    """What the intervals of these configurations cover."""
    counts = sorted({len(group.runs) for group in groups})
    kind = "Brackets: 95 % intervals (Wilson's where all answers are alike)"
    if counts == [1]:
        return [f"{kind} over questions alone; 1 seed, so they say nothing about other seeds."]
    seeds = f"{' or '.join(str(count) for count in counts)} seeds"
    alone = " Those of 1 seed are over questions alone and say nothing about other seeds." if counts[0] == 1 else ""
    return [f"{kind} over questions and seeds ({seeds}). {INTERVALS}{alone}"]


def _without_interval(groups: Sequence[RunGroup]) -> list[str]:
    """What a value without brackets means, where there is one."""
    values: list[Interval | None] = []
    for group in groups:
        before, after = (measures.held_out(group, when, "sampled") for when in ("before", "after"))
        values += [measures.success(evaluation) for evaluation in (before, after) if evaluation is not None]
        if before is not None and after is not None:
            values.append(measures.difference(before, after))
    if all(value is None or value.low == value.low for value in values):
        return []
    return ["No brackets: the value, or the change, is the same for every question, which gives no interval."]


def toy_sentences(groups: Sequence[RunGroup]) -> list[str]:
    """What must be said of toy runs."""
    if all(group.first.profile != "toy" for group in groups):
        return []
    return ["Profile toy: toy-scale results, not the paper's."]


def _ungraded(groups: Sequence[RunGroup]) -> list[str]:
    evaluations = [
        measures.held_out(group, when, mode)
        for group in groups
        for when in ("before", "after")
        for mode in ("sampled", "greedy")
    ]
    count = sum(evaluation.ungraded for evaluation in evaluations if evaluation is not None)
    return [f"{count:,} samples could not be graded and are left out."] if count else []


COLUMNS = (
    CONFIGURATION,
    Column("Algorithm", lambda group: str(group.first.manifest["algorithm"])),
    Column("Context, rollout / training", _contexts),
    Column("Profile", lambda group: group.first.profile),
    Column("Seeds", lambda group: str(len(group.runs))),
    Column("Rollouts / budget", _rollouts, ("Rollouts", "Budget")),
    Column("Optimizer steps", mean(lambda run: run.ledger["optimizer_steps"], 0)),
    Column("Tokens, k", mean(lambda run: run.ledger["generated_tokens"], 1, scale=1e-3)),
    Column("In rows, k", _counted("row_tokens")),
    Column("Trainer, k", _counted("computed_tokens", "scored_tokens")),
    Column("Engine, k", _counted("prefilled_tokens", "generated_tokens")),
    Column("Questions × samples", _questions, ("Questions", "Samples")),
    Column("Sampled, before", success("before")),
    Column("Sampled, after", success("after")),
    Column("Gain", lambda group: gain(*(measures.held_out(group, when, "sampled") for when in ("before", "after")))),
    Column("Greedy", _both_greedy, ("Greedy, before", "Greedy, after")),
    Column("Ratio", lambda group: number(float(np.exp(-_kl(group))), 3)),
    Column("KL", lambda group: number(_kl(group), 4)),
    Column("Zero adv.", mean(lambda run: measures.mean_over_steps(run, "zero_advantage"), 1, scale=100)),
    Column("Seconds", mean(measures.training_seconds, 0)),
)


FREE = Column("Free rollouts", mean(lambda run: float(run.ledger.get("free_rollouts", 0)), 0))
"""beside the budget; runs of earlier versions had none"""
OF_FREE = "Free rollouts: beside the budget; a configuration that has some is a ceiling, and no method at this budget."
ABLATIONS, BASES = "ablations_", ("main_table_", "drift_")
"""before <profile>_<task>: the experiment of all ablations, and those whose configurations they change"""


def has_free(groups: Sequence[RunGroup]) -> bool:
    """Whether one of them has free rollouts."""
    return any(run.ledger.get("free_rollouts") for group in groups for run in group.runs)


def run_table(results: Path, experiment: str) -> Table:
    """A row for each configuration of an experiment, of ablations below those that they change. Raises DataError for
    records that are missing, incomplete or changed."""
    groups = complete_groups(results, experiment)
    notes, bases = [], {}
    if experiment.startswith(ABLATIONS):
        names = [base + experiment.removeprefix(ABLATIONS) for base in BASES]
        found = {one.label: one for name in reversed(names) for one in by_label(load_runs(results, name))}
        wanted = dict.fromkeys(base for group in groups if (base := base_of(group.label)) is not None)
        bases = {label: found[label] for label in wanted if label in found}
        if lacking := [title_of(label) for label in wanted if label not in found]:
            notes.append(f"No complete run of what is changed, in {' or '.join(names)}: {'; '.join(lacking)}.")
    rows = [*bases.values(), *(group for group in groups if group.label not in bases)]
    excluded = [folder.name for folder in incomplete_runs(results, experiment)]
    return _table(
        f"{experiment}_runs", f"Runs of the experiment {experiment}, by configuration.", rows, excluded, notes
    )


def folder_table(folders: Sequence[Path]) -> Table:
    """A row for each configuration of any runs, of folders of runs or of experiments, in the order of the folders.
    Raises DataError for a folder that is neither, and as `run_table` does."""
    runs, excluded = [], []
    for folder in map(Path, map(os.path.abspath, folders)):  # `.` has no name, and a relative path few parents
        results, experiment, name = folder.parent, folder.name, "*"
        if archives.exists(folder / "config.yaml"):
            results, experiment, name = folder.parents[1], folder.parent.name, folder.name
        if not (begun := archives.find(results, f"{experiment}/{name}/config.yaml")):
            raise DataError(f"{folder} holds no run: give a run's folder, or that of an experiment.")
        lacking = without_manifest(begun)
        runs += [load_run(file.parent) for file in begun if file.parent not in lacking]
        excluded += [f"{experiment}/{one.name}" for one in lacking]
    if not runs:
        raise DataError(f"{', '.join(map(str, folders))} hold no complete run: finish one of {', '.join(excluded)}.")
    experiments = dict.fromkeys(str(run.manifest["experiment"]) for run in runs)
    groups = [
        group for name in experiments for group in by_label(run for run in runs if run.manifest["experiment"] == name)
    ]
    title = f"Runs of {', '.join(experiments)}, by configuration."
    return _table("runs", title, groups, excluded, [], named=len(experiments) > 1)


def _table(
    name: str,
    title: str,
    groups: Sequence[RunGroup],
    excluded: Sequence[str],
    notes: Sequence[str],
    named: bool = False,
) -> Table:
    """named: a column says of which experiment a row is."""
    keys, benchmarks = measures.recorded(run for group in groups for run in group.runs), _benchmarks(groups)
    is_free = has_free(groups)
    columns = [
        CONFIGURATION,
        *([Column("Experiment", lambda group: str(group.first.manifest["experiment"]))] if named else []),
        *COLUMNS[1:],
        *([FREE] if is_free else []),
        *benchmarks,
        *(Column(key, mean(partial(measures.mean_over_steps, key=key), RECORDED_DIGITS)) for key in keys),
    ]
    told = [f"{measures.RECORDED}…: recorded by the algorithm, means over steps."] if keys else []
    if is_free:
        told.append(OF_FREE)
    if benchmarks:
        told.append("pass@1: of a benchmark, in percent, at the decoding that the column names, questions × samples.")
    table = build(name, columns, groups, [title, *_caption(groups), *told], excluded)
    return replace(table, notes=(*table.notes, *notes), labels=1 + named)


def _benchmarks(groups: Sequence[RunGroup]) -> list[Column]:
    """A column for each benchmark and decoding that final policies were evaluated with, wherever the evaluation lies:
    in the run's folder, or elsewhere under its results. Raises DataError for two of a run that one column would hold.
    """
    found: dict[str, dict[Path, Evaluation]] = {}
    for results in dict.fromkeys(run.folder.parents[1] for group in groups for run in group.runs):
        runs = {
            f"{run.folder.parent.name}/{run.folder.name}": run
            for group in groups
            for run in group.runs
            if run.folder.parents[1] == results
        }
        for file in archives.find(results, "*/*/*/samples.jsonl"):
            if not archives.exists(file.with_name("manifest.json")):
                continue
            one = load_evaluation(file.parent)
            made_of, panel = one.manifest["checkpoint"], one.manifest["panel"]
            run = runs.get(made_of.get("run"))
            if run is not None and made_of["policy_version"] == run.manifest["policy_version"]:
                size = f"{panel['questions']:,} × {one.manifest['samples']}"
                context = one.manifest["rollout_context"]
                played = f", context {context}" if context != run.manifest["rollout_context"] else ""
                title = f"{one.manifest['benchmark']} pass@1, {decoded(one.manifest['decoding'])}{played}, {size}"
                other = found.setdefault(title, {}).setdefault(run.folder, one)
                if other is not one:
                    raise DataError(
                        f"{other.folder} and {one.folder} are both of {run.folder} and {title}: move one of them out "
                        f"of {results}."
                    )
    return [Column(title, partial(_pass_at_1, of_run=of_run)) for title, of_run in sorted(found.items())]


def _pass_at_1(group: RunGroup, of_run: Mapping[Path, Evaluation]) -> str:
    there = [run for run in group.runs if run.folder in of_run]
    if not there:
        return NOT_RUN
    check_alike([of_run[run.folder] for run in there])
    cells = cells_of(
        QUANTITIES["pass_at_1"], [of_run[run.folder].samples for run in there], seeds_of(there), "questions"
    )
    made = replace(cells, scale=1.0)
    low, high = (value := estimate(made)).interval
    shown = percent(Interval(value.value, low, high, len(there), made.count, len(there) == 1))
    return shown if len(there) == len(group.runs) else f"{shown} ({len(there)} of {len(group.runs)} seeds)"
