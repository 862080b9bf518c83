"""A run's recorded rollouts as trees, read from its `rollouts.jsonl`, or from an evaluation's `samples.jsonl`, and
checked line by line."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import pstdev
from typing import Annotated, Any, Self

from pydantic import BaseModel, Field, FiniteFloat, ValidationError, model_validator

from analysis.run_folder import unchanged
from rtpo.core.names import counted, some
from rtpo.errors import DataError
from rtpo.run.config import PROJECT
from rtpo.run.reading import json_object, read_config, read_manifest, why_no_run
from rtpo.run.records import SCHEMA

Ids = tuple[int, ...]
Logprob = Annotated[FiniteFloat, Field(le=1e-4)]
"""in nats; rounding can lift it a little above 0"""


class Training(BaseModel, frozen=True, strict=True):
    """An update of turn k of a path."""

    update: int  # index in the step's `updates`
    k: int
    advantage: FiniteFloat
    group: str  # the advantage compares the rewards of this group


class RecordedTurn(BaseModel, frozen=True, strict=True):
    """A turn as token ids."""

    k: int
    policy_version: int
    context_ids: Ids  # c_k
    output_ids: Ids  # the reply u_k
    logprobs: tuple[Logprob | None, ...]  # of the reply's tokens when they were sampled, in nats; None: not told
    stop: str
    calls: tuple[tuple[str, str], ...]  # tool and outcome, as ("calculator", "ok")
    feedback_ids: Ids  # the environment's answer f_k

    @model_validator(mode="after")
    def _has_a_logprob_a_token(self) -> Self:
        if len(self.logprobs) != len(self.output_ids):
            raise ValueError(
                f"turn {self.k} has {counted(len(self.output_ids), 'output id')} and {len(self.logprobs)} log-probs"
            )
        return self


class SampledPath(BaseModel, frozen=True, strict=True):
    """A path with its own turns, from k = start_k on; earlier turns belong to its parent."""

    step: int
    task: str
    rollout: str
    parent: str | None
    start_k: int
    role: str
    termination: str
    grade: str
    reward: FiniteFloat | None  # None if it could not be graded
    turns: tuple[RecordedTurn, ...]
    trained: tuple[Training, ...]  # updates of its turns, also of turns that its parent sampled


@dataclass(frozen=True)
class RecordedTree:
    """The recorded paths of one question in one step."""

    step: int
    question: str
    by_uid: Mapping[str | None, SampledPath]  # parents before their forks

    @property
    def paths(self) -> list[SampledPath]:
        return list(self.by_uid.values())

    @property
    def roots(self) -> list[SampledPath]:
        """The paths that start at the question."""
        return [path for path in self.paths if path.parent is None]

    def forked(self, path: SampledPath) -> Mapping[int, list[SampledPath]]:
        """The paths forked from this path, by the k of the boundary."""
        forks = [fork for fork in self.paths if fork.parent == path.rollout]
        return {k: [fork for fork in forks if fork.start_k == k] for k in sorted({fork.start_k for fork in forks})}

    def sampler(self, path: SampledPath, k: int) -> SampledPath:
        """The path that sampled turn k of `path`: itself or an ancestor."""
        while path.parent is not None and k < path.start_k:
            path = self.by_uid[path.parent]
        return path

    def trainings(self, path: SampledPath, k: int) -> list[tuple[str, Training]]:
        """The updates of this path's own turn k, each with the uid of the path that was trained."""
        turns = [(trained, training) for trained in self.paths for training in trained.trained if training.k == k]
        return [(trained.rollout, training) for trained, training in turns if self.sampler(trained, k) is path]

    def inherits_context(self, path: SampledPath, turn: RecordedTurn) -> bool:
        """Whether the first context of a fork equals its parent's at the boundary."""
        parent = self.by_uid.get(path.parent)
        earlier = self.sampler(parent, turn.k).turns if parent and turn.k == path.start_k else ()
        return any((turn.k, turn.context_ids) == (seen.k, seen.context_ids) for seen in earlier)

    @property
    def rewards(self) -> list[float]:
        return [path.reward for path in self.paths if path.reward is not None]

    @property
    def spread(self) -> float:
        """How unequal the rewards are: their standard deviation, 0 without any."""
        return pstdev(self.rewards) if self.rewards else 0.0


@dataclass(frozen=True)
class RecordedRun:
    """A run or one of its evaluations, with its configuration and trees."""

    folder: Path
    config: Mapping[str, Any]
    is_finished: bool  # whether it has a manifest
    trees: Sequence[RecordedTree]  # by decreasing spread of rewards; an evaluation's trees have step 0

    @property
    def model_folder(self) -> Path:
        return Path(str(self.config["model"]["path"]).replace("${project:}", str(PROJECT))).absolute()

    def choose(self, step: int | None, question: str | None) -> list[RecordedTree]:
        """The trees of a step and a question; None is any. Raises DataError without such a tree."""
        chosen = [tree for tree in self.trees if step in (None, tree.step) and question in (None, tree.question)]
        if not chosen:
            recorded = some([f"{tree.question} in step {tree.step}" for tree in self.trees])
            raise DataError(f"{self.folder} has no such rollouts: choose --question and --step from {recorded}.")
        return chosen


def load_recorded(folder: Path) -> RecordedRun:
    """A run or one of its evaluations (RUN/BENCHMARK), finished or not. Of an evaluation, only questions whose contexts
    were kept have a tree. Raises DataError for a folder without a run or rollouts, a file whose checksum differs from
    the manifest's, and a damaged line."""
    is_evaluation = (folder / "samples.jsonl").exists()
    config_file, manifest = (folder.parent if is_evaluation else folder) / "config.yaml", folder / "manifest.json"
    file = folder / ("samples.jsonl" if is_evaluation else "rollouts.jsonl")
    if not config_file.exists():
        raise DataError(why_no_run(config_file.parent))
    read = Path.read_bytes
    if is_finished := manifest.exists():
        read = partial(unchanged, checksums=read_manifest(manifest, SCHEMA, ("files",))["files"])
    config = read_config(config_file, config_file.read_bytes() if is_evaluation else read(config_file))
    # an unfinished folder may end within a line, which is left out
    lines = dict(enumerate(read(file).split(b"\n")[:-1] if file.exists() else [], start=1))
    if is_evaluation:
        paths = {number: json_object(line, f"{file} line {number}", ()).get("path") for number, line in lines.items()}
        lines = {number: json.dumps(path).encode() for number, path in paths.items() if path is not None}
    if not lines:
        field = "contexts" if is_evaluation else "samples_per_rollout"
        raise DataError(f"{file} has no rollouts: some are kept with {field}=1 or more.")
    return RecordedRun(folder, config, is_finished, _trees(file, lines))


def _trees(file: Path, lines: Mapping[int, bytes]) -> list[RecordedTree]:
    """The trees of recorded paths. lines: by their numbers in the file, for errors."""
    trees: dict[tuple[int, str], dict[str | None, SampledPath]] = {}
    for number, line in lines.items():
        try:
            path = SampledPath.model_validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise DataError(f"{file} line {number} is damaged: {where} {first['msg']}.") from error
        paths = trees.setdefault((path.step, path.task), {})
        if path.rollout in paths or path.parent not in (None, *paths):
            why = f"rollout {path.rollout} is there already, or its parent {path.parent} is not before it"
            raise DataError(f"{file} line {number} is damaged: {why}.")
        paths[path.rollout] = path
    recorded = (RecordedTree(*place, paths) for place, paths in trees.items())
    return sorted(recorded, key=lambda tree: -tree.spread)
