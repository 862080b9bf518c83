"""Experiments: every one composes on every profile, says what it differs in, and is refused in a sentence if it cannot
be. Seeds are left at one where they do not matter."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import compose_config
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.global_hydra import GlobalHydra
from synthetic_runs import write_realistic_run
from trees import differences

from experiments import launch
from rtpo.data.registry import REGISTRY
from rtpo.errors import ConfigError
from rtpo.run.config import PROJECT, RunConfig, compose_run
from rtpo.run.experiments import Experiment, experiments, load_experiment, outline

PROFILES = ("toy", "a100x8", "a100x1")
SERVER = ("task.settings.server.base_url=http://127.0.0.1:1/v1", "task.settings.server.model=user")
"""the airline's user"""
COUNTS = {
    "main_table": 48,
    "credit": 15,
    "drift": 6,
    "sync": 12,
    "airline": 18,
    "airline_matched": 6,
    "gsm8k_audit": 1,
    "ladder": 24,
    "ablate_clip_tight": 6,
    "ablate_clip_high": 6,
    "ablate_epochs": 6,
    "ablate_minibatches": 12,
    "ablate_kl": 12,
    "ablate_trunks": 6,
    "ablate_group": 6,
    "ablate_pool": 6,
    "ablate_clamp_tight": 6,
    "ablate_clamp_wide": 6,
    "ablate_denominators": 12,
}
"""elements with all seeds"""
NAMED = {"experiment_name", "verl.trainer.experiment_name"}
MODEL = {"model.name", "model.path", "verl.actor_rollout_ref.model.path"}
FULL = {"algorithm.label", "algorithm.rollout_context"}
AIRLINE = {"budget.rollouts", "evaluation.samples", "evaluation.greedy"}
FIELDS: dict[str, set[str]] = {
    "main_table": set(),
    "drift": set(),
    "ladder": set(),
    "credit": MODEL | FULL,
    "gsm8k_audit": MODEL | FULL,
    "sync": {f"verl.actor_rollout_ref.rollout.{key}" for key in ("free_cache_engine", "gpu_memory_utilization")},
    "airline": AIRLINE,
    "airline_matched": AIRLINE | {"budget.seconds"},
}
"""what an experiment sets, beside its name, its task and its algorithms, at the paper's size"""
ABLATIONS: dict[str, tuple[str, set[str]]] = {
    "ablate_clip_tight": ("rtpo", {"clip_low", "clip_high", "minibatches"}),
    "ablate_clip_high": ("rtpo", {"clip_high", "minibatches"}),
    "ablate_epochs": ("rtpo", {"epochs"}),
    "ablate_minibatches": ("rtpo", {"minibatches"}),
    "ablate_kl": ("rtpo", {"kl"}),
    "ablate_trunks": ("rtpo", {"trunks"}),
    "ablate_group": ("rtpo", {"group_size"}),
    "ablate_pool": ("rtpo", {"pool_s0"}),
    "ablate_clamp_tight": ("rtpo_off", {"tail_low", "tail_high"}),
    "ablate_clamp_wide": ("rtpo_off", {"tail_low", "tail_high"}),
}
"""the configuration that each differs from, and in what"""

NO_SYNC = "use_no_sync_for_gradient_accumulation"


@cache
def loaded(name: str, profile: str) -> Experiment:
    """With the first seed alone; on the smaller of the paper's profiles with the first algorithm, too."""
    server = SERVER if "airline" in name and profile != "toy" else ()
    first = [f"algorithm={algorithms(name, profile)[0]}"] if profile == "a100x1" else []
    return load_experiment(name, [f"profile={profile}", "seed=0", *first, *server])


@cache
def algorithms(name: str, profile: str) -> tuple[str, ...]:
    return outline(name, [f"profile={profile}"]).sweep["algorithm"]


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
    assert set(experiments()) == COUNTS.keys() == FIELDS.keys() | ABLATIONS.keys() | {"ablate_denominators"}


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", COUNTS)
def test_every_experiment_composes_on_every_profile(name: str, profile: str) -> None:
    experiment = loaded(name, profile)
    seeds = len(outline(name, [f"profile={profile}"]).sweep["seed"])
    alike = len(algorithms(name, profile)) if profile == "a100x1" else 1
    assert (experiment.name, experiment.profile) == (name, profile)
    assert len(experiment.elements) * seeds * alike == COUNTS[name]
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
    runs = [element.run for name in COUNTS for element in loaded(name, "a100x8").elements]
    folders = {run.folder for run in runs}
    assert len(folders) == len(runs)


# what they differ in


@pytest.mark.parametrize("name", FIELDS)
def test_an_experiment_sets_what_it_says_alone(name: str) -> None:
    for element in loaded(name, "a100x8").elements:
        task, algorithm = (chosen(element.overrides, field) for field in ("task", "algorithm"))
        if algorithm == "rtpo_sync_kl":
            continue  # refused without what the experiment sets: below
        assert set(differences(plain("a100x8", task, algorithm), element.run.as_dict())) == NAMED | FIELDS[name]


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", ABLATIONS)
def test_an_ablation_differs_from_its_partner_in_what_it_names(name: str, profile: str) -> None:
    algorithm, fields = ABLATIONS[name]
    for element in loaded(name, profile).elements:
        partner = {"grpo_minibatches_4": "grpo"}.get(element.run.label, algorithm)
        found = set(differences(plain(profile, element.run.task.name, partner), element.run.as_dict()))
        same = {"kl"} if profile == "toy" and element.run.algorithm["kl"] == 0 else set()  # the toy tasks' own
        assert found == NAMED | {"algorithm.label"} | {f"algorithm.{field}" for field in fields - same}
        assert not element.in_paper


def test_denominators_differ_in_the_denominator() -> None:
    for element in loaded("ablate_denominators", "a100x8").elements:
        partner = {"grpo_recompute": "grpo", "seeupo_recompute": "seeupo_flat"}[element.run.label]
        found = set(differences(plain("a100x8", element.run.task.name, partner), element.run.as_dict()))
        assert found == NAMED | {"algorithm.label", "algorithm.old_logprobs"}


def test_models_are_the_papers_and_one_gpu_has_the_small_one() -> None:
    models = {
        name: {element.run.model.name for element in loaded(name, "a100x8").elements}
        for name in ("main_table", "drift", "sync", "credit", "gsm8k_audit", "airline", "airline_matched")
    }
    assert models == {
        "main_table": {"Qwen3-8B"},
        "drift": {"Qwen3-8B"},
        "sync": {"Qwen3-8B"},
        "credit": {"Qwen3-4B"},
        "gsm8k_audit": {"Qwen3-4B"},
        "airline": {"Qwen3-1.7B"},
        "airline_matched": {"Qwen3-1.7B"},
    }
    small = {element.run.model.name for name in COUNTS for element in loaded(name, "a100x1").elements}
    assert small == {"Qwen3-1.7B"}


def test_search_has_two_trunks_and_math_four() -> None:
    trunks = {
        (element.run.task.name, element.run.algorithm["trunks"])
        for element in loaded("main_table", "a100x8").elements
        if element.run.label == "rtpo"
    }
    assert trunks == {("math_paper", 4), ("search_paper", 2)}
    one = loaded("ablate_trunks", "a100x8").elements
    assert [element.run.algorithm["trunks"] for element in one] == [1, 1]


def test_rows_that_the_papers_tables_do_not_have_are_marked() -> None:
    marked = {
        name: [e.run.label for e in loaded(name, "a100x8").elements if not e.in_paper]
        for name in FIELDS
        if name != "main_table"
    }
    assert {name: labels for name, labels in marked.items() if labels} == {
        "credit": ["grpo_full"],
        "ladder": [e.run.label for e in loaded("ladder", "a100x8").elements],
        "sync": ["rtpo_sync_2", "rtpo_sync_kl"],
    }
    main = loaded("main_table", "a100x8").elements
    assert {e.run.label for e in main if e.in_paper} == {"vanilla", "grpo", "seeupo_flat", "rtpo"}
    assert {e.run.label for e in main if not e.in_paper} == {"grpo_exact", "seeupo", "arpo", "tree_grpo"}


def test_the_trainer_hears_that_gradients_are_sharded_after_each_micro_batch() -> None:
    """Whatever verl's YAML says: its dataclass has the opposite."""
    from rtpo.verl_harness.session import settings_of

    settings = settings_of(loaded("gsm8k_audit", "a100x1").elements[0].run)
    from verl.utils.config import omega_conf_to_dataclass

    actor: Any = omega_conf_to_dataclass(settings.actor_rollout_ref.actor)
    assert getattr(actor.engine, NO_SYNC) is False


def test_tables_are_those_of_the_paper() -> None:
    tables = yaml.safe_load((PROJECT / "analysis" / "paper" / "paper.yaml").read_text())["tables"]
    for name in experiments():
        for label in outline(name).launch.paper:
            kind, _, table = label.partition(":")
            assert kind == "fig" or table in tables, label


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
    assert one.overrides == (
        "experiment=drift",
        "task=toy_knowledge",
        "algorithm=rtpo",
        "seed=0",
        "budget.rollouts=300",
    )


@pytest.mark.parametrize("rollouts", [0, 1, 80000])
def test_the_untrained_model_takes_any_budget(rollouts: int) -> None:
    overrides = ["task=toy_math", "algorithm=vanilla", "seed=0", f"budget.rollouts={rollouts}"]
    (element,) = load_experiment("main_table", overrides).elements
    assert element.run.descriptor.rollouts_per_task(element.run.algorithm_config, 3) == 0


@pytest.mark.parametrize(
    ("name", "overrides", "words"),
    [
        ("main", [], ["experiment is 'main'", "main_table", "drift"]),
        ("_ablation", [], ["experiment is '_ablation'", "the nearest is ablate_"]),
        ("main_tabel", [], ["experiment is 'main_tabel'", "the nearest is main_table."]),
        ("drift", ["profile=a100x"], ["profile/a100x", "configs/profile, the nearest is a100x8."]),
        ("drift", ["algorithm=chess"], ["algorithm/chess", "rtpo, rtpo_"]),
        ("drift", ["task=chess"], ["task/chess", "toy_math"]),
        ("drift", ["experiment=sync"], ["experiment=sync", "'drift'"]),
        ("drift", ["budget.rollout=300"], ["budget.rollout", "The nearest is budget.rollouts."]),
        ("drift", ["algoritm=rtpo"], ["algoritm", "The nearest is algorithm."]),
        ("drift", ["lr=1"], ["'lr'", "The nearest is optimizer.lr."]),
        ("drift", ["~algorithm.kk"], ["algorithm.kk", "The nearest is algorithm.kl."]),
        ("drift", ["seed=0,,"], ["'seed=0,,'"]),
        ("drift", ["budget.rollouts=25"], ["algorithm=rtpo", "budget.rollouts is 25", "one task can take"]),
        ("drift", ["algorithm.group_size=2"], ["algorithm=rtpo", "algorithm.group_size is 2"]),
        ("drift", ["launch.matched_seconds=soon"], ["launch.matched_seconds is 'soon'"]),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(name: str, overrides: list[str], words: list[str]) -> None:
    sentence = refusal(name, overrides)
    assert [word for word in words if word not in sentence] == []
    assert "\n" not in sentence
    assert sentence.endswith(".")


def test_two_elements_in_one_place_are_refused() -> None:
    sentence = refusal("drift", ["algorithm=rtpo", "seed=0", "algorithm.kl=0,0.1"])
    assert sentence.startswith("2 elements of this experiment would write to ")
    assert "drift_toy_toy_knowledge/rtpo-seed0" in sentence


def test_the_airline_asks_for_its_users_server() -> None:
    sentences = refusal("airline", ["profile=a100x8"]).splitlines()
    assert "task.settings.server.base_url is missing" in sentences[0]
    assert "task.settings.server.model is missing: a model on that server is the user" in sentences[1]


def test_only_an_engine_that_stays_awake_may_skip_synchronisations() -> None:
    """The experiment keeps it awake."""
    elements = loaded("sync", "a100x8").elements
    assert [element.run.algorithm["sync_kl"] for element in elements] == [None, None, 0.01, None]
    sleeping = "verl.actor_rollout_ref.rollout.free_cache_engine=true"
    assert "algorithm.sync_kl is 0.01" in refusal("sync", ["profile=a100x8", "seed=0", sleeping])


# the lines of the pages

LINE = re.compile(r"^python experiments/launch\.py (?:run|submit) .+?  +# (?:one|a) .+$", re.MULTILINE)
PARTS = {
    "one ablation": lambda runs: {run.label for run in runs} == {"rtpo_kl_0", "rtpo_kl_0.001"},
    "one method": lambda runs: {run.label for run in runs} == {"grpo"},
    "one seed": lambda runs: {run.seed for run in runs} == {1},
    "a small budget": lambda runs: all(run.budget.rollouts <= 2048 for run in runs),
}
"""what its comment promises of a line's runs"""


@pytest.mark.parametrize(
    ("page", "profile"), [("docs/run/runs.md", "toy"), ("docs/cluster/slurm.md", "a100x8")], ids=["toy", "cluster"]
)
def test_the_lines_of_the_pages_are_what_they_say(page: str, profile: str) -> None:
    lines = LINE.findall((PROJECT / page).read_text())
    assert {line.partition("# ")[2].partition(",")[0] for line in lines} == set(PARTS)
    for line in lines:
        _, _, _, experiment, *overrides = shlex.split(line, comments=True)
        loaded = launch.load(experiment, overrides)
        runs = [element.run for element in loaded.elements]
        assert PARTS[line.partition("# ")[2].partition(",")[0]](runs)
        assert "on one task" not in line or len({run.task.name for run in runs}) == 1
        assert {run.profile.name for run in runs} == {profile}
        assert len({run.folder for run in runs}) == len(runs)
        if profile == "toy":
            launch.check(loaded)  # nothing that is committed is in the way


# tables


def test_a_trials_own_table_is_all_that_is_made_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_realistic_run(tmp_path, "rtpo", 0, experiment="trial", questions=20)
    one = ["task=toy_math", "algorithm=rtpo", "seed=0", f"results={tmp_path}"]
    trial = launch.load("main_table", [*one, "experiment_name=trial"])
    assert launch.write_tables(trial) == 0
    said = capsys.readouterr().out
    *_, first, second, third, lacking, count = said.splitlines()
    assert "RTPO" in said
    assert {Path(line) for line in (first, second, third)} == set((tmp_path / "tables").iterdir())
    assert lacking == f"not complete: {tmp_path}/trial/rtpo-seed0: toy_math"
    assert count == "complete: 0 of 1 elements"
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
        ("ablate_kl", ("seed=0", "task=toy_math")),
        ("main_table", ("profile=a100x8", "algorithm=vanilla,rtpo", "seed=1", "budget.rollouts=30000")),
        ("airline", ("profile=a100x8", "task=airline", "algorithm=refuel,rtpo_g4", "seed=0", *SERVER)),
    ],
)
def test_hydras_multirun_has_the_same_elements(name: str, overrides: tuple[str, ...], multirun: Any) -> None:
    runs = multirun(f"experiment={name}", *overrides)
    GlobalHydra.instance().clear()
    assert runs == [element.run for element in load_experiment(name, overrides).elements]
