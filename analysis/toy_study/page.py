"""The toy study's tables and the generated part of its page, from its run records."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis import measures
from analysis.experiment import CONFIGURATION, gain, greedy, mean, sampled, toy_sentences
from analysis.figures.paper_figures import FIGURES
from analysis.figures.sources import STUDY_NAME
from analysis.looks import TASKS
from analysis.pages.markdown import ruled
from analysis.records import Run, RunGroup
from analysis.study.records import StudyRecords, learning_rate, missing_lines
from analysis.tables import (
    INTERVALS,
    NO_VALUE,
    NOT_RUN,
    Column,
    Table,
    bold,
    build,
    markdown,
    number,
    percent,
)
from analysis.toy_study.claims import claims_table, generated_tokens, mean_context_ratio, verdict_lines

NAME = "toy_study"
CONTROL = "grpo_exact"
EDGE = "†"
DECODINGS = {
    "sampled": "sampled success",
    "paper": "success at the paper's decoding",
    "greedy": "greedy success",
}
SHOWN = ("success", "consistency", "mismatch_by_turn", "ties")
OTHER_FIGURES = (
    "Of the runs from the first warm start of each task, which the tables have beside those from the second. What each "
    "shows is said on the [page of all figures](figures.md), which has group sizes and synchronisation, too."
)
"""under the title of the study's figures"""


@dataclass(frozen=True, eq=False)
class _TaskCells:
    """The cells of a task's table that need more than their configuration's runs."""

    records: StudyRecords
    task: str

    def runs(self, group: RunGroup) -> str:
        return f"{len(group.runs)} of {len(self.records.places(self.task, group.label))}"

    def part(self, group: RunGroup) -> str:
        planned = ((part, place) for part in self.records.study.trained for place in self.records.planned[part])
        return next(part for part, place in planned if place.configuration.label == group.label).removesuffix("s")

    def rate(self, group: RunGroup) -> str:
        rate = learning_rate(group.first)
        tried = self.records.tried(self.task, group.label)
        return f"{rate:g} {EDGE}" if rate in (tried[0], tried[-1]) else f"{rate:g}"

    def seconds_ratio(self, group: RunGroup) -> str:
        return self._of_pairs(
            group, lambda control, own: number(measures.median_ratio(control, own, measures.training_seconds), 2)
        )

    def by_warm_start(self, group: RunGroup) -> str:
        experiments = dict.fromkeys(place.experiment for place in self.records.places(self.task, group.label))
        of_each = [
            tuple(run for run in group.runs if run.manifest["experiment"] == experiment) for experiment in experiments
        ]
        return " / ".join(
            number(_mean_after(RunGroup(group.label, runs)), 1, scale=100) if runs else NOT_RUN for runs in of_each
        )

    def difference(self, group: RunGroup) -> str:
        if group.label == CONTROL:
            return NO_VALUE
        return self._of_pairs(group, _difference)

    def pairs(self, group: RunGroup) -> str:
        return NO_VALUE if group.label == CONTROL else self._of_pairs(group, lambda _, own: str(len(own.runs)))

    def _of_pairs(self, group: RunGroup, text: Callable[[RunGroup, RunGroup], str]) -> str:
        control = self.records.group(self.task, CONTROL)
        if control is None:
            return NOT_RUN
        pair = measures.paired(control, group)
        return text(*pair) if pair[0].runs else NOT_RUN


def _mean_after(group: RunGroup) -> float:
    evaluation = measures.held_out(group, "after", "sampled")
    return float("nan") if evaluation is None else measures.mean_success(evaluation)


def _difference(control: RunGroup, own: RunGroup) -> str:
    return gain(*(measures.held_out(group, "after", "sampled") for group in (control, own)))


def _of_steps(key: str) -> Callable[[Run], float]:
    return lambda run: measures.mean_over_steps(run, key)


def _has_residual(groups: Sequence[RunGroup]) -> bool:
    return any(measures.mean_over_runs(group, _of_steps("residual")) > 0 for group in groups)


def _residual(group: RunGroup) -> str:
    return mean(_of_steps("residual"), 3)(group) if _has_residual([group]) else NO_VALUE


def task_table(records: StudyRecords, task: str) -> Table | None:
    """A row for each configuration of a task with finished runs; None without any."""
    groups = records.groups[task]
    if not groups:
        return None
    cells = _TaskCells(records, task)
    columns = (
        CONFIGURATION,
        Column("Part", cells.part),
        Column("Runs", cells.runs),
        Column("Learning rate", cells.rate),
        Column("Rollouts", mean(lambda run: float(run.ledger["rollouts"]), 0)),
        Column("Optimizer steps / 1k rollouts", mean(_steps_a_thousand, 1)),
        Column("Tokens, k", mean(generated_tokens, 1, scale=1e-3)),
        Column("Seconds", mean(measures.training_seconds, 0)),
        Column("Seconds / exact GRPO's", cells.seconds_ratio),
        Column("Sampled, before", sampled("before")),
        Column("Sampled, after", sampled("after")),
        Column("After, by warm start", cells.by_warm_start),
        Column("Difference to exact GRPO", cells.difference),
        Column("Pairs", cells.pairs),
        Column("Greedy, before", greedy("before")),
        Column("Greedy, after", greedy("after")),
        Column("Context ratio", mean(mean_context_ratio, 3)),
        Column("KL", mean(_of_steps("kl_k1"), 4)),
        Column("Zero adv.", mean(_of_steps("zero_advantage"), 1, scale=100)),
        *([Column("Residual", _residual)] if _has_residual(groups) else []),
    )
    unfinished = [
        place for part in records.study.trained for place in records.unfinished(part) if records.is_begun(place)
    ]
    begun = [str(place) for place in unfinished if place.experiment in _experiments(records, task)]
    return build(f"{NAME}_{task}", columns, groups, _caption(records, task), begun)


def _experiments(records: StudyRecords, task: str) -> list[str]:
    places = (place for part in records.study.trained for place in records.planned[part])
    return list(dict.fromkeys(place.experiment for place in places if place.task == task))


def _steps_a_thousand(run: Run) -> float:
    return 1e3 * float(run.ledger["optimizer_steps"]) / float(run.ledger["rollouts"])


def _caption(records: StudyRecords, task: str) -> list[str]:
    groups = records.groups[task]
    evaluations = [measures.held_out(group, "after", "sampled") for group in groups]
    sizes = sorted({f"{e.success.shape[1]:,} × {e.samples}" for e in evaluations if e is not None})
    cpus = ", ".join(str(n) for n in sorted({run.manifest["machine"]["logical_cpus"] for run in records.runs}))
    ungraded = sum(
        evaluation.ungraded
        for group in groups
        for when in ("before", "after")
        for mode in ("sampled", "greedy")
        if (evaluation := measures.held_out(group, when, mode)) is not None
    )
    residual = "Residual: mean squared error of the squared pair loss, over steps." if _has_residual(groups) else ""
    warm_starts = _experiments(records, task)
    return [
        f"The toy study on {TASKS[task].lower()}: the core, the rest, the controls.",
        f"Runs: finished of planned; warm starts ({', '.join(warm_starts)}) times seeds.",
        f"{EDGE}: the learning rate is the lowest or the highest that was tried for the configuration.",
        f"Success is the share of held-out samples with reward 1, in percent: sampled at temperature 1 (questions × "
        f"samples: {', '.join(sizes)}), or greedy.",
        f"Brackets: 95 % intervals (Wilson's where all answers are alike) over runs and questions. {INTERVALS} The "
        "warm starts are too few to carry an interval of their own, so the means after training on each stand beside. "
        "All runs weigh alike.",
        "Difference: sampled success after training minus that of GRPO with exact contexts, in points, paired by warm "
        "start, seed and question; pairs: how many.",
        f"Seconds: wall-clock, evaluation apart, two runs side by side on one machine (logical CPUs: {cpus}); their "
        "ratio is the median over the same pairs.",
        "Context ratio (training over rollout probability, a token): exp(−KL) of the part of the KL that the training "
        "context makes. KL (k1, nats a token, rollout to training): all of it, also what the weights have moved since "
        "they sampled. Both are measured before each update and averaged over steps and runs.",
        "Zero adv.: share of groups whose advantages are all 0, in percent (groups differ in size between algorithms).",
        *([residual] if residual else []),
        *([f"{ungraded:,} samples could not be graded and are left out."] if ungraded else []),
        *toy_sentences(groups),
    ]


def rates_table(records: StudyRecords) -> Table | None:
    """The learning-rate search: a row a task and configuration, a column a rate; None without a run."""
    if not records.search:
        return None
    decoding, seeds = records.study.decoding, [str(seed) for seed in records.study.seeds]
    alone = len(seeds) == 1

    def cell(rate: float) -> Callable[[RunGroup], str]:
        def text(group: RunGroup) -> str:
            runs = tuple(run for run in group.runs if learning_rate(run) == rate)
            evaluation = measures.held_out(RunGroup(group.label, runs), "after", decoding)
            if evaluation is None:
                return NOT_RUN
            shown = percent(measures.success(evaluation))
            chosen = records.chosen.get((str(group.first.manifest["task"]), group.label))
            return bold(shown) if chosen == rate else shown

        return text

    groups = sorted(records.search.values(), key=lambda group: records.tasks.index(str(group.first.manifest["task"])))
    rates = sorted({*records.grid, *(learning_rate(run) for group in groups for run in group.runs)})
    other = ", ".join(f"{rate:g}" for rate in rates if rate not in records.grid)
    columns = (
        Column("Task", lambda group: TASKS[str(group.first.manifest["task"])]),
        CONFIGURATION,
        *(Column(f"{rate:g}", cell(rate)) for rate in rates),
    )
    of_questions = {run.evaluations["task"].nunique() for group in groups for run in group.runs}
    questions = ", ".join(str(count) for count in sorted(of_questions))
    caption = (
        f"The learning-rate search: {DECODINGS[decoding]} after training on the validation split, in percent, "
        f"{'one run' if alone else f'{len(seeds)} runs'} a cell (seed{'' if alone else 's'} {', '.join(seeds)}, first "
        f"warm start, {questions} questions). Brackets: 95 % intervals over "
        f"{'questions alone, which say nothing about other seeds' if alone else 'runs and questions'}. Bold: the "
        f"rate the study uses, the best of {', '.join(f'{rate:g}' for rate in records.grid)}, of equals the lowest."
        f"{f' Runs at {other} are of an earlier grid.' if other else ''}"
    )
    begun = [str(place) for place in records.unfinished("rates") if records.is_begun(place)]
    return build(f"{NAME}_rates", columns, groups, [caption, *toy_sentences(groups)], begun)


def tables(records: StudyRecords) -> list[Table]:
    """Every table of the study that has records."""
    made = [*(task_table(records, task) for task in records.tasks), rates_table(records)]
    return [*([claims_table(records)] if records.runs else []), *(table for table in made if table is not None)]


def summary(records: StudyRecords) -> str:
    """How many runs there are, and how they were made."""
    counts = [
        (part, *(number(count, 0) for count in (len(planned) - len(records.unfinished(part)), len(planned))))
        for part, planned in records.planned.items()
    ]
    table, runs = ruled(("Part", "Runs finished", "Of"), counts), records.every_run
    if not runs:
        return table
    hours = sum(float(run.manifest["wall_seconds"]) for run in runs) / 3600
    return f"{table}\nTraining and evaluation took {number(hours, 1)} h, run by run.\n"


def page(records: StudyRecords) -> str:
    """The generated part of docs/results/toy_study.md, which shows figures of docs/results/figures.md."""
    if not records.runs and not records.search:
        return f"{NOT_RUN}\n"
    by_task = [(f"## {TASKS[task]}", task_table(records, task)) for task in records.tasks]
    verdicts = claims_table(records) if records.runs else None
    figures = "\n".join(
        f"![{FIGURES[name].title}. Toy scale, not the paper's results.](figure_{name}_{STUDY_NAME}.png)\n"
        for name in SHOWN
    )
    sections = [
        ("## Runs", summary(records)),
        ("## Verdicts", _shown(verdicts)),
        *((title, _shown(table)) for title, table in by_task),
        ("## Figures", f"{OTHER_FIGURES}\n\n{figures}" if records.runs else f"{NOT_RUN}\n"),
        ("## Learning rates", _shown(rates_table(records))),
        ("## Not run", "".join(f"- {line}\n" for line in missing_lines(records)) or "Nothing is missing.\n"),
    ]
    return "\n".join(f"{title}\n\n{text}" for title, text in sections)


def verdicts(records: StudyRecords) -> str:
    """The claims by verdict."""
    return verdict_lines(records) if records.runs else f"{NOT_RUN}\n"


def _shown(table: Table | None) -> str:
    return f"{NOT_RUN}\n" if table is None else markdown(table)


def settings(file: Path) -> str:
    """The study file."""
    return f"```yaml\n{file.read_text(encoding='utf-8')}```\n"
