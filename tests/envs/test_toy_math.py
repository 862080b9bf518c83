"""The toy math task: its tokenizer and problems."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rtpo.toy.warm_start as toy
from experiments.maintenance import warm_start
from rtpo.envs.toy.math import Problem, parse_question, read_problems
from rtpo.errors import DataError
from rtpo.toy.tokenizer import build_tokenizer, encode_strict
from rtpo.types import Task

SHIPPED = Path(toy.__file__).parent / "warm_start_math"
TOKENIZER = build_tokenizer()
TASK = Task(uid="toy_math/held_out/12+5*3", question=" compute 12 + 5 * 3", answer=27)


@given(st.lists(st.integers(0, len(TOKENIZER) - 1).filter(lambda i: i != TOKENIZER.unk_token_id), max_size=40))
def test_ids_survive_decoding_and_encoding(ids: list[int]) -> None:
    text = TOKENIZER.decode(ids)
    assert TOKENIZER.encode(text, add_special_tokens=False) == ids
    assert TOKENIZER.decode(encode_strict(TOKENIZER, text)) == text


@pytest.mark.parametrize("text", [" compute 100", " compute  12", " divide"])
def test_text_that_is_not_canonical_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="space"):
        encode_strict(TOKENIZER, text)


@given(st.integers(0, 3), *[st.integers(0, 99)] * 3, st.sampled_from("+-"))
def test_answers_are_python_s_modulo_100(template: int, a: int, b: int, c: int, sign: str) -> None:
    problem = Problem(template, a, b, c, sign)
    assert problem.answer == eval(problem.key) % 100
    assert parse_question(problem.question) == problem
    encode_strict(TOKENIZER, problem.question)


def test_problems_are_read_from_a_table_and_a_wrong_answer_is_refused(tmp_path: Path) -> None:
    """What `read_task_file` refuses is in test_booking.py; JSONL is in test_tasks.py."""
    path = tmp_path / "problems.csv"
    path.write_text(f"uid,question,answer\n{TASK.uid},{TASK.question},{TASK.answer}\n")  # all of it text
    assert read_problems(path) == [TASK]
    path.write_text(json.dumps({"question": TASK.question, "answer": "26", "uid": TASK.uid}))
    with pytest.raises(DataError, match=r"line 1 of .*answer"):
        read_problems(path)


def test_a_model_far_below_its_demonstrator_is_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert warm_start.main(["--name", "math", "--output", str(tmp_path / "m"), "--steps", "2", "--held-out", "20"]) == 0
    assert "demonstrator in" in capsys.readouterr().err
