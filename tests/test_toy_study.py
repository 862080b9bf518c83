"""The toy study's command: a study of two configurations, whose trainer is the plain one, and what it plans."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from local_backend import LocalBackend
from synthetic_runs import answers, write_run
from whole_runs import SMALL

from analysis.records import load_run
from analysis.toy_study.plan import PARTS, STUDY, Study
from experiments.maintenance.pack import pack
from experiments.toy_study import missing, train_part
from rtpo.errors import ConfigError, DataError
from rtpo.run.records import LINE_FILES
from rtpo.run.run import StopRequest

TINY: dict[str, Any] = {
    "settings": [*SMALL, "evaluation.every_rollouts=30", "samples_per_rollout=0"],
    "learning_rates": [2e-4, 5e-4],
    "validation": ["task.held_out.split=validation", "evaluation.every_rollouts=0"],
    "warm_starts": {"toy_math": ["toy_math", "toy_math_1"]},
    "core": {"tasks": ["toy_math"], "warm_starts": 1, "seeds": [0, 1], "configurations": ["grpo"]},
    "rest": {"tasks": ["toy_math"], "warm_starts": 1, "seeds": [0], "configurations": []},
    "controls": {
        "tasks": ["toy_math"],
        "warm_starts": 1,
        "seeds": [0],
        "configurations": [{"label": "grpo_two", "algorithm": "grpo", "settings": ["budget.optimizer_steps=2"]}],
    },
}


def study_of(tmp_path: Path, **changed: Any) -> Study:
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump(TINY | changed))
    return Study(file, tmp_path / "toy")


def test_a_study_is_run_part_by_part_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rtpo.verl_harness.session.open_backend", LocalBackend)
    study = study_of(tmp_path)
    assert len(list(missing(study))) == 5
    with pytest.raises(DataError, match="no configuration has run at every rate yet"):
        study.freeze()
    train_part(study, "core", StopRequest())
    assert capsys.readouterr().out.count("has no learning rate yet") == 2

    train_part(study, "rates", StopRequest())
    study.freeze()
    chosen = json.loads((tmp_path / "toy" / "learning_rates.json").read_text())
    found = {rate: load_run(study.folder(place).path) for place, rate in study.search()}
    success = {
        rate: run.evaluations.query("when == 'after' and mode == 'sampled'")["reward"].mean()
        for rate, run in found.items()
    }
    assert chosen == {"toy_math": {"grpo": max(sorted(success), key=lambda rate: success[rate])}}
    assert {run.config["optimizer"]["lr"] for run in found.values()} == set(found)
    assert {run.evaluations["split"].unique().item() for run in found.values()} == {"validation"}

    first, second = (study.folder(place) for place, _ in study.planned("core"))
    first.path.mkdir(parents=True)
    with first.held():
        train_part(study, "core", StopRequest(), task="toy_math")
    assert (first.is_finished, second.is_finished) == (False, True)
    train_part(study, "core", StopRequest(), minutes=0)
    with pytest.raises(ConfigError, match=r"--task toy_knowledge: not in the plan; there are toy_math\."):
        train_part(study, "core", StopRequest(), task="toy_knowledge")
    with pytest.raises(ConfigError, match=r"--only rtpo: not in the plan; there are grpo\."):
        train_part(study, "core", StopRequest(), only="grpo,rtpo")
    train_part(study, "controls", StopRequest(), only="grpo_two")
    assert not first.is_finished
    for part in PARTS:
        train_part(study, part, StopRequest())
    assert list(missing(study)) == []

    run = load_run(first.path)
    assert {path.name for path in first.path.iterdir()} == {
        "charges.jsonl",
        "log.txt",
        "config.yaml",
        "manifest.json",
        *LINE_FILES,
    }
    during = run.evaluations.query("when == 'during'")
    steps = [0, *(line["rollouts"] for line in run.steps)]
    passed = [now for before, now in pairwise(steps[:-1]) if now // 30 > before // 30]
    assert list(dict.fromkeys(during["rollouts"])) == passed != []
    assert set(during["mode"]) == {"sampled", "paper"}
    control = load_run(tmp_path / "toy" / "toy_math" / "grpo_two-seed0")
    assert (control.manifest["ended_by"], control.ledger["optimizer_steps"]) == ("optimizer_steps", 4)


def searched(study: Study, tmp_path: Path, shares: dict[float, float]) -> None:
    """Made-up runs of the search: sampled success after training by rate."""
    for place, rate in study.search():
        rewards: dict[str, list[float | None]] = {f"q{i}": [float(i < 10 * shares[rate])] for i in range(10)}
        write_run(
            tmp_path / "toy", place.label, 0, [], answers("after", "sampled", rewards), experiment=place.experiment
        )


@pytest.mark.parametrize(
    ("shares", "best"), [({2e-4: 0.4, 5e-4: 0.7}, 5e-4), ({2e-4: 0.7, 5e-4: 0.4}, 2e-4), ({2e-4: 0.4, 5e-4: 0.4}, 2e-4)]
)
def test_the_best_rate_is_chosen_and_of_equals_the_lowest(
    tmp_path: Path, shares: dict[float, float], best: float
) -> None:
    study = study_of(tmp_path)
    searched(study, tmp_path, shares)
    study.freeze()
    assert [rate for _, rate in study.planned("core")] == [best, best]
    assert [rate for _, rate in study.planned("controls")] == [best]


def test_a_chosen_rate_does_not_change(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    searched(study, tmp_path, {2e-4: 0.4, 5e-4: 0.7})
    (tmp_path / "toy" / "learning_rates.json").write_text('{"toy_math": {"grpo": 0.0002}}')
    with pytest.raises(DataError, match=r"has 0\.0002 for grpo on toy_math and the records now say 0\.0005"):
        study.freeze()


def test_a_configuration_with_a_rate_to_run_has_none(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    place, _ = next(iter(study.search()))
    write_run(
        tmp_path / "toy", place.label, 0, [], answers("after", "sampled", {"q": [1.0]}), experiment=place.experiment
    )
    with pytest.raises(DataError, match="no configuration has run at every rate yet"):
        study.freeze()
    assert [rate for _, rate in study.planned("core")] == [None, None]


def test_finished_runs_lose_their_saves_and_packed_ones_are_not_run_again(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    searched(study, tmp_path, {2e-4: 0.4, 5e-4: 0.7})
    folders = [study.folder(place).path for place, _ in study.search()]
    for folder in folders:
        (folder / "checkpoints").mkdir()
    train_part(study, "rates", StopRequest())
    pack(tmp_path / "toy")
    train_part(study, "rates", StopRequest())
    assert not any(folder.exists() for folder in folders)
    assert not [line for line in missing(study) if line.startswith("rates")]
    study.freeze()
    assert [rate for _, rate in study.planned("core")] == [5e-4, 5e-4]


def test_every_run_of_the_study_composes_and_has_a_folder_of_its_own() -> None:
    study = Study()
    planned = [place for part in PARTS for place, _ in study.planned(part)]
    assert len({str(place) for place in planned}) == len(planned)
    composed: set[tuple[str, str, str]] = set()
    for place in planned:
        kind = (place.experiment, place.configuration.label, place.task)
        if kind not in composed:
            composed.add(kind)
            assert study.config(place, 1e-3).folder == study.folder(place).path


def test_every_seed_runs_once_before_one_runs_twice() -> None:
    order = [(place.seed, place.warm_start) for place in Study().places("core") if place.task == "toy_math"]
    first = list(dict.fromkeys(order))[:5]
    assert [seed for seed, _ in first] == [0, 1, 2, 3, 4]
    assert {warm_start for _, warm_start in first} == {"toy_math", "toy_math_1"}


def test_the_study_file_names_configurations_that_there_are_and_each_once() -> None:
    study = yaml.safe_load(STUDY.read_text())
    algorithms = {path.stem for path in (STUDY.parents[1] / "algorithm").glob("*.yaml")}
    named = [*study["core"]["configurations"], *study["rest"]["configurations"]]
    assert set(named) <= algorithms
    assert len(named) == len(set(named)) > 10
