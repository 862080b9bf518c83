"""The byte-level model: its tokenizer, the traces it is made of, and the command."""

import asyncio
from dataclasses import replace

import pytest
from byte_model import demonstrate, trace_samples
from byte_tokenizer import STOP, byte_tokenizer
from conftest import compose_config
from traces import math_traces

from rtpo.core.chat import ChatFormat
from rtpo.errors import ConfigError, DataError
from rtpo.run.config import TaskConfig
from rtpo.types import Task

TASK = Task("gsm8k/0", "A pen costs $3. What do 4 cost?", ("12",), {"annotations": (("3*4", "12"),)})


@pytest.fixture
def math() -> TaskConfig:
    return compose_config("task=math", "data=somewhere.jsonl").task


def test_every_text_is_bytes_and_the_tags_are_single_tokens() -> None:
    tokenizer = byte_tokenizer()
    assert len(tokenizer) == 256 + 9
    for text in ("é\u2028\n\n\x00 日", "<|im_start|>user\n<think>\n\n</think>\n\n<tool_call>x</tool_call><|im_end|>"):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == text
    assert len(ids) == len("user") + len("\n" * 5) + len("x") + 6
    chat = ChatFormat(tokenizer)
    assert chat.tags.newline_ids == {*tokenizer.encode("\n")}


def test_the_template_shows_the_tools_once_after_the_system_message(math: TaskConfig) -> None:
    chat = ChatFormat(byte_tokenizer())
    opening = asyncio.run(math.make_env().reset(TASK))
    system, user = opening.messages
    text = chat.decode(chat.opening(opening))
    assert text.startswith(f"<|im_start|>system\n{system.content}\n")
    assert text.count(system.content) == 1
    shown = text[: text.index("<|im_end|>")].splitlines()
    assert shown[2] == "python(code)"
    assert text.endswith(f"<|im_start|>user\n{user.content}<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.needs("bwrap")
def test_traces_end_right_and_wrong_and_call_the_real_tool(math: TaskConfig) -> None:
    async def play_all() -> list[tuple[float, list[str]]]:
        demonstrations = [await demonstrate(TASK, math.make_env(), trace) for trace in math_traces(TASK)]
        return [(d.reward, [m.content for turn in d.turns for m in turn.feedback]) for d in demonstrations]

    assert asyncio.run(play_all()) == [(1.0, ["12"])] * 3 + [(0.0, ["12"]), (0.0, ["13"])]
    samples = trace_samples([(math, [TASK])], byte_tokenizer(), seed=0)
    assert all(byte_tokenizer().decode([int(sample.ids[-1])]) == STOP for sample in samples)


def test_a_task_that_gives_no_trace_is_refused(math: TaskConfig) -> None:
    with pytest.raises(DataError, match="task a has no annotations"):
        math_traces(Task("a", "?", ("2",)))
    with pytest.raises(ConfigError, match="there are traces for booking, math, search"):
        trace_samples([(replace(math, env="toy_math"), [TASK])], byte_tokenizer(), seed=0)


@pytest.mark.needs("bwrap")
def test_a_trace_over_a_limit_is_refused(math: TaskConfig) -> None:
    long = Task("a", "?", ("100",), {"annotations": (("+".join("1" * 100), "100"),)})
    with pytest.raises(DataError, match=r"a trace has \d+ tokens in a turn, over the task's 256"):
        trace_samples([(math, [long])], byte_tokenizer(), seed=0)
    many = Task("a", "?", ("2",), {"annotations": (("1+1", "2"),) * 4})
    with pytest.raises(DataError, match="a trace has 5 turns, over the task's 4"):
        trace_samples([(math, [many])], byte_tokenizer(), seed=0)
