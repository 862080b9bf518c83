"""A plan in words and tables."""

from collections.abc import Iterable, Sequence

from rtpo.planning import Calibration, Fit, Plan, PlanRow
from rtpo.planning_data import GIB, Range, all_hardware

UNKNOWN = "unknown"
NO_GPU = "none"
NEVER_RUN = "An estimate, not a measurement: nothing was run at the paper's scale."

FROM_RECORDS = "An estimate, from the medians of finished runs of the same configuration where there are any."


def render(plan: Plan) -> str:
    """All of a plan. Numbers are of one element; elements that differ in seed are one line with their count."""
    parts = [
        f"Plan of {plan.experiment}, profile {plan.profile}: {plan.total.elements} elements. "
        + (NEVER_RUN if plan.hardware else FROM_RECORDS),
        "Counts (of one element)\n" + _counts(plan.rows),
        "Tokens in millions (of one element)\n" + _tokens(plan.rows),
        _cost_title(plan) + "\n" + _costs(plan),
    ]
    if plan.hardware:
        parts.append("Machines\n" + _fits(plan.rows))
    parts += [_total(plan), *_unknown(plan), "Where the numbers come from\n" + sources(plan)]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def summary(plan: Plan) -> str:
    """One line an element, for a page."""
    rows = [
        (
            _name(row),
            str(row.count),
            _count(row.budget),
            f"{_figure(row.per_task, 1)} / {row.worst}",
            _figure(row.epochs, 2),
            _millions(row.tokens.generated if row.tokens else None),
            _range(row.gpu_hours, 0),
            _gib(row.memory.peak_bytes if row.memory else None),
            _gib(row.host),
            _gib(row.disk),
        )
        for row in plan.rows
    ]
    total = plan.total
    rows.append(
        (
            "**Total**",
            str(total.elements),
            _count(total.rollouts),
            "",
            "",
            _millions(total.generated),
            _range(total.gpu_hours, 0),
            "",
            "",
            _gib(total.disk),
        )
    )
    header = (
        "Element",
        "Seeds",
        "Rollouts",
        "A task: expected / worst",
        "Epochs",
        "Generated, M tokens",
        "GPU-hours",
        "GPU, GiB",
        "Host, GiB",
        "Disk, GiB",
    )
    left_out = f"\nThe total leaves out: {'; '.join(total.left_out)}.\n" if total.left_out else ""
    return table(header, rows) + left_out


def machines(plans: Iterable[Plan]) -> str:
    """Which models fit which machine, once each."""
    seen: dict[tuple[str, ...], None] = {}
    titles = {name: machine.title for name, machine in all_hardware().items()}
    for plan in plans:
        for row in plan.rows:
            kind = "trained" if row.worst else "evaluated alone"
            stays = "vLLM stays awake" if _stays_awake(row) else ""
            where = ", ".join(one for one in (kind, stays) if one)
            for fit in row.fits:
                seen[(row.model, row.task, where, titles[fit.hardware], fit.status, fit.why)] = None
    return table(("Model", "Task", "How", "Machine", "Verdict", "Why"), list(seen))


def _stays_awake(row: PlanRow) -> bool:
    return row.memory is not None and any(part.name.startswith("vLLM") for part in row.memory.update)


def calibration_text(found: Calibration) -> str:
    """The fitted parameter, and the hours beside the paper's."""
    rows = [
        (one.name, kind, f"{one.paper:g}", f"{one.modelled:.2f}", f"{100 * one.error:+.0f} %")
        for kind, several in (("fitted", found.residuals), ("check only", found.checks))
        for one in several
    ]
    return (
        f"{found.parameter} = {found.value:.3f} ({found.meaning}), fitted to: {found.source}. Checks: "
        f"{found.checks_source}; bound by the user simulator, which this model leaves out.\n\n"
        + table(("Hours", "Use", "Paper", "Model", "Error"), rows)
    )


def assumptions_text(plan: Plan) -> str:
    """What is assumed, with sources."""
    rows = [(one.name, _ends(one.range), one.unit, one.source) for one in plan.assumptions]
    for env, known in plan.episodes.items():
        for name, value in (
            ("turns", known.turns),
            ("tokens_per_turn", known.tokens_per_turn),
            ("prompt_tokens", Range(*[known.prompt_tokens] * 3)),
            ("feedback_tokens", Range(*[known.feedback_tokens] * 3)),
            ("tool_seconds", known.tool_seconds),
        ):
            rows.append((f"{env}: {name}", _ends(value), "", known.source if name == "turns" else "as above"))
    return table(("Assumption", "Low, middle, high", "Unit", "Source"), rows)


def sources(plan: Plan) -> str:
    """Formula, assumption, calibration or record, for each kind of number."""
    if plan.hardware is None:
        records = ", ".join(f"{row.label} on {row.task} {row.records}" for row in plan.rows if row.records)
        return (
            f"Records: medians over finished runs of the same algorithm, task and model ({records or 'none'}); hours "
            "with the least and the most of them, on the machine that they ran on. Without a record: counts from the "
            "algorithm's own step on drawn episodes, hours unknown. Steps: the run's own rule, from the budget. "
            "Evaluation: the configuration; its seconds from the records. Disk: 12 bytes a parameter a save. Memory "
            "and scored tokens: unknown."
        )
    assert plan.calibration is not None
    return (
        f"Hours are of {plan.hardware.title} ({plan.hardware.source}). Counts: the algorithm's own step, run on drawn "
        "episodes; steps by the run's own rule, from the budget. Memory, disk: formulas of the model's shape and "
        "verl's settings. Hours: a formula with one fitted parameter; the range moves one assumption at a time to its "
        "ends, fits anew, widens both ends by the fit's largest error and the upper one by the margin "
        "(docs/planning.md).\n\n" + calibration_text(plan.calibration) + "\n" + assumptions_text(plan)
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _counts(rows: Sequence[PlanRow]) -> str:
    header = (
        "Element",
        "Model",
        "Seeds",
        "Rollouts",
        "A task: expected",
        "Worst",
        "Prompts",
        "Epochs",
        "Steps",
        "Optimizer steps",
        "Syncs",
        "Evaluation rollouts",
    )
    return table(
        header,
        [
            (
                _name(row),
                row.model,
                str(row.count),
                _count(row.budget),
                _figure(row.per_task, 1),
                str(row.worst),
                _count(row.prompts),
                _figure(row.epochs, 2),
                _count(row.steps),
                _count(row.optimizer_steps),
                _count(row.syncs),
                _count(row.evaluation.rollouts),
            )
            for row in rows
        ],
    )


def _tokens(rows: Sequence[PlanRow]) -> str:
    header = ("Element", "Generated", "Trained", "Scored", "Prefix computed again", "Evaluation")
    return table(
        header,
        [
            (
                _name(row),
                *(
                    _millions(value)
                    for value in (
                        (row.tokens.generated, row.tokens.trained, row.tokens.scored, row.tokens.recomputed)
                        if row.tokens
                        else [None] * 4
                    )
                ),
                _figure(row.evaluation.tokens / 1e6 if row.evaluation.tokens is not None else None, 2),
            )
            for row in rows
        ],
    )


def _cost_title(plan: Plan) -> str:
    where = plan.hardware.title if plan.hardware else "the machine of the records, one process"
    return f"Hours on {where}, and memory and disk in GiB (of one element)"


def _costs(plan: Plan) -> str:
    total = "GPU-hours" if plan.hardware else "Hours in all"
    header = ("Element", "Training", "Saving", "Evaluation", total, "GPU: update", "GPU: generation", "Host", "Disk")
    digits = 1 if plan.hardware else 3
    return table(
        header,
        [
            (
                _name(row),
                _range(row.hours.training, digits),
                _range(row.hours.saving, digits),
                _range(row.hours.evaluation, digits),
                _range(row.gpu_hours, digits),
                _gib(row.memory.update_bytes) if row.memory else NO_GPU,
                _gib(row.memory.generation_bytes) if row.memory else NO_GPU,
                _gib(row.host) if row.host is None else f"{_gib(row.host)} of {_gib(row.host_asked)} asked for",
                _gib(row.disk),
            )
            for row in plan.rows
        ],
    )


def _fits(rows: Sequence[PlanRow]) -> str:
    names = all_hardware()

    def verdict(fit: Fit) -> str:
        return f"{fit.status}: {fit.why}"

    return table(
        ("Element", *(machine.title for machine in names.values())),
        [(_name(row), *(verdict(fit) for fit in row.fits)) for row in rows],
    )


def _total(plan: Plan) -> str:
    total = plan.total
    hours = "GPU-hours" if plan.hardware else "hours"
    digits = 0 if plan.hardware else 2
    return (
        f"Total of {total.elements} elements: {_count(total.rollouts)} rollouts, {_millions(total.generated)} million "
        f"generated tokens, {_count(total.evaluation_rollouts)} evaluation rollouts, {_range(total.gpu_hours, digits)} "
        f"{hours}, {_gib(total.disk)} GiB of disk for all saves at once."
        + (f"\nIt leaves out: {'; '.join(total.left_out)}." if total.left_out else "")
    )


def _unknown(plan: Plan) -> list[str]:
    found = dict.fromkeys(what for row in plan.rows for what in row.unknown)
    return [f"Unknown: {'; '.join(found)}."] if found else []


def _name(row: PlanRow) -> str:
    return f"{row.label}, {row.task}" + ("" if row.in_paper else " (not in the paper's table)")


def _count(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.0f}"


def _figure(value: float | None, digits: int) -> str:
    return UNKNOWN if value is None else f"{value:,.{digits}f}"


def _range(value: Range | None, digits: int) -> str:
    if value is None:
        return UNKNOWN
    low, mid, high = (f"{one:,.{digits}f}" for one in (value.low, value.mid, value.high))
    return mid if low == mid == high else f"{low} to {high}, {mid}"


def _millions(value: Range | None) -> str:
    return UNKNOWN if value is None else _range(value.times(1e-6), 2 if value.high < 1e7 else 0)


def _ends(value: Range | None) -> str:
    if value is None:
        return UNKNOWN
    if value.low == value.high:
        return f"{value.mid:g}"
    return f"{value.low:g}, {value.mid:g}, {value.high:g}"


def _gib(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value / GIB:,.0f}" if value >= GIB else f"{value / GIB:.3f}"
