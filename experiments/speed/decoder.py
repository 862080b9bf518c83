"""The embedded decoder against transformers' batched `generate`, on the same model and contexts.

Contexts are cold: the decoder's cache is emptied before every call. No stop token is set, so that both sides generate
the same number of tokens. `generate` runs bare and with its logits returned, since rollouts need log-probs; the faster
of the two counts.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import numpy as np
import torch
from transformers import Qwen3ForCausalLM

from experiments.speed.shared import Case, configuration, in_turns, spread
from rtpo.engines.base import Request, Sampling
from rtpo.engines.decoder import Decoder
from rtpo.run.model_folder import check_model
from rtpo.types import as_ids

SHORTEST, LONGEST = 20, 80
"""of contexts, in tokens"""


def measure(
    repeats: int, model: Path | None = None, batch: int = 256, siblings: int = 16, new_tokens: int = 24
) -> Iterator[Case]:
    """model: the folder of a Qwen3 checkpoint. siblings: requests that share a context, where some do."""
    if model is not None:
        check_model(str(model))
    config = configuration()
    torch.set_num_threads(config.profile.threads)
    network = Qwen3ForCausalLM.from_pretrained(model or config.model.path, dtype=torch.float32).eval()
    engine = Decoder(network.config, stop_ids=(), cache_tokens=1_000_000)
    engine.load(network.state_dict().items(), version=0)
    for sharing, name in ((siblings, f"{siblings} siblings a context"), (1, "distinct contexts")):
        requests = make_requests(network.config.vocab_size, batch, sharing, new_tokens)

        def cold(requests: list[Request] = requests) -> None:
            engine.reset_cache()
            engine.generate(requests)

        seconds = in_turns(
            {
                "decoder": cold,
                "generate": hugging_face(network, requests, new_tokens, with_logits=False),
                "generate_with_logits": hugging_face(network, requests, new_tokens, with_logits=True),
            },
            repeats,
        )
        faster = min(seconds["generate"], seconds["generate_with_logits"], key=median)
        yield Case(
            f"decoder / transformers generate, {name}",
            median(faster) / median(seconds["decoder"]),
            "x",
            3.0,
            True,
            f"{spread(seconds['decoder'])} / {spread(faster)} s, batch {batch}, cold",
            {"batch": batch, "siblings": sharing, "new_tokens": new_tokens, "seconds": seconds},
        )


def make_requests(vocabulary: int, batch: int, siblings: int, new: int) -> list[Request]:
    """`batch` requests with contexts of random ids, each shared by `siblings` of them."""
    rng = np.random.default_rng(0)
    contexts = [as_ids(rng.integers(0, vocabulary, rng.integers(SHORTEST, LONGEST + 1))) for _ in range(batch)]
    sampling = Sampling(max_tokens=new)
    return [Request(contexts[i // siblings], sampling, seed=i, session=str(i)) for i in range(batch)]


def hugging_face(model: Qwen3ForCausalLM, requests: list[Request], new: int, with_logits: bool) -> Callable[[], None]:
    """One batched `generate` call on left-padded contexts."""
    longest = max(len(request.context_ids) for request in requests)
    ids = torch.zeros(len(requests), longest, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, request in enumerate(requests):
        ids[row, longest - len(request.context_ids) :] = torch.tensor(request.context_ids)
        mask[row, longest - len(request.context_ids) :] = 1

    def run() -> None:
        model.generate(  # type: ignore[misc]
            ids,
            attention_mask=mask,
            max_new_tokens=new,
            do_sample=True,
            top_k=0,
            eos_token_id=None,
            pad_token_id=0,
            return_dict_in_generate=with_logits,
            output_logits=with_logits,
        )

    return run
