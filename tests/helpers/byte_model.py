"""A byte-level Qwen3-architecture model, overfitted on traces of a few problems (traces.py):

    PYTHONPATH=. python tests/helpers/byte_model.py task=math data=FILE

It lets real tasks go the whole way on a CPU: real text, the chat format and tool calls of Qwen3, their tools and
rewards. It knows the problems it was made on and nothing else, so it measures nothing but that the way is open.
"""

import asyncio
import sys
from collections.abc import Sequence
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
from rtpo.toy.record import WarmStart
from rtpo.toy.warm_start import Sample, build_config, play_plans, train, turn_samples
from rtpo.types import Role, StopReason, Task

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
SEED, SAMPLES = 0, 16
"""of all that is drawn; rollouts a problem that the model's success is measured on"""

Part = tuple[TaskConfig, Sequence[Task]]
"""An environment with its limits, and the tasks of it to learn."""


async def demonstrate(task: Task, env: Env, replies: Sequence[str]) -> Demonstration:
    """The episode of these replies, with what the real tool answers."""
    opening = await env.reset(task)
    turns = []
    for reply in replies:
        feedback = await env.step(reply, StopReason.STOP)
        turns.append(DemonstratedTurn(f"{reply}{STOP}", feedback.messages))
    return Demonstration(opening, tuple(turns), await env.grade())


def trace_samples(parts: Sequence[Part], tokenizer: PreTrainedTokenizerFast) -> list[Sample]:
    """Every turn of every trace in both rollout contexts, in random order.

    With its whole history a trace is one sample, so that the tool's answers are learnt as well.
    """

    async def demonstrate_all() -> list[Demonstration]:
        traces = [
            (each, config, trace) for config, tasks in parts for each in tasks for trace in TRACES[config.env](each)
        ]
        return await asyncio.gather(*[demonstrate(task, config.make_env(), trace) for task, config, trace in traces])

    chat, samples = ChatFormat(tokenizer), []
    for demonstration in asyncio.run(demonstrate_all()):
        stripped = list(turn_samples(demonstration, tokenizer, chat, "strip_think"))
        whole = list(turn_samples(demonstration, tokenizer, chat, "full"))
        samples += [Sample(whole[-1].ids, whole[0].context_length), *stripped[1:]]
    return [samples[place] for place in generator(SEED, "samples").permutation(len(samples))]


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """An untrained model for the tokenizer."""
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(build_config(tokenizer, ARCHITECTURE))


def overfit(parts: Sequence[Part], output: Path, steps: int) -> list[float]:
    """Make a model folder that has the tasks' traces by heart; the success of each part's rollouts at temperature 1."""
    tokenizer = byte_tokenizer()
    model = build_model(tokenizer, SEED)
    settings = WarmStart(task="", steps=steps, cycles=1, batch_size=4, learning_rate=5e-3, full_history=0.0)
    train(model, trace_samples(parts, tokenizer), settings)
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    successes = []
    for config, tasks in parts:
        plans = [Plan(f"{task.uid}.{j}", task, Role.EVAL) for task in tasks for j in range(SAMPLES)]
        played = play_plans(model, tokenizer, config.make_env, config.limits, plans, SEED, Sampling())
        successes.append(float(np.mean([rollout.reward == 1 for rollout in played])))
    return successes


def main(overrides: list[str]) -> None:
    """Make the model of a run with these settings of experiments/train.py, at its `model.path`."""
    run = compose_run(composed("train", overrides))
    tasks = load_tasks(run.task, run.task.train)
    print("sampled success:", *overfit([(run.task, tasks)], Path(run.model.path), steps=240))


if __name__ == "__main__":
    main(sys.argv[1:])
