"""Every committed run is of the configuration that configs/ gives its name today.

The rule is that of the tables (`rtpo.run.differences.differences`): a field that both have and that differs fails. So
does one that only the record or only configs/ has, unless it is off (absent, null and false say the same). A new field
with another default names in `rtpo.run.differences.LATER_FIELDS` what runs did before it, or its records are made anew.
"""

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pandas as pd
import pytest
from omegaconf import OmegaConf

from analysis.columns import COLUMNS
from analysis.load import load_run, read_parquet
from analysis.paper.records import config_file
from analysis.study.plan import STUDIES, load_study
from experiments import quickstart
from rtpo.run.cli import composed
from rtpo.run.config import PROJECT, compose_run
from rtpo.run.differences import differences
from rtpo.run.experiments import load_experiment, sweep

RESULTS = PROJECT / "results"
STUDIED = sorted(file.stem for file in STUDIES.glob("*.yaml") if (RESULTS / file.stem / "runs.parquet").exists())
"""studies that were run; others are plans"""
EXPERIMENT, LABEL, RATE = "some_experiment", "some_label", 0.123456
"""in place of what the runs of one composition differ in"""
Config = Mapping[str, Any]


def kept(folder: str) -> dict[str, Config]:
    runs = pd.read_parquet(RESULTS / folder / "runs.parquet", columns=["run", "config"])
    return {run: json.loads(config) for run, config in zip(runs["run"], runs["config"], strict=True)}


def check(records: Mapping[str, Config], planned: Callable[[str], Config]) -> None:
    wrong = {run: different for run, record in records.items() if (different := differences(record, planned(run)))}
    assert wrong == {}


def test_every_folder_of_runs_is_checked_here() -> None:
    folders = {file.parent.name for file in RESULTS.glob("*/runs.parquet")}
    main = {name for name in folders if name.startswith("main_table_toy_")}
    assert main == {"main_table_toy_toy_math", "main_table_toy_toy_knowledge"}
    assert folders - main - {"reference", "language_model"} == set(STUDIED)
    assert {"turns", "quickstart_rates"} <= set(STUDIED)


def test_the_reference_runs() -> None:
    """Those of the quickstart's command."""
    planned = {run.label: run.as_dict() for run in quickstart.configurations(["experiment_name=reference"])}
    check(kept("reference"), lambda run: planned[run.partition("/")[2].rpartition("-seed")[0]])


def test_the_folders_of_reference_runs_hold_what_their_frames_do() -> None:
    """In the columns of both: frames that were kept earlier lack later ones. A frame names no folder."""
    kept, folders = read_parquet(RESULTS / "reference"), sorted((RESULTS / "reference").glob("*-seed*"))
    assert folders
    for folder in folders:
        own = load_run(folder)
        pairs = [(getattr(own, name), getattr(kept.select(own.names), name)) for name in COLUMNS]
        for of_folder, of_frame in pairs:
            both = sorted((set(of_folder) & set(of_frame)) - {"folder"})
            assert "run" in both
            whole, frame = (each[both].reset_index(drop=True) for each in (of_folder, of_frame))
            pd.testing.assert_frame_equal(whole, frame, check_dtype=False)


def test_the_runs_of_a_language_model() -> None:
    """Each is of one command on its page, with the label that the command names, and each experiment has the precision
    that the page names."""
    page = (PROJECT / "docs" / "run" / "language_model.md").read_text(encoding="utf-8")
    section = page.partition("\n## Single runs\n")[2].partition("\n## ")[0]
    blocks = re.findall(r'^settings="([^"]*)"$(.*?)^```$', section, re.MULTILINE | re.DOTALL)
    commands = [
        f"{settings} {command}"
        for settings, block in blocks
        for command in re.findall(r"^python experiments/train.py \$settings (.*)$", block, re.MULTILINE)
    ]

    @cache
    def planned(command: str, precision: str) -> Config:
        return compose_run(composed("train", [*command.split(), f"profile.precision={precision}"])).as_dict()

    def is_of(command: str, record: Config) -> bool:
        config = planned(command, record["profile"]["precision"])
        if "algorithm.label=" not in command:  # made from the overrides, of which the precision was none
            config = {**config, "algorithm": config["algorithm"] | {"label": record["algorithm"]["label"]}}
        return not differences(record, config)

    recorded = list(kept("language_model").values())
    precisions = {(record["experiment_name"], record["profile"]["precision"]) for record in recorded}
    assert precisions == {("lm_gain", "bf16"), ("lm_treasure", "fp32")}
    for record in recorded:
        (command,) = [command for command in commands if is_of(command, record)]
        commands.remove(command)
    assert commands == []


@pytest.mark.parametrize("task", ["toy_math", "toy_knowledge"])
def test_the_main_table(task: str) -> None:
    elements = load_experiment("main_table", ["profile=toy", f"task={task}", "seed=0"]).elements
    planned = {element.run.label: element.run.as_dict() for element in elements}
    seeds = [int(seed) for seed in sweep("main_table")["seed"]]
    folder = f"main_table_toy_{task}"
    assert set(kept(folder)) == {f"{folder}/{label}-seed{seed}" for label in planned for seed in seeds}
    evaluations = pd.read_parquet(RESULTS / folder / "benchmarks.parquet")
    assert set(evaluations["run"]) == set(kept(folder))
    evaluate = config_file(".", "evaluate")
    assert set(evaluations["samples"]) == {evaluate.samples}
    decoding = OmegaConf.to_container(evaluate.decoding)
    assert all(json.loads(text) == decoding for text in evaluations["decoding"])
    check(kept(folder), lambda run: planned[run.partition("/")[2].rpartition("-seed")[0]])


@pytest.mark.parametrize("study", STUDIED)
def test_a_study(study: str) -> None:
    """As its plan composes them; a run of a rate that the plan tries no more is one of the others' rates."""
    plan = load_study(study)
    places = {str(place): (place, rate) for part in plan.parts for place, rate in plan.planned(part)}
    alike = {base(run): place for run, (place, _) in places.items()}

    def as_planned(run: str) -> Config:
        place = places[run][0] if run in places else alike[base(run)]
        settings = dict(word.split("=", 1) for word in place.settings)
        model, split = settings.pop("model", None), settings.pop("task.held_out.split", None)
        tree = template(**settings)
        values: dict[Any, Any] = {
            EXPERIMENT: run.partition("/")[0],
            LABEL: run.partition("/")[2].rpartition("-seed")[0],
        }
        values[RATE] = places[run][1] if run in places else float(run.rpartition("-seed")[0].rpartition("_lr")[2])
        if model is not None:
            own = template(task=settings["task"], model=model)["model"]
            values |= {tree["model"][field]: own[field] for field in ("name", "path")}
        config: Any = replaced(tree, values)
        if split is not None:
            config["task"]["held_out"]["split"] = split
        return config

    check(kept(study), as_planned)


def base(run: str) -> str:
    """A run's name without its rate and seed."""
    return run.rpartition("-seed")[0].rpartition("_lr")[0]


def template(**settings: str) -> Config:
    """As composed with these settings, for any run. A composition takes a fifth of a second, and many runs differ only
    in their warm start or in what they are evaluated on."""
    return _template(tuple(f"{name}={value}" for name, value in settings.items()))


@cache
def _template(settings: tuple[str, ...]) -> Config:
    own = ("seed=0", f"experiment_name={EXPERIMENT}", f"algorithm.label={LABEL}", f"optimizer.lr={RATE}")
    return compose_run(composed("train", [*own, *settings])).as_dict()


def replaced(tree: Any, values: Mapping[Any, Any]) -> Any:
    if isinstance(tree, dict):
        return {key: replaced(value, values) for key, value in tree.items()}
    if isinstance(tree, list):
        return [replaced(value, values) for value in tree]
    return values[tree] if isinstance(tree, str | float) and tree in values else tree
