"""Evaluations: a panel's lines as figures (docs/run/evaluation.md), several as one table, and what a quantity counts of
an episode, wherever it was played."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import comb
from pathlib import Path
from typing import Any

import numpy as np

from analysis.intervals import interval, wilson
from analysis.pages.markdown import ruled
from analysis.records import EPISODE_KEYS, Run, read_lines, unchanged, without_manifest
from analysis.tables import NO_VALUE
from rtpo.envs.airline.tasks import TOO_MANY_ERRORS, WRITES
from rtpo.errors import DataError
from rtpo.evaluation.panel import SAMPLES, SCHEMA
from rtpo.rewards.alarm import grading_alarm
from rtpo.run import archives
from rtpo.run.records import read_manifest
from rtpo.types import GradeOutcome, Termination

MANIFEST_KEYS = (
    *("benchmark", "checkpoint", "panel", "samples", "decoding", "rollout_context", "limits", "settings"),
    "files",
)
ALIKE = ("panel", "samples", "decoding", "limits", "settings")
"""what evaluations on one benchmark that are compared have in common"""
SAMPLE_KEYS = ("uid", "sample", "qa", *EPISODE_KEYS)
CALL_KEYS = ("attempted", "executed", "ok")
QA_SCORES = {
    "em": "Exact match",
    "f1": "Token F1",
    "span_f1": "Span F1",
    "answer_hit": "Output-hit, final answer",
    "output_hit": "Output-hit, all it wrote",
}
PATHS = "paths.jsonl"
HELD_OUT = "temperature 1"
"""how a run's own sampled evaluations are decoded"""
Line = Mapping[str, Any]
Summary = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sample:
    """An episode. unit: what is random beside seeds, a question or a prompt of a step. success: None where it could
    not be graded. turns: of the whole path. ended: by the policy or the user. cut: a turn met its token limit, or the
    episode that of its context. calls, over all tools: attempted, executed (well or not), ok (well); writes: those
    attempted of airline tools that write.

    qa: scores of a short answer by name. audit: of an episode with calls. meta: level and category of the question.
    """

    unit: str
    success: bool | None
    turns: int
    ended: bool
    cut: bool
    tokens: int
    attempted: int
    executed: int
    ok: int
    qa: Mapping[str, float] | None
    audit: Mapping[str, Any] | None
    meta: Mapping[str, Any] | None
    writes: int = 0


def sample(unit: str, line: Mapping[str, Any], place: str) -> Sample:
    """Of a line with EPISODE_KEYS. Raises DataError, naming `place`, for one whose calls are of an earlier version."""
    tools = line["calls"]
    calls = tools.values()
    if any(key not in counts for counts in calls for key in CALL_KEYS):
        raise DataError(
            f"{place} counts no {', '.join(CALL_KEYS)} of its calls: it is of an earlier version; run again."
        )
    attempted, executed, ok = (sum(int(counts[key]) for counts in calls) for key in CALL_KEYS)
    return Sample(
        unit=unit,
        success=None if line["reward"] is None else line["reward"] == 1,
        turns=int(line["turns"]),
        ended=line["termination"] == Termination.ANSWERED.value and line["detail"] != TOO_MANY_ERRORS,
        cut=line["cut_turns"] > 0 or line["termination"] == Termination.CONTEXT_LIMIT.value,
        tokens=int(line["generated_tokens"]),
        attempted=attempted,
        executed=executed,
        ok=ok,
        qa=line.get("qa"),
        audit=line.get("audit"),
        meta=line.get("meta"),
        writes=sum(int(counts["attempted"]) for tool, counts in tools.items() if tool in WRITES),
    )


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A complete evaluation of a run on a benchmark."""

    folder: Path
    manifest: Mapping[str, Any]

    @cached_property
    def samples(self) -> list[Sample]:
        """Raises DataError for a file that was changed or is damaged, and for one that is not whole."""
        path = self.folder / "samples.jsonl"
        lines = read_lines(path, self.manifest["files"], SAMPLE_KEYS)
        expected = self.manifest["panel"]["questions"] * self.manifest["samples"]
        if len(lines) != expected:
            raise DataError(f"{path} has {len(lines)} lines and the manifest says {expected}: evaluate again.")
        return [sample(str(line["uid"]), line, f"{path} line {i}") for i, line in enumerate(lines, start=1)]


def load_evaluation(folder: Path) -> Evaluation:
    """Raises DataError for another schema, a file that is not the manifest's, and a folder that is not of its
    benchmark."""
    path = folder / "manifest.json"
    manifest = read_manifest(path, SCHEMA, MANIFEST_KEYS)
    for name in manifest["files"]:
        if name != SAMPLES:  # which are when they are read
            unchanged(folder / name, manifest["files"])
    if manifest["benchmark"] != folder.name:
        raise DataError(
            f"{path} says benchmark {manifest['benchmark']!r} and lies in {folder.name!r}: move it back to its folder."
        )
    return Evaluation(folder, manifest)


def check_alike(evaluations: Sequence[Evaluation]) -> None:
    """Raises DataError where two on one benchmark differ in questions, samples, decoding or limits."""
    for other in evaluations[1:]:
        different = [key for key in ALIKE if other.manifest[key] != evaluations[0].manifest[key]]
        if different:
            raise DataError(
                f"{evaluations[0].folder} and {other.folder} differ in {', '.join(different)}: evaluate them alike."
            )


def decoded(given: Mapping[str, Any]) -> str:
    """How tokens were drawn, in words."""
    words = f"temperature {given['temperature']:g}"
    words += f", top-p {given['top_p']:g}" if given["top_p"] < 1 else ""
    return words + (f", top-k {given['top_k']}" if given["top_k"] > 0 else "")


def incomplete_evaluations(run: Path) -> list[Path]:
    """The folders of evaluations of a run that started and have no manifest."""
    return without_manifest(archives.find(run, "*/config.yaml"))


def held_out(run: Run) -> list[Sample]:
    """The run's own sampled evaluation after training."""
    path = run.folder / "evaluations.jsonl"
    return [
        sample(str(line["task"]), line, f"{path} line {i}")
        for i, line in enumerate(run.answers, start=1)
        if (line["when"], line["mode"]) == ("after", "sampled")
    ]


def first_paths(run: Run) -> list[Sample]:
    """The paths of training that began at a task, in its order: RTPO's trunks, other methods' chains. A unit is a task
    of a step."""
    path = run.folder / "paths.jsonl"
    return [
        sample(f"{line['step']} {line['task']}", line, f"{path} line {i}")
        for i, line in enumerate(run.paths, start=1)
        if line["parent"] is None
    ]


def graded(samples: Iterable[Sample]) -> list[Sample]:
    """Those with a reward."""
    return [one for one in samples if one.success is not None]


def graded_first_paths(run: Run) -> list[Sample]:
    """Those of `first_paths` with a reward: what could not be graded is no failure. Raises DataError for a run without
    any, and for one whose version kept none."""
    if PATHS not in run.manifest["files"]:
        raise DataError(f"{run.folder} has no {PATHS}: it was made before runs kept it. Run it again.")
    found = graded(first_paths(run))
    if not found:
        raise DataError(f"{run.folder} has no graded path that began at a task: nothing was trained.")
    return found


def part(samples: Sequence[Sample], place: int, of: int) -> Sequence[Sample]:
    """The `place`-th, from 1, of `of` parts of the graded samples as equal as can be, in their order."""
    there = graded(samples)
    return there[round(len(there) * (place - 1) / of) : round(len(there) * place / of)]


# several samples of a question, of which n were graded and c are right: the means, over all ways to take k of the n


def pass_at_k(n: int, c: int, k: int) -> float:
    """That one of k is right (Chen et al. 2021, unbiased)."""
    return 1 - pass_hat_k(n, n - c, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """That all of k are right (tau-bench, unbiased)."""
    return comb(c, k) / comb(n, k)


# figures


def summarise(lines: Sequence[Line], ks: Sequence[int]) -> Summary:
    """The figures of a panel's lines, in any order. Means are over questions of means over samples, unless said.

    What has no value is None; `notes` says why.
    """
    by_question: dict[str, list[Line]] = {}
    for line in sorted(lines, key=lambda line: (line["position"], line["sample"])):
        by_question.setdefault(line["uid"], []).append(line)
    notes: list[str] = []
    rewards = {uid: [line["reward"] for line in group] for uid, group in by_question.items()}
    first = _of_questions(rewards, pass_hat_k, 1, notes)
    ungradable = [line for line in lines if line["grade"] == GradeOutcome.UNGRADABLE]
    alarm = grading_alarm(len(lines) - len(ungradable), len(ungradable), [line["detail"] for line in ungradable])
    return {
        "questions": len(by_question),
        "samples": len(lines),
        "pass@1": _mean(first),
        "pass@1_interval": _interval(first),
        "pass@k": {str(k): _mean(_of_questions(rewards, pass_at_k, k, notes)) for k in ks},
        "pass^k": {str(k): _mean(_of_questions(rewards, pass_hat_k, k, notes)) for k in ks},
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


def _of_questions(
    rewards: Mapping[str, Sequence[float | None]], estimator: Callable[[int, int, int], float], k: int, notes: list[str]
) -> list[float]:
    """What an estimator gives for each question with enough graded samples; why not for others, in `notes`."""
    for uid, given in rewards.items():
        if odd := [reward for reward in given if reward not in (0, 1, None)]:
            notes.append(
                f"no estimate: question {uid!r} has a reward of {odd[0]}: successes are counted, so rewards are 0, 1 "
                "or none; score it by exact match or by a judge."
            )
            return []
    counts = {
        uid: (sum(reward is not None for reward in given), sum(reward == 1 for reward in given))
        for uid, given in rewards.items()
    }
    short = [uid for uid, (graded_samples, _) in counts.items() if graded_samples < k]
    if short:
        notes.append(
            f"estimates with k = {k} leave out {len(short)} of {len(rewards)} questions, such as {short[0]}, which "
            "have fewer graded samples."
        )
    return [estimator(n, c, k) for n, c in counts.values() if n >= k]


def _interval(shares: Sequence[float]) -> list[float] | None:
    """95 %, over questions; of one share between 0 and 1 for all of them Wilson's, as if of single answers."""
    if not shares:
        return None
    if len(set(shares)) == 1:
        return list(wilson(shares[0], len(shares)))
    found = interval([shares], share=True)
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


def table(summaries: Mapping[str, Summary], decoding: Mapping[str, str]) -> str:
    """Markdown: a row a figure, a column a benchmark. Shares in percent. decoding: of each, in words."""
    rows: dict[str, list[str]] = {}

    def row(title: str, cell: Callable[[Summary], str], *, always: bool = False) -> None:
        cells = [cell(summary) for summary in summaries.values()]
        if always or any(cell != NO_VALUE for cell in cells):
            rows[title] = cells

    rows["Decoding"] = [decoding[name] for name in summaries]
    row("Questions × samples", lambda s: f"{s['questions']:,} × {s['samples'] // s['questions']}")
    row("pass@1 (avg@n) [95 % over questions]", _pass_at_1, always=True)
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
    return ruled(("", *summaries), ([title, *cells] for title, cells in rows.items())).removesuffix("\n")


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
