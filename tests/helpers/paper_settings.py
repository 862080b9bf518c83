"""The paper's settings as data (analysis/paper/settings.yaml), and the values of our runs where they differ."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, reduce
from operator import getitem
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter

from analysis.paper.records import config_file, panel_size
from rtpo.core.losses import LOG_RATIO_LIMIT
from rtpo.data.registry import REGISTRY
from rtpo.run.config import PROJECT, RunConfig
from rtpo.run.reading import SAFE_LOADER

FILE = PROJECT / "analysis" / "paper" / "settings.yaml"
Value = bool | int | float | str | None


@dataclass(frozen=True, kw_only=True)
class PaperSetting:
    """A setting that the paper prints."""

    setting: str  # a field of the run's configuration or, after `evaluate.`, of configs/evaluate.yaml; or one of COUNTS
    printed: Value  # the paper's value
    source: str  # the paper's section or table
    experiment: str = "*"  # a pattern of experiments
    task: str = "*"  # a pattern of tasks
    label: str = "*"  # a pattern of labels
    deviation: str = ""  # the row of docs/method/deviations.md with the reason why ours differs
    ours: Value = None  # our value, where there is a deviation

    @property
    def expected(self) -> Value:
        """The value that elements must have."""
        return self.ours if self.deviation else self.printed

    def concerns(self, experiment: str, run: RunConfig) -> bool:
        """Whether the setting applies to an element of an experiment."""
        names = ((experiment, self.experiment), (run.task.name, self.task), (run.label, self.label))
        return all(fnmatchcase(name, pattern) for name, pattern in names)

    def value(self, run: RunConfig) -> Value:
        """A run's value of this setting. Raises KeyError for a run without it."""
        if count := COUNTS.get(self.setting):
            return count(run)
        if self.setting.startswith("evaluate."):
            return _read(config_file(".", "evaluate"), self.setting.removeprefix("evaluate."))
        return _read(run.as_dict(), self.setting)


def _chains(run: RunConfig) -> int:
    return run.descriptor.rollouts_per_task(run.algorithm_config, run.task.max_turns)


def _first_paths(run: RunConfig) -> int | None:
    """The number of training paths that begin at a task: the trunks, pairs, chains or trees of all steps."""
    if run.budget.steps is None:
        return None
    per_prompt = next(run.algorithm[name] for name in ("trunks", "pairs", "chains", "trees") if name in run.algorithm)
    return int(run.budget.steps * run.budget.tasks_per_step * per_prompt)


def _leaves(run: RunConfig) -> int | None:
    """Training paths to an end, of all steps."""
    return None if run.budget.steps is None else run.budget.steps * run.budget.tasks_per_step * _chains(run)


def _train_rows(run: RunConfig) -> int | None:
    """The rows that preparation takes from the source of a run's training set, before any is left out."""
    source = REGISTRY[Path(run.task.train.file or "").stem]
    return source.sample or source.rows


COUNTS: Mapping[str, Callable[[RunConfig], Value]] = {
    "gpus": lambda run: run.profile.processes * run.profile.nodes,
    "prompts": lambda run: run.budget.rollouts // _chains(run),
    "chains": lambda run: _chains(run),
    "first_paths": _first_paths,
    "leaves": _leaves,
    "episode_tokens": lambda run: run.task.max_turns * run.task.max_turn_tokens,
    "log_ratio_limit": lambda run: LOG_RATIO_LIMIT,
    "train_rows": _train_rows,
    "hle_questions": lambda run: panel_size("hle"),
    "audit_questions": lambda run: panel_size("gsm8k_audit"),
}
"""settings that follow from several fields. chains: rollouts per prompt. prompts: those that the budget pays for.
episode_tokens: the most that an episode may generate"""


@cache
def paper_settings() -> tuple[PaperSetting, ...]:
    """All settings, in the file's order. Raises pydantic's ValidationError for a missing, unknown or invalid field."""
    rows = yaml.load(FILE.read_bytes(), SAFE_LOADER)
    return tuple(TypeAdapter(list[PaperSetting], config=None).validate_python(rows))


def _read(tree: Any, path: str) -> Any:
    return reduce(getitem, path.split("."), tree)
