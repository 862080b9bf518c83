"""The command of studies: one of two configurations, whose trainer is the plain one; what studies plan, and how rates
are chosen."""

import json
import shutil
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from local_backend import LocalBackend
from synthetic_runs import answers, write_run
from whole_runs import SMALL

from analysis.load import keep, load, load_run
from analysis.study.plan import STUDIES, RunSuccess, Study, StudyRun, load_study
from analysis.study.predictions import comparisons_of, predict, read_predictions
from experiments import study as study_command
from experiments.study import missing, train_part
from rtpo.errors import ConfigError, DataError, InfrastructureError, NonFinite
from rtpo.run.config import PROJECT, RunConfig
from rtpo.run.lines import model_sha256
from rtpo.run.records import LINE_FILES, RunFolder
from rtpo.run.stopping import StopRequest

EVERY_30 = ("evaluation.every_rollouts=30", "samples_per_rollout=0")
TINY: dict[str, Any] = {
    "settings": [*SMALL, "budget.rollouts=60", "budget.tasks_per_step=2", *EVERY_30],
    "decoding": "paper",
    "rates": {
        "grid": [2e-4, 5e-4],
        "seeds": [0],
        "settings": ["task.held_out.split=validation", "evaluation.every_rollouts=0"],
    },
    "warm_starts": {"toy_math": ["toy_math", "toy_math_1"]},
    "core": {"tasks": ["toy_math"], "warm_starts": 1, "seeds": [0, 1], "configurations": ["grpo"]},
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


def found_in(path: Path) -> dict[str, dict[str, float]]:
    chosen: dict[str, dict[str, float]] = json.loads((path / "toy" / "learning_rates.json").read_text())
    return chosen


def test_a_study_is_run_part_by_part_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rtpo.verl_harness.session.open_backend", LocalBackend)
    study = study_of(tmp_path)
    assert len(list(missing(study))) == 7
    with pytest.raises(DataError, match="no configuration has run at every rate yet"):
        study.freeze()
    train_part(study, "core", StopRequest())
    assert capsys.readouterr().out.count("has no learning rate yet") == 2

    train_part(study, "rates", StopRequest(), only="grpo")
    search = [each for each in study.search() if each[0].configuration.label == "grpo"]
    trained = {rate: load_run(study.folder(place).path) for place, rate in search}
    assert {run.runs["learning_rate"].item() for run in trained.values()} == set(trained)
    assert {run.answers["split"].unique().item() for run in trained.values()} == {"validation"}
    (tmp_path / "toy" / "learning_rates.json").write_text('{"toy_math": {"grpo": 5e-4, "grpo_two": 5e-4}}')

    first, second = (study.folder(place) for place, _ in study.planned("core"))
    first.path.mkdir(parents=True)
    with first.held():
        train_part(study, "core", StopRequest(), task="toy_math")
    assert (first.is_finished, second.is_finished) == (False, True)
    train_part(study, "core", StopRequest(), minutes=0)
    train_part(study, "controls", StopRequest(), only="grpo_two")
    assert not first.is_finished
    for part in ("core", "controls"):
        train_part(study, part, StopRequest())
    assert [line.split("_lr")[0] for line in missing(study)] == ["rates: rates_toy_math/grpo_two"] * 2

    run = load_run(first.path)
    files = {"charges.jsonl", "log.txt", "config.yaml", "manifest.json", *LINE_FILES}
    assert {path.name for path in first.path.iterdir()} == files
    during = run.answers.query("when == 'during'")
    rollouts = run.steps.groupby("step")["rollouts"].first()
    steps = [0, *rollouts]
    passed = [now for before, now in pairwise(steps[:-1]) if now // 30 > before // 30]
    assert rollouts.loc[during["step"].unique()].tolist() == passed != []
    assert set(during["mode"]) == {"sampled", "paper"}
    control = load_run(tmp_path / "toy" / "toy_math" / "grpo_two-seed0")
    assert control.runs[["ended_by", "optimizer_steps"]].iloc[0].tolist() == ["optimizer_steps", 2]


def test_a_run_that_fails_does_not_keep_the_next_from_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, trained, errors = study_of(tmp_path), study_command.train, [NonFinite("the loss is NaN")]

    def fail_at_first(config: RunConfig, stop: StopRequest) -> RunFolder:
        if errors:
            raise errors.pop()
        return trained(config, stop)

    monkeypatch.setattr(study_command, "train", fail_at_first)
    monkeypatch.setattr("rtpo.verl_harness.session.open_backend", LocalBackend)
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "learning_rates.json").write_text('{"toy_math": {"grpo": 5e-4}}')
    first, second = (place for place, _ in study.planned("core"))
    with pytest.raises(InfrastructureError, match=r"1 run failed \(toy_math/grpo-seed0\)"):
        train_part(study, "core", StopRequest())
    assert (study.is_finished(first), study.is_finished(second)) == (False, True)
    train_part(study, "core", StopRequest())
    assert study.is_finished(first)


def test_a_part_with_places_runs_every_configuration_at_each(tmp_path: Path) -> None:
    starts, labels = (("toy_math_1", 7), ("toy_math", 3)), ["grpo", "rtpo"]
    places = [{"task": "toy_math", "warm_start": start, "seed": seed} for start, seed in starts]
    study = study_of(tmp_path, core={"tasks": ["toy_math"], "places": places, "configurations": labels})
    planned = [str(run) for run, _ in study.planned("core")]
    assert planned == [f"{start}/{label}-seed{seed}" for start, seed in starts for label in labels]


GRID = {"grid": [1e-4, 2e-4, 5e-4, 1e-3], "begin": [2e-4, 5e-4], "seeds": [0, 1], "settings": []}
TWO: dict[str, Any] = {
    "rates": GRID,
    "core": TINY["core"] | {"configurations": ["grpo", "rtpo"]},
    "controls": TINY["controls"] | {"configurations": []},
}


def tried(study: Study, algorithm: str) -> dict[float, int]:
    """How many runs of the search are planned at each rate."""
    return dict(Counter(rate for place, rate in study.search() if place.configuration.algorithm == algorithm))


def finish(study: Study, tmp_path: Path, shares: dict[str, dict[float, list[float]]]) -> None:
    """Made-up runs of the search until none is missing: by label and rate the success of each seed after training."""
    while left := [
        (place, shares[place.configuration.label][rate][place.seed])
        for place, rate in study.search()
        if place.configuration.label in shares and not study.folder(place).is_finished
    ]:
        for place, share in left:
            rewards: dict[str, list[float | None]] = {f"q{i}": [float(i < 10 * share)] for i in range(10)}
            lines = [*answers("after", "sampled", {"q": [0.0]}), *answers("after", "paper", rewards)]
            write_run(tmp_path / "toy", place.label, place.seed, [], lines, experiment=place.experiment)


def test_the_mean_over_seeds_chooses_and_no_rate_at_an_edge(tmp_path: Path) -> None:
    study = study_of(tmp_path, **TWO)
    assert tried(study, "grpo") == tried(study, "rtpo") == {2e-4: 2, 5e-4: 2}
    shares = {
        "grpo": {1e-4: [0.3, 0.3], 2e-4: [0.9, 0.1], 5e-4: [0.4, 0.5]},
        "rtpo": {2e-4: [0.2, 0.2], 5e-4: [0.4, 0.4], 1e-3: [0.6, 0.6]},
    }
    finish(study, tmp_path, shares)
    # of equals the lower is 2e-4, an edge of what ran first; 1e-3 is not tried where 5e-4 is not the best
    assert tried(study, "grpo") == {1e-4: 2, 2e-4: 2, 5e-4: 2}
    assert tried(study, "rtpo") == {2e-4: 2, 5e-4: 2, 1e-3: 2}
    with pytest.raises(DataError, match=r"an end of the grid for toy_math/rtpo at 0\.001, and was not written"):
        study.freeze()
    assert found_in(tmp_path) == {"toy_math": {"grpo": 2e-4}}
    assert "core: toy_math/rtpo-seed0, which has no learning rate yet" in missing(study)
    (tmp_path / "toy" / "learning_rates.json").write_text('{"toy_math": {"grpo": 0.0005}}')
    with pytest.raises(DataError, match=r"has 0\.0005 for grpo on toy_math and the records now say 0\.0002"):
        study.freeze()


@pytest.mark.parametrize(
    ("starts", "is_written"),
    [([0.4, 0.4], True), ([0.5, 0.5], True), ([0.3, 0.3], False), ([0.5, 0.2], True), ([0.2, 0.3], False)],
)
def test_the_lowest_rate_of_the_grid_is_for_a_configuration_that_gains_nothing_at_it(
    starts: list[float], is_written: bool, tmp_path: Path
) -> None:
    """Gains of −.1 and .2 are within one standard error of 0, and .2 and .1 are not."""
    study = study_of(tmp_path, **TWO | {"core": TWO["core"] | {"configurations": ["grpo"]}})
    search_with(study, tmp_path, {1e-4: (starts, 0.4), 2e-4: (starts, 0.3), 5e-4: (starts, 0.2)})
    with nullcontext() if is_written else pytest.raises(DataError, match=r"an end of the grid.*at 0\.0001"):
        study.freeze()
    assert found_in(tmp_path) == ({"toy_math": {"grpo": 1e-4}} if is_written else {})


def test_without_evaluations_before_training_no_rate_at_an_edge_is_chosen(tmp_path: Path) -> None:
    study = study_of(tmp_path, **TWO | {"core": TWO["core"] | {"configurations": ["grpo"]}})
    finish(study, tmp_path, {"grpo": {1e-4: [0.4, 0.4], 2e-4: [0.3, 0.3], 5e-4: [0.2, 0.2]}})
    with pytest.raises(DataError, match=r"an end of the grid.*at 0\.0001"):
        study.freeze()


def test_behind_a_closed_gate_nothing_is_frozen(tmp_path: Path) -> None:
    search = TWO | {"core": TWO["core"] | {"configurations": ["grpo"]}, "rates": GRID | {"seeds": [0]}}
    place = {"task": "toy_math", "warm_start": "toy_math", "seed": 9}
    gate = {"configuration": "grpo", "least": 0.3, "places": [place], "settings": ["budget.rollouts=999"]}
    study = study_of(tmp_path, **search, gate=gate)
    ((run, rate),) = study.planned("gate")
    assert (str(run), rate) == ("gate_toy_math/grpo-seed9", None)
    search_with(study, tmp_path, {1e-4: (0.1, 0.3), 2e-4: (0.3, 0.4), 5e-4: (0.2, 0.3)})
    with pytest.raises(DataError, match="the gate needs its runs of grpo"):
        study.freeze()
    ((run, rate),) = study.planned("gate")
    assert rate == 2e-4
    assert study.config(run, rate).budget.rollouts == 999
    write_ends(run, tmp_path, 0.2, 0.4, config=study.config(run, 5e-4).as_dict())
    with pytest.raises(DataError, match=r"optimizer\.lr was 0\.0005"):
        study.freeze()
    shutil.rmtree(study.folder(run).path)
    planned = study.config(run, rate)
    own = {"config": planned.as_dict(), "manifest": {"model_sha256": model_sha256(planned.model.path)}}
    write_ends(run, tmp_path, 0.2, 0.4, **own)
    with pytest.raises(DataError, match=r"gate is closed: grpo gains 20\.0 points, and 30"):
        study.freeze()
    assert not (tmp_path / "toy" / "learning_rates.json").exists()
    study_of(tmp_path, **search, gate=gate | {"least": 0.2 - 1e-9}).freeze()
    assert found_in(tmp_path) == {"toy_math": {"grpo": 2e-4}}


@pytest.mark.parametrize(
    ("after", "best", "steady"),
    [
        ({1e-4: [0.3, 0.3], 2e-4: [0.5, 0.5], 5e-4: [0.9, 0.1]}, 2e-4, 2e-4),  # of equals the lowest; one run collapses
        ({1e-4: [0.4, 0.4], 2e-4: [0.45, 0.6], 5e-4: [0.5, 0.6]}, 5e-4, 2e-4),  # .05 around .55 has .525, not .4
        ({1e-4: [0.1, 0.05], 2e-4: [0.2, 0.1], 5e-4: [0.1, 0.6]}, 5e-4, 2e-4),  # all have one that ends below
    ],
)
def test_a_steady_rate_is_the_lowest_of_the_best_that_let_no_run_end_below_its_start(
    after: dict[float, list[float]], best: float, steady: float
) -> None:
    runs = {rate: [RunSuccess(0.2, end) for end in ends] for rate, ends in after.items()}
    assert Study.best_of(runs, "best") == best
    assert Study.best_of(runs, "steady") == steady


def search_with(
    study: Study, tmp_path: Path, ends: Mapping[float, tuple[float | list[float], float]], label: str = "grpo"
) -> None:
    """Made-up runs of a configuration's search until none is missing: by rate the success before training, of all runs
    or by seed, and after it."""
    while left := [
        (place, rate)
        for place, rate in study.search()
        if place.configuration.label == label and not study.folder(place).is_finished
    ]:
        for place, rate in left:
            before, after = ends[rate]
            write_ends(place, tmp_path, before[place.seed] if isinstance(before, list) else before, after)


def write_ends(place: StudyRun, tmp_path: Path, before: float, after: float, **names: Any) -> None:
    """A made-up run with these shares of successes before and after training."""
    lines = [
        line
        for when, share in (("before", before), ("after", after))
        for line in answers(when, "paper", {f"q{i}": [float(i < 10 * share)] for i in range(10)})
    ]
    write_run(tmp_path / "toy", place.label, place.seed, [], lines, experiment=place.experiment, **names)


def test_a_steady_search_reads_where_runs_began(tmp_path: Path) -> None:
    study = study_of(
        tmp_path, **TWO | {"rates": GRID | {"rule": "steady"}, "core": TWO["core"] | {"configurations": ["grpo"]}}
    )
    ends = {1e-4: (0.0, 0.3), 2e-4: (0.2, 0.5), 5e-4: (0.2, 0.6), 1e-3: (0.9, 0.8)}
    search_with(study, tmp_path, ends)
    study.freeze()
    # 1e-3 has the highest mean and is tried, but its runs end below their starts
    assert tried(study, "grpo") == {2e-4: 2, 5e-4: 2, 1e-3: 2}
    assert found_in(tmp_path) == {"toy_math": {"grpo": 5e-4}}


def test_a_steady_search_without_evaluations_before_training_chooses_nothing(tmp_path: Path) -> None:
    search = TWO | {"core": TWO["core"] | {"configurations": ["grpo"]}, "rates": GRID | {"rule": "steady"}}
    study = study_of(tmp_path, **search)
    with pytest.raises(DataError, match="before training"):
        finish(study, tmp_path, {"grpo": {rate: [0.4, 0.4] for rate in GRID["grid"]}})


@pytest.mark.parametrize("name", ["turns", "quickstart_rates"])
def test_the_committed_rates_are_those_that_the_records_choose(name: str, tmp_path: Path) -> None:
    own = PROJECT / "results" / name
    study = Study(STUDIES / f"{name}.yaml", own, tmp_path / "learning_rates.json")
    study.freeze()
    assert json.loads((tmp_path / "learning_rates.json").read_text()) == json.loads(
        (own / "learning_rates.json").read_text()
    )
    assert all(study.is_finished(place) for place, _ in study.search())
    if (compared := comparisons_of(name)) is not None:
        assert [predict(study, compared, each) for each in compared.family] == read_predictions(own)


def test_a_configuration_trains_at_the_rate_of_another_without_a_search(tmp_path: Path) -> None:
    shared = {"label": "grpo_two", "algorithm": "grpo", "settings": [], "rate_from": "grpo"}
    study = study_of(tmp_path, controls=TINY["controls"] | {"configurations": [shared]})
    assert study.searches() == [("toy_math", "grpo")]
    assert [each.label for _, each in study.configurations()] == ["grpo", "grpo_two"]
    with pytest.raises(DataError, match="no learning rate"):
        study.rate_of("toy_math", "grpo_two")
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "learning_rates.json").write_text('{"toy_math": {"grpo": 5e-4}}')
    assert [rate for _, rate in study.planned("controls")] == [study.rate_of("toy_math", "grpo_two")] == [5e-4]
    for unsearched in ("gpo", "grpo_two"):
        with pytest.raises(ConfigError, match="rate_from"):
            study_of(tmp_path, controls=TINY["controls"] | {"configurations": [shared | {"rate_from": unsearched}]})
    with pytest.raises(ConfigError, match="rate_from of grpo_two on toy_knowledge"):
        study_of(tmp_path, controls=TINY["controls"] | {"tasks": ["toy_knowledge"], "configurations": [shared]})


NO_PRODUCT: dict[str, Any] = {"warm_starts": 0, "seeds": []}


def test_a_plan_that_cannot_be_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rates\.begin"):
        study_of(tmp_path, rates=GRID | {"begin": [1e-4, 5e-4]})
    with pytest.raises(ConfigError, match="no search for learning rates"):
        study_of(tmp_path, rates=None)
    for changed, said in (
        ({"seeds": ["one"]}, r"core\.seeds\.0 is 'one'"),
        ({"configurations": [{"label": "grpo", "setings": []}]}, r"setings is not a field of Configuration"),
        ({"configurations": "grpo"}, r"core\.configurations is 'grpo'"),
        ({"configurations": None}, r"core\.configurations is"),
        ({"seeds": []}, r"core has no run"),
        ({"warm_starts": 0}, r"core has no run"),
        (
            {**NO_PRODUCT, "places": [{"task": "toy_math", "warm_start": "toy_math_9", "seed": 0}]},
            r"core\.places has.*_9",
        ),
        ({"places": [{"task": "toy_math", "warm_start": "toy_math", "seed": 0}]}, r"core has.*two lists"),
        (
            {**NO_PRODUCT, "places": [{"task": "toy_math", "warm_start": "toy_math", "seed": 0}] * 2},
            r"core\.places.*once",
        ),
        (
            {**NO_PRODUCT, "places": [{"task": "toy_keys", "warm_start": "toy_keys", "seed": 0}]},
            r"core\.places.*toy_math",
        ),
    ):
        with pytest.raises(ConfigError, match=said):
            study_of(tmp_path, core=TINY["core"] | changed)
    place = {"task": "toy_math", "warm_start": "toy_math", "seed": 0}
    gate = {"configuration": "grpo", "least": 0.1, "places": [place]}
    borrowing = {"label": "grpo_at_its_rate", "algorithm": "grpo", "rate_from": "grpo"}
    for key, entry, said in (
        ("core", TINY["core"] | {"warm_starts": 3}, r"core\.warm_starts is 3, and toy_math has 2"),
        ("rates", GRID | {"seeds": []}, "the search on toy_math has no run"),
        ("rates", GRID | {"places": {"toy_math": [place | {"task": "toy_knowledge"}]}}, r"rates\.places\.toy_math"),
        ("rates", GRID | {"places": {"toy_math": [place | {"warm_start": "toy_math_9"}]}}, r"rates\.places\.toy_math"),
        ("controls", TINY["controls"] | {"configurations": [{"label": "grpo", "settings": ["seed=1"]}]}, "label grpo"),
        ("gate", gate | {"configuration": "grpo_one"}, "grpo_one"),
        ("gate", gate | {"configuration": "grpo_at_its_rate"}, "grpo_at_its_rate"),
        ("gate", gate | {"places": []}, "needs runs"),
        ("gate", gate | {"places": [place | {"warm_start": "toy_math_9"}]}, r"gate\.places.*_9"),
    ):
        with pytest.raises(ConfigError, match=said):
            study_of(tmp_path, **{"more": TINY["core"] | {"configurations": [borrowing]}, key: entry})


@pytest.mark.parametrize("name", sorted(path.stem for path in STUDIES.glob("*.yaml")))
def test_every_run_of_a_study_composes_and_has_a_folder_of_its_own(name: str, tmp_path: Path) -> None:
    study = Study(STUDIES / f"{name}.yaml", tmp_path)
    planned = [place for part in study.parts for place, _ in study.planned(part)]
    assert len({str(place) for place in planned}) == len(planned)
    composed: set[object] = set()
    for place in planned:
        # every configuration on every task of configs/task/, and every task and warm start of the plan
        kinds = {(place.configuration.label, place.settings[1]), place.task, place.experiment}
        if not kinds <= composed:
            composed |= kinds
            assert study.config(place, 1e-3).folder == study.folder(place).path


def test_a_study_is_run_again_elsewhere_at_the_chosen_rates(tmp_path: Path) -> None:
    """With the settings of a task of the plan."""
    own, again = load_study("turns"), load_study("turns", tmp_path)
    assert missing(own, "walk_luck", "rtpo") == []
    assert [line.split(":")[0] for line in missing(again, "walk_luck", "rtpo")].count("luck") == 20
    planned = [(place, rate) for place, rate in again.planned("luck") if place.label == "rtpo"]
    assert planned == [(place, rate) for place, rate in own.planned("luck") if place.label == "rtpo"]
    place, rate = planned[0]
    assert rate is not None
    config = again.config(place, rate)
    assert (config.results, config.task.name, config.optimizer.lr) == (str(tmp_path), "toy_walk", rate)
    assert config.task.settings["luck"] == {"turns": [0]}
    with pytest.raises(SystemExit):
        study_command.main(["turns", "freeze", "--results", str(tmp_path)])
    assert not list(tmp_path.iterdir())


def test_no_test_begins_before_it_is_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("analysis.study.plan.PROJECT", tmp_path)
    assert study_command.main(["turns", "core"]) == 1
    assert "predicted.json is missing" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


def test_finished_runs_lose_their_saves_and_kept_ones_are_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = TINY["rates"] | {"grid": [1e-4, 2e-4, 5e-4]}
    study, both = study_of(tmp_path, rates=rates), {1e-4: [0.4], 2e-4: [0.7], 5e-4: [0.4]}
    finish(study, tmp_path, {"grpo": both, "grpo_two": both})
    folders = [study.folder(place).path for place, _ in study.search()]
    for folder in folders:
        (folder / "checkpoints").mkdir()
    with pytest.raises(DataError, match="another configuration"):
        train_part(study, "rates", StopRequest())
    monkeypatch.setattr(study_command, "check_place", lambda _: None)  # made-up runs have another one
    train_part(study, "rates", StopRequest())
    keep(load(tmp_path / "toy"), tmp_path / "toy")
    for folder in folders:
        shutil.rmtree(folder)
    study = study_of(tmp_path, rates=rates)
    train_part(study, "rates", StopRequest())
    assert not any(folder.exists() for folder in folders)
    assert not [line for line in missing(study) if line.startswith("rates")]
    study.freeze()
    assert [rate for _, rate in study.planned("core")] == [2e-4, 2e-4]
