"""The paper's claims as far as the toy study can speak of them, each with its difference and a verdict by one rule."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from analysis import measures
from analysis.claims.rule import LEAST_PAIRS, order
from analysis.intervals import Interval
from analysis.looks import TASKS
from analysis.measures import HeldOut
from analysis.records import Run, RunGroup
from analysis.study.records import StudyRecords
from analysis.tables import (
    CONTRADICTED,
    FEW_RUNS,
    INTERVALS,
    NO_VALUE,
    NOT_RUN,
    SUPPORTED,
    UNDECIDED,
    Table,
    number,
    percent,
    said,
)

RULE = (
    "The rule is the same for every claim. A task supports it where the whole interval lies above 0, contradicts it "
    f"where it lies below 0, and leaves it undecided otherwise or with fewer than {LEAST_PAIRS} pairs. Supported, "
    "contradicted or undecided is what all of the claim's tasks say; where they differ the verdict is mixed. A verdict "
    f"that rests on fewer than {FEW_RUNS} pairs says so in brackets. "
    "There is no correction for the number of claims."
)


@dataclass(frozen=True)
class Claim:
    """That `first` does better than `second` in `measure`, a key of MEASURES. `source`: who claims it."""

    text: str
    source: str
    first: str
    second: str
    measure: str = "success"


PAPER, OURS = "paper", "ours"
CLAIMS = (
    Claim("RTPO beats GRPO trained on the flattened history", PAPER, "rtpo", "grpo"),
    Claim("RTPO beats GRPO with exact contexts", "ours, control", "rtpo", "grpo_exact"),
    Claim("RTPO beats SeeUPO", PAPER, "rtpo", "seeupo"),
    Claim("RTPO beats SeeUPO trained on the flattened history", PAPER, "rtpo", "seeupo_flat"),
    Claim("RTPO beats ARPO trained on the flattened history", PAPER, "rtpo", "arpo"),
    Claim("RTPO beats Tree-GRPO trained on the flattened history", PAPER, "rtpo", "tree_grpo"),
    Claim("RTPO beats ARPO with exact contexts", "ours, control", "rtpo", "arpo_exact"),
    Claim("RTPO beats Tree-GRPO with exact contexts", "ours, control", "rtpo", "tree_grpo_exact"),
    Claim("State-matched credit beats trajectory credit, full history for both", PAPER, "rtpo_full", "grpo_full"),
    Claim("On-policy continuations beat off-policy ones", PAPER, "rtpo", "rtpo_off"),
    Claim("G = 4 beats G = 3", PAPER, "rtpo_g4", "rtpo"),
    Claim("G = 4 ties less than G = 3", PAPER, "rtpo_g4", "rtpo", "ties"),
    Claim("Exact contexts keep RTPO's ratio at 1, flattened ones put GRPO's below", PAPER, "rtpo", "grpo", "ratio"),
    Claim("Exact contexts keep GRPO's own ratio at 1", "ours, control", "grpo_exact", "grpo", "ratio"),
    Claim("RTPO trains in less time than exact GRPO, equal rollouts", OURS, "rtpo", "grpo_exact", "seconds"),
    Claim("RTPO generates fewer tokens than exact GRPO, equal rollouts", OURS, "rtpo", "grpo_exact", "tokens"),
    Claim("The RTPO tree beats exact GRPO", "ours, extension", "rtpo_tree", "grpo_exact"),
    Claim("RTPO beats exact GRPO at equal optimizer steps, RTPO given more", OURS, "rtpo_64_steps", "grpo_exact"),
    Claim("RTPO beats exact GRPO at equal optimizer steps, GRPO given fewer", OURS, "rtpo", "grpo_exact_30_steps"),
    Claim("RTPO beats exact GRPO at equal generated tokens, RTPO given more", OURS, "rtpo_182k_tokens", "grpo_exact"),
    Claim("RTPO beats exact GRPO at equal generated tokens, GRPO given fewer", OURS, "rtpo", "grpo_exact_132k_tokens"),
)


def mean_context_ratio(run: Run) -> float:
    """exp(-KL) of the part of the KL that the training context makes, averaged over steps."""
    return float(np.exp(-measures.mean_over_steps(run, "context_kl_k1")))


def _success(first: RunGroup, second: RunGroup) -> Interval | None:
    evaluations = [measures.held_out(group, "after", "sampled") for group in (second, first)]
    one, other = evaluations
    return measures.difference(one, other) if isinstance(one, HeldOut) and isinstance(other, HeldOut) else None


def _ratio(first: RunGroup, second: RunGroup) -> Interval | None:
    return measures.run_difference(
        first, second, lambda one, other: mean_context_ratio(one) - mean_context_ratio(other)
    )


def _ties(first: RunGroup, second: RunGroup) -> Interval | None:
    share = partial(measures.mean_over_steps, key="zero_advantage")
    return measures.run_difference(first, second, lambda one, other: share(other) - share(one))


def _saved(of: Callable[[Run], float], first: RunGroup, second: RunGroup) -> Interval | None:
    return measures.run_difference(first, second, lambda one, other: 1 - of(one) / of(other))


def generated_tokens(run: Run) -> float:
    return float(run.ledger["generated_tokens"])


MEASURES: Mapping[str, tuple[str, Callable[[RunGroup, RunGroup], Interval | None]]] = {
    "success": ("sampled success, points", _success),
    "ratio": ("context ratio × 100", _ratio),
    "ties": ("zero-advantage share, points fewer", _ties),
    "seconds": ("training seconds saved, %", partial(_saved, measures.training_seconds)),
    "tokens": ("generated tokens saved, %", partial(_saved, generated_tokens)),
}
"""by key: what is compared, and the difference of two groups from `paired`, above 0 where the first does better"""


@dataclass(frozen=True)
class Finding:
    """What a task says of a claim. `by_warm_start`: the mean difference on each that has pairs. `outcome` is NOT_RUN
    where no pair of runs is finished."""

    difference: Interval | None
    by_warm_start: tuple[float, ...]
    pairs: int
    planned: int
    outcome: str


def finding(records: StudyRecords, task: str, claim: Claim) -> Finding | None:
    """None on a task where the study does not plan one of the two."""
    places = [records.places(task, label) for label in (claim.first, claim.second)]
    if not all(places):
        return None
    planned = len({(p.experiment, p.seed) for p in places[0]} & {(p.experiment, p.seed) for p in places[1]})
    groups = [records.group(task, label) for label in (claim.first, claim.second)]
    if groups[0] is None or groups[1] is None:
        return Finding(None, (), 0, planned, NOT_RUN)
    first, second = measures.paired(groups[0], groups[1])
    if not first.runs:
        return Finding(None, (), 0, planned, NOT_RUN)
    compare = MEASURES[claim.measure][1]
    difference = compare(first, second)
    of_each = [compare(*pair) for pair in zip(_by_warm_start(first), _by_warm_start(second), strict=True)]
    means = tuple(each.mean for each in of_each if each is not None)
    return Finding(difference, means, len(first.runs), planned, order(difference, len(first.runs)))


def _by_warm_start(group: RunGroup) -> list[RunGroup]:
    runs: dict[str, list[Run]] = defaultdict(list)
    for run in group.runs:
        runs[str(run.manifest["experiment"])].append(run)
    return [RunGroup(group.label, tuple(part)) for part in runs.values()]


def verdict(findings: Mapping[str, Finding]) -> str:
    """What the tasks, by title, say together, by RULE."""
    kinds = {found.outcome for found in findings.values()}
    if not findings:
        return NO_VALUE
    each = ", ".join(said(f"{found.outcome} on {task}", [found.pairs]) for task, found in findings.items())
    if len(kinds) == 1:
        (kind,) = kinds
        alone = len(findings) == 1 and kind != NOT_RUN
        return each if alone else said(kind, [found.pairs for found in findings.values()])
    return each if NOT_RUN in kinds else f"mixed: {each}"


def claims_table(records: StudyRecords) -> Table:
    """A row a claim."""
    rows = []
    for claim in CLAIMS:
        findings = {task: found for task in records.tasks if (found := finding(records, task, claim)) is not None}
        rows.append(
            (
                claim.text,
                claim.source,
                MEASURES[claim.measure][0],
                *(_cell(findings.get(task)) for task in records.tasks),
                verdict({TASKS[task].lower(): found for task, found in findings.items()}),
            )
        )
    caption = (
        "Claims and what the toy study says of them. Toy scale: a verdict here is about these toy tasks, not about the "
        "paper's results. A difference is the first minus the second, over pairs of runs of one warm start and seed, "
        "turned so that above 0 is for the claim; then its mean on each warm start, where there are two, and how many "
        "of the planned pairs are finished. Brackets: 95 % intervals, of success over runs and questions, otherwise "
        f"over runs alone. {INTERVALS} Claims of the source “{PAPER}” are the paper's, measured on this "
        "project's toy tasks; the others are this project's own questions. On cost the paper counts at equal trunks "
        f"and reports RTPO as the dearer. {RULE}"
    )
    header = ("Claim", "Source", "Difference in", *(TASKS[task] for task in records.tasks), "Verdict")
    notes = [f"“{NO_VALUE}”: the study does not run this pair on the task."]
    return Table("toy_study_claims", header, tuple(rows), caption, tuple(notes))


def verdict_lines(records: StudyRecords) -> str:
    """The claims that the study plans runs for, a line a verdict, those that decide something first."""
    by_verdict: dict[str, list[str]] = defaultdict(list)
    for text, source, *_, said_of_it in claims_table(records).rows:
        by_verdict[said_of_it].append(text if source == PAPER else f"{text} ({source})")
    first = [SUPPORTED, CONTRADICTED, "mixed", UNDECIDED, NOT_RUN]
    by_verdict.pop(NO_VALUE, None)
    ranked = sorted(by_verdict, key=lambda text: next(i for i, kind in enumerate(first) if text.startswith(kind)))
    return "".join(f"- **{text.capitalize()}**: {'; '.join(by_verdict[text])}.\n" for text in ranked)


def _cell(found: Finding | None) -> str:
    if found is None:
        return NO_VALUE
    if found.outcome == NOT_RUN:
        return NOT_RUN
    means = " / ".join(number(mean, 1, scale=100, sign=True) for mean in found.by_warm_start)
    by_warm_start = f"; {means}" if len(found.by_warm_start) > 1 else ""
    return f"{percent(found.difference, sign=True)}{by_warm_start}; {found.pairs} of {found.planned}"
