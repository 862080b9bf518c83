"""Benchmark evaluations of runs, and what a quantity counts of an episode, wherever it was played."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from analysis.records import EPISODE_KEYS, Run, read_lines, unchanged, without_manifest
from rtpo.envs.airline.statistics import TOO_MANY_ERRORS
from rtpo.envs.airline.tasks import WRITES
from rtpo.errors import DataError
from rtpo.evaluation.panel import SAMPLES, SCHEMA
from rtpo.run import archives
from rtpo.run.records import read_manifest
from rtpo.types import Termination

MANIFEST_KEYS = ("benchmark", "checkpoint", "panel", "samples", "decoding", "limits", "settings", "files")
ALIKE = ("panel", "samples", "decoding", "limits", "settings")
"""what evaluations on one benchmark that are compared have in common"""
SAMPLE_KEYS = ("uid", "sample", "qa", *EPISODE_KEYS)
CALL_KEYS = ("attempted", "executed", "ok")


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
