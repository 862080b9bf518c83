"""Two training processes with two engines give what one of each gives, up to rounding."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import harness_on
from test_verl_harness import packed_for_update, rows_of
from transformers import AutoModelForCausalLM
from whole_runs import StopAt, config_in, lines

from experiments.export import export
from experiments.training import train
from rtpo.core.packing import Packed
from rtpo.envs.toy.math import problems
from rtpo.errors import Stopped
from rtpo.run.config import RunConfig
from rtpo.run.records import RunFolder
from rtpo.run.stopping import StopRequest
from rtpo.types import Floats, Role
from rtpo.verbs import Loss, SequenceClip, SquaredPair, TokenClip
from rtpo.verl_harness.session import open_backend

LOSSES: tuple[Loss, ...] = (TokenClip(), TokenClip(kl=0.1), SequenceClip(), SquaredPair())
SETTINGS = ("deterministic=true", "algorithm.epochs=2", "algorithm.minibatches=2", "budget.rollouts=120")


@dataclass(frozen=True)
class Measured:
    """What a number of processes gave: on fixed rows at the start, in a run, and on the rows after it. served: by an
    optimizer step's own forward."""

    backend: Any
    scores: Floats
    served: Floats
    gradients: Sequence[Floats]
    run: RunFolder
    trained_scores: Floats


def measure(config: RunConfig, packed: Packed, stop: StopRequest) -> Measured:
    """stop: what the run is left by, and then gone on with."""
    backend = open_backend(config)
    scores, reference = backend.score(packed).logprobs, backend.reference(packed).logprobs
    gradients = [backend.gradient(packed, reference if loss.kl else None, loss) for loss in LOSSES]
    served = backend.step(replace(packed, old_logprobs=None), None, TokenClip(), scored=True).scores
    assert served is not None
    with suppress(Stopped):
        train(config, stop)  # from the initial weights
    run = train(config, StopRequest())
    return Measured(backend, scores, served.logprobs, gradients, run, backend.score(packed).logprobs)


@pytest.fixture(scope="module")
def packed(_live_backend: Any, toy_config: RunConfig) -> Packed:
    """Rows of different lengths, with different advantages."""
    harness = harness_on(open_backend(toy_config), toy_config)
    harness.sync()
    chains = harness.rollout(problems("train", 11, seed=3), n=4, role=Role.CHAIN)
    return packed_for_update(rows_of(chains, "flattened"))


@pytest.fixture(scope="module")
def one(packed: Packed, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    return measure(config_in(tmp_path_factory.mktemp("one"), *SETTINGS), packed, StopRequest())


@pytest.fixture(scope="module")
def two(one: Measured, packed: Packed, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    return measure(config_in(tmp_path_factory.mktemp("two"), *SETTINGS, "profile.processes=2"), packed, StopAt(4))


def test_scores_and_gradients_are_the_same(one: Measured, two: Measured) -> None:
    assert (one.backend.ranks, two.backend.ranks) == (1, 2)
    for scores in (two.scores, one.served, two.served):
        np.testing.assert_allclose(scores, one.scores, atol=1e-5)
    for gradient, expected in zip(two.gradients, one.gradients, strict=True):
        assert np.abs(expected).max() > 1e-3
        np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_two_processes_that_left_a_run_and_resumed_it_end_as_one_process(one: Measured, two: Measured) -> None:
    """The same tokens, and log-probs and weights that differ by rounding."""
    assert [run.manifest["resumed"] for run in (one.run, two.run)] == [0, 1]
    for file in ("paths.jsonl", "evaluations.jsonl"):
        assert (two.run.path / file).read_text() == (one.run.path / file).read_text()
    ours, theirs = (lines(run.path, "rollouts.jsonl") for run in (two.run, one.run))
    logprobs = [[p for path in part for turn in path["turns"] for p in turn.pop("logprobs")] for part in (ours, theirs)]
    assert ours == theirs
    np.testing.assert_allclose(*logprobs, atol=2e-4)
    assert np.abs(one.trained_scores - one.scores).max() > 1e-2
    np.testing.assert_allclose(two.trained_scores, one.trained_scores, atol=1e-4)


def test_both_engines_work_with_the_trained_weights(two: Measured) -> None:
    checksums = two.backend.engine_checksums()
    assert checksums[0] == checksums[1]
    first, second = two.backend.engine_states()
    assert first.version == second.version == two.run.manifest["policy_version"] > 1
    assert min(first.prefilled_tokens, second.prefilled_tokens) > 100


def test_an_exported_policy_is_the_trained_one(one: Measured, two: Measured, packed: Packed, tmp_path: Path) -> None:
    """It gives the log-probs that its run's workers gave."""
    for trained in (one, two):
        output = tmp_path / str(trained.backend.ranks)
        export(trained.run.path, output)
        model: Any = AutoModelForCausalLM.from_pretrained(output)
        np.testing.assert_allclose(logprobs_of(model, packed), trained.trained_scores, atol=1e-4)


@torch.no_grad()
def logprobs_of(model: Any, packed: Packed) -> Floats:
    """Of the trained tokens under a transformers model."""
    scores, starts = [], np.cumsum(packed.lengths) - packed.lengths
    for start, length in zip(starts, packed.lengths, strict=True):
        ids = torch.from_numpy(packed.ids[start : start + length].astype(np.int64))[None]
        logprobs = model(input_ids=ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0].numpy()
        scores.append(logprobs[packed.mask[start : start + length][1:]])
    return np.concatenate(scores)
