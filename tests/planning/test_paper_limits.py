"""The paper's limits on real tasks: as composed, and as an episode with a scripted engine meets them."""

import asyncio
from collections.abc import Callable
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from byte_tokenizer import byte_tokenizer
from conftest import compose_config

from rtpo.core.chat import ChatFormat
from rtpo.engines.base import Generation, Request, Sampling
from rtpo.harness.episodes import EpisodeWorld, Plan, run_episodes
from rtpo.run.config import RunConfig
from rtpo.tools.protocol import render_call
from rtpo.tools.search.bm25 import build_index
from rtpo.types import Role, Rollout, StopReason, Task, Termination, ToolOutcome, as_ids

TOKENIZER = byte_tokenizer()
CHAT = ChatFormat(TOKENIZER)
TASK = Task("t", "Two and two?", ("4",))
CALLS = {
    "math_paper": render_call("python", {"code": "2+2"}),
    "search_paper": render_call("search", {"query": "two and two"}),
}
PASSAGES = Path(__file__).parents[1] / "fixtures" / "passages.jsonl"
ANSWER = "\\boxed{4}"
LIMITS = {"math_paper": (3, 8192, 4096, 32768, 80_000), "search_paper": (6, 8192, 4096, 32768, 16_000)}


class ScriptedBytes:
    """Says what `script` makes of the number of the turn, up to the tokens it is given."""

    def __init__(self, script: Callable[[int], str]) -> None:
        self._turns = map(script, count())

    async def generate(self, request: Request) -> Generation:
        text, most = next(self._turns) + "<|im_end|>", request.sampling.max_tokens
        output = TOKENIZER.encode(text, add_special_tokens=False)
        stop = StopReason.STOP if len(output) <= most else StopReason.LENGTH
        return Generation(as_ids(output[:most]), np.zeros(len(output[:most]), np.float32), 0, stop, None)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("search") / "index"
    build_index(PASSAGES, folder)
    return folder


@pytest.fixture(params=[pytest.param("math_paper", marks=pytest.mark.needs("bwrap")), "search_paper"])
def config(request: pytest.FixtureRequest, index: Path) -> RunConfig:
    of_search = [f"task.settings.search.bm25.index={index}"] if request.param == "search_paper" else []
    return compose_config(f"task={request.param}", *of_search)


def play(config: RunConfig, script: Callable[[int], str]) -> Rollout:
    world = EpisodeWorld(ScriptedBytes(script), CHAT, config.task.make_env, config.task.limits, "strip_think", 0)
    (rollout,) = run_episodes(world, [Plan("p", TASK, Role.CHAIN)], Sampling(), on_retry=print)
    return rollout


def test_the_limits_are_the_papers(config: RunConfig) -> None:
    limits = config.task.limits
    numbers = (limits.max_turns, limits.max_prompt_tokens, limits.max_turn_tokens, limits.max_context_tokens)
    assert (*numbers, config.budget.rollouts) == LIMITS[config.task.name]
    assert (config.budget.tasks_per_step, config.optimizer.lr, config.sampling.temperature) == (64, 1e-6, 0.9)
    opening = asyncio.run(config.task.make_env().reset(TASK))
    assert f"At most {limits.max_turns} replies" in opening.messages[0].content


def test_the_last_turn_is_taken_and_not_answered(config: RunConfig) -> None:
    rollout = play(config, lambda turn: f"<think>\n{turn}\n</think>\n\n{CALLS[config.task.name]}")
    assert (rollout.termination, rollout.reward) == (Termination.TURN_LIMIT, 0)
    assert [[use.outcome for use in turn.calls] for turn in rollout.turns] == [[ToolOutcome.OK]] * config.task.max_turns
    assert len(rollout.turns[-1].feedback_ids) == 0


def test_a_turn_is_cut_at_its_limit_and_told(config: RunConfig) -> None:
    cut, answer = play(config, lambda turn: ANSWER if turn else "<think>" + "x" * 5000).turns
    assert (len(cut.output_ids), cut.stop, answer.stop) == (4096, StopReason.LENGTH, StopReason.STOP)
    assert "cut at its token limit" in CHAT.decode(cut.feedback_ids)
