"""A control differs from what it controls in one field, its label apart."""

import pytest
import yaml
from conftest import compose_config
from trees import differences

from rtpo.run.config import PROJECT, RunConfig

PAIRS = {
    "grpo_exact": ("grpo", "training_context"),
    "arpo_exact": ("arpo", "training_context"),
    "tree_grpo_exact": ("tree_grpo", "training_context"),
    "rtpo_off": ("rtpo", "sync_every"),
    "rtpo_sync_2": ("rtpo", "sync_every"),
    "rtpo_sync_kl": ("rtpo", "sync_kl"),
    "rtpo_g4": ("rtpo", "group_size"),
}
SCHEDULE = "verl.actor_rollout_ref.actor.optim.total_training_steps"
"""the length of a learning rate's schedule, which follows a limit on optimizer steps; a constant rate has none"""


def differing(one: RunConfig, other: RunConfig) -> set[str]:
    return set(differences(one.as_dict(), other.as_dict())) - {"algorithm.label", SCHEDULE}


@pytest.mark.parametrize("name", PAIRS)
def test_a_control_differs_from_its_partner_in_one_field(name: str) -> None:
    partner, field = PAIRS[name]
    control = compose_config(f"algorithm={name}")
    assert differing(compose_config(f"algorithm={partner}"), control) == {f"algorithm.{field}"}
    assert control.label == name


def test_the_studys_controls_differ_in_what_they_name() -> None:
    """Those given more have a rollout budget that does not bind beside the limit that does."""
    study = yaml.safe_load((PROJECT / "configs" / "study" / "toy.yaml").read_text())
    for control in study["controls"]["configurations"]:
        own = control.get("settings", [])
        named = {setting.partition("=")[0] for setting in own}
        whole, settings = f"algorithm={control['algorithm']}", study["settings"]
        assert differing(compose_config(whole, *settings), compose_config(whole, *settings, *own)) == named
        assert len(named - {"budget.rollouts", "algorithm.minibatches"}) + ("tokens_of" in control) == 1
