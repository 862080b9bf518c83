"""The bench compares what is alike."""

from argparse import Namespace

import pytest

from experiments import bench


def test_sides_of_unequal_length_are_compared_by_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step of each warms it up."""
    monkeypatch.setattr(bench, "our_steps", lambda *_: [(9.0, 700), (1.0, 500)])
    monkeypatch.setattr(bench, "stock_steps", lambda *_: [(9.0, 2000), (1.0, 1000)])
    ((_, unit, timings),) = bench.verl(Namespace(repeats=1))
    assert (unit, timings) == ("us a token", {"ours": [2000], "stock verl": [1000]})
