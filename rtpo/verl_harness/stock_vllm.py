"""vLLM's own engine in a process of its own, for benchmarks: each line of its input is a batch to generate, and is
answered with the CPU seconds that this took. It runs in an environment that has vLLM (docs/cluster/vllm.md):

    python -m rtpo.verl_harness.stock_vllm MODEL_FOLDER THREADS
"""

import json
import os
import sys
import time
from typing import Any


def main(model: str, threads: int) -> None:
    # alone in this process, and with threads as everybody else here
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    os.environ |= {"VLLM_NO_USAGE_STATS": "1", "CUDA_VISIBLE_DEVICES": ""}
    # what vLLM prints goes elsewhere, from its import on
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    import torch
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine
    from vllm.v1.executor import UniProcExecutor

    torch.set_num_threads(threads)
    arguments = EngineArgs(
        model,
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        kv_cache_memory_bytes=1 << 30,
        block_size=32,
        max_num_seqs=256,
        max_num_batched_tokens=8192,
    )
    engine = LLMEngine(arguments.create_engine_config(), UniProcExecutor, log_stats=False, multiprocess_mode=False)
    for line in sys.stdin:
        start = time.process_time()
        generate(engine, **json.loads(line))
        answers.write(f"{time.process_time() - start}\n")


def generate(engine: Any, contexts: list[list[int]], new_tokens: int) -> None:
    """Cold, with the log-prob of each token, as rollouts are."""
    from vllm import SamplingParams

    if not engine.reset_prefix_cache():
        raise RuntimeError("vLLM did not empty its prefix cache")
    sampling = SamplingParams(max_tokens=new_tokens, ignore_eos=True, logprobs=0, detokenize=False)
    for number, context in enumerate(contexts):
        engine.add_request(str(number), {"prompt_token_ids": context}, sampling)
    generated = 0
    while engine.has_unfinished_requests():
        generated += sum(len(output.outputs[0].token_ids) for output in engine.step() if output.finished)
    if generated != len(contexts) * new_tokens:
        raise RuntimeError(f"vLLM generated {generated} tokens of {len(contexts)} x {new_tokens}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
