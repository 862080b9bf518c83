"""An evaluation's lines as figures (docs/run/evaluation.md), and several evaluations as one table."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from analysis.intervals import interval, wilson
from rtpo.errors import DataError
from rtpo.evaluation.estimators import Estimate, SampleCounts, avg_at_k, count_samples, pass_at_k, pass_hat_k
from rtpo.rewards.alarm import grading_alarm
from rtpo.types import GradeOutcome, Termination

QA_SCORES = {
    "em": "Exact match",
    "f1": "Token F1",
    "span_f1": "Span F1",
    "answer_hit": "Output-hit, final answer",
    "output_hit": "Output-hit, all it wrote",
}
NO_VALUE = "—"

Line = Mapping[str, Any]
Summary = dict[str, Any]


def summarise(lines: Sequence[Line], ks: Sequence[int]) -> Summary:
    """The figures of a panel's lines, in any order. Means are over questions of means over samples, unless said.

    What has no value is None; `notes` says why.
    """
    by_question: dict[str, list[Line]] = {}
    for line in sorted(lines, key=lambda line: (line["position"], line["sample"])):
        by_question.setdefault(line["uid"], []).append(line)
    notes: list[str] = []
    rewards = {uid: [line["reward"] for line in group] for uid, group in by_question.items()}
    estimate = _estimates(rewards, notes)
    first = estimate(avg_at_k, 1)
    ungradable = [line for line in lines if line["grade"] == GradeOutcome.UNGRADABLE]
    alarm = grading_alarm(len(lines) - len(ungradable), len(ungradable), [line["detail"] for line in ungradable])
    return {
        "questions": len(by_question),
        "samples": len(lines),
        "pass@1": None if first is None else first.mean,
        "pass@1_interval": None if first is None else _interval(first),
        "pass@k": {str(k): _mean_of(estimate(pass_at_k, k)) for k in ks},
        "pass^k": {str(k): _mean_of(estimate(pass_hat_k, k)) for k in ks},
        "reward": _mean([_mean([r for r in group if r is not None]) for group in rewards.values()]),
        "qa": _qa(by_question),
        "ungradable": len(ungradable),
        "ungradable_share": len(ungradable) / len(lines),
        "alarm": alarm,
        "generated_tokens": _mean([line["generated_tokens"] for line in lines]),
        "turns": _mean([line["turns"] for line in lines]),
        "calls": _calls(lines),
        "terminations": {end.value: n for end in Termination if (n := _count(lines, "termination", end.value))},
        "cut": sum(line["cut_turns"] > 0 for line in lines) / len(lines),
        "retries": sum(line["retries"] for line in lines),
        "seconds": _mean([line["seconds"] for line in lines]),
        "notes": list(dict.fromkeys(notes)),
    }


def _estimates(
    rewards: Mapping[str, Sequence[float | None]], notes: list[str]
) -> Callable[[Callable[[SampleCounts, int], Estimate], int], Estimate | None]:
    """What gives an estimator's value, or None, with why in `notes`."""

    graded = {uid: sum(reward is not None for reward in given) for uid, given in rewards.items()}

    def estimate(estimator: Callable[[SampleCounts, int], Estimate], k: int) -> Estimate | None:
        short = [uid for uid in rewards if graded[uid] < k]
        if short:
            notes.append(
                f"estimates with k = {k} leave out {len(short)} of {len(rewards)} questions, such as {short[0]}, which "
                "have fewer graded samples."
            )
        try:
            return estimator(count_samples({uid: rewards[uid] for uid in rewards if uid not in short}), k)
        except DataError as error:
            notes.append(f"no estimate with k = {k}: {error}.")
            return None

    return estimate


def _mean_of(estimate: Estimate | None) -> float | None:
    return None if estimate is None else estimate.mean


def _interval(first: Estimate) -> list[float]:
    """95 %, over questions; of one share between 0 and 1 for all of them Wilson's, as if of single answers."""
    if np.ptp(first.values) == 0:
        return list(wilson(float(first.values[0]), len(first.values)))
    found = interval(first.values[None], share=True)
    return [found.low, found.high]


def _qa(by_question: Mapping[str, Sequence[Line]]) -> dict[str, float | None] | None:
    scored = [[line["qa"] for line in group if line["qa"] is not None] for group in by_question.values()]
    if not any(scored):
        return None
    return {name: _mean([_mean([qa[name] for qa in group]) for group in scored]) for name in QA_SCORES}


def _calls(lines: Sequence[Line]) -> dict[str, dict[str, int]]:
    """Over all samples, by tool."""
    totals: dict[str, Counter[str]] = {}
    for line in lines:
        for tool, counts in line["calls"].items():
            totals.setdefault(tool, Counter()).update(counts)
    return {tool: dict(totals[tool]) for tool in sorted(totals)}


def _count(lines: Sequence[Line], key: str, value: str) -> int:
    return sum(line[key] == value for line in lines)


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return float(np.mean(there)) if there else None


# the table


def table(summaries: Mapping[str, Summary]) -> str:
    """Markdown: a row a figure, a column a benchmark. Shares in percent."""
    rows: dict[str, list[str]] = {}

    def row(title: str, cell: Callable[[Summary], str], *, always: bool = False) -> None:
        cells = [cell(summary) for summary in summaries.values()]
        if always or any(cell != NO_VALUE for cell in cells):
            rows[title] = cells

    row("Questions × samples", lambda s: f"{s['questions']:,} × {s['samples'] // s['questions']}")
    row("pass@1 (avg@n)", _pass_at_1, always=True)
    for kind in ("pass@k", "pass^k"):
        for k in dict.fromkeys(k for summary in summaries.values() for k in summary[kind] if k != "1"):
            row(kind[:-1] + k, lambda s, kind=kind, k=k: _percent(s[kind].get(k)))  # type: ignore[misc]
    row("Mean reward", lambda s: _percent(s["reward"]))
    for name, title in QA_SCORES.items():
        row(title, lambda s, name=name: _percent((s["qa"] or {}).get(name)))  # type: ignore[misc]
    row("Ungradable", lambda s: _percent(s["ungradable_share"]))
    row("Tokens a sample", lambda s: f"{s['generated_tokens']:,.0f}")
    row("Turns a sample", lambda s: f"{s['turns']:.2f}")
    for tool in sorted({tool for summary in summaries.values() for tool in summary["calls"]}):
        row(f"Calls of {tool}: attempted / executed / failed", lambda s, tool=tool: _tool(s, tool))  # type: ignore[misc]
    for end in Termination:
        row(f"Ended by {end.value}", lambda s, end=end: _share(s, end.value))  # type: ignore[misc]
    row("With a cut turn", lambda s: _percent(s["cut"]))
    row("Seconds a sample", lambda s: f"{s['seconds']:.1f}")
    head = ["", *summaries]
    body = [[title, *cells] for title, cells in rows.items()]
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *body])


def _pass_at_1(summary: Summary) -> str:
    if summary["pass@1"] is None:
        return NO_VALUE
    low, high = summary["pass@1_interval"]
    return f"{100 * summary['pass@1']:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def _percent(share: float | None) -> str:
    return NO_VALUE if share is None else f"{100 * share:.1f}"


def _share(summary: Summary, end: str) -> str:
    count = summary["terminations"].get(end)
    return NO_VALUE if count is None else _percent(count / summary["samples"])


def _tool(summary: Summary, tool: str) -> str:
    counts = summary["calls"].get(tool)
    return NO_VALUE if counts is None else " / ".join(f"{counts[key]:,}" for key in ("attempted", "executed", "failed"))
