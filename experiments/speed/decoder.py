"""The embedded decoder against transformers' batched `generate` and vLLM's CPU build: same model, contexts and threads.

Contexts are cold: caches are emptied before every call. No stop token is set, so that all generate the same number of
tokens. `generate` runs bare and with its logits returned, since rollouts need log-probs; the faster of the two counts.
vLLM's CPU kernels take no heads of 16: it is compared on a model of the toy model's shape with heads of 32 and random
weights. It runs in a process of its own, by the Python of an environment that has it (docs/cluster/vllm.md).
"""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import Qwen3ForCausalLM

from experiments.speed.shared import Case, configuration, in_turns, spread
from rtpo.engines.base import Request, Sampling
from rtpo.engines.decoder import Decoder
from rtpo.errors import ConfigError
from rtpo.run.config import PROJECT
from rtpo.run.model_folder import check_model
from rtpo.types import Ids, as_ids

SHORTEST, LONGEST = 20, 80
"""of contexts, in tokens"""
CHAINS, TURNS, HEADER, OBSERVATION = 4, 4, 16, 20
"""of conversations: how many a prompt has and their turns; ids that all begin with, and that each turn adds"""
PROJECTIONS = ("aten::mm", "aten::addmm")
ATTENTION = ("aten::bmm", "aten::_softmax", "aten::_scaled_dot_product_flash_attention_for_cpu")
VLLM = PROJECT / ".venv-vllm" / "bin" / "python"
"""what `make vllm-conformance` makes"""

Run = Callable[[], float]
"""gives the CPU seconds that another process took for it"""


def measure(
    repeats: int,
    model: Path | None = None,
    batch: int = 256,
    siblings: int = 16,
    new_tokens: int = 24,
    vllm: Path | None = None,
) -> Iterator[Case]:
    """model: the folder of a Qwen3 checkpoint. siblings: requests that share a context, where some do. vllm: the Python
    of an environment with vLLM's CPU build."""
    if model is not None:
        check_model(str(model))
    if vllm is not None and not has_vllm(vllm):
        raise ConfigError(f"{vllm} is no Python with vLLM: give the bin/python of an environment that has it.")
    config = configuration()
    torch.set_num_threads(config.profile.threads)
    network = Qwen3ForCausalLM.from_pretrained(model or config.model.path, dtype=torch.float32).eval()
    vocabulary = network.config.vocab_size
    distinct = make_requests(vocabulary, batch, 1, new_tokens)
    cases = {
        f"{siblings} siblings a context": make_requests(vocabulary, batch, siblings, new_tokens),
        "distinct contexts": distinct,
    }
    decoder = decoder_of(network)
    for name, requests in cases.items():
        seconds, cpu = timed(
            {
                "decoder": cold(decoder, [requests]),
                "generate": hugging_face(network, requests, with_logits=False),
                "generate_with_logits": hugging_face(network, requests, with_logits=True),
            },
            repeats,
        )
        faster = min(("generate", "generate_with_logits"), key=lambda one: median(seconds[one]))
        yield compared(f"decoder / transformers generate, {name}", "decoder", faster, 3.0, requests, seconds, cpu)
        yield Case(
            f"decoder, {name}",
            batch * new_tokens / median(seconds["decoder"]) / 1000,
            "thousand tokens/s",
            None,
            True,
            f"batch {batch}, cold",
            {},
        )
    yield from where_time_goes(decoder, distinct, repeats)
    together, apart = (conversations(vocabulary, batch, new_tokens, shared) for shared in (True, False))
    before = decoder.prefilled_tokens, decoder.requested_tokens
    cold(decoder, together)()
    computed, asked = decoder.prefilled_tokens - before[0], decoder.requested_tokens - before[1]
    seconds, cpu = timed({"conversations": cold(decoder, together), "whole": cold(decoder, apart)}, repeats)
    name = f"{batch // CHAINS} x {CHAINS} x {TURNS} turns"
    yield compared(
        f"decoder, {name} / as long, nothing shared", "conversations", "whole", None, together[0], seconds, cpu
    )
    detail = f"{computed} / {asked}"
    yield Case(f"context tokens computed / needed, {name}", computed / asked, "x", 1.0, False, detail, {})
    yield from against_vllm(network, cases, repeats, vllm or VLLM)


def against_vllm(
    network: Qwen3ForCausalLM, cases: Mapping[str, list[Request]], repeats: int, python: Path
) -> Iterator[Case]:
    """Not run without vLLM."""
    titles = {name: f"decoder / vLLM's CPU build, {name}, heads of 32" for name in cases}
    if not has_vllm(python):
        for title in titles.values():
            yield Case(title, None, "x", 1.0, True, f"no vLLM at {python}: make vllm-conformance installs it", {})
        return
    config = network.config.__class__.from_dict(network.config.to_dict())
    config.num_attention_heads, config.num_key_value_heads, config.head_dim = config.hidden_size // 32, 1, 32
    torch.manual_seed(0)
    network = Qwen3ForCausalLM(config).eval()
    decoder = decoder_of(network)
    with TemporaryDirectory() as folder, vllm_process(python, network, Path(folder)) as ask:
        for name, requests in cases.items():
            batch = json.dumps(
                {
                    "contexts": [request.context_ids.tolist() for request in requests],
                    "new_tokens": requests[0].sampling.max_tokens,
                }
            )
            seconds, cpu = timed({"decoder": cold(decoder, [requests]), "vllm": partial(ask, batch)}, repeats)
            yield compared(titles[name], "decoder", "vllm", 1.0, requests, seconds, cpu)


def has_vllm(python: Path) -> bool:
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    return os.access(python, os.X_OK) and python.is_file() and subprocess.call([python, "-c", look]) == 0


@contextmanager
def vllm_process(python: Path, network: Qwen3ForCausalLM, folder: Path) -> Iterator[Callable[[str], float]]:
    """A call that gives vLLM a batch, and the CPU seconds that it took."""
    network.save_pretrained(folder / "model")
    command = [str(python), "-m", "rtpo.verl_harness.stock_vllm", str(folder / "model"), str(torch.get_num_threads())]
    log = folder / "vllm.log"
    with (
        log.open("w") as output,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, text=True, cwd=PROJECT
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        asked, answers = process.stdin, process.stdout

        def ask(batch: str) -> float:
            asked.write(batch + "\n")
            asked.flush()
            answer = answers.readline()
            if not answer:
                raise RuntimeError(f"vLLM ended:\n{log.read_text()[-4000:]}")
            return float(answer)

        try:
            yield ask
        finally:
            process.terminate()


def compared(
    name: str,
    ours: str,
    theirs: str,
    limit: float | None,
    requests: Sequence[Request],
    seconds: dict[str, list[float]],
    cpu: dict[str, list[float]],
) -> Case:
    """How many times as fast ours was, by wall-clock."""
    wall, process = (f"{spread(one[ours])} / {spread(one[theirs])} s" for one in (seconds, cpu))
    return Case(
        name,
        median(seconds[theirs]) / median(seconds[ours]),
        "x",
        limit,
        True,
        f"{wall}, CPU {process}, cold",
        {
            "batch": len(requests),
            "new_tokens": requests[0].sampling.max_tokens,
            "seconds": seconds,
            "cpu_seconds": cpu,
        },
    )


def timed(runs: Mapping[str, Run], repeats: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds and CPU seconds of each run, in turns."""
    cpu: dict[str, list[float]] = {name: [] for name in runs}

    def counted(name: str) -> Callable[[], None]:
        def run() -> None:
            start = time.process_time()
            elsewhere = runs[name]()
            cpu[name].append(time.process_time() - start + elsewhere)

        return run

    seconds = in_turns({name: counted(name) for name in runs}, repeats)
    return seconds, {name: values[1:] for name, values in cpu.items()}


def where_time_goes(decoder: Decoder, requests: Sequence[Request], repeats: int) -> Iterator[Case]:
    """Shares of the decoder's seconds on one thread under a profiler, which slows small operators and Python most and
    does not tell one from the other. And the rate of its projections beside that of one large product, which is what
    the machine can."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    run, square = cold(decoder, [requests]), torch.randn(1024, 1024)
    product = in_turns({"product": lambda: square @ square}, repeats)["product"]
    with profile(activities=[ProfilerActivity.CPU], with_flops=True, acc_events=True) as profiler:
        total = in_turns({"decoder": run}, 1, warm_up=False)["decoder"][0]
    torch.set_num_threads(threads)
    events = profiler.key_averages()
    projections, attention = (
        sum(event.self_cpu_time_total for event in events if event.key in kinds) / 1e6
        for kinds in (PROJECTIONS, ATTENTION)
    )
    parts = {"projections": projections, "attention's products and softmax": attention}
    parts["small operators and Python"] = total - projections - attention
    for part, spent in parts.items():
        yield Case(
            f"{part} / decoder on one thread, distinct contexts", spent / total, "x", None, False, f"{spent:.3g} s", {}
        )
    flops = sum(event.flops for event in events if event.key in PROJECTIONS)
    yield Case(
        "rate of the projections / of a product of 1024 x 1024",
        flops / projections / (2 * 1024**3 / median(product)),
        "x",
        None,
        True,
        f"{flops / 1e9:.3g} GFLOP",
        {"seconds": {"decoder, profiled": [total], "product": product}, "flops": flops},
    )


def decoder_of(network: Qwen3ForCausalLM) -> Decoder:
    decoder = Decoder(network.config, stop_ids=(), cache_tokens=1_000_000)
    decoder.load(network.state_dict().items(), version=0)
    return decoder


def cold(decoder: Decoder, calls: Sequence[Sequence[Request]]) -> Run:
    """The calls one after another."""

    def run() -> float:
        decoder.reset_cache()
        for requests in calls:
            decoder.generate(requests)
        return 0.0

    return run


def make_requests(vocabulary: int, batch: int, siblings: int, new: int) -> list[Request]:
    """`batch` requests with contexts of random ids, each shared by `siblings` of them."""
    rng = np.random.default_rng(0)
    contexts = [as_ids(rng.integers(0, vocabulary, rng.integers(SHORTEST, LONGEST + 1))) for _ in range(batch)]
    return requests_of([contexts[i // siblings] for i in range(batch)], new)


def conversations(vocabulary: int, batch: int, new: int, shared: bool) -> list[list[Request]]:
    """The requests of each turn: contexts begin with a header and a prompt, which several chains share, and go on from
    turn to turn. Or contexts of the same lengths that share nothing."""
    rng = np.random.default_rng(0)
    header = rng.integers(0, vocabulary, HEADER)
    prompts = [
        np.concatenate([header, rng.integers(0, vocabulary, rng.integers(SHORTEST, LONGEST + 1))])
        for _ in range(-(-batch // CHAINS))
    ]
    contexts = [prompts[i // CHAINS] for i in range(batch)]
    turns = []
    for _ in range(TURNS):
        given = contexts if shared else [rng.integers(0, vocabulary, len(ids)) for ids in contexts]
        turns.append(requests_of([as_ids(ids) for ids in given], new))
        contexts = [np.concatenate([ids, rng.integers(0, vocabulary, OBSERVATION)]) for ids in contexts]
    return turns


def requests_of(contexts: Sequence[Ids], new: int) -> list[Request]:
    sampling = Sampling(max_tokens=new)
    return [Request(ids, sampling, seed=i, session=str(i)) for i, ids in enumerate(contexts)]


def hugging_face(model: Qwen3ForCausalLM, requests: Sequence[Request], with_logits: bool) -> Run:
    """One batched `generate` call on left-padded contexts."""
    longest = max(len(request.context_ids) for request in requests)
    ids = torch.zeros(len(requests), longest, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, request in enumerate(requests):
        ids[row, longest - len(request.context_ids) :] = torch.tensor(request.context_ids)
        mask[row, longest - len(request.context_ids) :] = 1

    def run() -> float:
        model.generate(  # type: ignore[misc]
            ids,
            attention_mask=mask,
            max_new_tokens=requests[0].sampling.max_tokens,
            do_sample=True,
            top_k=0,
            eos_token_id=None,
            pad_token_id=0,
            return_dict_in_generate=with_logits,
            output_logits=with_logits,
        )
        return 0.0

    return run
