"""Where the settings' values come from: every one of the paper's size names its source, and stands as it is written."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from analysis.pages.settings import METHODS, Setting, read_settings
from rtpo.run.config import PROJECT

CONFIGS = PROJECT / "configs"
SOURCED = {
    **{
        f"{group}/{name}.yaml": (f"task={name}",)
        for group in ("task", "budget")
        for name in ("math_paper", "search_paper")
    },
    "task/airline.yaml": ("task=airline",),
    "budget/airline.yaml": ("task=airline",),
    "experiment/airline.yaml": ("experiment=airline", "task=airline"),
    **{f"algorithm/{name}.yaml": ("task=math_paper", f"algorithm={name}") for name in METHODS},
    **{
        f"algorithm/{path.stem}.yaml": ("task=math_paper", f"algorithm={path.stem}")
        for path in sorted((CONFIGS / "algorithm").glob("*_full.yaml"))
    },
    **{
        f"algorithm/{name}.yaml": ("task=math_paper", f"algorithm={name}")
        for name in (
            "rtpo_off",
            "rtpo_g4",
            "rtpo_one_trunk",
            "rtpo_pooled",
            "rtpo_sync_2",
            "rtpo_sync_kl",
            "grpo_exact",
        )
    },
    "algorithm/grpo_recompute.yaml": ("task=math_paper", "algorithm=grpo_recompute"),
    "profile/a100x8.yaml": ("profile=a100x8", "task=math_paper"),
    "profile/a100x1.yaml": ("profile=a100x1", "task=math_paper"),
    "profile/h200x1.yaml": ("profile=h200x1", "task=math_paper"),
    "train.yaml": ("task=math_paper",),
}
"""files with sources, and what composes them"""
WHOLE = [file for file in SOURCED if file.startswith(("task", "budget", "algorithm"))]
"""files whose every value has one"""
NAMES = ("name", "label", "env", "split", "cache", "key_variable", "base_url", "model")
"""fields without one: names, and what a reader gives"""
TITLES = {
    "Algorithm 1",
    "Effect of Turn-Level Credit Assignment",
    "Experimental Setup",
    "Policy Drift Correction",
    "Qwen3 Chat Template",
    "Rollout–Training Mismatch",
    "Stateful Tool-Agent Evaluation",
    "Training Details",
}
"""of the paper's sections"""


@cache
def composed(overrides: tuple[str, ...]) -> DictConfig:
    profile = () if any(one.startswith("profile=") for one in overrides) else ("profile=a100x8",)
    with initialize_config_dir(str(CONFIGS), version_base=None):
        return compose("train", [*profile, *overrides])


def written(setting: Setting, tree: DictConfig) -> Any:
    """The value as written, with its references followed."""
    beside = OmegaConf.create({**tree, "written": setting.value})
    return OmegaConf.to_container(beside, resolve=True)["written"]  # type: ignore[index, call-overload]


def stands(field: str, tree: DictConfig) -> Any:
    node: Any = OmegaConf.to_container(tree, resolve=True)
    for key in field.split("."):
        node = node[key]
    return node


@pytest.mark.parametrize("file", SOURCED)
def test_values_with_a_source_stand_in_the_composed_configuration(file: str) -> None:
    tree = composed(SOURCED[file])
    sourced = [setting for setting in read_settings(CONFIGS / file) if setting.source is not None]
    assert sourced
    for setting in sourced:
        assert stands(setting.field, tree) == written(setting, tree), setting.field


@pytest.mark.parametrize("file", WHOLE)
def test_every_value_has_a_source(file: str) -> None:
    bare = [one for one in read_settings(CONFIGS / file) if one.source is None and one.value not in (None, "???")]
    assert [one.field for one in bare if one.field.split(".")[-1] not in (*NAMES, "file")] == []


def test_sources_are_in_the_paper_or_among_the_deviations() -> None:
    rows = re.findall(r"^\| (\w+) \|", (PROJECT / "docs" / "method" / "deviations.md").read_text(), re.MULTILINE)
    tables = yaml.safe_load((PROJECT / "analysis" / "paper" / "paper.yaml").read_text())["tables"]
    found = [
        (file.stem, one.source)
        for file in CONFIGS.rglob("*.yaml")
        for one in read_settings(file)
        if one.source is not None
    ]
    assert len(found) > 150
    assert {name for name, source in found if source.startswith("other: ")} == {
        "anchored",
        "anchored_forks",
        "anchored_forks_little_shrunk",
        "critic",
        "gigpo",
        "gspo",
        "rtpo_by_luck",
        "rtpo_few",
        "rtpo_shrunk",
        "rtpo_tree",
        "rtpo_variants",
        "vineppo",
        "grpo_state_values",
        "grpo_state_values_reverse",
        "grpo_state_values_fresh",
    }
    for _, source in found:
        for part in source.split("; "):
            kind, _, place = part.partition(": ")
            if kind == "other":
                continue
            if kind == "ours":
                assert place.removeprefix("row ") in rows, source
            else:
                title = re.split(r" \(|, ", place)[0]
                assert title in TITLES or title.removeprefix("tab:") in {*tables, "all-hparams"}, source


def test_a_comment_that_is_no_source_is_none(tmp_path: Path) -> None:
    file = tmp_path / "budget" / "x.yaml"
    file.parent.mkdir()
    file.write_text(
        "# @package _global_\na:\n  b: 1  # paper: Training Details\n  c: [1, 2]  # why\nd: 1e-3  # ours: row 1\n"
    )
    assert read_settings(file) == [
        Setting("a.b", 1, "paper: Training Details"),
        Setting("a.c", [1, 2], None),
        Setting("d", 1e-3, "ours: row 1"),
    ]
