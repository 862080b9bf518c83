"""Do slow tools leave the rollout engine idle? Episodes at once, with a tool that takes its time:

    python experiments/benchmarks/overlap.py

The model is an untrained byte-level one: its turns run to their token limit, so that every run generates the same. The
environment answers each turn after a wait drawn around `--wait` seconds. Reported: wall-clock against the longer of the
engine's busy time and the waits of one episode after another turn (what no order of work can go below), and how much of
all waits is hidden.
"""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from rtpo.run.command import Parser, command, positive, whole

from rtpo.core.chat import ChatFormat
from rtpo.core.seeds import generator
from rtpo.engines.base import BatchingEngine, Generation, Request, Sampling
from rtpo.engines.decoder import Decoder
from rtpo.envs.toy.math import ToyMathEnv
from rtpo.harness.episodes import EpisodeLimits, EpisodeWorld, Plan, run_episodes
from rtpo.toy.byte_model import build_model, byte_tokenizer
from rtpo.types import Feedback, Role, StopReason, Task

LIMIT = 1.25
"""wall-clock over the lower bound"""
TURNS, TURN_TOKENS = 4, 256
TASK = Task("overlap", "Go on.", 0)


class Clock:
    """Seconds that the engine was busy, and that episodes waited for their tools."""

    def __init__(self) -> None:
        self.busy = 0.0
        self.waits: dict[int, float] = {}

    @property
    def longest_wait(self) -> float:
        """Of one episode, all its turns together."""
        return max(self.waits.values())


class SlowEnv(ToyMathEnv):
    """Answers each turn after a wait of its own."""

    def __init__(self, number: int, wait: float, clock: Clock) -> None:
        super().__init__()
        self._number, self._wait, self._clock = number, wait, clock
        self._rng = generator(0, "wait", number)

    async def step(self, reply: str, stop: StopReason) -> Feedback:
        seconds = float(self._rng.uniform(0.5, 1.5)) * self._wait
        self._clock.waits[self._number] = self._clock.waits.get(self._number, 0.0) + seconds
        await asyncio.sleep(seconds)
        return await super().step(reply, StopReason.LENGTH)


def play(episodes: int, wait: float) -> dict[str, float]:
    """Seconds of a run of that many episodes at once."""
    tokenizer = byte_tokenizer()
    model = build_model(tokenizer, seed=0)
    chat = ChatFormat(tokenizer)
    decoder, clock = Decoder(model.config, {chat.tags.stop_id}, cache_tokens=0), Clock()
    decoder.load(model.state_dict().items(), version=0)
    numbers = iter(range(episodes))

    async def busy(requests: list[Request]) -> list[Generation]:
        begun = time.perf_counter()
        generations = decoder.generate(requests)
        clock.busy += time.perf_counter() - begun
        return generations

    limits = EpisodeLimits(TURNS, 512, TURN_TOKENS, 4096)
    world = EpisodeWorld(
        BatchingEngine(busy), chat, lambda: SlowEnv(next(numbers), wait, clock), limits, "strip_think", 0
    )
    plans = [Plan(f"e{number}", TASK, Role.CHAIN) for number in range(episodes)]
    begun = time.perf_counter()
    run_episodes(world, plans, Sampling(), on_retry=print)
    wall = time.perf_counter() - begun
    return {
        "wall_seconds": wall,
        "engine_busy_seconds": clock.busy,
        "longest_wait_seconds": clock.longest_wait,
        "all_waits_seconds": sum(clock.waits.values()),
    }


def measure(episodes: int, wait: float) -> dict[str, Any]:
    """Runs without and with waits, and how the second compares with its lower bound."""
    play(2, 0.0)  # first calls are slower
    runs = {name: play(episodes, seconds) for name, seconds in (("without waits", 0.0), ("with waits", wait))}
    slow = runs["with waits"]
    bound = max(slow["engine_busy_seconds"], slow["longest_wait_seconds"])
    return {
        "episodes": episodes,
        "wait_seconds": wait,
        "runs": runs,
        "engine_busy_share": slow["engine_busy_seconds"] / slow["wall_seconds"],
        "hidden_share_of_waits": 1 - (slow["wall_seconds"] - bound) / slow["all_waits_seconds"],
        "ratio": slow["wall_seconds"] / bound,
        "limit": LIMIT,
    }


@command
def main(arguments: Sequence[str] | None = None) -> None:
    parser = Parser(__doc__)
    parser.add_argument("--episodes", type=whole(1), default=64)
    parser.add_argument("--wait", type=positive, default=0.3, help="seconds, about half to one and a half of it")
    args = parser.parse_args(arguments)
    print(json.dumps(measure(args.episodes, args.wait), indent=1))


if __name__ == "__main__":
    sys.exit(main())
