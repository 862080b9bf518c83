"""Every element of every launcher against the paper's printed settings, row by row, and against each other."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from elements import loaded

from analysis.paper.settings import PaperSetting, paper_settings
from rtpo.planning.plan import plan
from rtpo.run.config import PROJECT, RunConfig
from rtpo.run.experiments import Element, experiments, sweep

DEVIATIONS = set(re.findall(r"^\| (\w+) \|", (PROJECT / "docs/method/deviations.md").read_text(), re.MULTILINE))
TEX_PLACES = re.compile(r"^(tab:[\w-]+( \(.*\))?|[A-Z][\w \N{EN DASH}-]+)$")


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
    assert TEX_PLACES.match(row.source)
    assert not row.deviation or (row.deviation in DEVIATIONS and row.expected != row.printed)


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


def test_every_experiment_trains_three_seeds() -> None:
    assert {sweep(name)["seed"] for name in experiments()} == {("0", "1", "2")}


def test_elements_end_within_their_time() -> None:
    """Of the longest experiment; a plan of an experiment that reads runs of another says what that spares."""
    planned = plan("ladder", ["profile=a100x8", "seed=0", "algorithm=rtpo,grpo_state_values_fresh"])
    assert 48 < max(sum(row.hours) for row in planned.rows) < planned.resources.minutes / 60
    (row,) = (row for row in planned.rows if row.owner)
    assert (row.run.label, row.owner, row.counts.rollouts, row.evaluation_rollouts) == ("rtpo", "main_table", 0, 0)
    assert row.spared > 1
