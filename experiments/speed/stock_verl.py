"""A GRPO step of ours against stock verl's, on the same model, prompts, lengths, mini-batches and processes."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from transformers import AutoTokenizer

from experiments.speed.shared import Case, configuration, endless_harness, spread
from rtpo.envs.toy.math import ToyMathEnv
from rtpo.run.config import RunConfig
from rtpo.run.tasks import load_tasks
from rtpo.toy.tokenizer import UNKNOWN
from rtpo.types import Grade, GradeOutcome, Task

PROMPTS = 16
SAMPLES = 16
REPLY_TOKENS = 24


class CoinEnv(ToyMathEnv):
    """The question alone, graded by the coin toss stock verl is given as its reward."""

    async def step(self, reply: str, stop: Any) -> Any:
        self._reply = reply
        return await super().step(reply, stop)

    async def grade(self) -> Grade:
        from rtpo.verl_harness.stock import compute_score

        return Grade(GradeOutcome.GRADED, compute_score(self._reply))


def measure(repeats: int) -> list[Case]:
    steps = repeats + 1  # the first one warms up
    with TemporaryDirectory() as name:
        folder = Path(name)
        config = configuration(
            *("algorithm=grpo", "algorithm.old_logprobs=recompute", "algorithm.minibatches=1"),
            *("task.max_turns=1", f"task.max_turn_tokens={REPLY_TOKENS}", f"task.train.count={steps * PROMPTS}"),
            *("optimizer.lr=1e-6", f"model.path={endless_model(configuration().model.path, folder / 'model')}"),
        )
        tasks = load_tasks(config.task, config.task.train)
        stock = stock_steps(config, tasks, folder)
        ours = our_steps(config, tasks)
    check_equal_work(ours, stock)
    seconds = {side: [step["seconds"] for step in timed[1:]] for side, timed in (("ours", ours), ("stock", stock))}
    return [
        Case(
            f"GRPO step, ours / stock verl ({PROMPTS} x {SAMPLES} x {REPLY_TOKENS})",
            median(seconds["ours"]) / median(seconds["stock"]),
            "x",
            1.0,
            False,
            f"{spread(seconds['ours'])} / {spread(seconds['stock'])} s",
            {"sizes": [PROMPTS, SAMPLES, REPLY_TOKENS], "ours": ours, "stock": stock},
        )
    ]


def endless_model(source: str, folder: Path) -> Path:
    """A copy of a toy model that ends its turns with a token it never samples, so that all replies are equally long."""
    shutil.copytree(source, folder)
    file = folder / "config.json"
    unknown = AutoTokenizer.from_pretrained(source).convert_tokens_to_ids(UNKNOWN)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"eos_token_id": unknown}))
    return folder


def our_steps(config: RunConfig, tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """Each step's seconds, from sampling to the engine holding the new weights."""
    harness, _ = endless_harness(config, CoinEnv)
    harness.sync()
    steps = []
    for step in range(len(tasks) // PROMPTS):
        before = harness.ledger.as_dict()
        start = time.perf_counter()
        harness.begin_step(step, PROMPTS * SAMPLES)
        config.descriptor.step(harness, tasks[step * PROMPTS : (step + 1) * PROMPTS], config.algorithm_config)
        harness.sync()
        harness.end_step()
        seconds = time.perf_counter() - start
        after = harness.ledger.as_dict()
        phases = {phase: after["seconds"][phase] - value for phase, value in before["seconds"].items()}
        tokens = after["generated_tokens"] - before["generated_tokens"]
        steps.append({"seconds": seconds, "generated_tokens": tokens, "phases": phases})
    return steps


def stock_steps(config: RunConfig, tasks: Sequence[Task], folder: Path) -> list[dict[str, Any]]:
    """The same from `verl.trainer.main_ppo`'s own log, run in a process of its own with its own Ray."""
    rows = [
        {
            "data_source": "toy_math",
            "prompt": [{"role": "user", "content": task.question}],
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": index},
        }
        for index, task in enumerate(tasks)
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "prompts.parquet")
    log = folder / "stock.jsonl"
    environment = {
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": "rtpo.verl_harness.plugin",
        "VERL_FILE_LOGGER_PATH": str(log),
        "OMP_NUM_THREADS": str(config.profile.threads),
        "TOKENIZERS_PARALLELISM": "false",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    settings = {
        "trainer.use_v1": False,
        "trainer.logger": ["file"],
        "trainer.val_before_train": False,
        "trainer.test_freq": -1,
        "trainer.total_epochs": 1,
        "trainer.resume_mode": "disable",
        "algorithm.adv_estimator": "grpo",
        "data.train_files": str(folder / "prompts.parquet"),
        "data.val_files": str(folder / "prompts.parquet"),
        "data.train_batch_size": PROMPTS,
        "data.max_prompt_length": config.task.max_prompt_tokens,
        "data.max_response_length": REPLY_TOKENS,
        "data.shuffle": False,
        "data.dataloader_num_workers": 0,
        "reward.num_workers": 1,
        "reward.custom_reward_function.path": "pkg://rtpo.verl_harness.stock",
        "actor_rollout_ref.model.external_lib": "rtpo.verl_harness.stock",
        "actor_rollout_ref.actor.ppo_mini_batch_size": PROMPTS,
        "actor_rollout_ref.actor.loss_agg_mode": "seq-mean-token-mean",
        "actor_rollout_ref.rollout.n": SAMPLES,
        "actor_rollout_ref.rollout.agent.num_workers": 1,
        "ray_kwargs.ray_init.address": "local",
        "ray_kwargs.ray_init.num_cpus": config.profile.logical_cpus,
        "ray_kwargs.ray_init.num_gpus": config.profile.processes,
        "ray_kwargs.ray_init.include_dashboard": False,
    }
    overrides = [f"++{key}={json.dumps(value)}" for key, value in (dict(leaves(config.verl)) | settings).items()]
    with (folder / "stock.log").open("w+") as output:
        code = subprocess.call(
            [sys.executable, "-m", "verl.trainer.main_ppo", *overrides],
            cwd=folder,
            env=os.environ | environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        if code:
            output.seek(0)
            raise RuntimeError(f"stock verl ended with status {code}:\n{output.read()[-4000:]}")
    return [
        {
            "seconds": data["timing_s/step"],
            "generated_tokens": round(data["response_length/mean"] * PROMPTS * SAMPLES),
            "phases": {key.removeprefix("timing_s/"): data[key] for key in data if key.startswith("timing_s/")},
        }
        for data in (json.loads(line)["data"] for line in log.read_text().splitlines())
    ]


def leaves(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """A nested mapping's values by their dotted paths."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def check_equal_work(ours: Sequence[dict[str, Any]], stock: Sequence[dict[str, Any]]) -> None:
    for step in (*ours, *stock):
        if abs(step["generated_tokens"] / (PROMPTS * SAMPLES * REPLY_TOKENS) - 1) > 0.001:
            raise RuntimeError(f"a step generated {step['generated_tokens']} tokens: the two sides did unequal work")
    if len(ours) != len(stock):
        raise RuntimeError(f"{len(ours)} steps of ours and {len(stock)} of stock verl's")
