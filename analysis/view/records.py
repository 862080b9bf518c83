"""What a page of rollouts is made from: a run's `rollouts.jsonl`, finished or not, an evaluation's `samples.jsonl`.

What is finished is read as its manifest says, or not at all. Of what is not, a line that cannot be read is left out,
and named with its file and number in `damaged`.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import pstdev
from typing import Any, TypeVar

from analysis.records import unchanged
from rtpo.core.names import some
from rtpo.errors import DataError
from rtpo.evaluation.panel import SAMPLES
from rtpo.run import archives
from rtpo.run.config import PROJECT
from rtpo.run.records import SCHEMA, read_config, read_manifest

T = TypeVar("T")
ROLLOUTS = "rollouts.jsonl"
UNKNOWN = "unknown"
"""what older records do not say"""
ROUNDED_UP = 1e-4
"""the largest log-prob: 0, but for rounding"""


@dataclass(frozen=True)
class Training:
    """That an update trained a turn. path: the uid of the path in which it did."""

    path: str
    update: int
    k: int
    advantage: float
    group: str


@dataclass(frozen=True)
class TurnRecord:
    """A turn as recorded; what older records lack is None."""

    k: int
    version: int
    context_ids: Sequence[int]
    output_ids: Sequence[int]
    stop: str
    logprobs: Sequence[float] | None
    calls: Sequence[tuple[str, str]] | None
    feedback_ids: Sequence[int] | None


@dataclass(frozen=True)
class PathRecord:
    """A sampled path with the turns it sampled itself; trained: None where older records do not say."""

    step: int
    task: str
    uid: str
    parent: str | None
    start_k: int
    role: str
    termination: str
    grade: str
    reward: float | None
    turns: tuple[TurnRecord, ...]
    trained: tuple[Training, ...] | None

    @property
    def is_unequal(self) -> bool:
        """Whether it was trained with an advantage that is not 0."""
        return any(one.advantage for one in self.trained or ())


@dataclass(frozen=True)
class Tree:
    """All that the records have of one question in one step."""

    paths: tuple[PathRecord, ...]

    @cached_property
    def _parents(self) -> Mapping[str, PathRecord]:
        """By uid. Records have a parent before what was forked from it."""
        known: dict[str, PathRecord] = {}
        parents = {}
        for path in self.paths:
            if path.parent in known:
                parents[path.uid] = known[path.parent]
            known[path.uid] = path
        return parents

    def parent(self, path: PathRecord) -> PathRecord | None:
        """What it was forked from, if that is in the records."""
        return self._parents.get(path.uid)

    @property
    def roots(self) -> list[PathRecord]:
        """Paths from the question, and those whose parent is not in the records."""
        return [path for path in self.paths if self.parent(path) is None]

    def forked(self, path: PathRecord) -> Mapping[int, list[PathRecord]]:
        """The paths forked from this one, by the k of the boundary, in order."""
        found: dict[int, list[PathRecord]] = {}
        for other in self.paths:
            if self.parent(other) is path:
                found.setdefault(other.start_k, []).append(other)
        return dict(sorted(found.items()))

    def trainings(self, path: PathRecord, k: int) -> list[Training] | None:
        """The updates that trained the turn k which this path sampled: its own, and those of paths that inherited it.
        None where the records do not say."""
        if path.trained is None:
            return None
        return [one for other in self.paths for one in other.trained or () if self._sampled(other, one.k) == (path, k)]

    def context(self, path: PathRecord, k: int) -> Sequence[int] | None:
        """c_k as the turn k that lies on this path had it; None where that turn is not in the records."""
        owner, _ = self._sampled(path, k)
        return next((turn.context_ids for turn in owner.turns if turn.k == k), None) if owner else None

    def _sampled(self, path: PathRecord, k: int) -> tuple[PathRecord | None, int]:
        """Which path sampled the turn k that lies on this one."""
        owner: PathRecord | None = path
        while owner is not None and k < owner.start_k:
            owner = self.parent(owner)
        return owner, k


@dataclass(frozen=True)
class Entry:
    """What a row of the index stands for: a question, in one step of a run or in each folder's own."""

    question: str
    step: int | None = None

    def spread(self, source: "AnySource") -> float:
        """How unequal a folder's rewards are: their standard deviation, 0 without any."""
        rewards = source.rewards(self)
        return pstdev(rewards) if rewards else 0.0


@dataclass(frozen=True)
class Source:
    """A folder that can be shown. is_finished: whether it has a manifest."""

    folder: Path
    config: Mapping[str, Any]
    is_finished: bool
    damaged: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.folder.parent.name}/{self.folder.name}"


@dataclass(frozen=True)
class RunSource(Source):
    """A training run's sampled rollouts."""

    paths: tuple[PathRecord, ...] = ()

    def entries(self, step: int | None) -> list[Entry]:
        """A row for each question of each step, or of one. Raises DataError for a step that has none."""
        found = [Entry(path.task, path.step) for path in self.paths if step in (None, path.step)]
        if not found:
            steps = sorted({path.step for path in self.paths})
            raise DataError(f"{self.folder} has no sampled rollouts of step {step}: choose from {some(steps)}.")
        return list(dict.fromkeys(found))

    def tree(self, entry: Entry) -> Tree:
        """Of the question in the entry's step; without one, in the first step that has an advantage other than 0 for
        it, or else the first that has it at all."""
        return self._trees[entry]

    def rewards(self, entry: Entry) -> list[float]:
        return [path.reward for path in self.tree(entry).paths if path.reward is not None]

    @cached_property
    def _trees(self) -> Mapping[Entry, Tree]:
        held: dict[Entry, list[PathRecord]] = {}
        for path in self.paths:
            held.setdefault(Entry(path.task, path.step), []).append(path)
        trees = {entry: Tree(tuple(paths)) for entry, paths in held.items()}
        for question in dict.fromkeys(entry.question for entry in held):
            own = [tree for entry, tree in trees.items() if entry.question == question]
            unequal = (tree for tree in own if any(path.is_unequal for path in tree.paths))
            trees[Entry(question)] = next(unequal, own[0])
        return trees

    def steps_of(self, question: str) -> list[int]:
        return sorted({path.step for path in self.paths if path.task == question})

    @property
    def model_folder(self) -> Path:
        return Path(str(self.config["model"]["path"]).replace("${project:}", str(PROJECT)))


@dataclass(frozen=True)
class EvaluationSource(Source):
    """An evaluation's lines; it keeps no token ids."""

    lines: tuple[Mapping[str, Any], ...] = ()

    def entries(self, step: int | None) -> list[Entry]:
        """A row for each question. Raises DataError for a step."""
        if step is not None:
            raise DataError(f"{self.folder} is an evaluation and has no steps: leave --step out.")
        return list(dict.fromkeys(Entry(str(line["uid"])) for line in self.lines))

    def of(self, entry: Entry) -> list[Mapping[str, Any]]:
        return [line for line in self.lines if str(line["uid"]) == entry.question]

    def rewards(self, entry: Entry) -> list[float]:
        return [float(line["reward"]) for line in self.of(entry) if line["reward"] is not None]


AnySource = RunSource | EvaluationSource


def load_source(folder: Path) -> AnySource:
    """A run or an evaluation. Raises DataError for a folder that is neither, keeps no rollouts, is of another schema,
    or is finished and has a file that is not its manifest's."""
    if not archives.exists(folder / "config.yaml"):
        raise DataError(archives.no_run(folder))
    sums = _checksums(folder)
    is_finished = sums is not None
    config = read_config(folder / "config.yaml", _bytes(folder / "config.yaml", sums))
    if archives.exists(folder / SAMPLES):
        lines, damaged = _read(folder / SAMPLES, sums, _evaluation_line)
        evaluation = EvaluationSource(folder, config, is_finished, damaged, tuple(lines))
        if not lines:
            raise DataError(_nothing(folder / SAMPLES, damaged, "run the evaluation again."))
        return evaluation
    file = folder / ROLLOUTS
    remedy = "a run keeps some with samples_per_rollout=1 or more."
    paths, damaged = _read(file, sums, _Paths())
    if not paths:
        raise DataError(_nothing(file, damaged, remedy))
    return RunSource(folder, config, is_finished, damaged, tuple(paths))


def entries(sources: Sequence[AnySource], step: int | None, question: str | None) -> list[Entry]:
    """The rows of the index, the most unequal first: of one folder its questions by step, of several the questions
    that all have, each in one step.

    Raises DataError for a question or step that a folder does not have, and where the folders have none in common.
    """
    held = [source.entries(step) for source in sources]
    where = "" if step is None else f" in step {step}"
    for source, known in zip(sources, held, strict=True):
        if question is not None and all(one.question != question for one in known):
            names = some(list(dict.fromkeys(one.question for one in known)))
            raise DataError(f"{source.folder} has no rollouts of question {question}{where}: choose from {names}.")
    if len(sources) > 1:
        common = set.intersection(*({one.question for one in known} for known in held))
        if not common:
            names = "; ".join(
                f"{s.folder}: {some([e.question for e in es])}" for s, es in zip(sources, held, strict=True)
            )
            raise DataError(f"no question is in all of the folders{where} ({names}): show them one by one.")
        found = list(dict.fromkeys(Entry(one.question, step) for one in held[0] if one.question in common))
    else:
        found = held[0]
    asked = [one for one in found if question in (None, one.question)]
    return sorted(asked, key=lambda one: -sum(one.spread(source) for source in sources))


def _nothing(file: Path, damaged: Sequence[str], remedy: str) -> str:
    first = f" ({len(damaged)} damaged lines; the first: {damaged[0]})" if damaged else ""
    return f"{file} has no rollouts{first}: {remedy}"


# files


def _checksums(folder: Path) -> Mapping[str, str] | None:
    """Of the files of what is finished. Raises DataError for a manifest that is damaged or of another schema."""
    file = folder / "manifest.json"
    if not archives.exists(file):
        return None
    sums: Mapping[str, str] = read_manifest(file, SCHEMA, ("files",))["files"]
    return sums


def _bytes(file: Path, sums: Mapping[str, str] | None) -> bytes:
    """Of what is finished as its manifest's checksum says; of what is not, as it is."""
    if sums is not None:
        return unchanged(file, sums)
    return file.read_bytes() if file.exists() else b""


def _read(file: Path, sums: Mapping[str, str] | None, record: Callable[[Any], T]) -> tuple[list[T], list[str]]:
    """The records of a file's lines, and a sentence for each line that is not one."""
    data = _bytes(file, sums)
    records, damaged = [], []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line:
            continue
        try:
            records.append(record(json.loads(line)))
        except KeyError as error:
            damaged.append(f"{file} line {number} lacks {error}")
        except (ValueError, TypeError, RecursionError) as error:
            damaged.append(f"{file} line {number} is damaged ({error})")
    return records, damaged


class _Paths:
    """Reads lines, each path once."""

    def __init__(self) -> None:
        self._known: set[tuple[int, str]] = set()

    def __call__(self, line: Any) -> PathRecord:
        path = _path(line)
        if (path.step, path.uid) in self._known:
            raise ValueError(f"it repeats rollout {path.uid} of step {path.step}")
        self._known.add((path.step, path.uid))
        return path


def _path(line: Any) -> PathRecord:
    uid, trained = str(line["rollout"]), line.get("trained")
    reward = line["reward"]
    return PathRecord(
        int(line["step"]),
        str(line["task"]),
        uid,
        None if line["parent"] is None else str(line["parent"]),
        int(line["start_k"]),
        str(line["role"]),
        str(line["termination"]),
        str(line["grade"]),
        None if reward is None else float(reward),
        tuple(_turn(turn) for turn in line["turns"]),
        None if trained is None else tuple(_training(uid, one) for one in trained),
    )


def _training(uid: str, one: Any) -> Training:
    return Training(uid, int(one["update"]), int(one["k"]), float(one["advantage"]), str(one["group"]))


def _turn(turn: Any) -> TurnRecord:
    output_ids, logprobs = _ids(turn["output_ids"]), turn.get("logprobs")
    if logprobs is not None and len(logprobs) != len(output_ids):
        raise ValueError(f"turn {turn['k']} has {len(output_ids)} output ids and {len(logprobs)} log-probs")
    if not all(-math.inf < one <= ROUNDED_UP for one in logprobs or ()):
        raise ValueError(f"turn {turn['k']} has a log-prob that is none")
    calls, feedback = turn.get("calls"), turn.get("feedback_ids")
    return TurnRecord(
        int(turn["k"]),
        int(turn["policy_version"]),
        _ids(turn["context_ids"]),
        output_ids,
        str(turn["stop"]),
        None if logprobs is None else [float(one) for one in logprobs],
        None if calls is None else [(str(tool), str(outcome)) for tool, outcome in calls],
        None if feedback is None else _ids(feedback),
    )


def _ids(values: Any) -> list[int]:
    return [int(one) for one in values]


def _evaluation_line(line: Any) -> Mapping[str, Any]:
    for key in ("uid", "sample", "grade", "reward", "termination", "turns", "generated_tokens", "answer", "extracted"):
        _ = line[key]
    return dict(line)
