"""Names of runs after the fields that their command lines set."""

from typing import Any

import pytest
from omegaconf import OmegaConf

from rtpo.run.building import leaves
from rtpo.run.cli import composed
from rtpo.run.config import LAUNCH, compose_run
from rtpo.run.naming import LONGEST, label_of, settings_in, short_name, text


def named(*overrides: str) -> str:
    """The label that experiments/train.py gives the run."""
    whole = composed("train", overrides, with_hydra=True)
    return label_of(OmegaConf.masked_copy(whole, [key for key in whole if key != "hydra"]), whole.hydra)


def test_a_run_is_named_after_what_its_command_line_sets() -> None:
    for overrides, name in (
        ("algorithm=grpo task=toy_math seed=3 experiment_name=other results=elsewhere", "grpo"),
        ("profile=a100x8 profile.track=[tensorboard] optimizer.lr=5e-4", "rtpo"),
        ("task=toy_walk model=toy_walk_1 optimizer.lr=0.0002", "rtpo,lr=0.0002,model=toy_walk_1,task=toy_walk"),
        ("task.train.count=99 task.held_out.count=9", "rtpo,held_out.count=9,train.count=99"),
        ("model.path=models/Qwen3-8B optimizer.betas=[0.8,0.9]", "rtpo,betas=0.8_0.9,model.name=Qwen3-8B"),
        ("+task.settings.luck={turns:[0],size:1}", "rtpo,size=1,turns=0"),
        ("algorithm.label=mine optimizer.lr=2e-4", "mine"),
        ("experiment=ablate_kl algorithm.kl=0.5 budget.rollouts=64", "rtpo_kl_0.5"),
        ("experiment=main_table budget.rollouts=64", "rtpo"),
    ):
        assert named(*overrides.split()) == name


def test_a_long_label_shortens_itself_and_still_tells_runs_apart() -> None:
    fields = [f"+task.settings.luck.f{number}={number}" for number in range(40)]
    labels = [named(*fields), named(*fields[:-1], "+task.settings.luck.f39=7"), named(*fields[:30])]
    assert len(set(labels)) == 3
    for label in labels:
        assert len(label) <= LONGEST
        assert settings_in(label).items() < {f"f{number}": str(number) for number in range(40)}.items()
        tree = composed("train", [f"algorithm.label='{label}'"])
        assert compose_run(tree).label == label


@pytest.mark.parametrize(
    "override",
    [
        *(
            "profile.threads=1",
            "profile.engine_kl_limit=0.5",
            "+engine=vllm_cpu",
            "verl.actor_rollout_ref.model.path=/a/b",
        ),
        *("verl.actor_rollout_ref.rollout.max_num_seqs=8", "profile.check_trees=true"),
    ],
)
def test_what_says_how_the_machine_works_is_in_no_label(override: str) -> None:
    assert named(override, "optimizer.lr=0.1") == "rtpo,lr=0.1"


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ("model.path=/a/mine/", "mine"),
        ("model.path=relative/other", "other"),
        ("model=toy_math_1", "toy_math_warm_start_1"),
        ("model=toy_math_1 model.path=/a/mine", "mine"),
        ("model.path=/a/mine model.name=chosen", "chosen"),
        ("task=toy_math", "toy_math_warm_start"),
    ],
)
def test_a_model_whose_path_is_set_alone_has_the_name_of_its_folder(overrides: str, name: str) -> None:
    assert compose_run(composed("train", overrides.split())).model.name == name


def test_short_names_are_those_of_one_field_and_verls_give_way() -> None:
    fields = [path for path, _ in leaves(OmegaConf.to_container(composed("train", [])))]
    own = [path for path in fields if not path.startswith(("verl.", f"{LAUNCH}."))]
    assert len({short_name(path, fields) for path in own}) == len(own)
    assert [short_name(path, fields) for path in fields if path.endswith(".lr")] == ["lr", "optim.lr"]


@pytest.mark.parametrize("value", [None, True, 1e-6, "a/b c", {"a": [1, 2]}])
def test_values_are_parts_of_names(value: Any) -> None:
    assert settings_in(f"rtpo,field={text(value)}") == {"field": text(value)}
    assert not set(text(value)) & set(",=/ '\"[]{}")
