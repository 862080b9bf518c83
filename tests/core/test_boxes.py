"""Answers in boxes."""

import time

import pytest

from rtpo.rewards.boxes import last_box


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("\\boxed{\\frac{1}{2}} so \\boxed{ {a}{b{c}} } end}", " {a}{b{c}} "),
        ("\\boxed{\\left\\{ 1, 2 \\right.}", "\\left\\{ 1, 2 \\right."),
        ("{ \\\\\\boxed{73}", "73"),
        ("\\\\boxed{73}", "73"),
        ("\\fbox{73}", "73"),
        ("\\(x = \\boxed-\\frac{1}{2}\\)", "-\\frac{1}{2}"),
        ("is \\boxed\\frac12.", "\\frac12"),
        ("\\boxed \\$73$", "\\$73"),
        ("\\boxed{73} is in \\boxed, as asked, a \\boxed - or \\boxed{", "73"),
        ("\\boxed{2} or $\\boxed 73$", "73"),
        ("\\boxed{7} (as asked, within \\boxed{ })", "7"),
        ("boxed{1} \\boxedx{1} \\boxed{1", None),
    ],
)
def test_the_last_closed_box_counts(text: str, held: str | None) -> None:
    assert last_box(text) == held


@pytest.mark.parametrize("piece", ["\\boxed{", "\\boxed 1", "{", "\\", "\\boxed{}", "$"])
def test_no_text_takes_long(piece: str) -> None:
    start = time.process_time()
    last_box(piece * 100_000)
    assert time.process_time() - start < 5
