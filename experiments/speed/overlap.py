"""Slow tools beside generation: do they leave the rollout engine idle?

The model is an untrained byte-level one: its turns run to their token limit, so that every run generates the same. The
environment answers each turn after a wait. Wall-clock is set against the longer of the engine's busy time and the waits
of one episode after another turn, which no order of work can go below.
"""

import asyncio
import time
from statistics import median

from experiments.speed.shared import Case
from rtpo.core.chat import ChatFormat
from rtpo.core.seeds import generator
from rtpo.engines.base import BatchingEngine, Generation, Request, Sampling
from rtpo.engines.decoder import Decoder
from rtpo.envs.toy.math import ToyMathEnv
from rtpo.harness.episodes import EpisodeLimits, EpisodeWorld, Plan, run_episodes
from rtpo.toy.byte_model import build_model, byte_tokenizer
from rtpo.types import Feedback, Role, StopReason, Task

TURNS, TURN_TOKENS = 4, 256
TASK = Task("overlap", "Go on.", 0)


class Clock:
    """Seconds that the engine was busy, and that episodes waited for their tools."""

    def __init__(self) -> None:
        self.busy = 0.0
        self.waits: dict[int, float] = {}


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


def measure(repeats: int, episodes: int = 64, wait: float = 0.3) -> list[Case]:
    """wait: seconds of each turn, from half to one and a half of it."""
    play(2, 0.0)  # first calls are slower
    runs = [play(episodes, wait) for _ in range(repeats)]
    bounds = [max(run["engine_busy_seconds"], run["longest_wait_seconds"]) for run in runs]
    ratios = [run["wall_seconds"] / bound for run, bound in zip(runs, bounds, strict=True)]
    busy = median(run["engine_busy_seconds"] / run["wall_seconds"] for run in runs)
    return [
        Case(
            f"{episodes} episodes with slow tools, wall-clock / lower bound",
            median(ratios),
            "x",
            1.25,
            False,
            f"engine busy {100 * busy:.3g} % of it",
            {"episodes": episodes, "wait_seconds": wait, "runs": runs},
        )
    ]


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
    return {
        "wall_seconds": time.perf_counter() - begun,
        "engine_busy_seconds": clock.busy,
        "longest_wait_seconds": max(clock.waits.values()),
    }
