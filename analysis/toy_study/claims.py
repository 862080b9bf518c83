"""The paper's claims as far as the toy study can speak of them, each with its difference and a verdict by one rule."""

from collections import defaultdict
from dataclasses import dataclass

from analysis.claims.rule import LEAST_PAIRS
from analysis.looks import TASKS
from analysis.study.findings import MEASURES, Finding, finding, verdict
from analysis.study.records import StudyRecords
from analysis.study.tables import DECODINGS
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
)

RULE = (
    "The rule is the same for every claim. A task supports it where the whole interval lies above 0, contradicts it "
    f"where it lies below 0, and leaves it undecided otherwise or with fewer than {LEAST_PAIRS} pairs. Supported, "
    "contradicted or undecided is what all of the claim's tasks say; where they differ the verdict is mixed. A verdict "
    f"that rests on fewer than {FEW_RUNS} pairs says so in brackets. "
    "There is no correction for the number of claims."
)


SUCCESS = "success"
"""a measure, at any decoding"""


@dataclass(frozen=True)
class Claim:
    """That `first` does better than `second` in `measure`, a key of MEASURES, or in SUCCESS at any decoding. `source`:
    who claims it."""

    text: str
    source: str
    first: str
    second: str
    measure: str = SUCCESS


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
    Claim("RTPO beats exact GRPO at equal optimizer steps, GRPO given fewer", OURS, "rtpo", "grpo_exact_28_steps"),
    Claim("RTPO beats exact GRPO at equal generated tokens, RTPO given more", OURS, "rtpo_tokens", "grpo_exact"),
    Claim("RTPO beats exact GRPO at equal generated tokens, GRPO given fewer", OURS, "rtpo", "grpo_exact_tokens"),
)


@dataclass(frozen=True)
class Setting:
    """Where two configurations are compared: success at a `decoding`, at rates of their own or at the common one."""

    decoding: str
    is_common: bool = False

    @property
    def said(self) -> str:
        return f"{DECODINGS[self.decoding].said}{', one rate for all' if self.is_common else ''}"

    def measure(self, claim: Claim) -> str:
        """A key of MEASURES."""
        return self.decoding if claim.measure == SUCCESS else claim.measure


def settings(records: StudyRecords) -> list[Setting]:
    """The study's own decoding first, whose verdicts are the study's. One that is at the paper's decoding has the
    others beside it."""
    own = Setting(records.study.decoding)
    others = [Setting(mode) for mode in DECODINGS if own.decoding == "paper" and mode != own.decoding]
    is_common = any(records.study.is_common(part) for part in records.study.trained)
    return [own, *others, *([Setting(own.decoding, is_common=True)] if is_common else [])]


def by_task(records: StudyRecords, claim: Claim, at: Setting) -> dict[str, Finding]:
    """By task, where the study plans both."""
    labels, measure = (claim.first, claim.second), at.measure(claim)
    each = {task: finding(records, task, labels, measure, is_common=at.is_common) for task in records.tasks}
    return {task: one for task, one in each.items() if one is not None}


def claims_table(records: StudyRecords) -> Table:
    """A row a claim."""
    at = settings(records)[0]
    rows = [(claim.text, claim.source, MEASURES[at.measure(claim)][0], *_cells(records, claim, at)) for claim in CLAIMS]
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


def beside_table(records: StudyRecords) -> Table | None:
    """The claims on success at other decodings than the study's own, and at one rate for all; None where the study has
    neither."""
    own, *others = settings(records)
    if not others:
        return None
    rows = [
        (claim.text if at == own else "", at.said, *_cells(records, claim, at))
        for claim in CLAIMS
        if claim.measure == SUCCESS
        for at in (own, *others)
        if (found := by_task(records, claim, at).values())
        if at == own or any(one.outcome != NOT_RUN for one in found)
    ]
    caption = (
        f"The claims on success, {own.said}, at the other decodings, and {own.said} with one learning rate for all "
        "configurations, the best for the core together. Differences and verdicts as in the table of claims."
    )
    header = ("Claim", "Compared", *(TASKS[task] for task in records.tasks), "Verdict")
    notes = [f"“{NO_VALUE}”: the study does not run this pair on the task."]
    return Table("toy_study_claims_beside", header, tuple(rows), caption, tuple(notes), labels=2)


def _cells(records: StudyRecords, claim: Claim, at: Setting) -> tuple[str, ...]:
    """What each task says of a claim, and the verdict."""
    made = by_task(records, claim, at)
    told = verdict({TASKS[task].lower(): one for task, one in made.items()})
    return (*(_cell(made.get(task)) for task in records.tasks), told)


def _departures(records: StudyRecords) -> list[str]:
    """The claims of which a task says something else at another decoding, or at one rate for all, a line each."""
    own, *others = settings(records)
    lines = []
    for claim in (claim for claim in CLAIMS if claim.measure == SUCCESS):
        first = by_task(records, claim, own)
        told = []
        for at in others:
            made = by_task(records, claim, at)
            pairs = [(first[task].outcome, one.outcome) for task, one in made.items() if task in first]
            if any(NOT_RUN not in pair and pair[0] != pair[1] for pair in pairs):
                told.append(f"**{_cells(records, claim, at)[-1]}** {at.said}")
        if told:
            lines.append(f"- {claim.text}: **{_cells(records, claim, own)[-1]}** {own.said}, {', '.join(told)}.\n")
    return lines


def verdict_lines(records: StudyRecords) -> str:
    """The claims that the study plans runs for, a line a verdict, those that decide something first; before them those
    on which decodings or rates differ."""
    own, *others = settings(records)
    by_verdict: dict[str, list[str]] = defaultdict(list)
    for text, source, *_, said_of_it in claims_table(records).rows:
        by_verdict[said_of_it].append(text if source == PAPER else f"{text} ({source})")
    first = [SUPPORTED, CONTRADICTED, "mixed", UNDECIDED, NOT_RUN]
    by_verdict.pop(NO_VALUE, None)
    ranked = sorted(by_verdict, key=lambda text: next(i for i, kind in enumerate(first) if text.startswith(kind)))
    lines = [f"- **{text.capitalize()}**: {'; '.join(by_verdict[text])}.\n" for text in ranked]
    named = f"Verdicts on success are of policies evaluated {own.said}, each trained at a learning rate of its own."
    if departures := _departures(records):
        before = [
            "Some verdicts are others at another decoding or at one learning rate for all:\n\n",
            *departures,
            "\n",
        ]
        return "".join([*before, f"{named}\n\n", *lines])
    alike = f" No task says otherwise {', '.join(at.said for at in others)}." if others else ""
    return "".join([f"{named}{alike}\n\n", *lines])


def _cell(found: Finding | None) -> str:
    if found is None:
        return NO_VALUE
    if found.outcome == NOT_RUN:
        return NOT_RUN
    means = " / ".join(number(mean, 1, scale=100, sign=True) for mean in found.by_warm_start)
    by_warm_start = f"; {means}" if len(found.by_warm_start) > 1 else ""
    return f"{percent(found.difference, sign=True)}{by_warm_start}; {found.pairs} of {found.planned}"
