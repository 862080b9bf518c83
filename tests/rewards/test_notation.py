"""Rewrites of notations: what they make equal, and that they make no two numbers equal.

With RTPO_DATA set, on the golds of MATH-500, AIME24 and AMC23 too.
"""

import json
import os
import re
from collections import defaultdict
from itertools import chain, pairwise
from pathlib import Path
from random import Random

import pytest
import yaml

from rtpo.rewards.grading_child import verdict
from rtpo.rewards.notation import REWRITES, in_latex, rewritten
from rtpo.rewards.units import VALUE_WORDS

DATA = os.environ.get("RTPO_DATA")
FIXTURES = Path(__file__).parents[1] / "fixtures"
PAIRS = yaml.safe_load((FIXTURES / "notations.yaml").read_text(encoding="utf-8"))
TEXTS = [
    text
    for pair in PAIRS + yaml.safe_load((FIXTURES / "grading.yaml").read_text(encoding="utf-8"))
    for text in (pair["gold"], *pair.get("right", ()), *pair.get("wrong", ()))
]
OLYMPIAD = [
    *(
        r"\frac{1}{2^{2024}}",
        r"2^{1012}-1",
        r"\binom{2n}{n}",
        r"\frac{n(n+1)}{2}",
        r"(3,4,5)",
        r"(-\infty,-1)\cup(2,3]",
    ),
    *(r"\sqrt[3]{2}+\sqrt[3]{4}", r"1-\frac{1}{\mathrm{e}}", r"\frac{\sqrt{5}-1}{2}", r"\{2,3,7\}", r"12\pi-9\sqrt3"),
    *(r"f(x)=2x+1", r"x^2-3x+2", r"\ln 2", r"45^\circ", r"8:15", r"2:3:5", r"6~\text{cm}", r"0.1\overline{6}", "-17"),
]
"""answers as olympiads have them"""
ZERO_OR_UNIT = re.compile(r"-0|\\(?:text|mbox)\s*\{[^{}]*\}\^|\\pm\s*-")
"""what a mutation that means the same leaves: -0, a unit's power, both signs of a number"""


def golds() -> list[str]:
    files = [Path(DATA) / f"{name}.jsonl" for name in ("math500", "aime24", "amc23")] if DATA else []
    lines = chain.from_iterable(file.read_text(encoding="utf-8").splitlines() for file in files)
    return list(dict.fromkeys([*OLYMPIAD, *(str(json.loads(line)["answer"]) for line in lines)]))


def mutations(gold: str) -> set[str]:
    """Each number one more and one less, and each sign the other one."""
    mutated = set()
    for number in re.finditer(r"\d+", gold):
        for value in (int(number[0]) + 1, int(number[0]) - 1):
            mutated.add(f"{gold[: number.start()]}{value}{gold[number.end() :]}")
    for sign in re.finditer(r"[-+]", gold):
        mutated.add(gold[: sign.start()] + {"-": "+", "+": "-"}[sign[0]] + gold[sign.end() :])
    return mutated - {gold}


@pytest.mark.parametrize("pair", PAIRS, ids=[pair["gold"] for pair in PAIRS])
def test_each_kind_of_notation_is_read(pair: dict[str, str | list[str]]) -> None:
    gold = str(pair["gold"])
    assert verdict(gold, gold) == "right"
    assert {said: verdict(gold, said) for said in pair.get("right", ())} == dict.fromkeys(
        pair.get("right", ()), "right"
    )
    assert not [said for said in pair.get("wrong", ()) if verdict(gold, said) == "right"]


def test_each_rewrite_has_an_example_and_all_together_make_no_two_golds_equal() -> None:
    unused = list(REWRITES)
    for text in map(in_latex, TEXTS):
        for rewrite in REWRITES:
            before, text = text, rewrite.pattern.sub(rewrite.replacement, text)
            if text != before and rewrite in unused:
                unused.remove(rewrite)
    assert unused == []
    numbers = defaultdict(set)
    for gold in golds():
        numbers[rewritten(gold)].add(tuple(re.findall(r"\d|[-+]", gold)))
    assert [together for together in numbers.values() if len(together) > 1] == []


def test_golds_equal_themselves_and_mutated_golds_do_not() -> None:
    chosen = golds()[: len(OLYMPIAD)] + golds()[len(OLYMPIAD) :: 16]
    assert [gold for gold in golds() if verdict(gold, gold) != "right"] == []
    # a gold that is an assignment is its value
    neighbours = [(gold, other) for gold, other in pairwise(golds()) if (gold, other) != ("5", "x=5")]
    assert [pair for pair in neighbours if verdict(*pair) == "right"] == []
    accepted = [(gold, said) for gold in chosen for said in mutations(gold) if verdict(gold, said) == "right"]
    assert [(gold, said) for gold, said in accepted if not ZERO_OR_UNIT.search(said)] == []


UNFINISHED = (
    *("(3, {}", "[-5, {}", "\\{{ {}", "\\ln( {}", "7 - ( {}", "6 + = {}", "\\sqrt[ {}", "9 = ( {}", "x = {} ("),
    *("7 \\% of {}", "6\\%, {}\\%", "6 \\\\ {}", "6 \\mid {}", "6 & {}", "\\begin{{cases}} {}", "* {}", "${}$ ("),
)


@pytest.mark.parametrize("gold", ["5", "-12", "0.75", r"\frac{1}{2}", r"-\frac{3}{7}"])
def test_no_number_is_taken_from_an_answer_that_cannot_be_read(gold: str) -> None:
    assert [text for text in UNFINISHED if verdict(gold, text.format(gold)) == "right"] == []


@pytest.mark.parametrize(
    "gold",
    [
        *(r"\begin{cases} 1 & x>0 \\ 0 & x\le 0 \end{cases}", r"\begin{cases} x=1 \\ y=2 \end{cases}"),
        *(r"\max\{1, 2\}", r"\{x \mid x > 1\}", r"\{n \mid n = 2k, k > 3\}", r"\mathbb{R}^+", r"1010_{\text{two}}"),
        *(r"2n+1, n\in\mathbb{Z}", r"\triangle ABC \sim \triangle DEF", r"5 \mid n + 2", r"(3, \frac{1}{2}", "="),
    ],
)
def test_a_gold_is_read_as_a_whole_or_not_at_all(gold: str) -> None:
    answers = {*re.findall(r"\d+", gold), r"\frac{1}{2}", gold}
    assert {verdict(gold, answer) for answer in answers} == {"unreadable gold"}


@pytest.mark.parametrize("places", [0, 1, 6, 7, 15, 16, 17, 40])
def test_a_decimal_equals_its_other_forms_and_no_decimal_beside_it(places: int) -> None:
    rng = Random(places)
    for digits in (1, 3, 8, 16, 25):
        number = rng.randrange(10 ** (digits - 1), 10**digits)
        decimal, beside = (written(value, places) for value in (number, number + rng.choice([-1, 1])))
        others = [f"\\frac{{{number}}}{{{10**places}}}", f"{decimal}0" if places else f"{decimal}.0", f"+{decimal}"]
        assert [other for other in others if verdict(decimal, other) != "right"] == [], decimal
        for wrong in (beside, f"-{decimal}", f"{decimal}1" if places else f"{decimal}.0000001"):
            assert verdict(decimal, wrong) == "wrong", (decimal, wrong)
            assert verdict(f"({decimal},1)", f"({wrong},1)") == "wrong", (decimal, wrong)


def written(number: int, places: int) -> str:
    digits = str(number).rjust(places + 1, "0")
    return f"{digits[:-places]}.{digits[-places:]}" if places else digits


@pytest.mark.parametrize("gold", ["7", r"\frac{7}{2}", r"7\pi", r"\sqrt{7}", "7!", "7x^2"])
def test_no_word_that_changes_a_value_leaves_it_right(gold: str) -> None:
    texts = [f"{gold}\\text{{ {word}}}" for word in sorted(VALUE_WORDS - {"x"})]
    if gold == "7":
        texts += [text.format(word) for word in VALUE_WORDS for text in ("7 {}", r"\text{{7 {} things}}")]
    assert [answer for answer in texts if verdict(gold, answer) != "wrong"] == []
