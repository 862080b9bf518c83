"""The printed example of the chat format: what is shown of it, and with which tokenizer and template.

With RTPO_DATA set, with Qwen3's own template as well as with the byte-level tokenizer's.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from experiments.maintenance import chat_example
from experiments.maintenance.chat_example import COMMENTARY, REPLIES, example
from rtpo.toy.byte_model import byte_tokenizer
from rtpo.types import ToolOutcome, ToolUse

DATA = os.environ.get("RTPO_DATA")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(None, id="byte"),
        pytest.param(
            Path(DATA or "") / "qwen3_chat_template.jinja",
            id="qwen3",
            marks=pytest.mark.skipif(not DATA, reason="set RTPO_DATA to a folder with qwen3_chat_template.jinja"),
        ),
    ],
)
def tokenizer(request: pytest.FixtureRequest) -> Any:
    tokenizer = byte_tokenizer()
    if request.param is not None:
        tokenizer.chat_template = request.param.read_text(encoding="utf-8")
    return tokenizer


@pytest.fixture(scope="module")
def shown(tokenizer: Any) -> chat_example.Example:
    return example(tokenizer)


@pytest.mark.needs("bwrap")
def test_the_call_is_real_and_the_answer_graded(shown: chat_example.Example) -> None:
    for rollout in (shown.stripped, shown.full):
        assert rollout.turns[0].calls == (ToolUse("python", ToolOutcome.OK),)
        assert rollout.reward == 1


@pytest.mark.needs("bwrap")
def test_what_is_left_out_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    assert chat_example.main([]) == 0
    printed = capsys.readouterr().out
    assert f"assistant\n[-{REPLIES[0].removesuffix(COMMENTARY)}-]{COMMENTARY}<|im_end|>" in printed
    assert printed.count("[-") == 1
    assert "the same ids as c_1 under rollout_context=full" in printed
    titles = [line.split(":")[0] for line in printed.splitlines() if line.startswith("== ")]
    assert [title.removeprefix("== ").split(",")[0].split(" ")[0] for title in titles] == [
        *("c_0", "u_0", "f_0", "c_1", "c_1", "training_context=flattened", "u_1")
    ]


@pytest.mark.needs("bwrap")
def test_a_tokenizer_and_a_template_can_be_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(tmp_path / "model")
    assert chat_example.main(["--tokenizer", str(tmp_path / "model")]) == 0
    own = capsys.readouterr().out
    template = tmp_path / "template.jinja"
    template.write_text(str(tokenizer.chat_template).replace("assistant\\n", "astronaut\\n"), encoding="utf-8")
    assert chat_example.main(["--template", str(template)]) == 0
    assert capsys.readouterr().out == own.replace("<|im_start|>assistant\n", "<|im_start|>astronaut\n")


@pytest.mark.parametrize("option", ["--tokenizer", "--template"])
def test_what_cannot_be_read_is_named(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert chat_example.main([option, str(tmp_path / "nowhere")]) == 1
    assert f"{tmp_path / 'nowhere'} cannot be read" in capsys.readouterr().err
