"""Tables of a study: its configurations on a task, at their own rates and at one for all, and the search for rates."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from analysis import measures
from analysis.experiment import CONFIGURATION, FREE, OF_FREE, gain, has_free, mean, success, toy_sentences
from analysis.looks import TASKS, title_of
from analysis.measures import HeldOut
from analysis.pages.markdown import ruled
from analysis.records import MODES, Run, RunGroup
from analysis.study.records import StudyRecords, learning_rate
from analysis.tables import INTERVALS, NO_VALUE, NOT_RUN, Column, Table, bold, build, markdown, number, percent
from rtpo.engines.base import PAPER_DECODING

CONTROL = "grpo_exact"
EDGE = "†"
BOTH_WHEN = ("before", "after")


@dataclass(frozen=True)
class Decoding:
    """How an evaluation's mode is named: over a column, as a measure, and in a sentence."""

    title: str
    success: str
    said: str


DECODINGS = {
    "sampled": Decoding("Sampled", "sampled success", "at temperature 1"),
    "paper": Decoding("Paper's decoding", "success at the paper's decoding", "at the paper's decoding"),
    "greedy": Decoding("Greedy", "greedy success", "greedily"),
}
OF_PAPER = f"temperature {PAPER_DECODING.temperature:g}, top-p {PAPER_DECODING.top_p:g}"


def modes(records: StudyRecords, groups: Iterable[RunGroup]) -> list[str]:
    """The study's own decoding, and the others, the paper's where it is evaluated."""
    own = records.study.decoding
    is_at_papers = any(("after", "paper") in run.by_question for group in groups for run in group.runs)
    return [own, *(mode for mode in MODES if mode != own and (mode != "paper" or is_at_papers))]


@dataclass(frozen=True, eq=False)
class _Cells:
    """The cells of a task's rows that need more than their configuration's runs. is_common: they are at the one rate
    that all share."""

    records: StudyRecords
    task: str
    is_common: bool = False

    @property
    def decoding(self) -> str:
        return self.records.study.decoding

    def runs(self, group: RunGroup) -> str:
        planned = self.records.places(self.task, group.label, is_common=self.is_common)
        return f"{len(group.runs)} of {len(planned)}"

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

    def by_warm_start(self, group: RunGroup, when: str = "after") -> str:
        experiments = dict.fromkeys(place.experiment for place in self.records.places(self.task, group.label))
        of_each = [
            tuple(run for run in group.runs if run.manifest["experiment"] == experiment) for experiment in experiments
        ]
        return " / ".join(
            number(self._mean(RunGroup(group.label, runs), when), 1, scale=100) if runs else NOT_RUN for runs in of_each
        )

    def difference(self, group: RunGroup) -> str:
        if group.label == CONTROL:
            return NO_VALUE
        return self._of_pairs(group, lambda control, own: gain(self._after(control), self._after(own)))

    def pairs(self, group: RunGroup) -> str:
        return NO_VALUE if group.label == CONTROL else self._of_pairs(group, lambda _, own: str(len(own.runs)))

    def _after(self, group: RunGroup) -> HeldOut | None:
        return measures.held_out(group, "after", self.decoding)

    def _mean(self, group: RunGroup, when: str) -> float:
        evaluation = measures.held_out(group, when, self.decoding)
        return float("nan") if evaluation is None else measures.mean_success(evaluation)

    def _of_pairs(self, group: RunGroup, text: Callable[[RunGroup, RunGroup], str]) -> str:
        control = self.records.group(self.task, CONTROL, is_common=self.is_common)
        if control is None:
            return NOT_RUN
        pair = measures.paired(control, group)
        return text(*pair) if pair[0].runs else NOT_RUN


def last_entropy(run: Run) -> float:
    """Of the last step that trained, nats a token; NaN where none was measured."""
    values = measures.training_curve(run)["entropy"].dropna().to_numpy(dtype=np.float64)
    return float(values[-1]) if len(values) else float("nan")


def _of_steps(key: str) -> Callable[[Run], float]:
    return lambda run: measures.mean_over_steps(run, key)


def _has_residual(groups: Sequence[RunGroup]) -> bool:
    return any(measures.mean_over_runs(group, _of_steps("residual")) > 0 for group in groups)


def _residual(group: RunGroup) -> str:
    return mean(_of_steps("residual"), 3)(group) if _has_residual([group]) else NO_VALUE


def generated_tokens(run: Run) -> float:
    return float(run.ledger["generated_tokens"])


def mean_context_ratio(run: Run) -> float:
    """exp(-KL) of the part of the KL that the training context makes, averaged over steps."""
    return float(np.exp(-measures.mean_over_steps(run, "context_kl_k1")))


def task_tables(records: StudyRecords, task: str, name: str, title: str) -> list[Table]:
    """Those of a task that have rows: of methods, of ceilings, and of methods at one rate for all."""
    tables = (
        task_table(records, task, name, title),
        task_table(records, task, f"{name}_ceiling", f"{title} Ceilings.", of_free=True),
        common_table(records, task, name),
    )
    return [table for table in tables if table is not None]


def methods(records: StudyRecords, task: str, *, of_free: bool = False) -> list[RunGroup]:
    """The configurations of a task that are compared, all of whose rollouts are charged; or the others."""
    return [group for group in records.groups[task] if has_free([group]) == of_free]


def task_table(records: StudyRecords, task: str, name: str, title: str, *, of_free: bool = False) -> Table | None:
    """A row for each configuration of a task with finished runs, at its own rate; None without any. of_free: of those
    with rollouts beside the budget, in place of the others."""
    groups = methods(records, task, of_free=of_free)
    if not groups:
        return None
    cells = _Cells(records, task)
    own, *others = modes(records, groups)
    entropy = [Column("Entropy, end", mean(last_entropy, 3))] if _has_entropy(groups) else []
    columns = (
        CONFIGURATION,
        Column("Part", cells.part),
        Column("Runs", cells.runs),
        Column("Learning rate", cells.rate),
        Column("Rollouts", mean(lambda run: float(run.ledger["rollouts"]), 0)),
        *([FREE] if of_free else []),
        Column("Optimizer steps / 1k rollouts", mean(_steps_a_thousand, 1)),
        Column("Tokens, k", mean(generated_tokens, 1, scale=1e-3)),
        Column("Seconds", mean(measures.training_seconds, 0)),
        Column("Seconds / exact GRPO's", cells.seconds_ratio),
        *_both(own, groups),
        Column("After, by warm start", cells.by_warm_start),
        Column("Difference to exact GRPO", cells.difference),
        Column("Pairs", cells.pairs),
        *(column for mode in others for column in _both(mode, groups)),
        *entropy,
        Column("Context ratio", mean(mean_context_ratio, 3)),
        Column("KL", mean(_of_steps("kl_k1"), 4)),
        Column("Zero adv.", mean(_of_steps("zero_advantage"), 1, scale=100)),
        *([Column("Residual", _residual)] if _has_residual(groups) else []),
    )
    unfinished = [
        place for part in records.study.trained for place in records.unfinished(part) if records.is_begun(place)
    ]
    begun = [str(place) for place in unfinished if place.experiment in _experiments(records, task) and not of_free]
    caption = [title, *_caption(records, task, groups)]
    return build(f"{name}_{task}", columns, groups, caption, list(dict.fromkeys(begun)))


def common_table(records: StudyRecords, task: str, name: str) -> Table | None:
    """The configurations of a task at their own rates beside those at the one that all share; None without any of
    these."""
    if not (groups := records.common[task]):
        return None
    own, common = _Cells(records, task), _Cells(records, task, is_common=True)

    def at_own(cell: Callable[[RunGroup], str]) -> Callable[[RunGroup], str]:
        def text(group: RunGroup) -> str:
            found = records.group(task, group.label)
            return NOT_RUN if found is None else cell(found)

        return text

    def columns(cells: _Cells, title: str) -> list[Column]:
        named = [
            Column("rate", cells.rate),
            Column("runs", cells.runs),
            *(Column(DECODINGS[mode].success, success("after", mode)) for mode in modes(records, groups)),
            Column("difference to exact GRPO", cells.difference),
            Column("entropy, end", mean(last_entropy, 3)),
        ]
        return [Column(f"{title}, {one.title}", one.cell if cells.is_common else at_own(one.cell)) for one in named]

    caption = (
        f"{TASKS[task]}: each configuration at the rate that is best for it, and at the one that is best for the core "
        "together. Success after training in percent, differences in points, "
        f"{DECODINGS[records.study.decoding].said}; entropy in nats a token, of the last step that trained. {INTERVALS}"
    )
    table = [CONFIGURATION, *columns(own, "Own"), *columns(common, "Common")]
    return build(f"{name}_{task}_common", table, groups, [caption, *toy_sentences(groups)], [])


def _both(mode: str, groups: Sequence[RunGroup]) -> list[Column]:
    """Before training, where that was evaluated in every row that has the mode, and after it."""
    shown = BOTH_WHEN if _have_before(mode, groups) else BOTH_WHEN[1:]
    return [Column(f"{DECODINGS[mode].title}, {when}", success(when, mode)) for when in shown]


def _have_before(mode: str, groups: Sequence[RunGroup]) -> bool:
    first, last = ([measures.held_out(group, when, mode) for group in groups] for when in BOTH_WHEN)
    return all(one is not None or other is None for one, other in zip(first, last, strict=True))


def _untrained(records: StudyRecords, task: str, groups: Sequence[RunGroup], shown: Sequence[str]) -> list[str]:
    """What columns would have before training, had every row of `groups` been evaluated then."""
    lacking = [mode for mode in shown if not _have_before(mode, groups)]
    if not lacking:
        return []
    for group in records.groups[task]:
        if all(measures.held_out(group, "before", mode) is not None for mode in lacking):
            each = ", ".join(f"{success('before', mode)(group)} {DECODINGS[mode].said}" for mode in lacking)
            own, apart = DECODINGS[records.study.decoding].said, _Cells(records, task).by_warm_start(group, "before")
            return [
                "Before training, where all configurations with one context of rollouts give the same from a warm "
                f"start and seed: {each}; by warm start {apart} {own} (runs of {title_of(group.label)})."
            ]
    return [f"Before training: {NOT_RUN}."]


def _has_entropy(groups: Sequence[RunGroup]) -> bool:
    return any(last_entropy(run) == last_entropy(run) for group in groups for run in group.runs)


def _experiments(records: StudyRecords, task: str) -> list[str]:
    places = (place for part in records.study.trained for place in records.planned[part])
    return list(dict.fromkeys(place.experiment for place in places if place.task == task))


def _steps_a_thousand(run: Run) -> float:
    return 1e3 * float(run.ledger["optimizer_steps"]) / float(run.ledger["rollouts"])


def _caption(records: StudyRecords, task: str, groups: Sequence[RunGroup]) -> list[str]:
    own, shown = records.study.decoding, modes(records, groups)
    evaluations = [measures.held_out(group, "after", own) for group in groups]
    sizes = ", ".join(sorted({f"{e.success.shape[1]:,} × {e.samples}" for e in evaluations if e is not None}))
    cpus = ", ".join(str(n) for n in sorted({run.manifest["machine"]["logical_cpus"] for run in records.runs}))
    ungraded = sum(
        evaluation.ungraded
        for group in groups
        for when in BOTH_WHEN
        for mode in shown
        if (evaluation := measures.held_out(group, when, mode)) is not None
    )
    residual = "Residual: mean squared error of the squared pair loss, over steps." if _has_residual(groups) else ""
    entropy = "Entropy: nats a token, of the last step that trained, of the policy in the training contexts."
    warm_starts = _experiments(records, task)
    papers = f"at the paper's decoding ({OF_PAPER}), " if "paper" in shown else ""
    return [
        f"Runs: finished of planned; warm starts ({', '.join(warm_starts)}) times seeds.",
        f"{EDGE}: the learning rate is the lowest or the highest that was tried for the configuration.",
        f"Success is the share of held-out samples with reward 1, in percent: {papers}sampled at temperature 1 "
        f"(questions × samples: {sizes}), or greedy.",
        *_untrained(records, task, groups, shown),
        f"Brackets: 95 % intervals (Wilson's where all answers are alike) over runs and questions. {INTERVALS} The "
        "warm starts are too few to carry an interval of their own, so the means after training on each stand beside. "
        "All runs weigh alike.",
        f"Difference: {DECODINGS[own].success} after training minus that of GRPO with exact contexts, in points, "
        "paired by warm start, seed and question; pairs: how many.",
        f"Seconds: wall-clock, evaluation apart, two runs side by side on one machine (logical CPUs: {cpus}); their "
        "ratio is the median over the same pairs.",
        *([OF_FREE] if has_free(groups) else []),
        *([entropy] if _has_entropy(groups) else []),
        "Context ratio (training over rollout probability, a token): exp(−KL) of the part of the KL that the training "
        "context makes. KL (k1, nats a token, rollout to training): all of it, also what the weights have moved since "
        "they sampled. Both are measured before each update and averaged over steps and runs.",
        "Zero adv.: share of groups whose advantages are all 0, in percent (groups differ in size between algorithms).",
        *([residual] if residual else []),
        *([f"{ungraded:,} samples could not be graded and are left out."] if ungraded else []),
        *toy_sentences(groups),
    ]


def rates_table(records: StudyRecords, name: str) -> Table | None:
    """The learning-rate search: a row a task and configuration, a column a rate; None without a run."""
    if not records.search:
        return None
    decoding, seeds = records.study.decoding, [str(seed) for seed in records.study.seeds]
    alone = len(seeds) == 1
    tasks = {id(group): task for (task, _), group in records.search.items()}

    def cell(rate: float) -> Callable[[RunGroup], str]:
        def text(group: RunGroup) -> str:
            runs = tuple(run for run in group.runs if learning_rate(run) == rate)
            evaluation = measures.held_out(RunGroup(group.label, runs), "after", decoding)
            if evaluation is None:
                return NOT_RUN
            shown = percent(measures.success(evaluation))
            return bold(shown) if records.chosen.get((tasks[id(group)], group.label)) == rate else shown

        return text

    order = list(dict.fromkeys(tasks.values()))
    groups = sorted(records.search.values(), key=lambda group: order.index(tasks[id(group)]))
    rates = sorted({*records.grid, *(learning_rate(run) for group in groups for run in group.runs)})
    other = ", ".join(f"{rate:g}" for rate in rates if rate not in records.grid)
    columns = (
        Column("Task", lambda group: TASKS[tasks[id(group)]]),
        CONFIGURATION,
        *(Column(f"{rate:g}", cell(rate)) for rate in rates),
    )
    of_questions = {run.evaluations["task"].nunique() for group in groups for run in group.runs}
    questions = ", ".join(str(count) for count in sorted(of_questions))
    together = ", ".join(f"{TASKS[task].lower()} {rate:g}" for task, rate in records.study.common_rates().items())
    caption = (
        f"The learning-rate search: {DECODINGS[decoding].success} after training on the validation split, in percent, "
        f"{'one run' if alone else f'{len(seeds)} runs'} a cell (seed{'' if alone else 's'} {', '.join(seeds)}, first "
        f"warm start, {questions} questions). Brackets: 95 % intervals over "
        f"{'questions alone, which say nothing about other seeds' if alone else 'runs and questions'}. Bold: the "
        f"rate the study uses, the best of {', '.join(f'{rate:g}' for rate in records.grid)}, of equals the lowest."
        f"{f' Runs at {other} are of an earlier grid.' if other else ''}"
        f"{f' The best for the core together: {together}.' if together else ''}"
    )
    begun = [str(place) for place in records.unfinished("rates") if records.is_begun(place)]
    return build(f"{name}_rates", columns, groups, [caption, *toy_sentences(groups)], begun)


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


def shown(*tables: Table | None) -> str:
    """Those that there are."""
    return "\n".join(markdown(table) for table in tables if table is not None) or f"{NOT_RUN}\n"


def settings(file: Path) -> str:
    """The study file."""
    return f"```yaml\n{file.read_text(encoding='utf-8')}```\n"
