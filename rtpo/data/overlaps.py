"""Training questions that are evaluation questions too."""

import unicodedata
from collections.abc import Iterable

from rtpo.data.records import Record
from rtpo.data.sources import Dropped
from rtpo.types import Task


def normalised(question: str) -> str:
    """The words and symbols of a question, whatever their case, compatibility forms, punctuation and white space.

    A hyphen that is a minus sign is punctuation too, so two problems of mathematics may be taken for one. That costs a
    training problem and never an evaluation problem.
    """
    text = unicodedata.normalize("NFKC", question).casefold()
    return " ".join("".join(" " if unicodedata.category(c)[0] in "PZC" else c for c in text).split())


def overlaps(training: Iterable[Record], evaluation: Iterable[Task]) -> list[Dropped]:
    """The training records whose question is an evaluation task's, each with the uid of the first such task."""
    known: dict[str, str] = {}
    for task in evaluation:
        known.setdefault(normalised(task.question), task.uid)
    known.pop("", None)
    keys = [(record.uid, normalised(record.question)) for record in training]
    return [Dropped(uid, "overlap", known[key]) for uid, key in keys if key in known]
