"""The printed example of the chat format."""

from pathlib import Path

import pytest
from byte_tokenizer import byte_tokenizer

from experiments.maintenance.chat_example import COMMENTARY, REPLIES, main, play
from rtpo.types import ToolOutcome, ToolUse


@pytest.mark.needs("bwrap")
def test_the_call_is_real_the_answer_graded_and_what_is_left_out_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = byte_tokenizer()
    rollout = play(tokenizer, "full")
    assert rollout.turns[0].calls == (ToolUse("python", ToolOutcome.OK),)
    assert rollout.reward == 1
    tokenizer.save_pretrained(tmp_path)
    assert main(["--tokenizer", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert f"assistant\n[-{REPLIES[0].removesuffix(COMMENTARY)}-]{COMMENTARY}<|im_end|>" in printed
    assert printed.count("[-") == 1
