"""The summary of an evaluation's samples (docs/run/evaluation.md), and several as one table."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import pandas as pd

from analysis.metrics import pass_at_k, pass_hat_k
from analysis.stats import interval, wilson
from analysis.tables import NO_VALUE, ruled
from rtpo.rewards.alarm import grading_alarm
from rtpo.types import GradeOutcome, Termination

QA_SCORES = {
    "em": "Exact match",
    "f1": "Token F1",
    "span_f1": "Span F1",
    "answer_hit": "Output-hit, final answer",
    "output_hit": "Output-hit, all it wrote",
}
PASSES = {"pass@k": pass_at_k, "pass^k": pass_hat_k}
PASS_AT_1 = "pass@1 (avg@n) [95 % over questions]"
Summary = dict[str, Any]


def summarise(lines: Sequence[Mapping[str, Any]], ks: Sequence[int]) -> Summary:
    """The figures of a panel's lines, in any order. Means are over questions of means over samples, unless said.

    What has no value is None; `notes` says why.
    """
    frame = pd.DataFrame(lines).sort_values(["position", "sample"]).astype({"reward": float})
    rewards = frame.groupby("uid", sort=False)["reward"]
    ungradable = frame[frame["grade"] == GradeOutcome.UNGRADABLE]
    first, notes = _of_questions(frame, pass_hat_k, 1)
    passes: dict[str, dict[str, float | None]] = {name: {} for name in PASSES}
    for name, k in product(PASSES, ks):
        shares, more = _of_questions(frame, PASSES[name], k)
        passes[name][str(k)] = _mean(shares)
        notes += more
    qa = frame.loc[frame["qa"].notna(), ["uid", "qa"]]
    scores = pd.DataFrame(list(qa["qa"]), qa["uid"]).groupby(level=0).mean()
    ends = frame["termination"].value_counts()
    return {
        "questions": len(rewards),
        "samples": len(frame),
        "pass@1": _mean(first),
        "pass@1_interval": _interval(first),
        **passes,
        "reward": _mean(rewards.mean()),
        "qa": {name: _mean(scores[name]) for name in QA_SCORES} if len(qa) else None,
        "ungradable": len(ungradable),
        "ungradable_share": len(ungradable) / len(frame),
        "alarm": grading_alarm(len(frame) - len(ungradable), len(ungradable), list(ungradable["detail"])),
        "generated_tokens": _mean(frame["generated_tokens"]),
        "turns": _mean(frame["turns"]),
        "calls": _calls(frame["calls"]),
        "terminations": {end.value: int(ends[end.value]) for end in Termination if end.value in ends},
        "cut": float((frame["cut_turns"] > 0).mean()),
        "retries": int(frame["retries"].sum()),
        "seconds": _mean(frame["seconds"]),
        "notes": list(dict.fromkeys(notes)),
    }


def _of_questions(
    frame: pd.DataFrame, estimator: Callable[[int, int, int], float], k: int
) -> "tuple[pd.Series[float], list[str]]":
    """What an estimator gives for each question with enough graded samples, and why not for others."""
    odd = frame[~(frame["reward"].isin((0, 1)) | frame["reward"].isna())]
    if len(odd):
        first = f"question {odd['uid'].iloc[0]!r} has a reward of {odd['reward'].iloc[0]:g}"
        why = "successes are counted, so rewards are 0, 1 or none; score it by exact match or by a judge."
        return pd.Series(dtype=float), [f"no estimate: {first}: {why}"]
    rewards = frame.groupby("uid", sort=False)["reward"]
    graded, right = rewards.count(), rewards.sum()
    enough, short = graded.index[graded >= k], graded.index[graded < k]
    what = f"estimates with k = {k} leave out {len(short)} of {len(graded)} questions"
    notes = [f"{what}, such as {short[0]}, which have fewer graded samples."] if len(short) else []
    shares = [estimator(int(graded[uid]), int(right[uid]), k) for uid in enough]
    return pd.Series(shares, enough, dtype=float), notes


def _interval(shares: "pd.Series[float]") -> list[float] | None:
    """95 %, over questions; of one share between 0 and 1 for all of them Wilson's, as if of single answers."""
    if shares.empty:
        return None
    if shares.nunique() == 1:
        return list(wilson(float(shares.iloc[0]), len(shares)))
    found = interval([shares], share=True)
    return [found.low, found.high]


def _calls(calls: "pd.Series[Any]") -> dict[str, dict[str, int]]:
    """Over all samples, by tool."""
    rows = [{"tool": tool, **counts} for each in calls for tool, counts in each.items()]
    totals = pd.DataFrame(rows, columns=None if rows else ["tool"]).groupby("tool").sum()
    return {str(tool): {str(key): int(count) for key, count in row.items()} for tool, row in totals.iterrows()}


def _mean(values: "pd.Series[float]") -> float | None:
    mean = float(values.mean())
    return None if mean != mean else mean


def table(summaries: Mapping[str, Summary], decoding: Mapping[str, str]) -> str:
    """Markdown: a row a figure, a column a benchmark. Shares in percent. decoding: of each, in words."""
    every = list(summaries.values())
    tools = sorted({tool for summary in every for tool in summary["calls"]})
    cells: dict[str, Callable[[Summary], str]] = {
        "Questions × samples": lambda summary: (
            f"{summary['questions']:,} × {summary['samples'] // summary['questions']}"
        ),
        PASS_AT_1: _pass_at_1,
        **{f"{kind[:-1]}{k}": _percent(kind, k) for kind in PASSES for k in _union(every, kind) if k != "1"},
        "Mean reward": _percent("reward"),
        **{title: _percent("qa", name) for name, title in QA_SCORES.items()},
        "Ungradable": _percent("ungradable_share"),
        "Tokens a sample": lambda summary: f"{summary['generated_tokens']:,.0f}",
        "Turns a sample": lambda summary: f"{summary['turns']:.2f}",
        **{f"Calls of {tool}: attempted / executed / failed": _counts(tool) for tool in tools},
        **{f"Ended by {end.value}": _percent("terminations", end.value, per="samples") for end in Termination},
        "With a cut turn": _percent("cut"),
        "Seconds a sample": lambda summary: f"{summary['seconds']:.1f}",
    }
    lines = [[title, *map(cell, every)] for title, cell in cells.items()]
    kept = [line for line in lines if line[0] == PASS_AT_1 or {*line[1:]} != {NO_VALUE}]
    rows = [["Decoding", *(decoding[name] for name in summaries)], *kept]
    return ruled(("", *summaries), rows, aligned=False).removesuffix("\n")


def _union(summaries: Sequence[Summary], kind: str) -> list[str]:
    return list(dict.fromkeys(key for summary in summaries for key in summary[kind]))


def _pass_at_1(summary: Summary) -> str:
    if summary["pass@1"] is None:
        return NO_VALUE
    low, high = summary["pass@1_interval"]
    return f"{100 * summary['pass@1']:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def _percent(*path: str, per: str = "") -> Callable[[Summary], str]:
    """A share, or a count `per` another."""

    def cell(summary: Summary) -> str:
        value: Any = summary
        for key in path:
            value = (value or {}).get(key)
        return NO_VALUE if value is None else f"{100 * value / (summary[per] if per else 1):.1f}"

    return cell


def _counts(tool: str) -> Callable[[Summary], str]:
    def cell(summary: Summary) -> str:
        counts = summary["calls"].get(tool)
        return " / ".join(f"{counts[key]:,}" for key in ("attempted", "executed", "failed")) if counts else NO_VALUE

    return cell
