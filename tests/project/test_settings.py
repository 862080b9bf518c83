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
from titles import TITLES

from rtpo.run.cli import composed
from rtpo.run.config import PROJECT

CONFIGS = PROJECT / "configs"
DEVIATIONS = (PROJECT / "docs" / "method" / "deviations.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| (\w+) \|.*\| ([^|]*) \|$", DEVIATIONS, re.MULTILINE))
METHODS = ("rtpo", "grpo", "seeupo", "seeupo_flat", "arpo", "tree_grpo", "refuel")
VARIANTS = ("rtpo_off", "rtpo_g4", "rtpo_sync_2", "rtpo_sync_kl", "grpo_exact")
SOURCED = {
    **{f"task/{name}.yaml": f"task={name}" for name in ("math_paper", "search_paper", "airline")},
    "experiment/airline.yaml": "experiment=airline task=airline",
    "experiment/credit.yaml": "experiment=credit task=math_paper",
    **{f"algorithm/{name}.yaml": f"task=math_paper algorithm={name}" for name in (*METHODS, *VARIANTS)},
    **{f"profile/{name}.yaml": f"profile={name} task=math_paper" for name in ("a100x8", "a100x1", "h200x1")},
    "train.yaml": "task=math_paper",
}
"""files with sources, and what composes them"""
NAMES = ("name", "path", "label", "env", "split", "cache", "key_variable", "base_url", "model", "file")
"""fields without one: names, and what a reader gives"""


class Setting(NamedTuple):
    """field: such as `budget.rollouts`. value: as written. source: its comment, such as `paper: Training Details`."""

    field: str
    value: Any
    source: str


def read_settings(file: Path) -> Iterator[Setting]:
    """The values of a file of configs/, in its order."""
    text = file.read_text(encoding="utf-8")
    prefix = "" if "# @package _global_" in text or file.parent.name == "configs" else f"{file.parent.name}."
    lines = [*text.splitlines(), ""]  # where a list of lines ends the file
    values = OmegaConf.load(file)
    for path, node in _leaves(yaml.compose(text, yaml.SafeLoader)):
        comment = re.match(r"\s+# ((?:paper|ours|other): .*)$", lines[node.end_mark.line][node.end_mark.column :])
        value: Any = OmegaConf.to_container(values)
        for key in path:
            value = value[key]
        yield Setting(prefix + ".".join(path), value, comment[1] if comment else "")


def _leaves(node: yaml.Node | None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], yaml.Node]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value not in ("defaults", "hydra"):
                yield from _leaves(value, (*path, key.value))
    elif node is not None:
        yield path, node


@pytest.mark.parametrize("file", SOURCED)
def test_values_with_a_source_stand_in_the_composed_configuration(file: str) -> None:
    tree = composed("train", ["profile=a100x8"] * (not file.startswith("profile")) + SOURCED[file].split())
    settings = list(read_settings(CONFIGS / file))
    assert any(setting.source for setting in settings)
    for setting in settings:
        if setting.source:
            # as written, with its references followed
            both = {**tree, "written": setting.value, "stands": f"${{{setting.field}}}"}
            resolved: Any = OmegaConf.to_container(OmegaConf.create(both), resolve=True)
            assert resolved["stands"] == resolved["written"], setting.field
        elif file.startswith(("task", "algorithm")):
            assert setting.value in (None, "???") or setting.field.split(".")[-1] in NAMES, setting.field


def test_sources_are_in_the_paper_or_among_the_deviations() -> None:
    tables = yaml.safe_load((PROJECT / "analysis" / "paper" / "paper.yaml").read_text())["tables"]
    sourced = [(file.stem, each) for file in CONFIGS.rglob("*.yaml") for each in read_settings(file) if each.source]
    assert len(sourced) > 150
    for name, setting in sourced:
        for part in setting.source.split("; "):
            kind, _, place = part.partition(": ")
            if row := re.match(r"row (\w+)", place):  # it names the field, or one above it
                fields = re.findall(r"`([^`]+)`", ROWS[row[1]])
                assert any(f"{setting.field}.".startswith(f"{field}.") for field in fields), setting
            assert kind != "other" or name not in METHODS
            title = re.split(r" \(|, ", place)[0]
            assert kind != "paper" or title in TITLES or title.removeprefix("tab:") in {*tables, "all-hparams"}, setting
