"""What torch compiles FlexAttention for, and the check of a GPU."""

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers.integrations.flex_attention as flex_integration
from small_models import small_model
from torch._dynamo.utils import counters

from experiments import check_gpu
from rtpo.core import tree_attention
from rtpo.core.tree_attention import BLOCK, KERNELS, attend, block_mask
from rtpo.errors import MachineError
from rtpo.run.config import PROJECT

SIZES = (10, 8, 6, 1, 1, *np.random.default_rng(0).permutation(np.arange(1, 12)).tolist())
"""blocks of sixteen micro-batches: more kinds than are allowed, if each were compiled for itself"""


def attended(sizes: Sequence[int], *, gradient: bool) -> None:
    """As transformers calls it on CUDA, in training and in evaluation by turns."""
    for turn, blocks in enumerate(sizes):
        query, key, value = (torch.randn(1, heads, blocks * BLOCK, 16, requires_grad=gradient) for heads in (4, 2, 2))
        mask = block_mask(torch.full((blocks * BLOCK,), blocks * BLOCK))
        with torch.set_grad_enabled(gradient):
            attend(SimpleNamespace(training=turn % 2 == 1), query, key, value, mask)


def test_kinds_with_and_without_a_gradient_leave_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the graphs that torch would compile; torch computes no gradient of it on a CPU."""
    monkeypatch.setattr(flex_integration.WrappedFlexAttention, "_is_flex_compiled", False)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    monkeypatch.setattr(torch.nn.attention.flex_attention, "_validate_device", lambda *_: None)
    torch._dynamo.reset()
    counters.clear()
    attended(SIZES, gradient=False)
    without = counters["stats"]["unique_graphs"]
    attended(SIZES, gradient=True)
    assert 1 < without < KERNELS / 4
    assert without < counters["stats"]["unique_graphs"] < KERNELS / 2
    monkeypatch.setattr(tree_attention, "KERNELS", 1)
    torch._dynamo.reset()
    with pytest.raises(MachineError, match="KERNELS"):
        attended(SIZES, gradient=False)
    torch._dynamo.reset()


def test_the_check_of_a_gpu_passes_fails_or_is_not_finished(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check_gpu.main(["--tiny"]) == 0
    with monkeypatch.context() as patch:
        pieces = tree_attention.pieces
        patch.setattr(tree_attention, "pieces", lambda end, *more: pieces(torch.full_like(end, len(end)), *more))
        assert check_gpu.main(["--tiny"]) == 1
    with monkeypatch.context() as patch:
        patch.setattr(check_gpu, "SECONDS", 0)
        assert check_gpu.main(["--tiny"]) == 3
    assert capsys.readouterr().out.splitlines()[-1] == "UNFINISHED"
    with pytest.raises(TimeoutError):
        list(check_gpu.kernels("cpu", deadline=0))
    with monkeypatch.context() as patch:
        patch.setattr(check_gpu, "SMALL", check_gpu.TINY)
        patch.setattr(check_gpu, "SHAPES", 2)
        ((_, value, fails),) = check_gpu.kernels("cpu", deadline=float("inf"))
        assert (value[0], fails) == ("0", True)  # a CPU needs no kernel, and a GPU without one computes all pairs

    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(check_gpu, "update", full)
    assert check_gpu.main(["--tiny"]) == 3


def test_the_check_of_a_gpu_takes_a_model_that_is_trained_on_trees(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small_model(folder=tmp_path, vocab_size=90)
    assert check_gpu.main(["--tiny", "--model", str(tmp_path)]) == 0
    assert f"update, {tmp_path.name}, trees" in capsys.readouterr().out
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "mistral"}))
    assert check_gpu.main(["--model", str(tmp_path)]) == 1
    assert "mistral" in capsys.readouterr().err


def test_the_check_of_a_gpu_needs_torch_and_transformers_alone() -> None:
    others = ("verl", "ray", "vllm", "hydra", "omegaconf", "pydantic", "pandas", "scipy", "datasets", "wandb")
    program = f"import sys; sys.modules.update(dict.fromkeys({others})); import experiments.check_gpu"
    subprocess.run([sys.executable, "-c", program], cwd=PROJECT, check=True)
