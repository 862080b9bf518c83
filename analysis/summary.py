"""Summarise an evaluation's samples (docs/run/evaluation.md), and show several summaries as one table."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import pandas as pd

from analysis.metrics import pass_at_k, pass_hat_k
from analysis.stats import interval, wilson
from analysis.tables import NO_VALUE, Number, number, ruled
from rtpo.core.names import counted
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
    """The numbers of an evaluation, from its lines in any order.

    pass@1, pass@k, pass^k, reward and qa are means over questions: reward and qa of each question's mean over samples.
    ungradable_share, generated_tokens, turns, cut and seconds are means over samples. Other numbers are counts. A
    number without a value is None, and `notes` says why.
    """
    frame = pd.DataFrame(lines).sort_values(["position", "sample"]).astype({"reward": float})
    rewards = frame.groupby("uid", sort=False)["reward"]
    ungradable = frame[frame["grade"] == GradeOutcome.UNGRADABLE]
    first, notes = _by_question(frame, pass_hat_k, 1)
    passes: dict[str, dict[str, float | None]] = {name: {} for name in PASSES}
    for name, k in product(PASSES, ks):
        shares, more = _by_question(frame, PASSES[name], k)
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


def _by_question(
    frame: pd.DataFrame, estimator: Callable[[int, int, int], float], k: int
) -> "tuple[pd.Series[float], list[str]]":
    """An estimator's value for each question with at least k graded samples, and notes on the other questions."""
    odd = frame[~(frame["reward"].isin((0, 1)) | frame["reward"].isna())]
    if len(odd):
        first = f"question {odd['uid'].iloc[0]!r} has a reward of {odd['reward'].iloc[0]:g}"
        why = "successes are counted, so rewards are 0, 1 or none; score it by exact match or by a judge."
        return pd.Series(dtype=float), [f"no estimate: {first}: {why}"]
    rewards = frame.groupby("uid", sort=False)["reward"]
    graded, right = rewards.count(), rewards.sum()
    enough, short = graded.index[graded >= k], graded.index[graded < k]
    what = f"estimates with k = {k} leave out {len(short)} of {counted(len(graded), 'question')}"
    notes = [f"{what}, such as {short[0]}, which have fewer graded samples."] if len(short) else []
    shares = [estimator(int(graded[uid]), int(right[uid]), k) for uid in enough]
    return pd.Series(shares, enough, dtype=float), notes


def _interval(shares: "pd.Series[float]") -> list[float] | None:
    """The 95 % interval over questions. Where all questions have the same share it is Wilson's."""
    if shares.empty:
        return None
    if shares.nunique() == 1:
        return list(wilson(float(shares.iloc[0]), len(shares)))
    share = interval([shares], share=True)
    return [share.low, share.high]


def _calls(calls: "pd.Series[Any]") -> dict[str, dict[str, int]]:
    """Counts of calls over all samples, by tool."""
    totals: dict[str, Counter[str]] = defaultdict(Counter)
    for tool, counts in (call for by_tool in calls for call in by_tool.items()):
        totals[tool].update(counts)
    return {tool: dict(totals[tool]) for tool in sorted(totals)}


def _mean(values: "pd.Series[float]") -> float | None:
    mean = float(values.mean())
    return None if mean != mean else mean


def table(summaries: Mapping[str, Summary], decoding: Mapping[str, str]) -> str:
    """A Markdown table with a row per number and a column per benchmark. Shares are in percent. decoding: each
    benchmark's decoding in words."""
    every = list(summaries.values())
    flat = pd.json_normalize(every, sep="/")

    def percent(name: str, per: str | None = None) -> list[str]:
        values = flat.reindex(columns=[name])[name].astype(float)
        return [number(value, 1) for value in 100 * values / (flat[per] if per else 1)]

    passes = [name for kind in PASSES for name in map(str, flat) if name.startswith(f"{kind}/") and name != f"{kind}/1"]
    rows = {
        "Decoding": [decoding[name] for name in summaries],
        "Questions × samples": [f"{each['questions']:,} × {each['samples'] // each['questions']}" for each in every],
        PASS_AT_1: list(map(_pass_at_1, every)),
        **{name.replace("k/", ""): percent(name) for name in passes},
        "Mean reward": percent("reward"),
        **{title: percent(f"qa/{name}") for name, title in QA_SCORES.items()},
        "Ungradable": percent("ungradable_share"),
        "Tokens a sample": [f"{each['generated_tokens']:,.0f}" for each in every],
        "Turns a sample": [f"{each['turns']:.2f}" for each in every],
        **{
            f"Calls of {tool}: attempted / executed / failed": [_counts(each["calls"].get(tool)) for each in every]
            for tool in sorted({tool for each in every for tool in each["calls"]})
        },
        **{f"Ended by {end.value}": percent(f"terminations/{end.value}", per="samples") for end in Termination},
        "With a cut turn": percent("cut"),
        "Seconds a sample": [f"{each['seconds']:.1f}" for each in every],
    }
    lines = [[title, *cells] for title, cells in rows.items() if title == PASS_AT_1 or {*cells} != {NO_VALUE}]
    return ruled(("", *summaries), lines, aligned=False).removesuffix("\n")


def _pass_at_1(summary: Summary) -> str:
    if summary["pass@1"] is None:
        return NO_VALUE
    low, high = summary["pass@1_interval"]
    return str(Number(summary["pass@1"], low, high, scale=100))


def _counts(counts: Mapping[str, int] | None) -> str:
    return " / ".join(f"{counts[key]:,}" for key in ("attempted", "executed", "failed")) if counts else NO_VALUE
