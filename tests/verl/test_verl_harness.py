"""The harness on real verl: one Ray start, FSDP2 over gloo, the embedded engine, the shipped warm start."""

import os
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import ray
import scripted
from local_backend import LocalBackend

from rtpo.core.files import NOTE_SUFFIX
from rtpo.core.packing import Packed, normalised_weights, pack
from rtpo.engines.base import Generation, Request
from rtpo.envs.toy.math import problems
from rtpo.errors import NonFinite, StaleEngine, TreeMismatch
from rtpo.harness.harness import AgentHarness
from rtpo.run.config import RunConfig
from rtpo.types import Group, Role, TrainingContext, TrainRow
from rtpo.verbs import Loss, SequenceClip, SquaredPair, TokenClip
from rtpo.verl_harness.session import open_backend

MakeHarness = Callable[..., AgentHarness]
TASKS = problems("train", 8, seed=1)


def rows_of(
    groups: Sequence[Group], context: TrainingContext, advantages: Sequence[float] | None = None
) -> list[TrainRow]:
    """Rows of whole chains; without `advantages`, from -1 to 1."""
    values = np.linspace(-1, 1, sum(map(len, groups))).tolist() if advantages is None else advantages
    return scripted.rows_of(groups, values, context)


@pytest.mark.needs("ss")
@pytest.mark.usefixtures("backend")
def test_a_run_on_one_machine_listens_on_the_loopback_address_alone() -> None:
    ours = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    listed = subprocess.run(["ss", "-Hltunp"], capture_output=True, text=True, check=True).stdout.splitlines()
    listeners = [line for line in listed if ours & {int(pid) for pid in re.findall(r"pid=(\d+)", line)}]
    for name in ("gcs_server", "raylet", "ray::AgentWorke", "ray::EmbeddedSe"):
        assert any(f'"{name}' in line for line in listeners)
    loopback = re.compile(r"(127\.|\[::1\]:|\[::ffff:127\.)")
    assert [line for line in listeners if not loopback.match(line.split()[4])] == []


def packed_for_update(rows: Sequence[TrainRow]) -> Packed:
    return pack(rows, [row.rollout_logprobs[row.mask] for row in rows], weights=normalised_weights(rows))


def test_every_row_is_what_the_engine_received_and_the_ratio_is_one(
    make_harness: MakeHarness, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte for byte: the context of a request that reached the engine, and what it sampled."""
    harness = make_harness("algorithm=grpo_exact")
    harness.sync()
    generate = backend.engine.generate
    exchanged: list[tuple[str, bytes, bytes]] = []

    async def record(request: Request) -> Generation:
        received = request.context_ids.tobytes()
        generation = await generate(request)
        exchanged.append((request.session, received, generation.output_ids.tobytes()))
        return generation

    monkeypatch.setattr(backend.engine, "generate", record)
    rows = rows_of(harness.rollout(TASKS, n=4, role=Role.CHAIN), "recorded")
    trained = [(row.rollout_uid, row.ids[~row.mask].tobytes(), row.ids[row.mask].tobytes()) for row in rows]
    assert len(exchanged) > 32
    assert sorted(trained) == sorted(exchanged)
    for row in rows:
        assert row.mask.tolist() == sorted(row.mask.tolist())
    harness.update(rows, TokenClip())
    metrics = harness.step_log.updates[0]
    assert abs(np.log(metrics["mismatch/ratio_gm"])) < 1e-4
    assert abs(metrics["mismatch/kl_k3"]) < 1e-6
    assert metrics["mismatch/context/kl_k1"] == 0


def test_trees_that_differ_from_their_rows_end_the_run(
    make_harness: MakeHarness, backend: Any, toy_config: RunConfig
) -> None:
    def see_all_before(worker: Any) -> None:
        import torch

        from rtpo.core import tree_attention

        worker.kept = tree_attention.pieces
        tree_attention.pieces = lambda end, *more: worker.kept(torch.full_like(end, len(end)), *more)

    def mend(worker: Any) -> None:
        from rtpo.core import tree_attention

        tree_attention.pieces = worker.kept

    harness = make_harness("profile.check_trees=true")
    harness.sync()
    rows = rows_of(harness.rollout(TASKS, n=4, role=Role.CHAIN), "recorded")
    harness.update(rows, TokenClip())
    ledger = harness.ledger
    assert ledger.prefilled_tokens is not None
    assert 0 < ledger.prefilled_tokens < ledger.context_tokens
    assert ledger.row_tokens > 1.2 * (ledger.computed_tokens + ledger.scored_tokens) > 0
    packed = packed_for_update(rows)
    steps = []
    for apart in (True, False):
        open_backend(toy_config)
        steps.append(backend.step(packed, None, TokenClip(), apart=apart))
    assert steps[0].grad_norm == pytest.approx(steps[1].grad_norm, rel=1e-4)
    assert steps[0].computed_tokens == len(packed.ids) > 1.5 * steps[1].computed_tokens
    ray.get([worker.__ray_call__.remote(see_all_before) for worker in backend._workers.workers])
    try:
        with pytest.raises(TreeMismatch, match=r"profile\.check_trees"):
            harness.update(rows, TokenClip())
    finally:
        ray.get([worker.__ray_call__.remote(mend) for worker in backend._workers.workers])


def test_stale_weights_under_a_new_version_are_caught_by_the_engine_kl(make_harness: MakeHarness) -> None:
    harness = make_harness()
    harness.sync()
    packed = packed_for_update(rows_of(harness.rollout(TASKS, n=4, role=Role.CHAIN), "recorded"))
    for _ in range(4):
        harness._backend.step(packed, None, TokenClip())
    rows = rows_of(harness.rollout(TASKS, n=4, role=Role.CHAIN), "recorded")
    with pytest.raises(StaleEngine, match="engine_kl_limit"):
        harness.update(rows, TokenClip())


@pytest.mark.parametrize(
    "loss", [TokenClip(kl=0.05), SequenceClip(), SquaredPair()], ids=lambda loss: type(loss).__name__
)
def test_plain_torch_trains_to_the_same_numbers(
    make_harness: MakeHarness, backend: Any, toy_config: RunConfig, loss: Loss, monkeypatch: pytest.MonkeyPatch
) -> None:
    """verl's worker, FSDP2 and no-padding layout against one padded batch and one AdamW; from the initial weights,
    which the reference has to the end. With a KL verl has several micro-batches."""
    harness, local = make_harness(), LocalBackend(toy_config)
    harness.sync()
    packed = packed_for_update(rows_of(harness.rollout(TASKS, n=4, role=Role.CHAIN), "flattened"))
    if loss.kl:
        monkeypatch.setattr(backend, "_token_limit", 2 * int(packed.lengths.max()))
    reference = backend.reference(packed).logprobs if loss.kl else None
    for _ in range(3):
        if reference is not None:
            np.testing.assert_array_equal(backend.reference(packed).logprobs, reference)
            np.testing.assert_allclose(reference, local.reference(packed).logprobs, rtol=1e-5, atol=2e-5)
        verls, plain = backend.score(packed), local.score(packed)
        np.testing.assert_allclose(verls.logprobs, plain.logprobs, rtol=1e-5, atol=2e-5)
        np.testing.assert_allclose(verls.entropy, plain.entropy, rtol=1e-5, atol=2e-5)
        gradients = [each.gradient(packed, reference, loss) for each in (backend, local)]
        np.testing.assert_allclose(*gradients, rtol=0, atol=2e-4 * np.abs(gradients[1]).max())
        steps = [each.step(packed, reference, loss, scored=True) for each in (backend, local)]
        assert steps[0].scores is not None
        np.testing.assert_allclose(steps[0].scores.logprobs, verls.logprobs, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(steps[0].scores.entropy, verls.entropy, rtol=1e-5, atol=1e-5)
        assert steps[0].loss == pytest.approx(steps[1].loss, rel=1e-3, abs=1e-5)
        assert steps[0].grad_norm == pytest.approx(steps[1].grad_norm, rel=1e-3)


def test_a_gradient_that_overflows_is_not_applied(make_harness: MakeHarness) -> None:
    harness = make_harness()
    harness.sync()
    rows = rows_of(harness.rollout(TASKS[:2], n=2, role=Role.CHAIN), "recorded")
    broken = [replace(row, advantage=np.where(row.mask, np.float32(3e38), 0).astype(np.float32)) for row in rows]
    before = harness.score(rows)
    with pytest.raises(NonFinite, match="was not applied"):
        harness.update(broken, TokenClip())
    assert all(np.isfinite(score).all() for score in before)
    for score, unchanged in zip(harness.score(rows), before, strict=True):
        np.testing.assert_array_equal(score, unchanged)


def test_a_warm_up_leaves_nothing(backend: Any, make_harness: MakeHarness) -> None:
    harness = make_harness()
    harness.sync()
    packed = packed_for_update(rows_of(harness.rollout(TASKS, n=4, role=Role.CHAIN), "recorded"))
    scores, gradient = backend.score(packed).logprobs, backend.gradient(packed, None, TokenClip())
    backend.warm_up()
    np.testing.assert_array_equal(backend.score(packed).logprobs, scores)
    np.testing.assert_array_equal(backend.gradient(packed, None, TokenClip()), gradient)


def test_the_files_of_a_save_are_hashed_as_they_are_written(make_harness: MakeHarness, tmp_path: Path) -> None:
    """Not when they are read back, which would certify what a bad disk made of them."""
    make_harness().save(tmp_path / "save")
    assert len(list((tmp_path / "save").rglob(f"*{NOTE_SUFFIX}"))) == 3
