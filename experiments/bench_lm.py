"""The case `lm` of experiments/bench.py: the embedded engine and the trainer on a language model, against transformers,
and against vLLM's CPU build where it is installed.

Each side runs in a process of its own, so that its peak memory is known.
"""

import asyncio
import multiprocessing
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from transformers import AutoModelForCausalLM

from rtpo.core.packing import Packed
from rtpo.engines.base import Request, Sampling
from rtpo.engines.decoder import Decoder
from rtpo.errors import MachineError
from rtpo.run.cli import composed
from rtpo.run.config import DTYPES, PROJECT, compose_run, fastest_precision
from rtpo.types import Ids, as_ids
from rtpo.verbs import TokenClip

MODEL = PROJECT / "data" / "models" / "smollm2-135m-instruct"
ROWS, SIBLINGS, CONTEXT_TOKENS, REPLY_TOKENS = 64, 16, 200, 16  # of the engine's cases
PROMPTS, PATHS, TURNS = 16, 16, 6  # of the update
PROMPT_TOKENS, THOUGHT_TOKENS, COMMAND_TOKENS, ANSWER_TOKENS = 160, 12, 5, 20  # of a text game, on average
VOCABULARY = 49152  # without the added tags
THREADS = 2
Sides = Mapping[str, Callable[[], object]]
InTurns = Callable[[Sides, int], dict[str, list[float]]]
Case = tuple[str, str, Mapping[str, list[float]]]


class Side:
    """A process that calls `make(*arguments)` once. Each call of the side then runs what `make` returned."""

    def __init__(self, make: Callable[..., Callable[[], object]], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
        self._process.start()
        theirs.close()
        self._answer()

    def __call__(self) -> None:
        self._pipe.send("run")
        self._answer()

    def end(self) -> float:
        """End the process; returns its peak memory in GiB, with that of its child processes."""
        self._pipe.send("end")
        gigabytes = float(self._answer())
        self._process.join()
        return gigabytes

    def _answer(self) -> Any:
        """Raises MachineError if the process has ended."""
        try:
            return self._pipe.recv()
        except EOFError as error:
            raise MachineError("a side of the benchmark ended; its own message is above.") from error


def _serve(pipe: Connection, make: Callable[..., Callable[[], object]], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(THREADS)
    run = make(*arguments)
    pipe.send("ready")
    while pipe.recv() == "run":
        run()
        pipe.send("done")
    pipe.send(peak())


def lm(options: Namespace, in_turns: InTurns) -> Iterator[Case]:
    """Milliseconds a token, and peak memory in GiB. The update of transformers has the rows of one path only."""
    for siblings in (SIBLINGS, 1):
        sides = {"engine": Side(engine, options.model, siblings), "generate": Side(generate, options.model, siblings)}
        timings = in_turns(sides, options.repeats)
        tokens = ROWS * REPLY_TOKENS
        name = f"{ROWS} rows, {siblings} a prompt"
        yield f"sampling, {name}", "ms a token", per_token(timings, dict.fromkeys(sides, tokens))
        yield f"memory of sampling, {name}", "GiB", {label: [side.end()] for label, side in sides.items()}
        if find_spec("vllm") and not torch.cuda.is_available():
            yield from against_vllm(options, in_turns, siblings)
    from rtpo.verl_harness.session import open_backend

    overrides = ("task=textworld", "profile=laptop_lm", f"model.path={options.model}", "optimizer.lr=1e-12")
    backend = open_backend(compose_run(composed("train", list(overrides))))
    rows, plain = game_rows(PROMPTS, PATHS), Side(plain_update, options.model)
    packed = pack_rows(rows)
    timings = in_turns({"trees": lambda: backend.step(packed, None, TokenClip()), "plain": plain}, options.repeats)
    trained = THOUGHT_TOKENS + COMMAND_TOKENS
    counts = {"trees": len(rows) * trained, "plain": TURNS * trained}
    yield f"update, {PROMPTS} prompts x {PATHS} paths", "ms a trained token", per_token(timings, counts)
    yield "memory of an update", "GiB", {"trees": [trainer_peak()], "plain": [plain.end()]}


def against_vllm(options: Namespace, in_turns: InTurns, siblings: int) -> Iterator[Case]:
    """The embedded engine against vLLM's CPU build, each behind verl's server with a trainer beside it, as in a run. A
    reply that stops early counts as a whole one."""
    sides = {
        "embedded": Side(through_verl, options.model, siblings),
        "vLLM": Side(through_verl, options.model, siblings, "+engine=vllm_cpu"),
    }
    timings, name = in_turns(sides, options.repeats), f"through verl, {ROWS} rows, {siblings} a prompt"
    yield f"sampling {name}", "ms a token", per_token(timings, dict.fromkeys(sides, ROWS * REPLY_TOKENS))
    yield f"memory of sampling {name}", "GiB", {label: [side.end()] for label, side in sides.items()}


def per_token(timings: Mapping[str, list[float]], tokens: Mapping[str, int]) -> dict[str, list[float]]:
    return {side: [1e3 * seconds / tokens[side] for seconds in values] for side, values in timings.items()}


def engine(model: Path, siblings: int) -> Callable[[], object]:
    """Sample with the embedded engine, from contexts that are not cached."""
    network = pretrained(model)
    decoder = Decoder(network.config, (), 98304, network.dtype)
    decoder.load(network.state_dict().items(), version=0)
    requests = requests_for(prompts(network.config.vocab_size, siblings))

    def run() -> object:
        decoder.reset_cache()
        return decoder.generate(requests)

    return run


def through_verl(model: Path, siblings: int, *overrides: str) -> Callable[[], object]:
    """Sample with a run's engine. Each call has new contexts, since the engine caches those of earlier calls."""
    from rtpo.verl_harness.session import open_backend

    config = compose_run(composed("train", ["task=textworld", "profile=laptop_lm", f"model.path={model}", *overrides]))
    backend, calls, loop = open_backend(config), count(), asyncio.new_event_loop()
    backend.push(1)

    async def answer_all() -> None:
        requests = requests_for(prompts(VOCABULARY, siblings, next(calls)))
        await asyncio.gather(*map(backend.engine.generate, requests))

    return lambda: loop.run_until_complete(answer_all())


def requests_for(contexts: np.ndarray) -> list[Request]:
    """A request of REPLY_TOKENS at temperature 1 for each row."""
    sampling = Sampling(max_tokens=REPLY_TOKENS)
    return [Request(as_ids(ids), sampling, seed, str(seed), str(seed)) for seed, ids in enumerate(contexts)]


def generate(model: Path, siblings: int) -> Callable[[], object]:
    """Sample with transformers' `generate`, which returns its logits, since rollouts need log-probs."""
    network = pretrained(model)
    contexts = torch.from_numpy(prompts(network.config.vocab_size, siblings))
    length = {"max_new_tokens": REPLY_TOKENS, "eos_token_id": None, "pad_token_id": 0}
    sampling = {"do_sample": True, "top_k": 0, "return_dict_in_generate": True, "output_logits": True}
    return lambda: network.generate(contexts, attention_mask=torch.ones_like(contexts), **length, **sampling)


def plain_update(model: Path) -> Callable[[], object]:
    """Compute the gradient on the rows of one path, row by row, from all logits. There is no optimizer step."""
    network = pretrained(model).train()
    rows = game_rows(1, 1)

    def run() -> None:
        for row in rows:
            ids = torch.from_numpy(row.astype(np.int64))[None]
            logprobs = network(ids, use_cache=False).logits[0, :-1].float().log_softmax(-1)
            chosen = logprobs.gather(-1, ids[0, 1:, None])[-THOUGHT_TOKENS - COMMAND_TOKENS :]
            (-chosen.mean() / len(rows)).backward()
        network.zero_grad()

    return run


def pretrained(model: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(model, dtype=DTYPES[fastest_precision()]).eval()


def prompts(vocabulary: int, siblings: int, seed: int = 0) -> np.ndarray:
    """[ROWS, CONTEXT_TOKENS] random ids, each context `siblings` times."""
    drawn = np.random.default_rng(seed).integers(0, vocabulary, (ROWS // siblings, CONTEXT_TOKENS))
    return drawn.repeat(siblings, axis=0)


def game_rows(prompts: int, paths: int) -> list[Ids]:
    """The rows of paths that are as long as those of a text game. Each turn has one row: its context and its reply. A
    context has the earlier commands and answers, without thoughts."""
    rng = np.random.default_rng(0)

    def ids(count: int) -> np.ndarray:
        return rng.integers(0, VOCABULARY, count)

    rows = []
    for _ in range(prompts):
        opening = ids(PROMPT_TOKENS)
        for _ in range(paths):
            context = opening
            for _ in range(TURNS):
                command = ids(COMMAND_TOKENS)
                rows.append(as_ids(np.concatenate([context, ids(THOUGHT_TOKENS), command])))
                context = np.concatenate([context, command, ids(ANSWER_TOKENS)])
    return rows


def pack_rows(rows: list[Ids]) -> Packed:
    lengths = np.array([len(row) for row in rows], np.int32)
    trained = THOUGHT_TOKENS + COMMAND_TOKENS
    mask = np.concatenate([np.arange(length) >= length - trained for length in lengths])
    advantage = mask.astype(np.float32)  # 1 on trained ids
    return Packed(np.concatenate(rows), lengths, mask, advantage, weight=advantage / advantage.sum(), old_logprobs=None)


def peak() -> float:
    """The peak memory in GiB of this process and its child processes, each at its own peak. Pages that they share count
    for each of them."""
    me = psutil.Process()
    return sum(map(peak_of, [me, *me.children(recursive=True)]))


def trainer_peak() -> float:
    """The peak memory in GiB of the trainer's worker, which Ray started below this process."""
    (worker,) = [
        child for child in psutil.Process().children(recursive=True) if "::AgentWorker" in " ".join(child.cmdline())
    ]
    return peak_of(worker)


def peak_of(process: psutil.Process) -> float:
    """The peak memory of a process in GiB; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    except FileNotFoundError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 2**20
