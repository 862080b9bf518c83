"""Scores of short answers: how texts become tokens, F1, spans, hits; the reward made of them."""

import asyncio
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rtpo.rewards.alarm import grading_alarm
from rtpo.rewards.qa import QAScore, Tokens, output_hit, score, tokenize
from rtpo.rewards.qa_reward import QAReward, QASettings
from rtpo.types import GradeOutcome

DATA = os.environ.get("RTPO_DATA", "")
words = st.lists(st.sampled_from(["the", "red", "fox", "yes", "no", "of", "7", "北"]), max_size=8).map(" ".join)
golds = words.filter(tokenize)
anything = st.text(max_size=40) | st.text(alphabet="aThe 1,.-−½北か?'’($\u200b\n", max_size=20)


TEXTS = {
    "The Beatles": "beatles",
    "An apple  a day\n": "apple day",
    **{"U.S. Department": "us department", "well-known": "wellknown", "O'Brien’s": "obriens", "AT&T": "att"},
    **{"“Washington, D.C.”": "washington dc", "Ｆｕｌｌ　ｗｉｄｔｈ": "full width", "ﬁve": "five"},
    "zero\u200bwidth\u00adhyphen": "zerowidthhyphen",
    **{"\\text{New York}": "new york", "\\mathbf{\\text{Paris}}": "paris", "25\\%": "25", "\\frac": "frac"},
    # numbers
    **{"1,234,567": "1234567", "1.95 m": "1.95 m", "in 2010.": "in 2010", "1,95": "1 95", "1998–2001": "1998 2001"},
    **{"3/4": "3 4", "3½": "31 2", "12:30": "12 30", "-5 and −5 and (-5)": "-5 and -5 and -5", "5 - 3": "5 3"},
    **{"A-5": "a5", ".5": ".5", "-.5": "-.5", "x-.5": "x5", "--5": "5", "x(-5)": "x -5", "a (-.5)": "-.5"},
    **{"$5": "5", "$-5": "-5"},
    # articles and marks are kept where nothing else is there
    **{"A": "a", "(A)": "a", "The The": "the the", "?": "?", "C++": "c", " \u200b\n": ""},
    # no spaces between words
    **{"北京市": "北 京 市", "2024年10月27日。": "2024 年 10 月 27 日", "서울 특별시": "서울 특별시", "Café": "café"},
    "ﾄｳｷｮｳタワー": "ト ウ キ ョ ウ タ ワ ー",
}


def test_a_text_becomes_tokens() -> None:
    assert {text: " ".join(tokenize(text)) for text in TEXTS} == TEXTS


@given(anything)
@example("- .5")
@example("1,,000")
@example("\ud800")
def test_tokens_are_their_own_tokens(text: str) -> None:
    tokens = tokenize(text)
    assert tokenize(" ".join(tokens)) == tokens
    assert all(tokens)


SCORES = (
    ("Paris", "paris", True, 1, 1),
    ("New York City", "new york", False, 4 / 5, 4 / 5),
    ("Paris", "The capital is Paris, France", False, 2 / 5, 1),
    ("New York City", "I think the City of New York is right", False, 2 * 3 / (8 + 3), 2 * 3 / (4 + 3)),
    ("x x y", "y y x x z", False, 2 * 3 / (5 + 3), 1),
    ("肖亮", "讲座的主讲人是肖亮。", False, 2 * 2 / (9 + 2), 1),
    # yes and no are right or wrong as a whole
    ("yes", "Yes.", True, 1, 1),
    ("No Country for Old Men", "It is No Country for Old Men", False, 10 / 12, 1),
    # numbers are compared as they are written
    ("1,000", "1000", True, 1, 1),
    *(("Paris", said, False, 0, 0) for said in ("", "London")),
    *((gold, said, False, 0, 0) for gold, said in (("yes", "yes, both were"), ("no", "yes"), ("No Country", "no"))),
    *((gold, said, False, 0, 0) for gold, said in (("5", "5.0"), ("3.14", "31.4"), ("-5", "5"))),
)


def test_scores_of_one_answer_and_of_the_best_accepted_one() -> None:
    aliases = ("Washington, D.C.", "the District, of Columbia")
    several = [(aliases, "Washington DC", True, 1, 1), (aliases, "Columbia", False, 1 / 2, 1 / 2)]
    several += [(("", "Paris"), "Paris", True, 1, 1), (("", "Paris"), "", False, 0, 0)]
    for answers, said, *expected in [*(((answer,), *rest) for answer, *rest in SCORES), *several]:
        result = score(answers, said)
        assert [result.exact, result.f1, result.span_f1] == pytest.approx(expected), (answers, said)


def test_answers_that_cannot_be_are_refused() -> None:
    for answers in ((), ("",), (" \u200b",), "Paris"):
        with pytest.raises(ValueError, match="answer"):
            score(answers, "Paris")
        with pytest.raises(ValueError, match="answer"):
            output_hit(answers, ["Paris"])


def f1(said: Tokens, gold: Tokens) -> float:
    return 2 * sum((Counter(said) & Counter(gold)).values()) / (len(said) + len(gold))


@given(golds, words)
def test_scores_are_in_order_symmetric_and_the_best_span_is_the_best_of_all(gold: str, prediction: str) -> None:
    result = score((gold,), prediction)
    assert 0 <= result.f1 <= result.span_f1 <= 1
    assert not result.exact or result.f1 == 1
    wanted, said = tokenize(gold), tokenize(prediction)
    if said:
        back = score((prediction,), gold)
        assert (back.exact, back.f1) == (result.exact, result.f1)
    spans = [said[i:j] for i in range(len(said)) for j in range(i + 1, len(said) + 1)]
    best = max((f1(span, wanted) for span in spans), default=0)
    if {wanted, said} & {("yes",), ("no",)}:
        best = float(wanted == said)
    assert result.span_f1 == pytest.approx(best)


@given(st.lists(words, min_size=1, max_size=4).filter(lambda answers: any(map(tokenize, answers))), words)
def test_the_order_of_answers_does_not_matter_and_each_can_only_help(answers: list[str], prediction: str) -> None:
    result = score(answers, prediction)
    assert score(answers[::-1], prediction) == result
    known = [(answer,) for answer in answers if tokenize(answer)]
    alone = [score(answer, prediction) for answer in known]
    for name in ("f1", "span_f1", "exact"):
        assert getattr(result, name) == max(getattr(each, name) for each in alone)
    assert output_hit(answers, [prediction]) == any(output_hit(answer, [prediction]) for answer in known)


def test_a_long_prediction_is_scored_by_its_spans() -> None:
    """Quadratic work over 20,000 tokens would not end here."""
    answer = " ".join(str(n) for n in range(60))
    prediction = " ".join(f"word {n % 70}" for n in range(10_000))
    assert 0 < score((answer,), prediction).span_f1 < 1
    assert score((answer,), f"{prediction} {answer} {prediction}").span_f1 == 1


def test_hits_are_at_tokens() -> None:
    hits = [
        ("New York", "He was born in New York, in 1960."),
        ("the Beatles", "by Beatles"),
        ("肖亮", "主讲人是肖亮。"),
    ]
    hits += [("1,000", "about 1000 people")]
    misses = [
        ("New York", "He was born in new\nyork-like towns."),
        ("art", "He started."),
        ("000", "about 1,000 people"),
    ]
    assert [output_hit((answer,), [text]) for answer, text in hits + misses] == [True] * 4 + [False] * 3
    assert not output_hit(("New York",), ["New", "York"])
    assert output_hit(("London", "New York"), ["nothing", "New York"])


@pytest.mark.skipif(not DATA, reason="set RTPO_DATA to a folder of real QA files")
def test_every_accepted_answer_of_real_files_is_right() -> None:
    for name in ("hotpotqa", "2wiki", "webwalker"):
        rows = [json.loads(line)["answer"] for line in Path(DATA, f"{name}.jsonl").read_text().splitlines()]
        assert len(rows) == 200
        for answers in (answer if isinstance(answer, list) else [answer] for answer in rows):
            for answer in answers:
                assert score(answers, answer) == QAScore(True, 1, 1)
                # an answer of symbols alone counts where nothing else stands
                said = f"It is {answer}, I think." if any(map(str.isalnum, answer)) else answer
                assert output_hit(answers, [said])


@pytest.mark.parametrize(("kind", "expected"), [("em", 0.0), ("f1", 0.8)])
def test_a_reward_is_the_score_of_its_kind(kind: Any, expected: float) -> None:
    assert QASettings(kind).check() == {"kind": kind}
    reward = QAReward(QASettings(kind))

    def graded(answer: str, prediction: str) -> float | None:
        grade = asyncio.run(reward.grade("Which city?", (answer,), prediction))
        assert (grade.outcome is GradeOutcome.UNGRADABLE) == (grade.reward is None)
        return grade.reward

    said = [graded("New York City", prediction) for prediction in ("New York", "new york city.", "")]
    assert said == [pytest.approx(expected), 1, 0]
    assert graded("", "") is None


@pytest.mark.parametrize(
    ("graded", "ungradable", "rings"), [(0, 0, False), (99, 1, False), (100, 0, False), (197, 3, True), (0, 1, True)]
)
def test_an_alarm_rings_above_one_in_a_hundred(graded: int, ungradable: int, rings: bool) -> None:
    assert (grading_alarm(graded, ungradable, ["why"]) is not None) is rings
