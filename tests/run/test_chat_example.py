"""The printed example of the chat format: what is shown of it, and with which tokenizer.

With RTPO_DATA set, with Qwen3's own template as well as with the byte-level tokenizer's.
"""

import os
from pathlib import Path
from typing import Any

import pytest
from byte_tokenizer import byte_tokenizer

from experiments.maintenance.chat_example import COMMENTARY, REPLIES, main, play
from rtpo.types import ToolOutcome, ToolUse

DATA = os.environ.get("RTPO_DATA")
LACKS = pytest.mark.skipif(not DATA, reason="set RTPO_DATA to a folder with qwen3_chat_template.jinja")


@pytest.fixture(params=["byte", pytest.param("qwen3", marks=LACKS)])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    tokenizer = byte_tokenizer()
    if request.param == "qwen3":
        tokenizer.chat_template = (Path(str(DATA)) / "qwen3_chat_template.jinja").read_text(encoding="utf-8")
    return tokenizer


@pytest.mark.needs("bwrap")
def test_the_call_is_real_and_the_answer_graded(tokenizer: Any) -> None:
    for rollout in (play(tokenizer, "strip_think"), play(tokenizer, "full")):
        assert rollout.turns[0].calls == (ToolUse("python", ToolOutcome.OK),)
        assert rollout.reward == 1


@pytest.mark.needs("bwrap")
def test_what_is_left_out_is_marked(tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer.save_pretrained(tmp_path)
    assert main(["--tokenizer", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert f"assistant\n[-{REPLIES[0].removesuffix(COMMENTARY)}-]{COMMENTARY}<|im_end|>" in printed
    assert printed.count("[-") == 1
