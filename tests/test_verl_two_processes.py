"""Two training processes with two engines give what one of each gives, up to rounding."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import harness_on
from test_verl_harness import packed_for_update, rows_of
from whole_runs import StopAt, assert_same_run, config_in

from experiments.train import train
from rtpo.config import RunConfig
from rtpo.errors import DataError, Stopped
from rtpo.packing import Packed
from rtpo.records import RunFolder
from rtpo.run import StopRequest
from rtpo.toy.math_problems import problems
from rtpo.types import Floats, Role
from rtpo.verbs import Loss, SequenceClip, SquaredPair, TokenClip
from rtpo.verl_harness.session import open_backend

LOSSES: tuple[Loss, ...] = (TokenClip(), TokenClip(kl=0.1), SequenceClip(), SquaredPair())
SETTINGS = ("deterministic=true", "algorithm.epochs=2", "algorithm.minibatches=2", "budget.rollouts=120")
TWO = "profile.processes=2"


@dataclass(frozen=True)
class Measured:
    """What a number of processes gave: on fixed rows at the start, in a run, and on the rows after it."""

    backend: Any
    scores: Floats
    gradients: Sequence[Floats]
    run: RunFolder
    trained_scores: Floats


def measure(config: RunConfig, packed: Packed) -> Measured:
    backend = open_backend(config)
    scores, reference = backend.score(packed).logprobs, backend.reference(packed)
    gradients = [backend.gradient(packed, reference if loss.kl else None, loss) for loss in LOSSES]
    run = train(config, StopRequest())
    return Measured(backend, scores, gradients, run, backend.score(packed).logprobs)


@pytest.fixture(scope="module")
def packed(_live_backend: Any, toy_config: RunConfig) -> Packed:
    """Rows of different lengths, with different advantages."""
    harness = harness_on(open_backend(toy_config), toy_config)
    harness.sync()
    chains = harness.rollout(problems("train", 11, seed=3), n=4, role=Role.CHAIN)
    return packed_for_update(rows_of(chains, "flattened"), multiple=4)


@pytest.fixture(scope="module")
def one(packed: Packed, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    return measure(config_in(tmp_path_factory.mktemp("one"), *SETTINGS), packed)


@pytest.fixture(scope="module")
def two(one: Measured, packed: Packed, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    return measure(config_in(tmp_path_factory.mktemp("two"), *SETTINGS, TWO), packed)


def test_scores_and_gradients_are_the_same(one: Measured, two: Measured) -> None:
    assert (one.backend.ranks, two.backend.ranks) == (1, 2)
    np.testing.assert_allclose(two.scores, one.scores, atol=1e-5)
    for gradient, expected in zip(two.gradients, one.gradients, strict=True):
        assert np.abs(expected).max() > 1e-3
        np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_a_run_is_the_same(one: Measured, two: Measured) -> None:
    """The same tokens, and weights that differ by rounding."""
    for file in ("rollouts.jsonl", "evaluations.jsonl"):
        assert (two.run.path / file).read_text() == (one.run.path / file).read_text()
    assert np.abs(one.trained_scores - one.scores).max() > 1e-2
    np.testing.assert_allclose(two.trained_scores, one.trained_scores, atol=1e-4)


def test_both_engines_work_with_the_trained_weights(two: Measured) -> None:
    first, second = two.backend.engine_states()
    assert first.checksum == second.checksum
    assert first.version == second.version == two.run.manifest["policy_version"] > 1
    assert min(first.requested_tokens, second.requested_tokens) > 1000


def test_each_process_saves_its_shard(two: Measured) -> None:
    (save,) = (two.run.path / "checkpoints").glob("step*")
    for rank in (0, 1):
        assert (save / "weights" / f"model_world_size_2_rank_{rank}.pt").exists()
        assert (save / "weights" / f"optim_world_size_2_rank_{rank}.pt").exists()


def test_a_run_left_between_two_phases_goes_on_from_its_shards(two: Measured, tmp_path: Path) -> None:
    config = config_in(tmp_path, *SETTINGS, TWO)
    with pytest.raises(Stopped):
        train(config, StopAt(4))
    with pytest.raises(DataError, match=r"profile\.processes was 2 and is 1"):
        train(config_in(tmp_path, *SETTINGS), StopRequest())
    assert_same_run(train(config, StopRequest()), two.run)
