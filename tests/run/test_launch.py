"""Experiments: every one composes on every profile, says what it differs in, and is refused in a sentence if it cannot
be. Seeds are left at one where they do not matter."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from conftest import compose_config
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.global_hydra import GlobalHydra
from synthetic_runs import answers, step, update, write_run
from trees import differences

from experiments import launch
from rtpo.data.registry import REGISTRY
from rtpo.errors import ConfigError
from rtpo.run.cli import composed
from rtpo.run.config import PROJECT, RunConfig, compose_run
from rtpo.run.experiments import Experiment, experiments, load_experiment, sweep

PROFILES = ("toy", "a100x8", "a100x1")
SERVER = ("task.settings.server.base_url=http://127.0.0.1:1/v1", "task.settings.server.model=user")
"""the airline's user"""
NAMED = {"experiment_name", "verl.trainer.experiment_name"}
MODEL = {"model.name", "model.path", "verl.actor_rollout_ref.model.path"}
FULL = {"algorithm.label", "algorithm.rollout_context"}
AIRLINE = {"budget.rollouts", "evaluation.samples", "evaluation.greedy"}
CLIP = {"algorithm.clip_low", "algorithm.clip_high", "algorithm.minibatches"}
CLAMP = {"algorithm.tail_low", "algorithm.tail_high"}
FIELDS: dict[str, set[str]] = {
    "main_table": set(),
    "drift": set(),
    "ladder": set(),
    "credit": MODEL | FULL,
    "gsm8k_audit": MODEL | FULL,
    "sync": {f"verl.actor_rollout_ref.rollout.{key}" for key in ("free_cache_engine", "gpu_memory_utilization")},
    "airline": AIRLINE,
    "airline_matched": AIRLINE | {"budget.seconds"},
    "ablate_clip_tight": CLIP,
    "ablate_clip_high": CLIP - {"algorithm.clip_low"},
    "ablate_clamp_tight": CLAMP,
    "ablate_clamp_wide": CLAMP,
    "ablate_denominators": {"algorithm.old_logprobs"},
    "ablate_trunks": {"algorithm.trunks"},
    "ablate_group": {"algorithm.group_size"},
    "ablate_pool": {"algorithm.pool_s0"},
    **{f"ablate_{name}": {f"algorithm.{name}"} for name in ("epochs", "minibatches", "kl")},
}
"""what an experiment sets at the paper's size, beside its name, its task and its algorithms"""
PARTNERS = {"grpo_minibatches_4": "grpo", "grpo_recompute": "grpo", "seeupo_recompute": "seeupo_flat"}
"""by label, what an ablation differs from where it is not RTPO"""
NO_SYNC = "use_no_sync_for_gradient_accumulation"


@cache
def loaded(name: str, profile: str) -> Experiment:
    """With the first seed alone; on the smaller of the paper's profiles with the first algorithm, too."""
    server = SERVER if "airline" in name and profile != "toy" else ()
    first = [f"algorithm={algorithms(name, profile)[0]}"] if profile == "a100x1" else []
    return load_experiment(name, [f"profile={profile}", "seed=0", *first, *server])


@cache
def algorithms(name: str, profile: str) -> tuple[str, ...]:
    return sweep(name, [f"profile={profile}"])["algorithm"]


@cache
def plain(profile: str, task: str, algorithm: str) -> dict[str, Any]:
    server = ("budget.rollouts=2000", *SERVER) if task == "airline" else ()
    return compose_config(f"profile={profile}", f"task={task}", f"algorithm={algorithm}", *server).as_dict()


def chosen(overrides: tuple[str, ...], field: str) -> str:
    return next(one.removeprefix(f"{field}=") for one in overrides if one.startswith(f"{field}="))


def refusal(*arguments: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load_experiment(*arguments)
    return str(caught.value)


# what there is


def test_every_experiment_is_looked_at() -> None:
    assert set(experiments()) == FIELDS.keys()


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", experiments())
def test_every_experiment_composes_on_every_profile(name: str, profile: str) -> None:
    experiment = loaded(name, profile)
    assert (experiment.name, experiment.profile) == (name, profile)
    assert len({element.run.folder for element in experiment.elements}) == len(experiment.elements)
    for element in experiment.elements:
        named = "ablations" if name.startswith("ablate_") else name
        assert element.run.experiment_name == f"{named}_{profile}_{element.run.task.name}"
        assert element.run.profile.name == profile
        files = [PROJECT / "configs" / "benchmarks" / f"{one}.yaml" for one in element.benchmarks]
        assert all(file.exists() for file in files)
        assert files or element.run.task.name == "airline"
        fsdp = element.run.verl["actor_rollout_ref"]["actor"]["fsdp_config"]
        assert profile == "toy" or fsdp[NO_SYNC] is False


def test_seeds_are_elements_and_the_fastest_to_vary() -> None:
    elements = load_experiment("drift").elements
    assert [(one.run.label, one.run.seed) for one in elements] == [
        (label, seed) for label in ("rtpo", "rtpo_off") for seed in (0, 1, 2)
    ]
    assert len({one.run.folder for one in elements}) == 6


def test_no_two_experiments_share_a_folder() -> None:
    folders = [element.run.folder for name in experiments() for element in loaded(name, "a100x8").elements]
    assert len(set(folders)) == len(folders)


# what they differ in


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", FIELDS)
def test_an_experiment_differs_in_what_it_says_alone(name: str, profile: str) -> None:
    is_ablation = name.startswith("ablate_")
    assert not (is_ablation and composed("train", [f"experiment={name}"]).launch.paper)
    for element in loaded(name, profile).elements if is_ablation or profile == "a100x8" else ():
        label, task = element.run.label, chosen(element.overrides, "task")
        if is_ablation:
            partner = PARTNERS.get(label, "rtpo_off" if "clamp" in name else "rtpo")
        else:
            partner = chosen(element.overrides, "algorithm")
        if partner == "rtpo_sync_kl":
            continue  # refused without what the experiment sets: below
        fields = FIELDS[name] | ({"algorithm.label"} if is_ablation else set())
        if profile == "toy" and element.run.algorithm["kl"] == 0:
            fields = fields - {"algorithm.kl"}  # the toy tasks' own
        assert set(differences(plain(profile, task, partner), element.run.as_dict())) == NAMED | fields


def test_models_are_the_papers_and_one_gpu_has_the_small_one() -> None:
    sizes = {"Qwen3-8B": ("main_table", "drift", "sync"), "Qwen3-4B": ("credit", "gsm8k_audit")}
    sizes["Qwen3-1.7B"] = ("airline", "airline_matched")
    expected = {name: {model} for model, names in sizes.items() for name in names}
    assert {name: models(name, "a100x8") for name in expected} == expected
    assert {model for name in experiments() for model in models(name, "a100x1")} == {"Qwen3-1.7B"}


def models(name: str, profile: str) -> set[str]:
    return {element.run.model.name for element in loaded(name, profile).elements}


def test_the_trainer_hears_that_gradients_are_sharded_after_each_micro_batch() -> None:
    """Whatever verl's YAML says: its dataclass has the opposite."""
    from rtpo.verl_harness.session import settings_of

    settings = settings_of(loaded("gsm8k_audit", "a100x1").elements[0].run)
    from verl.utils.config import omega_conf_to_dataclass

    actor: Any = omega_conf_to_dataclass(settings.actor_rollout_ref.actor)
    assert getattr(actor.engine, NO_SYNC) is False


def test_compute_matched_runs_are_bound_by_one_time() -> None:
    for profile in PROFILES:
        elements = loaded("airline_matched", profile).elements
        assert [element.run.label for element in elements] == (["grpo"] if profile == "a100x1" else ["grpo", "rtpo"])
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


# overrides


def test_overrides_replace_the_sweeps() -> None:
    elements = load_experiment("main_table", ["task=toy_math", "algorithm=rtpo,rtpo_g4", "seed=7"]).elements
    assert [(e.run.label, e.run.seed) for e in elements] == [("rtpo", 7), ("rtpo_g4", 7)]
    (one,) = load_experiment("drift", ["algorithm=rtpo", "seed=0", "budget.rollouts=300"]).elements
    assert one.run.budget.rollouts == 300
    assert one.overrides[1:] == ("task=toy_knowledge", "algorithm=rtpo", "seed=0", "budget.rollouts=300")


@pytest.mark.parametrize(
    ("name", "override", "named"),
    [
        ("main_tabel", "seed=0", "main_table"),
        ("drift", "profile=a100x", "a100x8"),
        ("drift", "algorithm=chess", "algorithm/chess"),
        ("drift", "experiment=sync", "experiment=sync"),
        ("drift", "budget.rollout=300", "budget.rollouts"),
        ("drift", "lr=1", "optimizer.lr"),
        ("drift", "~algorithm.kk", "algorithm.kl"),
        ("drift", "seed=0,,", "seed=0,,"),
        ("drift", "budget.rollouts=25", "budget.rollouts"),
        ("drift", "launch.matched_seconds=soon", "launch.matched_seconds"),
        ("drift", "algorithm.kl=0,0.1", "drift_toy_toy_knowledge/rtpo-seed0"),
        ("airline", "profile=a100x8", "task.settings.server.base_url"),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(name: str, override: str, named: str) -> None:
    assert named in refusal(name, [override])


def test_only_an_engine_that_stays_awake_may_skip_synchronisations() -> None:
    """The experiment keeps it awake."""
    elements = loaded("sync", "a100x8").elements
    assert [element.run.algorithm["sync_kl"] for element in elements] == [None, None, 0.01, None]
    sleeping = "verl.actor_rollout_ref.rollout.free_cache_engine=true"
    assert "algorithm.sync_kl" in refusal("sync", ["profile=a100x8", "seed=0", sleeping])


# tables


def test_a_trials_own_table_is_all_that_is_made_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps, evaluations = [step(1, 64, 0.5, [update(10, 0.0, 0.5)])], answers("after", "sampled", {"q": [1.0]}, 1)
    write_run(tmp_path, "rtpo", 0, steps, evaluations, experiment="trial")
    one = ["task=toy_math", "algorithm=rtpo", "seed=0", f"results={tmp_path}"]
    trial = launch.load("main_table", [*one, "experiment_name=trial"])
    assert launch.write_tables(trial) == 0
    assert "complete: 0 of 1" in capsys.readouterr().out
    assert len(list((tmp_path / "tables").iterdir())) == 3
    assert launch.runs_in_paper(trial) == []
    assert len(launch.runs_in_paper(launch.load("main_table", one))) == 1


# Hydra's own multirun


@pytest.fixture
def multirun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """What `python experiments/train.py -m` would run: its jobs' configurations, in their order."""
    monkeypatch.chdir(tmp_path)
    search_path = create_config_search_path(str(PROJECT / "configs"))
    hydra = Hydra.create_main_hydra2(task_name="train", config_search_path=search_path)

    def run(*overrides: str) -> list[RunConfig]:
        seen: list[RunConfig] = []
        hydra.multirun("train", lambda tree: seen.append(compose_run(tree)), list(overrides))
        return seen

    yield run
    GlobalHydra.instance().clear()


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("gsm8k_audit", ()),
        ("drift", ("seed=0,1",)),
        ("main_table", ("profile=a100x8", "algorithm=vanilla,rtpo", "seed=1", "budget.rollouts=30000")),
        ("airline", ("profile=a100x8", "task=airline", "algorithm=refuel,rtpo_g4", "seed=0", *SERVER)),
    ],
)
def test_hydras_multirun_has_the_same_elements(name: str, overrides: tuple[str, ...], multirun: Any) -> None:
    runs = multirun(f"experiment={name}", *overrides)
    GlobalHydra.instance().clear()
    assert runs == [element.run for element in load_experiment(name, overrides).elements]
