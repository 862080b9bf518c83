"""verl's FSDP2 and fused kernels with an output layer of its own, as Qwen3-8B has, on two processes."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

WORLD = 2
ON_CPU = {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "rtpo.verl_harness.plugin", "OMP_NUM_THREADS": "1"}


ARCHITECTURES = ("qwen3", "qwen2", "llama")


def compare(architecture: str, mesh: Any) -> float:
    """How far log-probs and gradients of the sharded model with fused kernels are from those of the plain one, as a
    part of the largest that may be."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from verl.models.transformers.monkey_patch import apply_monkey_patch
    from verl.utils.fsdp_utils import MixedPrecisionPolicy, apply_fsdp2

    def untied() -> Any:
        torch.manual_seed(0)
        sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 16}
        heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
        described = AutoConfig.for_model(architecture, **sizes, **heads, tie_word_embeddings=False)
        return AutoModelForCausalLM.from_config(described)

    torch.manual_seed(1)
    ids, temperature = torch.randint(0, 64, (2, 7)), 0.9
    plain = untied()
    logits = plain(input_ids=ids, use_cache=False).logits / temperature
    expected = logits.log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
    expected.sum().backward()
    model = untied()
    apply_monkey_patch(model=model, use_remove_padding=False, use_fused_kernels=True, fused_kernels_backend="torch")
    policy = MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float32, cast_forward_inputs=True)
    settings = {"mesh": mesh, "mp_policy": policy, "offload_policy": None, "reshard_after_forward": True}
    apply_fsdp2(model, settings, {})
    logprobs = model(input_ids=ids, temperature=temperature, return_dict=True, use_cache=False).log_probs[:, :-1]
    logprobs.sum().backward()
    parts = [float((logprobs - expected).abs().max()) / 1e-5]
    for parameter, other in zip(model.parameters(), plain.parameters(), strict=True):
        gradient: Any = parameter.grad
        assert other.grad is not None
        parts.append(float((gradient.full_tensor() - other.grad).abs().max() / other.grad.abs().max()) / 1e-4)
    assert all(map(math.isfinite, parts))
    return max(parts)


def compare_all(rank: int, output: str) -> None:
    """As one of two processes."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(WORLD)}
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from verl.utils.checkpoint import fsdp_checkpoint_manager

    import rtpo.verl_harness.fsdp_engine  # noqa: F401  (puts itself in place)

    dist.init_process_group("gloo", f"file://{output}.store", rank=rank, world_size=WORLD)
    mesh = init_device_mesh("cpu", (WORLD,), mesh_dim_names=("fsdp",))
    distances = {architecture: compare(architecture, mesh) for architecture in ARCHITECTURES}
    fsdp_checkpoint_manager.local_mkdir_safe(f"{output}.save")
    if rank == 0:
        Path(output).write_text(json.dumps(distances))
    dist.destroy_process_group()


def test_fused_kernels_find_the_whole_output_layer_and_nothing_is_left_or_said(tmp_path: Path) -> None:
    output, temporary = tmp_path / "found.json", tmp_path / "temporary"
    temporary.mkdir()
    with (tmp_path / "log").open("w+") as log:
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__, str(rank), str(output)],
                env=os.environ | ON_CPU | {"TMPDIR": str(temporary)},
                stderr=log,
            )
            for rank in range(WORLD)
        ]
        try:
            ended = [rank.wait(300) for rank in ranks]
        finally:  # one that failed would leave the other waiting for it
            for rank in ranks:
                rank.kill()
        log.seek(0)
        said = log.read()
    assert ended == [0] * WORLD, said
    assert "engine is not available" not in said
    assert Path(f"{output}.save").is_dir()
    assert list(temporary.glob("*.lock")) == []
    distances = json.loads(output.read_text())
    assert distances.keys() == {*ARCHITECTURES}
    assert max(distances.values()) < 1


if __name__ == "__main__":
    compare_all(int(sys.argv[1]), sys.argv[2])
