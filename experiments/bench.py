"""Time parts of the project, most of them against an alternative (docs/results/speed.md):

    python experiments/bench.py                     all cases except grading; lm only if its model is in data/models
    python experiments/bench.py decoder trees       these cases
    python experiments/bench.py lm --repeats 3      the case lm, on the model that prepare_model.py makes
    python experiments/bench.py grading --file data/raw/math500

The two sides of a case take turns, so that other load on the machine affects both; only `verl` runs one side after the
other. Every timing is written to results/bench/<date>.json. No timing passes or fails.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from transformers import Qwen3ForCausalLM

from experiments.bench_lm import MODEL, lm
from rtpo.core.files import utc_now, write_whole
from rtpo.core.names import counted
from rtpo.data.reading import read_rows
from rtpo.engines.base import Request, Sampling
from rtpo.engines.decoder import Decoder
from rtpo.envs.base import Env
from rtpo.envs.toy.math import ToyMathEnv
from rtpo.errors import ConfigError, DataError, MachineError
from rtpo.harness.budget import Budget, Ledger
from rtpo.harness.harness import AgentHarness
from rtpo.rewards.grading import MathGrader
from rtpo.run.building import leaves
from rtpo.run.cli import Parser, command, composed, whole_number
from rtpo.run.config import PROJECT, RunConfig, compose_run
from rtpo.run.model_folder import chat_format, check_model
from rtpo.run.provenance import provenance
from rtpo.run.run import open_harness
from rtpo.run.tasks import load_tasks
from rtpo.tools.python.tool import PythonSettings, PythonTool, close_pools
from rtpo.types import Floats, Grade, GradeOutcome, Task, ToolOutcome, TrainRow, as_ids
from rtpo.verbs import Loss, Update

PROMPTS, SAMPLES, REPLY_TOKENS = 16, 16, 24  # of the step in the case verl
BATCH, SIBLINGS, CONTEXT_TOKENS = 256, 16, 50  # of the case decoder
GENERATE_SETTINGS: dict[str, Any] = {
    **{"max_new_tokens": REPLY_TOKENS, "do_sample": True, "top_k": 0, "eos_token_id": None, "pad_token_id": 0},
    **{"return_dict_in_generate": True, "output_logits": True},
}
PROGRAM = "import sympy\nprint(sympy.sqrt(8))"
CALLS, FRESH_CALLS = 200, 6
STOCK_OVERRIDES = """
    trainer.use_v1=false trainer.logger=["file"] trainer.val_before_train=false trainer.test_freq=-1
    trainer.total_epochs=1 trainer.resume_mode=disable algorithm.adv_estimator=grpo
    data.shuffle=false data.dataloader_num_workers=0
    reward.num_workers=1 reward.custom_reward_function.path=pkg://rtpo.verl_harness.stock
    actor_rollout_ref.model.external_lib=rtpo.verl_harness.stock
    actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean actor_rollout_ref.rollout.agent.num_workers=1
    ray_kwargs.ray_init.address=local ray_kwargs.ray_init.include_dashboard=false
"""  # Hydra overrides of verl's own trainer
H = TypeVar("H", bound=AgentHarness)
Case = tuple[str, str, Mapping[str, Sequence[float]]]
"""what is measured, the unit, and the values by side; the first side is ours or, in `grading`, the right answers"""


def configuration(*overrides: str) -> RunConfig:
    return compose_run(composed("train", list(overrides)))


def in_turns(sides: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each side. The sides take turns. The first round warms up and is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats + 1):
        for name, run in sides.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return {name: values[1:] for name, values in seconds.items()}


def harness_of(config: RunConfig, kind: type[H], make_env: Callable[[], Env] | None = None) -> H:
    """A synchronised harness with a budget that does not end."""
    from rtpo.verl_harness.session import open_backend

    ledger = Ledger(Budget(10**9))
    harness = open_harness(config, open_backend(config), chat_format(config), ledger, kind, make_env)
    harness.sync()
    return harness


# a GRPO step against stock verl's: same model, prompts, mini-batches and processes


class CoinEnv(ToyMathEnv):
    """Toy math with the reward that stock verl gets here, a coin toss."""

    async def step(self, reply: str, stop: Any) -> Any:
        self._reply = reply
        return await super().step(reply, stop)

    async def grade(self) -> Grade:
        from rtpo.verl_harness.stock import compute_score

        return Grade(GradeOutcome.GRADED, compute_score(self._reply))


def verl(options: Namespace) -> Iterator[Case]:
    """A GRPO step, in microseconds a generated token: the sides may sample different lengths."""
    steps = options.repeats + 1  # the first one warms up
    with TemporaryDirectory() as name:
        folder = Path(name)
        config = configuration(
            *("algorithm=grpo", "algorithm.old_logprobs=recompute", "algorithm.minibatches=1"),
            *("task.max_turns=1", f"task.max_turn_tokens={REPLY_TOKENS}", f"task.train.count={steps * PROMPTS}"),
            "optimizer.lr=1e-6",
        )
        tasks = load_tasks(config.task, config.task.train)
        sides = {"stock verl": stock_steps(config, tasks, folder), "ours": our_steps(config, tasks)}
    timings = {name: [1e6 * seconds / tokens for seconds, tokens in sides[name][1:]] for name in ("ours", "stock verl")}
    yield f"GRPO step, {PROMPTS} x {SAMPLES} x {REPLY_TOKENS}", "us a token", timings


def our_steps(config: RunConfig, tasks: Sequence[Task]) -> list[tuple[float, int]]:
    """Each step's seconds and generated tokens. A step ends when the engine has the new weights."""
    harness, steps = harness_of(config, AgentHarness, CoinEnv), []
    for step in range(len(tasks) // PROMPTS):
        start, before = time.perf_counter(), harness.ledger.generated_tokens
        harness.begin_step(step, PROMPTS * SAMPLES)
        config.descriptor.step(harness, tasks[step * PROMPTS : (step + 1) * PROMPTS], config.algorithm_config)
        harness.sync()
        harness.end_step()
        steps.append((time.perf_counter() - start, harness.ledger.generated_tokens - before))
    return steps


def stock_steps(config: RunConfig, tasks: Sequence[Task], folder: Path) -> list[tuple[float, int]]:
    """The same for stock verl, from the log of a `verl.trainer.main_ppo` process. Raises MachineError if it fails."""
    shared = {"data_source": "toy_math", "reward_model": {"style": "rule", "ground_truth": ""}}
    chats = [[{"role": "user", "content": task.question}] for task in tasks]
    rows = [shared | {"prompt": prompt, "extra_info": {"index": index}} for index, prompt in enumerate(chats)]
    prompts, log = folder / "prompts.parquet", folder / "stock.jsonl"
    pq.write_table(pa.Table.from_pylist(rows), prompts)
    environment = {
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": "rtpo.verl_harness.plugin",
        "VERL_FILE_LOGGER_PATH": str(log),
        "OMP_NUM_THREADS": str(config.profile.threads),
        "TOKENIZERS_PARALLELISM": "false",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    sizes = f"""
        data.train_files={prompts} data.val_files={prompts} data.train_batch_size={PROMPTS}
        data.max_prompt_length={config.task.max_prompt_tokens} data.max_response_length={REPLY_TOKENS}
        actor_rollout_ref.actor.ppo_mini_batch_size={PROMPTS} actor_rollout_ref.rollout.n={SAMPLES}
        ray_kwargs.ray_init.num_cpus={config.profile.logical_cpus}
        ray_kwargs.ray_init.num_gpus={config.profile.processes}
    """
    run_settings = [f"{key}={json.dumps(value)}" for key, value in leaves(config.verl)]
    overrides = [f"++{setting}" for setting in (*run_settings, *STOCK_OVERRIDES.split(), *sizes.split())]
    with (folder / "stock.log").open("w+") as output:
        trainer = [sys.executable, "-m", "verl.trainer.main_ppo", *overrides]
        if subprocess.call(trainer, cwd=folder, env=os.environ | environment, stdout=output, stderr=output):
            output.seek(0)
            raise MachineError(f"stock verl failed: {output.read().strip().splitlines()[-1]}")
    logged = [json.loads(line)["data"] for line in log.read_text().splitlines()]
    return [(data["timing_s/step"], round(data["response_length/mean"] * PROMPTS * SAMPLES)) for data in logged]


# an update and its scoring: rows as prefix trees against rows one by one


class RecordingHarness(AgentHarness):
    """Records what an algorithm gives the trainer, to replay it."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.calls: list[Callable[[], object]] = []

    def score(self, rows: Sequence[TrainRow]) -> list[Floats]:
        self.calls.append(partial(AgentHarness.score, self, rows))
        return super().score(rows)

    def update(self, rows: Sequence[TrainRow], loss: Loss, **settings: Any) -> Update:
        self.calls.append(partial(AgentHarness.update, self, rows, loss, **settings))
        return super().update(rows, loss, **settings)

    def replay(self, apart: bool = False) -> None:
        """Repeat the recorded calls. apart: compute every row by itself."""
        backend = self._backend
        self._backend = RowByRow(backend) if apart else backend
        for call in self.calls:
            call()
        self._backend = backend


class RowByRow:
    """A backend that scores and trains every row by itself. It leaves `reference` as it is: toy tasks have no KL."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._backend, name)
        return partial(value, apart=True) if name in ("score", "step") else value


def trees(options: Namespace) -> Iterator[Case]:
    """One data step of a method, trained again and again at a learning rate too small to move the weights."""
    for task in ("toy_math", "toy_knowledge"):
        for algorithm in ("grpo_exact", "rtpo"):
            config = configuration(f"task={task}", f"algorithm={algorithm}", "optimizer.lr=1e-12")
            harness = harness_of(config, RecordingHarness)
            harness.begin_step(0, 10**6)
            tasks = load_tasks(config.task, config.task.train)[: config.budget.tasks_per_step]
            config.descriptor.step(harness, tasks, config.algorithm_config)
            harness.end_step()
            harness.begin_step(1, 10**6)
            timings = in_turns({"trees": harness.replay, "rows": partial(harness.replay, True)}, options.repeats)
            yield f"update and scoring of {algorithm}, {task}", "s", timings


# the embedded decoder against transformers' batched `generate`; both give log-probs


def decoder(options: Namespace) -> Iterator[Case]:
    """Seconds for a batch of random contexts, none of them cached. All replies have REPLY_TOKENS tokens."""
    config = configuration()
    torch.set_num_threads(config.profile.threads)
    network = Qwen3ForCausalLM.from_pretrained(config.model.path, dtype=torch.float32).eval()
    ours = Decoder(network.config, stop_ids=(), cache_tokens=1_000_000)
    ours.load(network.state_dict().items(), version=0)
    for siblings in (SIBLINGS, 1):
        random = np.random.default_rng(0).integers(0, network.config.vocab_size, (BATCH // siblings, CONTEXT_TOKENS))
        ids = random.repeat(siblings, axis=0)
        sampling = Sampling(max_tokens=REPLY_TOKENS)
        requests = [Request(as_ids(row), sampling, seed=i, session=str(i), route=str(i)) for i, row in enumerate(ids)]
        contexts = torch.tensor(ids)

        def decode(requests: list[Request] = requests) -> None:
            ours.reset_cache()
            ours.generate(requests)

        mask = torch.ones_like(contexts)
        generate: Callable[[], object] = partial(network.generate, contexts, attention_mask=mask, **GENERATE_SETTINGS)
        timings = in_turns({"decoder": decode, "generate": generate}, options.repeats)
        yield f"decoder, {BATCH} requests, {siblings} a context", "s", timings


# the Python tool's warm pool against a fresh interpreter that imports sympy for each program


def python(options: Namespace) -> Iterator[Case]:
    """Milliseconds a call, with as many at once as there are processors."""
    callers, interpreter = len(os.sched_getaffinity(0)), [sys.executable, "-c", PROGRAM]
    timings: dict[str, list[float]] = {"pool": [], "fresh": []}
    for _ in range(options.repeats):
        timings["pool"].append(asyncio.run(pooled(callers)))
        close_pools()
        start = time.perf_counter()
        with ThreadPoolExecutor(callers) as threads:
            list(threads.map(lambda _: subprocess.check_output(interpreter), range(FRESH_CALLS)))
        timings["fresh"].append(1e3 * (time.perf_counter() - start) / FRESH_CALLS)
    yield f"Python tool, {callers} at once", "ms a call", timings


async def pooled(callers: int) -> float:
    """Milliseconds a call of a warm pool. Raises MachineError if a program fails."""
    tool = PythonTool(PythonSettings(workers=callers))
    await asyncio.gather(*(tool.call({"code": PROGRAM}, []) for _ in range(callers)))
    start = time.perf_counter()
    results = await asyncio.gather(*(tool.call({"code": PROGRAM}, []) for _ in range(CALLS)))
    if failed := [result for result in results if result.outcome is not ToolOutcome.OK]:
        raise MachineError(f"a program of the benchmark ended with {failed[0]}")
    return 1e3 * (time.perf_counter() - start) / CALLS


# grading of mathematics: every answer of a file against itself, and against the next one, which is wrong


def grading(options: Namespace) -> Iterator[Case]:
    """Milliseconds a grade. Raises DataError, naming the line, for rows without an answer."""
    answers = []
    for place, row in read_rows(options.file):
        if "answer" not in row:
            raise DataError(f"{place} has no `answer`: give JSONL such as MATH-500's.")
        answers.append(str(row["answer"]))
    grader = MathGrader(10.0, 2)
    pairs = {"right": list(zip(answers, answers, strict=True))}
    pairs["wrong"] = list(zip(answers, [*answers[1:], answers[0]], strict=True))

    def grade(side: str) -> None:
        with ThreadPoolExecutor(grader.workers) as threads:
            list(threads.map(lambda pair: grader.grade((pair[0],), pair[1]), pairs[side]))

    seconds = in_turns({side: partial(grade, side) for side in pairs}, options.repeats)
    grader.close()
    timings = {side: [1e3 * value / len(answers) for value in values] for side, values in seconds.items()}
    yield f"grading, {counted(len(answers), 'answer')}", "ms a grade", timings


CASES: dict[str, Callable[[Namespace], Iterator[Case]]] = {
    **{"verl": verl, "trees": trees, "decoder": decoder, "python": python, "grading": grading},
    "lm": partial(lm, in_turns=in_turns),
}


@command
def main(arguments: Sequence[str] | None = None) -> None:
    parser = Parser(__doc__)
    parser.add_argument("cases", nargs="*", metavar="case", help=f"cases to run: {', '.join(CASES)}")
    parser.add_argument("--repeats", type=whole_number(1), default=5, help="timings behind each median; default: 5")
    parser.add_argument("--file", type=Path, help="for the case grading: a file of answers, such as MATH-500's")
    parser.add_argument("--model", type=Path, default=MODEL, help="for the case lm: a model folder")
    parser.add_argument("--results", type=Path, default=PROJECT / "results" / "bench", help="folder for the records")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.cases if name not in CASES]:
        raise ConfigError(f"no case is named {', '.join(unknown)}: there are {', '.join(CASES)}.")
    if "grading" in options.cases and options.file is None:
        raise ConfigError("grading needs a file: give --file FILE.")
    if "lm" in options.cases or options.model != MODEL:
        check_model(options.model, embedded=True)
    missing = {"grading": options.file is None, "lm": not options.model.is_dir()}
    names = options.cases or [name for name in CASES if not missing.get(name)]
    options.results.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {"started": utc_now(), **provenance(), "cases": []}
    file = options.results / f"{record['started'].replace(':', '')}.json"
    for name in names:
        for what, unit, timings in CASES[name](options):
            ours, theirs = (median(values) for values in timings.values())
            sides = ", ".join(f"{side} {median(values):.3g}" for side, values in timings.items())
            print(f"{what:48} {theirs / ours:6.2f} x   {sides} {unit}", flush=True)
            record["cases"].append({"case": what, "unit": unit, "timings": timings})
            write_whole(file, (json.dumps(record, indent=1) + "\n").encode())
        from rtpo.verl_harness.session import close_session

        close_session()
    print(f"load average {os.getloadavg()[0]:.1f}; records: {file}")


if __name__ == "__main__":
    sys.exit(main())
