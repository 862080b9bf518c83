"""Qwen3's tool protocol: what is a call, what is answered, and that no reply breaks an episode."""

import asyncio
import itertools
import json
import pickle
import time
from collections.abc import Sequence

import numpy as np
import pytest
from byte_tokenizer import byte_tokenizer
from episodes_played import play

from rtpo.core.chat import ChatFormat
from rtpo.envs.tool_env import ToolEnv
from rtpo.tools.base import Arguments, ToolResult, text_tool
from rtpo.tools.protocol import CLOSE, OPEN, Call, Malformed, parse_calls, render_call, visible_text
from rtpo.types import Grade, GradeOutcome, Message, StopReason, Task, ToolOutcome, ToolUse

CALL = render_call("add", {"text": "1+2"})
TASK = Task("t", "1+2?", ("3",))


class Says:
    """Says what it is told, and how often it was called before."""

    def __init__(self, name: str) -> None:
        self.schema = text_tool(name, "Says what it is told.", "text", "What it is told.")

    async def call(self, arguments: Arguments, earlier: Sequence[Arguments]) -> ToolResult:
        return ToolResult(ToolOutcome.OK, f"{arguments['text']} {len(earlier)}")


class SayEnv(ToolEnv):
    def __init__(self) -> None:
        super().__init__("Say.", [Says("add"), Says("echo")], calls_per_reply=2)

    async def _grade_answer(self, task: Task, answer: str) -> Grade:
        return Grade(GradeOutcome.GRADED, float(answer in task.answer))


def test_what_a_reply_calls_after_its_thinking() -> None:
    call, tags = Call("add", {"text": "1+2"}), "'</tool_call><tool_call>'"
    texts: dict[str, tuple[Call, ...]] = {"no call": (), CALL: (call,), f"first {CALL} then\n{CALL} end": (call, call)}
    texts[f'{OPEN}{{"name": "p", "arguments": {{"code": "{tags}"}}}}{CLOSE}'] = (Call("p", {"code": tags}),)
    assert {text: parse_calls(text) for text in texts} == texts
    visible = {f"<think>{CALL}</think>\n\nhi": "\n\nhi", f"<think>{CALL}": "", f"a</think>b<think>{CALL}": "b"}
    assert {text: visible_text(text) for text in visible} == visible


@pytest.mark.parametrize(
    "text",
    [
        *(CALL[:-5], "</tool_call>", "<tool_call>1</tool_call>", "<tool_call>{} {}</tool_call>"),
        *("<tool_call>{}</tool_call>", '<tool_call>{"name": "p", "arguments": "x"}</tool_call>'),
        *(f"<tool_call>{'[' * 100_000}</tool_call>", f"<tool_call>{'9' * 100_000}</tool_call>"),
        '<tool_call>{"name": "p", "arguments": {"a": ' + "[" * 20 + "]" * 20 + "}}</tool_call>",
        '<tool_call>{"name": "p", "arguments": {"code": "a\nb"}}</tool_call>',
    ],
    ids=lambda text: text[:50],
)
def test_what_is_no_call_is_told_as_one(text: str) -> None:
    (malformed,) = parse_calls(text)
    assert isinstance(malformed, Malformed)
    assert malformed.is_open == (OPEN in text and CLOSE not in text)
    (feedback,), _ = play(SayEnv(), TASK, text)
    assert feedback.calls == (ToolUse("", ToolOutcome.MALFORMED),)
    # tags would be broken up on their way to the policy
    assert OPEN not in feedback.messages[0].content


@pytest.mark.parametrize("part", [CLOSE, f'{OPEN}{{"name":"x"{{"{CLOSE}', f'{OPEN}{{"name":"x"{{"', f'{OPEN}"{CLOSE}'])
def test_the_time_of_a_text_is_in_proportion_to_its_length(part: str) -> None:
    """Of two and a half million characters, for which any square of it takes minutes."""
    text = part * (2_500_000 // len(part))
    begin = time.process_time()
    parse_calls(text)
    assert time.process_time() - begin < 10


def test_long_calls_are_read_whole() -> None:
    for filler, length in itertools.product(["x", CLOSE, "\u00e9"], [65_536, 65_537, 200_000]):
        arguments = {"code": filler * (length // len(filler)), "numbers": [12345] * 3, "word": True}
        calls = parse_calls(f"a {render_call('python', arguments)}{render_call('python', {'code': 'b'})}")
        assert calls == (Call("python", arguments), Call("python", {"code": "b"}))


def test_calls_are_answered_in_order_up_to_the_limit_and_a_tool_hears_of_its_earlier_calls_alone() -> None:
    first = f"{CALL}\n{render_call('sub', {})}\n{CALL}"
    feedback, _ = play(SayEnv(), TASK, first, render_call("echo", {"text": "x"}), CALL)
    assert [each.messages[0] for each in feedback] == [Message("tool", said) for said in ("1+2 0", "x 0", "1+2 1")]
    assert "sub" in feedback[0].messages[1].content
    uses = (("add", ToolOutcome.OK), ("", ToolOutcome.MALFORMED), ("add", ToolOutcome.REFUSED))
    assert feedback[0].calls == tuple(ToolUse(*use) for use in uses)


def test_arguments_that_do_not_fit_are_told_and_break_nothing_at_any_depth() -> None:
    def said(arguments: str) -> str:
        (feedback,), _ = play(SayEnv(), TASK, f'{OPEN}{{"name": "echo", "arguments": {arguments}}}{CLOSE}')
        assert {use.outcome for use in feedback.calls} == {ToolOutcome.MALFORMED}
        return feedback.messages[0].content

    for arguments in ({}, {"text": [1] * 1000}):
        assert len(said(json.dumps(arguments))) < 250
    nested = {depth: f'{{"text": {"[" * depth}{"]" * depth}}}' for depth in (19, 20, 800, *range(940, 1000))}
    deeper = {depth: "nested deeper than 20" in said(text) for depth, text in nested.items() if depth < 940}
    assert deeper == {19: False, 20: True, 800: True}
    # around the deepest that Python's JSON reads
    assert all("deeper" in said(text) or "too deep" in said(text) for text in [*nested.values()][3:])


def test_a_cut_reply_runs_its_whole_calls() -> None:
    (feedback,), grade = play(SayEnv(), TASK, "\\boxed{3}", stop=StopReason.LENGTH)
    assert (feedback.calls, feedback.done, grade.detail) == ((), False, "no final reply")
    assert "cut" in feedback.messages[0].content
    (feedback,), _ = play(SayEnv(), TASK, CALL + "<tool_call>{", stop=StopReason.LENGTH)
    assert feedback.calls == (ToolUse("add", ToolOutcome.OK),)


PIECES = (
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_end|>", "\\boxed{", "}", "{", '"', "\\", "\n", "\0"),
    *('{"name": ', '"echo"', '"add"', ', "arguments": ', '{"text": "', '"}}', "\\ud800", "\ud800", "\u2028", "日本"),
    *("[" * 3000, "[" * 30 + "]" * 30, "9" * 5000, '{"a":' * 2000, "NaN", "1e999", "-0", "null", "true", "x" * 1000),
    *("\x7f\x80\xff", CALL, CALL * 3),
)


def fuzzed(rng: np.random.Generator) -> str:
    """Pieces of markup, JSON and rubbish, or a call with some characters cut out or put in."""
    if rng.random() < 0.5:
        return "".join(PIECES[i] for i in rng.integers(len(PIECES), size=rng.integers(12)))
    text = render_call("echo", {"text": "\ud83d\ud800 é"})
    a, b = sorted(int(place) for place in rng.integers(len(text) + 1, size=2))
    return text[:a] + (text[b:] if rng.random() < 0.5 else chr(rng.integers(0xFFFF)) + text[a:])


def test_ten_thousand_fuzzed_replies_break_nothing() -> None:
    rng = np.random.default_rng(0)
    chat = ChatFormat(byte_tokenizer())

    async def run() -> dict[str, int]:
        seen = dict.fromkeys([*ToolOutcome, "final", "cut"], 0)
        for _ in range(10_000):
            env, stop = SayEnv(), StopReason.LENGTH if rng.random() < 0.2 else StopReason.STOP
            await env.reset(TASK)
            feedback = await env.step(fuzzed(rng), stop)
            pickle.dumps(env.snapshot())
            await env.grade()
            if feedback.done:
                seen["final"] += 1
                continue
            assert len(feedback.messages) == max(1, len(feedback.calls))
            # tags that it quotes are broken up by a space
            text = chat.decode(chat.feedback(feedback.messages, stop)).replace(" ", "")
            assert all(message.content.replace(" ", "") in text for message in feedback.messages)
            for use in feedback.calls:
                seen[use.outcome] += 1
            seen["cut"] += not feedback.calls
        return seen

    seen = asyncio.run(run())
    assert min(seen[key] for key in (ToolOutcome.OK, ToolOutcome.MALFORMED, ToolOutcome.REFUSED, "final", "cut")) > 10
