"""Tokens per second of the embedded decoder and of transformers' `generate` on the same model and contexts.

Prompts are cold: the decoder's cache is emptied before every run. No stop token is set, so that both sides generate the
same number of tokens. `generate` runs bare and with its logits returned, since rollouts need log-probs; the ratio is
against the faster of the two.

    python -m experiments.bench_engine --threads 1 --siblings 16
"""

import sys
import time
from collections.abc import Callable, Sequence

from rtpo.run.command import Parser, command, folder, whole

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from rtpo.engines.base import Request, Sampling
from rtpo.engines.decoder import Decoder
from rtpo.run.model_folder import check_model
from rtpo.types import as_ids


def toy_model() -> Qwen3ForCausalLM:
    """A random-initialised model of the embedded default's size."""
    torch.manual_seed(0)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=204,
            hidden_size=64,
            intermediate_size=192,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            tie_word_embeddings=True,
            max_position_embeddings=512,
        )
    )


def make_requests(vocabulary: int, batch: int, siblings: int, context: tuple[int, int], new: int) -> list[Request]:
    """`batch` requests with contexts of random ids and of lengths in `context`, each shared by `siblings` of them."""
    rng = np.random.default_rng(0)
    contexts = [as_ids(rng.integers(0, vocabulary, rng.integers(context[0], context[1] + 1))) for _ in range(batch)]
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


def best_seconds(runs: dict[str, Callable[[], None]], repeats: int) -> dict[str, float]:
    """The shortest of `repeats` timings of each, taken in turns so that a busy machine disturbs all alike."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


@command
def main(arguments: Sequence[str] | None = None) -> None:
    parser = Parser(__doc__)
    parser.add_argument("--model", type=folder, help="folder of a Qwen3 checkpoint (default: random, of toy size)")
    parser.add_argument("--batch", type=whole(1), nargs="+", default=[64, 256, 512])
    parser.add_argument("--siblings", type=whole(1), default=1, help="requests that share a context")
    parser.add_argument("--context", type=whole(1), nargs=2, default=[20, 80], metavar=("SHORTEST", "LONGEST"))
    parser.add_argument("--new-tokens", type=whole(1), default=24)
    parser.add_argument("--threads", type=whole(1), default=1)
    parser.add_argument("--repeats", type=whole(1), default=5)
    args = parser.parse_args(arguments)
    if args.context[0] > args.context[1]:
        parser.error(f"--context is {args.context[0]} to {args.context[1]}: give the shortest first")
    if args.model:
        check_model(args.model)
    torch.set_num_threads(args.threads)
    model = Qwen3ForCausalLM.from_pretrained(args.model, dtype=torch.float32) if args.model else toy_model()
    model.eval()
    decoder = Decoder(model.config, stop_ids=(), cache_tokens=1_000_000)
    decoder.load(model.state_dict().items(), version=0)

    print(f"{args.threads} thread(s), {args.siblings} request(s) a context, {args.new_tokens} new tokens")
    print("tokens/s   batch     decoder        warm    generate   +logits   ratio (cold, to the faster generate)")
    for batch in args.batch:
        requests = make_requests(model.config.vocab_size, batch, args.siblings, args.context, args.new_tokens)

        def cold(requests: list[Request] = requests) -> None:
            decoder.reset_cache()
            decoder.generate(requests)

        def warm(requests: list[Request] = requests) -> None:
            decoder.generate(requests)

        seconds = best_seconds(
            {
                "cold": cold,
                "warm": warm,
                "bare": hugging_face(model, requests, args.new_tokens, with_logits=False),
                "logits": hugging_face(model, requests, args.new_tokens, with_logits=True),
            },
            args.repeats,
        )
        speed = {name: batch * args.new_tokens / value for name, value in seconds.items()}
        ratio = speed["cold"] / max(speed["bare"], speed["logits"])
        print(
            f"{batch:16d} {speed['cold']:11,.0f} {speed['warm']:11,.0f}"
            f" {speed['bare']:11,.0f} {speed['logits']:9,.0f} {ratio:7.1f}"
        )


if __name__ == "__main__":
    sys.exit(main())
