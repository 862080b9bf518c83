"""Parsers of raw files, one for each schema.

A parser turns a row into a record. The record's uid is the row's own id, or empty if the row has none. A parser raises
DataError without naming the row: `parse_file` adds where it is.
"""

import ast
import base64
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rtpo.data.reading import Row, read_rows
from rtpo.data.records import Record
from rtpo.errors import DataError
from rtpo.rewards.boxes import last_box

_ANNOTATION = re.compile(r"<<([^<>=]+)=([^<>]+)>>")
_DOLLAR = re.compile(r"(?<!\\)\$")


Parser = Callable[[Row], Record]


class NoAnswer(DataError):
    """A row has no answer, in a set where this may happen. The row is dropped."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A problem that is not in the prepared file."""

    uid: str
    reason: str  # `no answer`, `repeat` or `overlap`
    other: str = ""  # uid of the problem it repeats; empty for `no answer`


def parse_file(name: str, path: Path, parse: Parser) -> tuple[list[Record], list[Dropped]]:
    """Read a raw file. Returns its problems in order, and the dropped ones (no answer, or a repeated question). Raises
    DataError naming the row, for example for a repeated id."""
    records: list[Record] = []
    dropped: list[Dropped] = []
    questions: dict[str, str] = {}
    places: dict[str, str] = {}
    for number, (place, row) in enumerate(read_rows(path), start=1):
        try:
            record = parse(row)
        except NoAnswer:
            dropped.append(Dropped(f"{name}/{number}", "no answer"))
            continue
        except DataError as error:
            raise DataError(f"{place} {error}") from error
        uid = f"{name}/{record.uid or number}"
        if uid in places:
            raise DataError(f"{place} repeats the id of {places[uid]} ({uid}): remove one")
        places[uid] = place.removesuffix(f" of {path}")
        if record.question in questions:
            dropped.append(Dropped(uid, "repeat", questions[record.question]))
            continue
        questions[record.question] = uid
        records.append(replace(record, uid=uid))
    return records, dropped


# fields


def _text(row: Row, *names: str) -> str:
    """The first of these fields that the row has, stripped. Raises DataError if it is missing, empty or not text."""
    value = next((row[name] for name in names if row.get(name) is not None), None)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"has no {' or '.join(names)}: text was expected")
    return value.strip()


def _id(row: Row, *names: str) -> str:
    value = next((row[name] for name in names if row.get(name) is not None), None)
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise DataError(f"has the id {value!r}: text or a whole number was expected")
    return str(value).strip()


def _answer(value: Any) -> str:
    """An answer as text: 27.0 becomes 27. Raises DataError unless it is non-empty text or a finite number."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    is_number = type(value) is int or (isinstance(value, float) and math.isfinite(value))
    if not is_number and not (isinstance(value, str) and value.strip()):
        raise DataError(f"has the answer {value!r}: text or a finite number was expected")
    return str(value).strip()


def _accepted_answers(value: Any) -> tuple[str, ...]:
    """Accepted answers without repeats. value: a list, the text of a list ("['a', 'b']"), or one answer."""
    if isinstance(value, str) and value.strip().startswith("["):
        value = _parsed_list(value.strip())
    if not isinstance(value, list):
        return (_answer(value),)
    if not value:
        raise DataError("has no answer: its list is empty")
    return tuple(dict.fromkeys(_answer(alias) for alias in value))


def _parsed_list(text: str) -> Any:
    """Parse a list in JSON or Python; returns other text, such as `[sic]`, as it is."""
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        return value if isinstance(value, list) else text
    return text


# schemas


def gsm8k(row: Row) -> Record:
    """GSM8K: a worked solution ends in `#### n`; the answer is n without commas. Annotations such as `<<48/2=24>>`
    become meta["annotations"], pairs of expression and value."""
    solution, marker, last = _text(row, "answer").rpartition("####")
    number = last.replace(",", "").strip()
    if not marker or not number:
        raise DataError("has no answer: it should end in '#### <number>'")
    annotations = [[expression.strip(), value.strip()] for expression, value in _ANNOTATION.findall(solution)]
    return Record(_id(row, "idx", "id"), _text(row, "question"), (number,), {"annotations": annotations})


def mathematics(row: Row) -> Record:
    """MATH-500, AIME and AMC: `answer` is text in LaTeX or a number."""
    return Record(_id(row, "id"), _text(row, "question", "problem"), (_answer(row.get("answer")),))


def boxed(row: Row) -> Record:
    """MATH's training set: the answer is the last box of `solution`. Raises NoAnswer without one."""
    answer = last_box(_text(row, "solution"))
    if answer is None or not answer.strip():
        raise NoAnswer("has no answer: its solution has no box")
    meta = {"level": row.get("level"), "subject": row.get("type")}
    return Record("", _text(row, "problem"), (answer.strip(),), meta)


def olympiad(row: Row) -> Record:
    """OlympiadBench, open-ended: `final_answer` is a list of one text, with `$` around LaTeX. A unit is not part of the
    answer."""
    final = row.get("final_answer")
    if not isinstance(final, list) or len(final) != 1 or not isinstance(final[0], str):
        raise DataError(f"has the final_answer {final!r}: a list of one text was expected")
    context = row.get("context")
    question = _text(row, "question")
    meta = {key: row.get(key) for key in ("subfield", "answer_type", "is_multiple_answer", "unit")}
    answer = _answer(_DOLLAR.sub("", final[0]))
    return Record(_id(row, "id"), f"{context.strip()}\n\n{question}" if context else question, (answer,), meta)


def aliases(row: Row) -> Record:
    """HotpotQA and 2Wiki in ARPO's selection: `answer` is a list of accepted answers, its text, or one answer."""
    return Record(_id(row, "id"), _text(row, "question"), _accepted_answers(row.get("answer")))


def plain(row: Row) -> Record:
    """WebWalkerQA: one answer in text."""
    return Record(_id(row, "id"), _text(row, "question"), (_text(row, "answer"),))


def hard_search(row: Row) -> Record:
    """ARPO's training set: `reward_model.ground_truth` and `extra_info.question`. Leaves out `prompt`, whose
    system message is ARPO's tool protocol."""
    info, reward = row.get("extra_info"), row.get("reward_model")
    if not isinstance(info, dict) or not isinstance(reward, dict):
        raise DataError("has no extra_info or reward_model: two objects were expected")
    meta = {"data_source": row.get("data_source")}
    return Record(_id(info, "index"), _text(info, "question"), _accepted_answers(reward.get("ground_truth")), meta)


def gaia(row: Row) -> Record:
    """GAIA: a text-only question with its level, 1 to 3. An answer with commas is one answer."""
    level = str(row.get("Level"))
    if level not in ("1", "2", "3"):
        raise DataError(f"has the Level {row.get('Level')!r}: 1, 2 or 3 was expected")
    if row.get("file_name"):
        raise DataError(f"needs the file {row['file_name']}: only questions without files are used")
    return Record(_id(row, "task_id"), _text(row, "Question"), (_text(row, "answer"),), {"level": int(level)})


def hle(row: Row) -> Record:
    """Humanity's Last Exam: a question without image."""
    if row.get("has_image") or row.get("image"):
        raise DataError("has an image: only text questions are used")
    meta = {"answer_type": row.get("answer_type"), "category": row.get("category")}
    return Record(_id(row, "id"), _text(row, "question"), (_text(row, "answer"),), meta)


def xbench(row: Row) -> Record:
    """xbench-DeepSearch as released: Base64 of the prompt and answer, each XORed with the row's canary byte by byte. A
    row with `question` and no canary comes from ARPO's decrypted copy."""
    if row.get("canary") is None and "question" in row:
        return plain(row)
    canary = _text(row, "canary").encode()
    question, answer = (_decrypt(_text(row, name), canary) for name in ("prompt", "answer"))
    return Record(_id(row, "id"), _text({"prompt": question}, "prompt"), (_answer(answer),))


def _decrypt(text: str, canary: bytes) -> str:
    try:
        secret = base64.b64decode(text, validate=True)
        return bytes(byte ^ canary[place % len(canary)] for place, byte in enumerate(secret)).decode()
    except ValueError as error:
        raise DataError(f"cannot be decrypted with its canary ({error})") from error
