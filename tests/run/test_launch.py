"""Experiments: every one composes on every profile, says what it differs in, and is refused in a sentence if it cannot
be. Seeds are left at one where they do not matter."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from conftest import compose_config
from elements import SERVER, loaded
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf
from programs import put_programs
from synthetic_runs import step, update, write_run

from analysis.run_table import run_table
from experiments import launch, launched, submission
from rtpo.data.registry import REGISTRY
from rtpo.errors import ConfigError, MachineError
from rtpo.run.building import leaves
from rtpo.run.cli import composed
from rtpo.run.config import PROJECT, RunConfig, compose_run
from rtpo.run.experiments import experiments, load_experiment

PROFILES = ("toy", "a100x8", "a100x1")
NAMED = {"experiment_name", "verl.trainer.experiment_name"}
MODEL = {"model.name", "model.path", "verl.actor_rollout_ref.model.path"}


@cache
def plain(task: str, algorithm: str) -> dict[str, Any]:
    """Its fields by their paths."""
    server = ("budget.rollouts=2000", *SERVER) if task == "airline" else ()
    return dict(leaves(compose_config("profile=a100x8", f"task={task}", f"algorithm={algorithm}", *server).as_dict()))


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", experiments())
def test_every_experiment_composes_on_every_profile(name: str, profile: str) -> None:
    named = "ablations" if name.startswith("ablate_") else name
    for element in loaded(name, profile).elements:
        assert element.run.experiment_name == f"{element.owner or named}_{profile}_{element.run.task.name}"
        assert element.run.profile.name == profile
        files = [PROJECT / "configs" / "benchmarks" / f"{benchmark}.yaml" for benchmark in element.benchmarks]
        assert all(file.exists() for file in files)
        assert files or element.run.task.name == "airline"


def test_no_two_experiments_train_in_one_folder() -> None:
    elements = [element for name in experiments() for element in loaded(name, "a100x8").elements]
    folders = [element.run.folder for element in elements if not element.owner]
    assert len(set(folders)) == len(folders)


@pytest.mark.parametrize("name", experiments())
def test_an_experiment_differs_in_what_its_file_says_alone(name: str) -> None:
    file = OmegaConf.to_container(OmegaConf.load(PROJECT / "configs" / "experiment" / f"{name}.yaml"))
    fields = {path for path, _ in leaves(file) if not path.startswith(("defaults", "launch.", "hydra."))}
    tree = composed("train", [f"experiment={name}"], with_hydra=True)
    fields |= NAMED | (tree.hydra.sweeper.params.keys() - {"task", "algorithm", "seed"})
    fields |= MODEL if "model" in file["launch"] else set()
    # a method may have what the task has already
    fields_of_some = {field for field, value in leaves(file) if field in fields and "${algorithm." in str(value)}
    for element in loaded(name, "a100x8").elements:
        settings = dict(override.split("=", 1) for override in element.overrides)
        task, algorithm = settings["task"], settings["algorithm"]
        if algorithm != "rtpo_sync_kl":  # refused without what the experiment sets
            own, usual = dict(leaves(element.run.as_dict())), plain(task, algorithm)
            different = {field for field in own | usual if own.get(field) != usual.get(field)}
            assert different | fields_of_some == fields


def test_one_gpu_has_the_small_model() -> None:
    small = {element.run.model.name for name in experiments() for element in loaded(name, "a100x1").elements}
    assert small == {"Qwen3-1.7B"}


def test_the_trainer_hears_that_gradients_are_sharded_after_each_micro_batch() -> None:
    """Whatever verl's YAML says: its dataclass has the opposite."""
    from rtpo.verl_harness.session import settings_of

    settings = settings_of(loaded("gsm8k_audit", "a100x1").elements[0].run)
    from verl.utils.config import omega_conf_to_dataclass

    actor: Any = omega_conf_to_dataclass(settings.actor_rollout_ref.actor)
    assert actor.engine.use_no_sync_for_gradient_accumulation is False


def test_compute_matched_runs_are_bound_by_one_time() -> None:
    for profile in PROFILES:
        elements = loaded("airline_matched", profile).elements
        assert [element.run.label for element in elements] == ["grpo", "rtpo"][: 1 + (profile == "a100x8")]
        (seconds,) = {element.run.budget.seconds for element in elements}
        assert seconds == {"toy": 10.0}.get(profile, 3.8 * 3600)


def test_files_of_the_papers_tasks_are_those_that_prepare_data_writes() -> None:
    for element in loaded("main_table", "a100x8").elements:
        task = element.run.task
        for role, data in (("train", task.train), ("eval", task.held_out)):
            assert data.file is not None
            file = Path(data.file)
            assert (file.parent, REGISTRY[file.stem].role) == (PROJECT / "data", role)
            assert REGISTRY[file.stem].kind == task.env
        for name in element.benchmarks:
            assert (REGISTRY[name].role, REGISTRY[name].kind) == ("eval", task.env)


def test_a_wrong_name_or_field_is_refused_by_its_name() -> None:
    for name, override, named in (
        ("main_tabel", "seed=0", "main_table"),
        ("drift", "profile=a100x", "a100x8"),
        ("drift", "experiment=sync", "experiment=sync"),
        ("drift", "lr=1", "optimizer.lr"),
        ("drift", "~algorithm.kk", "algorithm.kl"),
        ("drift", "seed=0,,", "seed=0,,"),
        ("drift", "launch.matched_seconds=soon", "launch.matched_seconds"),
        ("drift", "algorithm.kl=0,0.1", "main_table_toy_toy_knowledge/rtpo-seed0"),
        ("airline", "profile=a100x8", "task.settings.server.base_url"),
    ):
        with pytest.raises(ConfigError, match=re.escape(named)):
            load_experiment(name, [override])


def test_an_element_that_fails_does_not_keep_the_next_from_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []

    def train(run: RunConfig, _: object) -> None:
        ran.append(run.label)
        raise MachineError("the engine died.")

    monkeypatch.setattr(launch, "train", train)
    chosen = ("profile=toy", "task=toy_math", "algorithm=grpo,rtpo", "seed=0", f"results={tmp_path}")
    assert launch.main(["run", "main_table", *chosen]) == 1
    assert ran == ["grpo", "rtpo"]


def test_trials_are_not_in_the_papers_tables() -> None:
    single = ["task=toy_math", "algorithm=rtpo", "seed=0"]
    assert launch.runs_in_paper(launched.load("main_table", [*single, "experiment_name=trial"])) == []
    assert len(launch.runs_in_paper(launched.load("main_table", single))) == 1


def test_a_shared_run_is_left_to_its_owner_and_read_by_both_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = tmp_path / "asked"
    put_programs(tmp_path / "bin", monkeypatch, sbatch=f'echo "$@" >> {asked}; echo 7')
    monkeypatch.setenv("LOGS", str(tmp_path / "logs"))
    small = ("profile=toy", "task=toy_math", "seed=0", f"results={tmp_path}")
    assert launch.main(["submit", "ladder", *small, "algorithm=rtpo,grpo"]) == 0
    assert "2 elements left to other experiments" in capsys.readouterr().out
    assert not asked.exists()
    ladder = launched.load("ladder", (*small, "algorithm=rtpo,anchored_forks,grpo"))
    submission.submit("ladder", ladder, small)
    assert "--array=1 " in asked.read_text()
    main_table = launched.load("main_table", (*small, "algorithm=rtpo,grpo"))
    assert {each.run.folder for each in main_table.elements} < {each.run.folder for each in ladder.elements}
    assert main_table.unfinished_owners == {}

    lines = [step(1, 8, 0.5, [update(10, 0.0, 0.0)])]
    for experiment, label in (("ladder", "anchored_forks"), ("main_table", "rtpo"), ("main_table", "vanilla")):
        write_run(tmp_path, label, 0, lines, [], experiment=f"{experiment}_toy_toy_math")
    table = run_table(tmp_path, "ladder_toy_toy_math")
    assert [row[0] for row in table.rows] == ["RTPO", "Anchored forks"]
    assert "No finished run of GRPO" in " ".join(table.notes)


def test_a_shared_run_that_is_trained_is_evaluated_by_each_experiment(tmp_path: Path) -> None:
    drift = launched.load("drift", ("profile=a100x8", "seed=0", f"results={tmp_path}"))
    assert drift.unfinished_owners == {0: "main_table"}
    write_run(tmp_path, "rtpo", 0, [], [], experiment=drift.elements[0].run.experiment_name)
    assert drift.unfinished_owners == {}
    assert drift.incomplete[0] == list(drift.elements[0].benchmarks)


def test_hydras_multirun_has_the_same_elements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `python experiments/train.py -m` would run, in its order. Overrides replace the file's sweeps; seeds, which
    none replaces here, are the fastest to vary."""
    overrides = ["profile=a100x8", "task=math_paper", "algorithm=vanilla,rtpo", "budget.rollouts=30000"]
    monkeypatch.chdir(tmp_path)
    hydra = Hydra.create_main_hydra2("train", create_config_search_path(str(PROJECT / "configs")))
    runs: list[RunConfig] = []
    try:
        hydra.multirun("train", lambda tree: runs.append(compose_run(tree)), ["experiment=main_table", *overrides])
    finally:
        GlobalHydra.instance().clear()
    assert [(run.label, run.seed) for run in runs][1:4] == [("vanilla", 1), ("vanilla", 2), ("rtpo", 0)]
    assert len(runs) == 6
    assert runs == [element.run for element in load_experiment("main_table", overrides).elements]
