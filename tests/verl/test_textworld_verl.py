"""Text games on real verl: a step of RTPO and of GRPO, stopped and resumed."""

import os
from pathlib import Path

import pytest
from byte_tokenizer import byte_tokenizer
from conftest import compose_config
from engine_conformance import MODEL, prepared_model
from small_models import SMOLLM2, small_model
from textworld_games import file_of, needs_textworld
from whole_runs import StopAt, differences, lines

from experiments.training import train
from rtpo.envs.textworld.env import TextWorldEnv
from rtpo.errors import Stopped
from rtpo.run.stopping import StopRequest
from rtpo.types import Grade, GradeOutcome

METHODS = {
    "rtpo": ("algorithm.trunks=2", "budget.rollouts=10"),
    "grpo_exact": ("algorithm.chains=4", "budget.rollouts=8"),
}
"""RTPO's one data step has several phases; exact GRPO has two data steps"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2, or a small random model of its architecture where it is not prepared."""
    if MODEL.is_dir() or os.environ.get("CI"):
        return prepared_model()
    folder = tmp_path_factory.mktemp("model")
    small_model(byte_tokenizer(), folder, **SMOLLM2)
    return folder


@needs_textworld
@pytest.mark.parametrize("algorithm", METHODS)
def test_a_run_on_text_games_goes_on_after_a_stop_to_the_same_weights(
    algorithm: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coin of each path decides its reward, since the model wins nothing."""

    async def toss(env: TextWorldEnv) -> Grade:
        return Grade(GradeOutcome.GRADED, float((env.path_seed or 0) % 2), "a coin")

    monkeypatch.setattr(TextWorldEnv, "grade", toss)
    games, other = (file_of("quests", place) for place in range(2))
    overrides = (
        *("task=textworld", "profile=laptop_lm", "profile.precision=fp32", f"model.path={model}", "deterministic=true"),
        # other tests run beside it, for which two threads would wait
        "profile.threads=1",
        *(f"data={games}", f"task.held_out.file={other}", "task.held_out.count=1", "evaluation.greedy=false"),
        *("task.max_prompt_tokens=2048", "task.max_turn_tokens=4", "task.max_context_tokens=4096"),
        *("task.max_turns=2", "budget.tasks_per_step=1", "samples_per_rollout=2", "evaluation.before=false"),
        *(f"algorithm={algorithm}", "algorithm.label=run", *METHODS[algorithm]),
    )
    whole = train(compose_config(*overrides, f"results={tmp_path / 'whole'}"), StopRequest())
    stopped = compose_config(*overrides, f"results={tmp_path / 'stopped'}")
    with pytest.raises(Stopped):
        train(stopped, StopAt(3))
    resumed = train(stopped, StopRequest())
    assert resumed.manifest["resumed"] == 1
    assert differences(resumed, whole) == []
    assert any(step["updates"][0]["grad_norm"] for step in lines(whole.path, "steps.jsonl"))
