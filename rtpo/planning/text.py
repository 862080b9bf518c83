"""A plan in ten lines, or in words and one table."""

import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from rtpo.planning.data import GIB, Episodes
from rtpo.planning.plan import Plan, PlanRow
from rtpo.run.run import duration

UNKNOWN = "unknown"
HEADER = (
    *("Element", "Seeds", "Rollouts", "a task", "worst", "Epochs", "Steps", "Optimizer steps", "Syncs", "Rows"),
    *("Generated, M", "Trained, M", "Computed, M", "of rows", "of flattened", "Scored, M"),
    *("Evaluation", "its tokens, M", "GPU, GiB", "KV tokens a path", "Host, GiB", "Disk, GiB"),
    "Fits",
)


def summary(plan: Plan) -> str:
    """What it costs in all, and what does not fit."""
    rows, count = plan.rows, sum(row.count for row in plan.rows)
    hours = _hours(plan)
    generated = _generated(plan.sum(lambda row: row.counts.generated), plan.sum(lambda row: row.counts.free))
    played = _millions(plan.sum(lambda row: row.evaluation_tokens))
    computed, of_rows, of_flattened = _computed(plan)
    ratios = f" in trees, {of_rows} of those of rows, {of_flattened} of flattened history's"
    rollouts = plan.sum(lambda row: row.rollouts), plan.sum(lambda row: row.evaluation_rollouts)
    if plan.hardware is None:
        time = f"GPU-hours: none. Time on a CPU: {_split(_time, *hours)} (as records beside took, where they are)"
        memory = f"Memory: {plan.memory_gb} GiB are asked for"
    else:
        count_of = plan.hardware.gpus
        times = [None if one is None else one / count_of for one in hours]
        time = f"GPU-hours: {_split(_number, *hours)} (at what the paper's took for a rollout of training)\n"
        time += f"Time on {plan.hardware.title}: {_split(_time, *times)}, one element after another"
        memory = f"Memory: {_gib(_most(row.gpu for row in rows))} GiB a GPU at most, of {count_of} x "
        memory += f"{plan.hardware.memory_gib:.0f}; "
        memory += f"{_gib(_most(row.host for row in rows))} GiB of the node, of {plan.memory_gb} asked for; "
        memory += f"{_number(_least(row.cache_a_path for row in rows if row.counts.at_once != 0))} KV tokens a path"
    misfits = []
    if large := sum(row.count for row in rows if row.problems):
        misfits.append(f"{large} of {count} elements")
    disk, in_turn = plan.sum(lambda row: row.disk), plan.disk_in_turn
    free = shutil.disk_usage(next(place for place in (plan.results, *plan.results.parents) if place.exists())).free
    if in_turn is not None and in_turn > free:
        misfits.append("the disk (save.keep, another results folder, fewer elements)")
    unseen = "" if plan.hardware else "; of memory, the masks of trees alone were looked at"
    lines = [
        f"Plan of {plan.experiment}, profile {plan.profile}: {count} elements of {', '.join(_models(plan))}",
        time,
        f"Rollouts: {_split(_number, *rollouts)}",
        f"Generated tokens, M: {generated} of training, {played} of evaluation",
        f"Tokens that updates compute, M: {computed}{ratios if computed != UNKNOWN else ''}",
        memory,
        f"Disk: saves of {_gib(in_turn)} GiB, one element after another; {_gib(disk)} if all run at once; {_gib(free)} "
        "are free",
        f"Does not fit: {', and '.join(misfits) or 'nothing was found that does not'}{unseen}",
        "An estimate, not a measurement (docs/cluster/planning.md); --full has every element and why it does not fit.",
    ]
    return "\n".join(lines) + "\n"


def _split(said: Callable[[float | None], str], training: float | None, evaluation: float | None) -> str:
    return f"{said(training)} of training, {said(evaluation)} of evaluation"


def _time(hours: float | None) -> str:
    return UNKNOWN if hours is None else duration(3600 * hours)


def _most(values: Iterable[float | None]) -> float | None:
    found = list(values)
    return None if None in found else max(value for value in found if value is not None)


def _least(values: Iterable[float | None]) -> float | None:
    found = list(values)
    return None if None in found or not found else min(value for value in found if value is not None)


def _models(plan: Plan) -> Sequence[str]:
    return list(dict.fromkeys(row.model for row in plan.rows))


def render(plan: Plan) -> str:
    """All of a plan. Numbers are of one element; elements that differ in seed are one line with their count."""
    lines = [HEADER, *(_line(row) for row in plan.rows), _total(plan)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    padded = [_cells([cell.ljust(width) for cell, width in zip(line, widths, strict=True)]) for line in lines]
    padded.insert(1, _cells(["-" * width for width in widths]))
    return "\n\n".join([_title(plan), "\n".join(padded), *_problems(plan), _assumed(plan)]) + "\n"


def _title(plan: Plan) -> str:
    where = f", on {plan.hardware.title}" if plan.hardware else ""
    models = ", ".join(_models(plan))
    return (
        f"Plan of {plan.experiment}, profile {plan.profile}{where}; {models}. Of one element; M is millions of tokens."
    )


def _line(row: PlanRow) -> tuple[str, ...]:
    counts = row.counts
    return (
        f"{row.label}, {row.task}" + ("" if row.in_paper else " *"),
        str(row.count),
        f"{row.rollouts:,}",
        _number(counts.per_task, 1),
        str(row.worst),
        _number(row.epochs, 2),
        *(_number(value) for value in (counts.steps, counts.optimizer_steps, counts.syncs, counts.rows)),
        _generated(counts.generated, counts.free),
        *(_millions(value) for value in (counts.trained, counts.computed)),
        *(_ratio(counts.computed, value) for value in (counts.in_rows, counts.flattened)),
        _millions(counts.scored),
        _number(row.evaluation_rollouts),
        _millions(row.evaluation_tokens),
        *((_gib(row.gpu), _cached(row), _gib(row.host)) if row.gpu is not None else ("none", "-", "-")),
        _gib(row.disk),
        "no" if row.problems else "yes" if row.gpu is not None else "-",
    )


def _cached(row: PlanRow) -> str:
    return "-" if row.counts.at_once == 0 else _number(row.cache_a_path)


def _total(plan: Plan) -> tuple[str, ...]:
    return (
        "Total of all elements",
        _number(sum(row.count for row in plan.rows)),
        _number(plan.sum(lambda row: row.rollouts)),
        *("", "", "", "", ""),
        _number(plan.sum(lambda row: row.counts.syncs)),
        _number(plan.sum(lambda row: row.counts.rows)),
        _generated(plan.sum(lambda row: row.counts.generated), plan.sum(lambda row: row.counts.free)),
        _millions(plan.sum(lambda row: row.counts.trained)),
        *_computed(plan),
        _millions(plan.sum(lambda row: row.counts.scored)),
        _number(plan.sum(lambda row: row.evaluation_rollouts)),
        _millions(plan.sum(lambda row: row.evaluation_tokens)),
        *("", "", ""),
        _gib(plan.sum(lambda row: row.disk)),
        "",
    )


def _computed(plan: Plan) -> tuple[str, str, str]:
    """Millions of tokens that optimizer steps compute in trees; their ratio to those of rows and of flattened rows."""
    in_trees = plan.sum(lambda row: row.counts.computed)
    in_rows, flattened = plan.sum(lambda row: row.counts.in_rows), plan.sum(lambda row: row.counts.flattened)
    return _millions(in_trees), _ratio(in_trees, in_rows), _ratio(in_trees, flattened)


def _hours(plan: Plan) -> tuple[float | None, float | None]:
    return plan.sum(lambda row: row.hours), plan.sum(lambda row: row.evaluation_hours)


def _problems(plan: Plan) -> list[str]:
    """Why elements do not fit, once each with all that it holds for."""
    found: dict[str, list[str]] = defaultdict(list)
    for row in plan.rows:
        for problem in row.problems:
            found[problem].append(f"{row.label}, {row.task}")
    return [f"Does not fit ({'; '.join(names)}): {problem}" for problem, names in found.items()]


def _assumed(plan: Plan) -> str:
    lines = ["* not in the paper's table."] if not all(row.in_paper for row in plan.rows) else []
    for task, drawn in plan.episodes.items():
        if drawn is None:
            lines.append(f"{task}: what episodes are like is unknown, and what depends on it.")
            continue
        named = [
            f"{what} {_number(value, digits)}"
            for what, value, digits in (
                ("turns", drawn.turns, 2),
                ("tokens of a turn", drawn.tokens_per_turn, 0),
                (f"of a prompt {_measured(drawn)}", drawn.prompt_tokens, 0),
                ("of a turn's feedback", drawn.feedback_tokens, 0),
            )
        ]
        lines.append(f"{task}: episodes are taken to have, in the mean, {', '.join(named)}.")
    lines.append(
        f"Asked of a node: {plan.memory_gb} GiB of memory. Disk is of all saves at once; {_gib(plan.disk_in_turn)} GiB "
        "when elements run one after another. An estimate, not a measurement (docs/cluster/planning.md). GPU-hours: "
        f"{_split(_number, *_hours(plan))}."
    )
    return "\n".join(lines)


def _measured(drawn: Episodes) -> str:
    return "(assumed)" if drawn.measured_on is None else f"(measured on {drawn.measured_on})"


def _cells(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _number(value: float | None, digits: int = 0) -> str:
    return UNKNOWN if value is None else f"{value:,.{digits}f}"


def _millions(value: float | None) -> str:
    return UNKNOWN if value is None else _number(value / 1e6, 0 if value >= 1e7 else 2)


def _generated(charged: float | None, free: float | None) -> str:
    return _millions(charged) + (f" + {_millions(free)} beside the budget" if free else "")


def _ratio(value: float | None, of: float | None) -> str:
    return UNKNOWN if value is None or of is None else _number(value / of, 2) if of else "-"


def _gib(value: float | None) -> str:
    return UNKNOWN if value is None else _number(value / GIB, 0 if value >= GIB else 3)
