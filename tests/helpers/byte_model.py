"""A byte-level Qwen3-architecture model, overfitted on traces of a few problems (traces.py):

    PYTHONPATH=. python tests/helpers/byte_model.py task=math data=FILE

It lets real tasks go the whole way on a CPU: real text, the chat format and tool calls of Qwen3, their tools and
rewards. It knows the problems it was made on and nothing else, so it measures nothing but that the way is open.
"""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from byte_tokenizer import STOP, byte_tokenizer
from traces import TRACES
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from rtpo.core.chat import ChatFormat
from rtpo.core.seeds import generator
from rtpo.engines.base import Sampling
from rtpo.envs.base import Env
from rtpo.harness.episodes import Plan
from rtpo.run.cli import composed
from rtpo.run.config import TaskConfig, compose_run
from rtpo.run.tasks import load_tasks
from rtpo.toy.demonstrator import DemonstratedTurn, Demonstration
from rtpo.toy.recipes import FineTuning
from rtpo.toy.warm_start import Sample, build_config, play_plans, train, turn_samples
from rtpo.types import Role, RolloutContext, StopReason, Task

ARCHITECTURE: dict[str, Any] = {
    "hidden_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "intermediate_size": 192,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
MODES: tuple[RolloutContext, RolloutContext] = ("strip_think", "full")


@dataclass(frozen=True, slots=True, kw_only=True)
class Overfit(FineTuning):
    """How the model is trained. samples: rollouts a problem that its success is measured on."""

    cycles: int = 1
    batch_size: int = 4
    learning_rate: float = 5e-3
    seed: int = 0
    samples: int = 16


async def demonstrate(task: Task, env: Env, replies: Sequence[str]) -> Demonstration:
    """The episode of these replies, with what the real tool answers."""
    opening = await env.reset(task)
    turns = []
    for reply in replies:
        feedback = await env.step(reply, StopReason.STOP)
        turns.append(DemonstratedTurn(f"{reply}{STOP}", feedback.messages))
    return Demonstration(opening, tuple(turns), await env.grade())


Part = tuple[TaskConfig, Sequence[Task]]
"""An environment with its limits, and the tasks of it to learn."""


def trace_samples(parts: Sequence[Part], tokenizer: PreTrainedTokenizerFast, seed: int) -> list[Sample]:
    """Every turn of every trace in both rollout contexts, in random order.

    With its whole history a trace is one sample, so that the tool's answers are learnt as well.
    """
    samples = [sample for config, tasks in parts for sample in _samples_of(config, tasks, tokenizer)]
    return [samples[place] for place in generator(seed, "samples").permutation(len(samples))]


def _samples_of(config: TaskConfig, tasks: Sequence[Task], tokenizer: PreTrainedTokenizerFast) -> list[Sample]:
    make_traces = TRACES[config.env]

    async def demonstrate_all() -> list[Demonstration]:
        return await asyncio.gather(
            *[demonstrate(task, config.make_env(), trace) for task in tasks for trace in make_traces(task)]
        )

    chat = ChatFormat(tokenizer)
    samples = []
    for demonstration in asyncio.run(demonstrate_all()):
        stripped, whole = (list(turn_samples(demonstration, tokenizer, chat, mode)) for mode in MODES)
        samples += [Sample(whole[-1].ids, whole[0].context), *stripped[1:]]
    return samples


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """An untrained model for the tokenizer."""
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(build_config(tokenizer, ARCHITECTURE))


def sampled_success(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, part: Part, how: Overfit) -> float:
    """Share of a part's rollouts at temperature 1, past thinking stripped, whose reward is 1."""
    config, tasks = part
    plans = [Plan(f"{task.uid}.{j}", task, Role.EVAL) for task in tasks for j in range(how.samples)]
    played = play_plans(model, tokenizer, config.make_env, config.limits, plans, how.seed, Sampling())
    return float(np.mean([rollout.reward == 1 for rollout in played]))


def overfit(parts: Sequence[Part], output: Path, settings: Overfit) -> list[float]:
    """Make a model folder that has the tasks' traces by heart; the success of each part's rollouts."""
    tokenizer = byte_tokenizer()
    model = build_model(tokenizer, settings.seed)
    train(model, trace_samples(parts, tokenizer, settings.seed), settings)
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    return [sampled_success(model, tokenizer, part, settings) for part in parts]


def main(overrides: list[str]) -> None:
    """Make the model of a run with these settings of experiments/train.py, at its `model.path`."""
    run = compose_run(composed("train", overrides))
    tasks = load_tasks(run.task, run.task.train)
    print("sampled success:", *overfit([(run.task, tasks)], Path(run.model.path), Overfit(steps=240)))


if __name__ == "__main__":
    main(sys.argv[1:])
