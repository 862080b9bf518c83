"""The paper's limits on real tasks: as composed, and as their environments tell them."""

import asyncio
from pathlib import Path

import pytest
from conftest import compose_config

from rtpo.run.config import PROJECT
from rtpo.tools.search.bm25 import build_index
from rtpo.types import Task

LIMITS = {"math_paper": (3, 8192, 4096, 32768, 80_000), "search_paper": (6, 8192, 4096, 32768, 16_000)}


@pytest.mark.parametrize("task", [pytest.param("math_paper", marks=pytest.mark.needs("bwrap")), "search_paper"])
def test_the_limits_are_the_papers(task: str, tmp_path: Path) -> None:
    build_index(PROJECT / "tests" / "fixtures" / "passages.jsonl", tmp_path / "index")
    of_search = [f"task.settings.search.bm25.index={tmp_path / 'index'}"] if task == "search_paper" else []
    config = compose_config(f"task={task}", *of_search)
    limits = config.task.limits
    numbers = (limits.max_turns, limits.max_prompt_tokens, limits.max_turn_tokens, limits.max_context_tokens)
    assert (*numbers, config.budget.rollouts) == LIMITS[task]
    assert (config.budget.tasks_per_step, config.optimizer.lr, config.sampling.temperature) == (64, 1e-6, 0.9)
    opening = asyncio.run(config.task.make_env().reset(Task("t", "Two and two?", ("4",))))
    assert f"At most {limits.max_turns} replies" in opening.messages[0].content
