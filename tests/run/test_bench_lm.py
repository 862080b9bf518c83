"""The sides of the benchmark of a language model, on a small random model, and what verl's are compared by."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_models import small_model

from experiments import bench, bench_lm


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    small_model(folder=folder, vocab_size=49152, num_hidden_layers=1, tie_word_embeddings=True)
    return folder


def test_each_side_runs_on_a_model(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_lm, "ROWS", 4)
    monkeypatch.setattr(bench_lm, "REPLY_TOKENS", 2)
    sampled: Any = bench_lm.engine(model, 2)()
    assert [len(generation.output_ids) for generation in sampled] == [2] * 4
    generated: Any = bench_lm.generate(model, 2)()
    assert [len(logits) for logits in generated.logits] == [4] * 2
    bench_lm.plain_update(model)()


def test_a_game_s_rows_share_their_beginning_and_train_the_reply() -> None:
    rows = bench_lm.game_rows(2, 3)
    assert len(rows) == 2 * 3 * bench_lm.TURNS
    packed = bench_lm.pack_rows(rows)
    assert packed.mask.sum() == len(rows) * (bench_lm.THOUGHT_TOKENS + bench_lm.COMMAND_TOKENS)
    openings = {row[: bench_lm.PROMPT_TOKENS].tobytes() for row in rows}
    assert len(openings) == 2
    assert len({row.tobytes() for row in rows}) == len(rows)
    np.testing.assert_allclose(packed.weight.sum(), 1.0, atol=1e-5)


def test_sides_of_unequal_length_are_compared_by_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step of each warms it up."""
    monkeypatch.setattr(bench, "our_steps", lambda *_: [(9.0, 700), (1.0, 500)])
    monkeypatch.setattr(bench, "stock_steps", lambda *_: [(9.0, 2000), (1.0, 1000)])
    ((_, unit, timings),) = bench.verl(Namespace(repeats=1))
    assert (unit, timings) == ("us a token", {"ours": [2000], "stock verl": [1000]})
