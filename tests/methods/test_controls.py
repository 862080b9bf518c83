"""A control differs from what it controls in one field, its label apart."""

import pytest
from conftest import compose_config
from trees import differences

from rtpo.run.config import RunConfig

PAIRS = {
    "grpo_exact": ("grpo", "training_context"),
    "arpo_exact": ("arpo", "training_context"),
    "tree_grpo_exact": ("tree_grpo", "training_context"),
    "rtpo_off": ("rtpo", "sync_every"),
    "rtpo_sync_2": ("rtpo", "sync_every"),
    "rtpo_sync_kl": ("rtpo", "sync_kl"),
    "rtpo_g4": ("rtpo", "group_size"),
}


def differing(one: RunConfig, other: RunConfig) -> set[str]:
    return set(differences(one.as_dict(), other.as_dict())) - {"algorithm.label"}


@pytest.mark.parametrize("name", PAIRS)
def test_a_control_differs_from_its_partner_in_one_field(name: str) -> None:
    partner, field = PAIRS[name]
    control = compose_config(f"algorithm={name}")
    assert differing(compose_config(f"algorithm={partner}"), control) == {f"algorithm.{field}"}
    assert control.label == name
