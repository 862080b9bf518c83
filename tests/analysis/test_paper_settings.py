"""Every element of every launcher against the paper's printed settings, row by row, and against each other."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from elements import loaded
from paper_settings import PaperSetting, paper_settings
from titles import TITLES

from analysis.paper.cells import load_plans
from analysis.paper.numbers import load_paper
from rtpo.planning.plan import plan, summary
from rtpo.run.config import PROJECT, RunConfig
from rtpo.run.experiments import Element, experiments, sweep

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
    """Each title and table is one of the paper's, and no table that prints a setting is without a row."""
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
