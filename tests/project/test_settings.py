"""Where the settings' values come from: every one of the paper's size names its source, and stands as it is written.

A source is the comment beside the value under configs/: `# paper: SECTION OR TABLE`, `# ours: row N` (a row of
docs/method/deviations.md that names the field), or both with a semicolon between; `# other: WORDS` of methods not
among the paper's.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from omegaconf import OmegaConf

from rtpo.run.cli import composed
from rtpo.run.config import PROJECT

CONFIGS = PROJECT / "configs"
DEVIATIONS = PROJECT / "docs" / "method" / "deviations.md"
METHODS = ("rtpo", "grpo", "seeupo", "seeupo_flat", "arpo", "tree_grpo", "refuel")
_SOURCE = re.compile(r"\s+# ((?:paper|ours|other): .*)$")
SOURCED = {
    **{f"task/{name}.yaml": (f"task={name}",) for name in ("math_paper", "search_paper", "airline")},
    "experiment/airline.yaml": ("experiment=airline", "task=airline"),
    **{f"algorithm/{name}.yaml": ("task=math_paper", f"algorithm={name}") for name in METHODS},
    "experiment/credit.yaml": ("experiment=credit", "task=math_paper"),
    **{
        f"algorithm/{name}.yaml": ("task=math_paper", f"algorithm={name}")
        for name in ("rtpo_off", "rtpo_g4", "rtpo_sync_2", "rtpo_sync_kl", "grpo_exact")
    },
    **{f"profile/{name}.yaml": (f"profile={name}", "task=math_paper") for name in ("a100x8", "a100x1", "h200x1")},
    "train.yaml": ("task=math_paper",),
}
"""files with sources, and what composes them"""
WHOLE = [file for file in SOURCED if file.startswith(("task", "algorithm"))]
"""files whose every value has one"""
NAMES = ("name", "path", "label", "env", "split", "cache", "key_variable", "base_url", "model")
"""fields without one: names, and what a reader gives"""
TITLES = {"Algorithm 1", "Effect of Turn-Level Credit Assignment", "Experimental Setup", "Policy Drift Correction"}
TITLES |= {"Qwen3 Chat Template", "Rollout–Training Mismatch", "Stateful Tool-Agent Evaluation", "Training Details"}
"""of the paper's sections"""


class Setting(NamedTuple):
    """field: such as `budget.rollouts`. value: as written. source: its comment, such as `paper: Training Details`."""

    field: str
    value: Any
    source: str | None


def read_settings(file: Path) -> list[Setting]:
    """The values of a file of configs/, in its order."""
    text = file.read_text(encoding="utf-8")
    prefix = "" if "# @package _global_" in text or file.parent.name == "configs" else f"{file.parent.name}."
    lines = [*text.splitlines(), ""]  # where a list of lines ends the file
    values = OmegaConf.load(file)
    settings = []
    for path, node in _leaves(yaml.compose(text, yaml.SafeLoader)):
        comment = _SOURCE.match(lines[node.end_mark.line][node.end_mark.column :])
        value = OmegaConf.to_container(values)
        for key in path:
            assert isinstance(value, dict)
            value = value[key]
        settings.append(Setting(prefix + ".".join(path), value, comment and comment[1]))
    return settings


def _leaves(node: yaml.Node | None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], yaml.Node]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value not in ("defaults", "hydra"):
                yield from _leaves(value, (*path, key.value))
    elif node is not None:
        yield path, node


def check_source(setting: Setting) -> None:
    """That a source in a row of the deviations is in one that names the field, or one above it."""
    rows = dict(re.findall(r"^\| (\w+) \|.*\| ([^|]*) \|$", DEVIATIONS.read_text(encoding="utf-8"), re.MULTILINE))
    for row in re.findall(r"ours: row (\w+)", setting.source or ""):
        named = re.findall(r"`([^`]+)`", rows.get(row, ""))
        assert any(f"{setting.field}.".startswith(f"{field}.") for field in named), (setting, named)


@pytest.mark.parametrize("file", SOURCED)
def test_values_with_a_source_stand_in_the_composed_configuration(file: str) -> None:
    profile = () if file.startswith("profile") else ("profile=a100x8",)
    tree = composed("train", [*profile, *SOURCED[file]])
    sourced = [setting for setting in read_settings(CONFIGS / file) if setting.source is not None]
    assert sourced
    for setting in sourced:
        # as written, with its references followed
        written = OmegaConf.to_container(OmegaConf.create({**tree, "written": setting.value}), resolve=True)
        stands = OmegaConf.to_container(OmegaConf.create({**tree, "stands": f"${{{setting.field}}}"}), resolve=True)
        assert stands["stands"] == written["written"], setting.field  # type: ignore[index, call-overload]


@pytest.mark.parametrize("file", WHOLE)
def test_every_value_has_a_source(file: str) -> None:
    bare = [one for one in read_settings(CONFIGS / file) if one.source is None and one.value not in (None, "???")]
    assert [one.field for one in bare if one.field.split(".")[-1] not in (*NAMES, "file")] == []


def test_sources_are_in_the_paper_or_among_the_deviations() -> None:
    tables = yaml.safe_load((PROJECT / "analysis" / "paper" / "paper.yaml").read_text())["tables"]
    sourced = [(file.stem, one) for file in CONFIGS.rglob("*.yaml") for one in read_settings(file) if one.source]
    assert len(sourced) > 150
    for name, setting in sourced:
        check_source(setting)
        for part in str(setting.source).split("; "):
            kind, _, place = part.partition(": ")
            if kind == "other":
                assert name not in METHODS
            elif kind == "paper":
                title = re.split(r" \(|, ", place)[0]
                assert title in TITLES or title.removeprefix("tab:") in {*tables, "all-hparams"}, setting


def test_a_row_that_does_not_name_the_field_is_no_source_of_it() -> None:
    check_source(Setting("algorithm.epochs", 4, "ours: row 8"))
    with pytest.raises(AssertionError):
        check_source(Setting("algorithm.trunks", 4, "ours: row 8; paper: Algorithm 1"))
