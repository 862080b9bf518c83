"""Every element of every launcher against the paper's printed settings, row by row, and against each other."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache, reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
import yaml
from elements import loaded
from pydantic import TypeAdapter
from titles import TITLES

from analysis.paper.cells import load_plans
from analysis.paper.numbers import load_paper
from analysis.paper.records import config_file, panel_size
from rtpo.core.losses import LOG_RATIO_LIMIT
from rtpo.data.registry import REGISTRY
from rtpo.planning.plan import plan, summary
from rtpo.run.config import PROJECT, RunConfig
from rtpo.run.experiments import Element, experiments, sweep
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


DEVIATIONS = set(re.findall(r"^\| (\w+) \|", (PROJECT / "docs/method/deviations.md").read_text(), re.MULTILINE))
TABLES = {"all-hparams", "math_results", "on_off_policy_hit", "supp_airline_test", "supp_airline_training"}
TABLES |= {"supp_compute_matched", "supp_group_sensitivity", "supp_gsm8k_audit", "supp_inference_budget"}
TABLES |= {"supp_sync_results", "supp_training_tokens", "supp_wall_clock"}
"""tables that a setting follows from: from their numbers, their captions or the text beside them"""


def elements() -> Iterator[tuple[str, Element]]:
    """Of all launchers, with the first seed."""
    for name in experiments():
        for element in loaded(name, "a100x8").elements:
            yield name, element


@pytest.mark.parametrize("row", paper_settings(), ids=lambda row: f"{row.setting} {row.experiment} {row.label}")
def test_elements_have_what_the_paper_prints(row: PaperSetting) -> None:
    runs = {
        f"{name} {element.run.task.name} {element.run.label}": element.run
        for name, element in elements()
        if row.concerns(name, element.run)
    }
    assert runs  # a row of no element says nothing
    different = {name: row.value(run) for name, run in runs.items() if row.value(run) != row.expected}
    assert not different
    assert not row.deviation or (row.deviation in DEVIATIONS and row.expected != row.printed)


def test_rows_name_their_sections_and_tables() -> None:
    """Each title and table is one of the paper's, and none of these tables is without a row."""
    sources = {row.source.partition(" (")[0] for row in paper_settings()}
    tables = {source.removeprefix("tab:") for source in sources if source.startswith("tab:")}
    assert tables == TABLES
    assert tables <= load_paper().tables.keys()
    assert {source for source in sources if not source.startswith("tab:")} <= TITLES


def test_rows_print_what_the_table_of_settings_prints() -> None:
    runs = {(name, element.run.task.name, element.run.label): element.run for name, element in elements()}
    cells = load_plans().tables["settings"].cells
    assert len(cells) == 20
    for cell in cells.itertuples():
        setting = "gpus" if cell.setting == "profile.processes" else cell.setting
        run = runs[cell.experiment, f"{cell.task or 'math'}_paper", cell.label]
        rows = [row for row in paper_settings() if row.setting == setting and row.concerns(cell.experiment, run)]
        assert cell.paper.number in [row.printed for row in rows], cell.Index


def test_no_training_is_done_twice() -> None:
    """Elements that differ in nothing but names are one run, in one folder, which one experiment owns."""

    def settings(run: RunConfig) -> str:
        alike = replace(run, experiment_name="", algorithm=run.algorithm | {"label": ""})
        return json.dumps(alike.as_dict(), sort_keys=True).replace(run.experiment_name, "")

    trained: dict[str, tuple[str, Element]] = {}
    for name, element in elements():
        if element.run.budget.rollouts and not element.owner:
            assert trained.setdefault(settings(element.run), (name, element)) == (name, element)
    shared = [element for _, element in elements() if element.owner]
    assert len(shared) == 5
    for element in shared:
        owner, owned = trained[settings(element.run)]
        assert (element.owner, element.run) == (owner, owned.run)


def test_every_experiment_trains_as_many_seeds_as_the_paper_repeats() -> None:
    repeats = load_paper().statement("repeats").value.number
    assert repeats == 3
    assert {sweep(name)["seed"] for name in experiments()} == {tuple(map(str, range(int(repeats))))}


def test_elements_end_within_their_time() -> None:
    """Of the longest experiment; a plan of an experiment that reads runs of another says what that spares."""
    planned = plan("ladder", ["profile=a100x8", "seed=0", "algorithm=rtpo,grpo_state_values_fresh"])
    assert 48 < max(sum(row.hours) for row in planned.rows) < planned.resources.minutes / 60
    (row,) = (row for row in planned.rows if row.owner)
    assert (row.run.label, row.owner, row.counts.rollouts, row.evaluation_rollouts) == ("rtpo", "main_table", 0, 0)
    owned = plan("main_table", ["profile=a100x8", "seed=0", "task=math_paper", "algorithm=rtpo"])
    assert row.spared == owned.rows[0].hours[0] > 1
    (spared,) = re.findall(r"^Spared by reading them: ([\d,]+) GPU-hours", summary(planned), re.MULTILINE)
    assert int(spared.replace(",", "")) == round(8 * row.spared)
