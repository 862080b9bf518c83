"""Check, in at most ten minutes, whether updates on prefix trees are right on this machine's GPU, and faster than on
single rows.

    python experiments/check_gpu.py [--tiny] [--model FOLDER]

It needs only torch, transformers and numpy, and downloads nothing: weights are random, or those of FOLDER. It compares
log-probs and gradients on trees with those of single rows. They may differ by three times the rounding error, which it
also measures. On a GPU it counts the kernels that torch compiles for sixty shapes. It measures seconds and memory of an
update. With --tiny, or without a GPU, shapes are tiny. The exit status is 1 if a line fails, and 3 if no line fails but
a part is not finished. docs/cluster/gpus.md says what to run next.
"""

import gc
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM, Qwen3Config

sys.path.insert(0, str(Path(__file__).parents[1]))  # for a copy of the project that is not installed

from rtpo.core.losses import TokenBatch, loss
from rtpo.core.names import counted
from rtpo.core.rounding import SHIFT, TIMES, difference
from rtpo.core.tree_attention import BLOCK, KERNELS, choose_attention, read_at, why_not_trees
from rtpo.core.trees import forest
from rtpo.errors import ConfigError
from rtpo.run.cli import Parser, command, folder
from rtpo.types import Ids, as_ids
from rtpo.verbs import TokenClip

SHAPES = 60
SECONDS = 540
"""no measurement begins later than this many seconds after the start"""
TEMPERATURE = 0.9
CHUNK = 512
"""ids for which the output layer is computed at once"""
MOST_COMPARED = 2**22
"""the most elements of a gradient that are compared"""


FIELDS = [
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("head_dim", "vocab_size", "tie_word_embeddings"),
]
Shape = tuple[int, ...]
"""a model's values of FIELDS"""
TINY: Shape = (32, 64, 2, 4, 2, 8, 100, False)
SMALL: Shape = (256, 512, 2, 4, 2, 64, 5000, False)
UPDATES: dict[str, Shape] = {
    "1.7B": (2048, 6144, 28, 16, 8, 128, 151_936, True),
    "8B": (4096, 12288, 36, 32, 8, 128, 151_936, False),
}


@dataclass(frozen=True)
class Batch:
    """Rows of siblings. Those of one tree begin with the same context; the turn after it is trained."""

    rows: list[Ids]
    masks: list[np.ndarray]  # the trained ids of each row
    tree_of: list[int]  # the tree of each row


Line = tuple[str, str, bool | None]
"""a check's name, what it measured, and whether it fails; None: it has no limit"""


def siblings_of(
    rng: np.random.Generator, vocabulary: int, groups: int, siblings: int, context: int, turn: int
) -> Batch:
    """A batch of random ids; turns have between half of `turn` and `turn` ids."""
    rows, masks = [], []
    for _ in range(groups):
        shared = rng.integers(0, vocabulary, context)
        for _ in range(siblings):
            own = rng.integers(0, vocabulary, rng.integers((turn + 1) // 2, turn + 1))
            rows.append(as_ids(np.concatenate([shared, own])))
            masks.append(np.arange(len(rows[-1])) >= context)
    return Batch(rows, masks, [row // siblings for row in range(len(rows))])


def network(source: Shape | Path, precision: torch.dtype, device: str) -> Any:
    """A random model of a shape, or the model in a folder."""
    settings: dict[str, Any] = {"dtype": precision, "attn_implementation": "sdpa"}
    torch.manual_seed(0)
    with torch.device(device):
        if isinstance(source, Path):
            model: Any = AutoModelForCausalLM.from_pretrained(source, **settings)
        else:
            config = Qwen3Config(**dict(zip(FIELDS, source, strict=True)))  # type: ignore[arg-type]
            model = AutoModelForCausalLM.from_config(config, **settings)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()


def logprobs(model: Any, rows: Sequence[Ids], masks: Sequence[np.ndarray], trees: Sequence[int], shift: int) -> Tensor:
    """Log-probs of the trained ids, [trained], as in the trainer (`rtpo.core.trees.Forest`). trees: each row's tree."""
    device = model.device
    tree = forest(rows, masks, trees, multiple=BLOCK if device.type == "cuda" else 1)
    ids, depth, nodes, labels, read = (
        torch.from_numpy(values).to(device) for values in (tree.ids, tree.depth, tree.nodes, tree.labels, tree.read)
    )
    end = None if tree.end is None else torch.from_numpy(tree.end).to(device)
    read_at(model, nodes)
    mask = choose_attention(model.config, end)
    states = model.model(input_ids=ids, attention_mask=mask, position_ids=depth + shift, use_cache=False)[0][0]

    def head(hidden: Tensor, chosen: Tensor) -> Tensor:
        logits = (hidden @ model.lm_head.weight.t()) / TEMPERATURE  # in the model's precision, as in verl
        return logits.float().log_softmax(-1).gather(-1, chosen[:, None])[:, 0]

    parts = zip(states.split(CHUNK), labels.split(CHUNK), strict=True)
    return torch.cat([checkpoint(head, *part, use_reentrant=False) for part in parts])[read]


def update(model: Any, batch: Batch, *, trees: bool, shift: int = 0) -> Tensor:
    """Compute an update's gradients and return its log-probs, on trees or row by row, without an optimizer step. shift:
    added to all positions, which changes nothing but the rounding."""
    model.zero_grad()
    count, values = sum(int(mask.sum()) for mask in batch.masks), []
    all_rows = list(range(len(batch.rows)))
    for chosen in [all_rows] if trees else [[row] for row in all_rows]:
        rows, masks = [batch.rows[row] for row in chosen], [batch.masks[row] for row in chosen]
        current = logprobs(model, rows, masks, [batch.tree_of[row] for row in chosen], shift)
        numbers = np.repeat(np.arange(len(chosen)), [mask.sum() for mask in masks])
        # each sibling has its own advantage, so that swapped rows show
        advantage = np.concatenate([np.full(mask.sum(), np.cos(row)) for row, mask in zip(chosen, masks, strict=True)])
        terms = TokenBatch(
            logprobs=current,
            old=current.detach() + 0.05,
            advantage=torch.from_numpy(advantage).to(current),
            weight=torch.full_like(current, 1 / count),
            row=torch.from_numpy(numbers).to(current.device),
            rows=len(chosen),
        )
        loss(terms, TokenClip())[0].backward()
        values.append(current.detach())
    return torch.cat(values)


def check_time(deadline: float) -> None:
    """Raises TimeoutError if time.monotonic has passed `deadline`."""
    if time.monotonic() >= deadline:
        raise TimeoutError


def equality(device: str, source: Shape | Path, sizes: Sequence[tuple[int, int]], deadline: float) -> Iterator[Line]:
    """Compare log-probs and gradients on trees with those row by row. Raises TimeoutError."""
    for precision in (torch.float32, torch.bfloat16):
        model = network(source, precision, device)
        for context, turn in sizes:
            check_time(deadline)
            vocabulary, rng = model.config.vocab_size, np.random.default_rng(context)
            batch, computed = siblings_of(rng, vocabulary, 3, 3, context, turn), []
            for trees, shift in ((True, 0), (False, 0), (False, SHIFT)):
                values = update(model, batch, trees=trees, shift=shift)
                gradient = torch.cat([x.grad.flatten() for x in model.parameters() if x.grad is not None])
                computed.append([x[:: 1 + len(x) // MOST_COMPARED].float().cpu().numpy() for x in (values, gradient)])
            for what, on_trees, by_row, shifted in zip(("log-probs", "gradients"), *computed, strict=True):
                measured, floor = difference(on_trees, by_row), difference(shifted, by_row)
                value = f"{measured}, rounding {floor}, limit {TIMES} times"
                yield (
                    f"{what}, {str(precision)[6:]}, {context} + {counted(turn, 'id')}",
                    value,
                    measured.is_beyond(floor),
                )


def kernels(device: str, deadline: float) -> Iterator[Line]:
    """Count the kernels that torch compiles for SHAPES shapes. Right: 1 to half of KERNELS. Raises TimeoutError."""
    torch._dynamo.reset()
    counters.clear()
    model, rng = network(SMALL, torch.bfloat16, device), np.random.default_rng(1)
    for _ in range(SHAPES):
        check_time(deadline)
        groups, siblings, context, turn = (
            int(rng.integers(*bounds)) for bounds in ((1, 6), (2, 5), (5, 700), (2, 999))
        )
        batch = siblings_of(rng, SMALL[6], groups, siblings, context, turn)
        with torch.no_grad():
            logprobs(model.eval(), batch.rows, batch.masks, batch.tree_of, 0)
        update(model.train(), batch, trees=True)
    count = counters["stats"]["unique_graphs"]
    yield f"kernels for {SHAPES} shapes", f"{count}, from 1 to {KERNELS // 2}", not 1 <= count <= KERNELS // 2


def speed(
    device: str, name: str, source: Shape | Path, sizes: tuple[int, int, int, int], deadline: float
) -> Iterator[Line]:
    """Time the second of two updates, on trees and row by row. Raises TimeoutError."""
    model = network(source, torch.bfloat16, device)
    batch = siblings_of(np.random.default_rng(0), model.config.vocab_size, *sizes)
    seconds = {}
    for what, trees in (("trees", True), ("rows one by one", False)):
        for _ in range(2):
            check_time(deadline)
            begun = time.perf_counter()
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            update(model, batch, trees=trees).cpu()
            seconds[what] = time.perf_counter() - begun
        memory = f", at most {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if device == "cuda" else ""
        fails = seconds["trees"] > seconds[what] if device == "cuda" and not trees else None
        yield f"update, {name}, {what}", f"{seconds[what]:.2f} s{memory}", fails


def parts(device: str, tiny: bool, model: Path | None, deadline: float) -> dict[str, Iterator[Line]]:
    """The checks by name. A check runs while its lines are read."""
    lengths = ((9, 6), (16, 12)) if tiny else ((300, 200), (257, 300), (128, 128), (37, 60), (1000, 900))
    sizes = (2, 3, 16, 12) if tiny else (1, 8, 3000, 1800)
    checks = {"equality": equality(device, model or (TINY if tiny else SMALL), lengths, deadline)}
    if device == "cuda":
        checks["kernels"] = kernels(device, deadline)
    updates: dict[str, Shape | Path] = {model.name: model} if model else {"tiny": TINY} if tiny else {**UPDATES}
    speeds = {f"update, {name}": speed(device, name, source, sizes, deadline) for name, source in updates.items()}
    return checks | speeds


@command
def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status: 1 if a check failed, 3 if none did but a part is not finished."""
    parser = Parser(__doc__)
    parser.add_argument("--tiny", action="store_true", help="use tiny shapes, as without a GPU")
    parser.add_argument("--model", type=folder, help="check with this model's folder in place of random weights")
    device, deadline, failed = "cuda" if torch.cuda.is_available() else "cpu", time.monotonic() + SECONDS, False
    unfinished: list[str] = []
    options = parser.parse_args(arguments)
    tiny = options.tiny or device == "cpu"
    if options.model and (why := why_not_trees(AutoConfig.from_pretrained(options.model))):
        raise ConfigError(f"{options.model} is not trained on prefix trees: {why}.")
    machine = torch.cuda.get_device_name() if device == "cuda" else "no GPU: kernels are not checked"
    print(f"{machine}; torch {torch.__version__}; differences: root mean square (99.9 % quantile)")
    for part, lines in parts(device, tiny, options.model, deadline).items():
        try:
            for name, value, fails in lines:
                print(f"{name:40} { {True: 'FAIL', False: 'ok', None: ''}[fails]:5}{value}", flush=True)
                failed |= fails is True
        except TimeoutError:
            unfinished.append(f"{part}, for want of time")
        except torch.OutOfMemoryError:
            unfinished.append(f"{part}, out of memory")
        gc.collect()
    for part in unfinished:
        print(f"not finished: {part}")
    print("FAIL" if failed else "UNFINISHED" if unfinished else "OK")
    return 1 if failed else 3 if unfinished else 0


if __name__ == "__main__":
    sys.exit(main())
