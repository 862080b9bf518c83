"""The maths task: its files, its environment, and the byte-level model's traces."""

import asyncio
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from conftest import compose_config

from experiments import overfit as command
from rtpo.chat import ChatFormat
from rtpo.envs.math import MathEnv, instructions, last_box, python_call
from rtpo.errors import DataError, InfrastructureError
from rtpo.math_data import read_math
from rtpo.rewards import grading
from rtpo.tasks import load_tasks
from rtpo.tools.python import PythonLimits
from rtpo.toy.byte_model import MAX_TURNS, STOP, byte_tokenizer, demonstrate, scripts, trace_samples
from rtpo.types import Feedback, Grade, GradeOutcome, Message, StopReason, Task, ToolOutcome

FIXTURES = Path(__file__).parent / "fixtures" / "data"
TASK = Task("gsm8k/0", "A pen costs $3. What do 4 cost?", "12", {"annotations": (("3*4", "12"),)})


def write(folder: Path, *rows: Any) -> Path:
    path = folder / "problems.jsonl"
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def play(*replies: str, stop: StopReason = StopReason.STOP, env: MathEnv | None = None) -> tuple[list[Feedback], Grade]:
    async def run() -> tuple[list[Feedback], Grade]:
        fresh = env or MathEnv()
        await fresh.reset(TASK)
        return [await fresh.step(reply, stop) for reply in replies], await fresh.grade()

    return asyncio.run(run())


# files


def test_a_row_becomes_a_task(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"question": "q1", "answer": "Then 2/2=<<2/2=1>>1.\nSo $<< 4000+1 = 4001 >>4,001.\n#### 4,001", "idx": 7},
        {"problem": "q2\u2028", "answer": 27.0, "id": 5, "solution": "<<1=1>> #### 3"},
        {"question": "q3", "answer": "\\frac{1}{2}"},
        {"problem": "q4", "answer": 0.5},
    )
    annotations = (("2/2", "1"), ("4000+1", "4001"))
    assert read_math(path) == [
        Task("problems/7", "q1", "4001", {"annotations": annotations}),
        Task("problems/5", "q2\u2028", "27"),
        Task("problems/3", "q3", "\\frac{1}{2}"),
        Task("problems/4", "q4", "0.5"),
    ]


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("{oops", r"line 2 of .*problems\.jsonl is not JSON"),
        ("", r"line 2 of .* is not JSON"),
        ("[]", r"line 2 of .* is not an object"),
        ({"answer": "1"}, r"line 2 of .* has no question"),
        ({"question": " ", "answer": "1"}, r"line 2 of .* has no question"),
        ({"question": "q"}, r"line 2 of .* has no answer"),
        ({"question": "q", "answer": ["1"]}, r"line 2 of .* has no answer"),
        ({"question": "q", "answer": True}, r"line 2 of .* has no answer"),
        ({"question": "q", "answer": "so it is\n#### "}, r"line 2 of .* has no answer"),
        ({"question": "q", "answer": "1", "id": [1]}, r"line 2 of .*: id is \[1\]"),
        ({"question": "first", "answer": "2"}, r"line 2 of .* repeats the question of line 1 \('first'\)"),
        ({"question": "q", "answer": "2", "id": 1}, r"line 2 of .* repeats the uid of line 1 \('problems/1'\)"),
    ],
)
def test_a_line_that_cannot_be_is_named(tmp_path: Path, row: Any, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        read_math(write(tmp_path, {"question": "first", "answer": "1"}, row))


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.jsonl cannot be read \(No such file"):
        read_math(tmp_path / "nowhere.jsonl")
    (tmp_path / "latin.jsonl").write_bytes(b"\xe9")
    with pytest.raises(DataError, match="not UTF-8"):
        read_math(tmp_path / "latin.jsonl")


def test_the_task_takes_the_problems_that_the_model_is_made_on() -> None:
    file = FIXTURES / "gsm8k.jsonl"
    task = compose_config("task=math", f"data={file}").task
    assert task.train.count is not None
    assert load_tasks(task, task.train) == command.problems(file, task.train.count)


# the environment


def test_the_opening_tells_the_tool_and_its_limit() -> None:
    opening = asyncio.run(MathEnv().reset(TASK))
    assert opening == (Message("system", instructions(PythonLimits())), Message("user", TASK.question))
    assert python_call("...") in opening[0].content
    assert "10 s" in opening[0].content
    assert len(byte_tokenizer().encode(opening[0].content)) < 150


def test_calls_are_run_and_answers_graded() -> None:
    feedback, grade = play(f"<think>\n3*4\n</think>\n\n{python_call('3*4')}", "<think>\n12\n</think>\n\n\\boxed{12}")
    assert feedback == [Feedback((Message("tool", "12"),), False, ToolOutcome.OK), Feedback((), True)]
    assert grade == Grade(GradeOutcome.GRADED, 1.0, "right")


def test_a_program_that_fails_or_prints_nothing_is_told() -> None:
    # enough for a slow machine to begin each
    env = MathEnv(PythonLimits(wall_seconds=10))
    feedback, grade = play(*(python_call(code) for code in ("1/0", "x = 1", "import time\ntime.sleep(600)")), env=env)
    assert [(f.messages[0].content, f.tool) for f in feedback] == [
        ("ZeroDivisionError: division by zero (line 1)", ToolOutcome.PROGRAM_ERROR),
        ("(no output)", ToolOutcome.OK),
        ("TimeoutError: stopped after 10 s", ToolOutcome.PROGRAM_ERROR),
    ]
    assert grade == Grade(GradeOutcome.GRADED, 0.0, "no final reply")


@pytest.mark.parametrize(
    "reply",
    [
        "<tool_call>3*4</tool_call>",
        "<tool_call>[1]</tool_call>",
        '<tool_call>{"name": "python"}</tool_call>',
        '<tool_call>{"name": "python", "arguments": "3*4"}</tool_call>',
        '<tool_call>{"name": "python", "arguments": {"code": 3}}</tool_call>',
        '<tool_call>{"name": "search", "arguments": {"code": "3*4"}}</tool_call>',
        f"<tool_call>{'[' * 100_000}</tool_call>",
        "<tool_call>",
        python_call("3*4") + python_call("3*4"),
        f"{python_call('3*4')}<tool_call>",
    ],
)
def test_a_call_that_is_not_the_tools_is_malformed(reply: str) -> None:
    (feedback,), _ = play(reply)
    assert (feedback.tool, feedback.done) == (ToolOutcome.MALFORMED, False)
    assert feedback.messages[0].content.startswith("Error: make one call, in JSON: {")


def test_only_a_reply_that_stopped_by_itself_is_final() -> None:
    (feedback,), grade = play("<think>\n12\n</think>\n\n\\boxed{12}", stop=StopReason.LENGTH)
    assert (feedback.tool, feedback.done) == (None, False)
    assert "cut" in feedback.messages[0].content
    assert grade.detail == "no final reply"
    (feedback,), _ = play(f"{python_call('3*4')} and", stop=StopReason.LENGTH)
    assert feedback.tool is ToolOutcome.OK


@pytest.mark.parametrize(
    ("reply", "detail"),
    [
        ("\\boxed{12}", "right"),
        ("\\boxed{1} or \\boxed{\\frac{24}{2}}", "right"),
        ("\\boxed{12} or \\boxed{1}", "wrong"),
        ("<think>\\boxed{12}</think>12", "no answer in a box"),
        ("<think>\\boxed{12}", "no answer in a box"),
        ("\\boxed{12", "no answer in a box"),
        ("", "no answer in a box"),
    ],
)
def test_the_answer_is_the_last_box_after_thinking(reply: str, detail: str) -> None:
    _, grade = play(reply)
    assert grade.detail == detail
    assert grade.reward == (detail == "right")


def test_braces_in_a_box() -> None:
    assert last_box("\\boxed{\\frac{1}{2}} so \\boxed{ {a}{b{c}} } end}") == " {a}{b{c}} "
    assert last_box("\\boxed{\\left\\{ 1, 2 \\right.}") == "\\left\\{ 1, 2 \\right."
    assert last_box("\\boxed{}") == ""
    assert last_box("\\boxed{1} \\boxed{2") is None
    assert last_box("boxed{1}") is None


def test_a_gold_that_cannot_be_read_is_no_zero() -> None:
    async def grade() -> Grade:
        env = MathEnv()
        await env.reset(Task("a", "?", "{"))
        await env.step("\\boxed{12}", StopReason.STOP)
        return await env.grade()

    assert asyncio.run(grade()).outcome is GradeOutcome.UNGRADABLE


def test_a_tool_or_grader_that_cannot_start_is_never_shown_to_the_policy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from rtpo.tools import python

    with monkeypatch.context() as patch:
        patch.setattr(python, "CHILD", tmp_path / "missing.py")
        with pytest.raises(InfrastructureError):
            play(python_call("3*4"))
    with monkeypatch.context() as patch:
        patch.setattr(grading, "CHILD", tmp_path / "missing.py")
        with pytest.raises(InfrastructureError):
            play("\\boxed{12}", env=MathEnv(grader=grading.MathGrader()))


def test_a_snapshot_is_small() -> None:
    async def snapshots() -> list[int]:
        env = MathEnv()
        await env.reset(TASK)
        await env.step(python_call("print('x' * 2000)"), StopReason.STOP)
        return [len(pickle.dumps(env.snapshot()))]

    assert max(asyncio.run(snapshots())) < 500


# the byte-level model


def test_every_text_is_bytes_and_the_tags_are_single_tokens() -> None:
    tokenizer = byte_tokenizer()
    assert len(tokenizer) == 256 + 9
    for text in ("é\u2028\n\n\x00 日", "<|im_start|>user\n<think>\n\n</think>\n\n<tool_call>x</tool_call><|im_end|>"):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == text
    assert len(ids) == len("user") + len("\n" * 5) + len("x") + 6
    chat = ChatFormat(tokenizer)
    assert chat.tags.newline_ids == {*tokenizer.encode("\n")}


def test_traces_end_right_and_wrong_and_call_the_real_tool() -> None:
    async def play_all() -> list[tuple[float, list[str]]]:
        demonstrations = [await demonstrate(TASK, MathEnv(), script) for script in scripts(TASK)]
        return [(d.reward, [m.content for turn in d.turns for m in turn.feedback]) for d in demonstrations]

    assert asyncio.run(play_all()) == [(1.0, ["12"])] * 3 + [(0.0, ["12"]), (0.0, ["13"])]
    samples = trace_samples([TASK], byte_tokenizer(), seed=0)
    assert all(byte_tokenizer().decode([int(sample.ids[-1])]) == STOP for sample in samples)


@pytest.mark.parametrize("annotations", [(), (("1+1", "2"),) * MAX_TURNS])
def test_a_task_that_gives_no_trace_is_refused(annotations: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(DataError, match=f"task a has {len(annotations)} annotations"):
        scripts(Task("a", "?", "2", {"annotations": annotations}))


def test_a_turn_over_the_limit_is_refused() -> None:
    task = Task("a", "?", "100", {"annotations": (("+".join("1" * 100), "100"),)})
    with pytest.raises(DataError, match=r"a turn of a trace has \d+ tokens, over 256"):
        trace_samples([task], byte_tokenizer(), seed=0)


def test_the_command_names_what_is_wrong(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert command.main(["--data", str(FIXTURES / "gsm8k.jsonl"), "--output", str(tmp_path)]) == 1
    assert "is not an empty folder" in capsys.readouterr().err
    output = str(tmp_path / "model")
    assert command.main(["--data", str(FIXTURES / "math500.jsonl"), "--output", output]) == 1
    assert "has 0 annotations" in capsys.readouterr().err
