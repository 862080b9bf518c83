"""Lengths of prompts in tokens: how they are measured, what is kept, and what plans take of it.

With RTPO_DATA set, what is kept is held to a real set and Qwen3's tokenizer.
"""

import os
import shutil
from pathlib import Path

import pytest
from conftest import compose_config

from rtpo.core.chat import ChatFormat
from rtpo.data.prepare import DataFolder
from rtpo.data.registry import REGISTRY
from rtpo.planning.data import episodes
from rtpo.planning.prompts import measure, prompt_lengths
from rtpo.run.model_folder import load_tokenizer
from rtpo.toy.byte_model import byte_tokenizer

DATA = os.environ.get("RTPO_DATA")


def test_a_byte_more_is_a_token_more_of_a_token_a_byte(tmp_path: Path) -> None:
    """Of the sets that are there, prepared; those longer than the task's limit are counted."""
    (raw := tmp_path / "raw.jsonl").write_text(
        "".join(f'{{"question": "{letters}", "answer": "1"}}\n' for letters in ("a" * 10, "b" * 100, "c" * 9000))
    )
    DataFolder(tmp_path / "data").prepare("hotpotqa", raw, may_differ=True)
    (name, found), *more = measure(tmp_path / "data", ChatFormat(byte_tokenizer())).items()
    assert (name, more, found.task, found.count, found.over) == ("hotpotqa", [], "search_paper", 3, 1)
    assert found.longest - found.quantiles["50"] == 8900
    assert found.longest - found.mean == pytest.approx(9000 - 9110 / 3, abs=0.1)


@pytest.mark.skipif(not DATA, reason="set RTPO_DATA to a folder with qwen3_tokenizer and aime24.jsonl")
def test_what_is_kept_is_measured(tmp_path: Path) -> None:
    """Of a raw file, known by its checksum alone."""
    shutil.copyfile(Path(str(DATA)) / "aime24.jsonl", tmp_path / "any_name")
    found = measure(tmp_path, ChatFormat(load_tokenizer(Path(str(DATA)) / "qwen3_tokenizer")))
    assert found == {"aime24": prompt_lengths()["aime24"]}


@pytest.mark.parametrize(
    ("overrides", "measured_on"),
    [
        (("task=math_paper",), "math500"),
        (("task=search_paper",), "hard_search"),
        (("task=math_paper", "task.train.file=a/gsm8k.jsonl"), "gsm8k"),
        (("task=math_paper", "task.train.file=a", "task.held_out.file=b"), None),
        (("task=math_paper", "model.name=mine"), None),
    ],
)
def test_plans_take_the_lengths_of_the_set_to_train_on(overrides: tuple[str, ...], measured_on: str | None) -> None:
    drawn = episodes(compose_config("profile=a100x8", *overrides))
    assert drawn is not None
    assert drawn.measured_on == measured_on
    assert drawn.prompt_tokens == (500 if measured_on is None else prompt_lengths()[measured_on].mean)


def test_kept_lengths_are_of_sets_that_there_are() -> None:
    assert prompt_lengths().keys() <= REGISTRY.keys()
    for one in prompt_lengths().values():
        assert one.quantiles["50"] <= one.quantiles["90"] <= one.quantiles["99"] <= one.longest <= one.limit
