"""Benchmarks beside their limits: `make bench`, or `python experiments/benchmarks/bench.py a c` for some of them.

a  our GRPO step against stock verl's, on the same model, prompts, lengths, mini-batches and processes
b  the embedded decoder against transformers' batched `generate`
c  each method against GRPO with exact contexts, training time at equal rollouts; contexts that engines share
d  start-up: from a command line to the first step's record
e  what a generated turn costs outside the decoder: transport, environments, bookkeeping
f  what the driver costs a rollout, and whether its memory grows, in runs of 10, 100 and 1,000 steps
g  the Python tool, search, forks of the booking desk, slow tools beside generation

Every timing is kept in results/bench/<date>.json. Nothing here is a test: a limit that is missed is only reported.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from rtpo.run.command import Parser, command, whole

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from transformers import AutoTokenizer, Qwen3ForCausalLM

from experiments.benchmarks import fork as bench_fork
from experiments.benchmarks import overlap as bench_overlap
from experiments.benchmarks import python as bench_python
from experiments.benchmarks import search as bench_search
from experiments.benchmarks.engine import hugging_face, make_requests
from experiments.train import train
from rtpo.core.files import utc_now
from rtpo.engines.decoder import Decoder
from rtpo.envs.base import Env
from rtpo.envs.toy.math import ToyMathEnv
from rtpo.harness.budget import Budget, Ledger
from rtpo.harness.episodes import EpisodeWorld
from rtpo.harness.harness import AgentHarness
from rtpo.run.composition import composed
from rtpo.run.config import PROJECT, RunConfig, compose_run, rollout_sampling
from rtpo.run.records import commit, machine, packages
from rtpo.run.run import StopRequest
from rtpo.run.tasks import load_tasks
from rtpo.toy.tokenizer import UNKNOWN
from rtpo.types import Grade, GradeOutcome, Role, Task


@dataclass(frozen=True)
class Case:
    """A line of the table. `records` holds the sizes and every timing behind `value`."""

    name: str
    value: float
    unit: str
    limit: float
    more_is_better: bool
    detail: str
    records: dict[str, Any]

    @property
    def within(self) -> bool:
        return self.value >= self.limit if self.more_is_better else self.value <= self.limit

    def __str__(self) -> str:
        sign = ">=" if self.more_is_better else "<="
        limit = f"{sign} {self.limit:g} {self.unit}"
        verdict = "yes" if self.within else "NO"
        return f"{self.name:48} {self.value:8.3g} {self.unit:4} {limit:>10}  {verdict:6}  {self.detail}"


HEADER = f"   {'':48} {'measured':>8} {'':4} {'limit':>10}  within  medians, ours first"


def configuration(*overrides: str) -> RunConfig:
    """What experiments/train.py would run with these overrides."""
    return compose_run(composed("train", list(overrides)))


def open_harness(config: RunConfig, env: Callable[[], Env]) -> tuple[AgentHarness, Any]:
    """A harness with an endless budget, and its backend."""
    from rtpo.verl_harness.session import chat_format, open_backend

    backend = open_backend(config)
    world = EpisodeWorld(
        backend.engine,
        chat_format(config),
        env,
        config.task.limits,
        config.algorithm_config.rollout_context,
        config.seed,
    )
    ledger = Ledger(Budget(10**9))
    limit = config.profile.engine_kl_limit
    return AgentHarness(backend, world, rollout_sampling(config), ledger, engine_kl_limit=limit), backend


def spread(values: Sequence[float]) -> str:
    return f"{median(values):.3g} (best {min(values):.3g})"


# a: a GRPO step, ours and stock verl's

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


def grpo_step(repeats: int) -> list[Case]:
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
    harness, _ = open_harness(config, CoinEnv)
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


# b: the decoder

BATCH = 256
CONTEXT_TOKENS = (20, 80)
NEW_TOKENS = 24


def decoder(repeats: int) -> list[Case]:
    config = configuration()
    torch.set_num_threads(config.profile.threads)
    model = Qwen3ForCausalLM.from_pretrained(config.model.path, dtype=torch.float32).eval()
    engine = Decoder(model.config, stop_ids=(), cache_tokens=1_000_000)
    engine.load(model.state_dict().items(), version=0)
    return [
        decoder_case(model, engine, siblings, repeats, name)
        for siblings, name in ((16, "16 siblings a context"), (1, "distinct contexts"))
    ]


def decoder_case(model: Qwen3ForCausalLM, engine: Decoder, siblings: int, repeats: int, name: str) -> Case:
    """Contexts are never cached before a call; `generate` is the faster of bare and with the logits rollouts need."""
    requests = make_requests(model.config.vocab_size, BATCH, siblings, CONTEXT_TOKENS, NEW_TOKENS)

    def cold() -> None:
        engine.reset_cache()
        engine.generate(requests)

    seconds = in_turns(
        {
            "decoder": cold,
            "generate": hugging_face(model, requests, NEW_TOKENS, with_logits=False),
            "generate_with_logits": hugging_face(model, requests, NEW_TOKENS, with_logits=True),
        },
        repeats,
    )
    faster = min(seconds["generate"], seconds["generate_with_logits"], key=median)
    return Case(
        f"decoder / transformers generate, {name}",
        median(faster) / median(seconds["decoder"]),
        "x",
        3.0,
        True,
        f"{spread(seconds['decoder'])} / {spread(faster)} s, batch {BATCH}, cold",
        {"batch": BATCH, "siblings": siblings, "new_tokens": NEW_TOKENS, "seconds": seconds},
    )


def in_turns(runs: Mapping[str, Callable[[], None]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each run, taken in turns so that a busy machine disturbs all alike; one round warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return {name: values[1:] for name, values in seconds.items()}


# c: the methods at equal rollouts

ROLLOUTS = 2048
TIME_LIMITS = {"rtpo": 0.6, "rtpo_tree": 1.1, "tree_grpo_exact": 1.1, "arpo_exact": 1.1, "seeupo": 1.8}
CONTROL = "grpo_exact"


def methods(repeats: int) -> Iterator[Case]:
    """Training time against GRPO with exact contexts, all in turns; and how much of the contexts the engine computed,
    rather than took from its cache or from an equal context of the batch."""
    runs: dict[str, list[dict[str, Any]]] = {label: [] for label in (CONTROL, *TIME_LIMITS)}
    config = configuration()
    # waits for the engine's process, whose start is not training
    open_harness(config, config.task.make_env)[0].sync()
    with TemporaryDirectory() as folder:
        for repeat in range(repeats):
            for label in runs:
                runs[label].append(method_run(label, f"{folder}/{repeat}"))
    # a run may end a few rollouts below its budget
    cost = {label: [1e3 * run["seconds"] / run["rollouts"] for run in done] for label, done in runs.items()}
    for label, limit in TIME_LIMITS.items():
        yield Case(
            f"training time, {label} / {CONTROL}",
            median(cost[label]) / median(cost[CONTROL]),
            "x",
            limit,
            False,
            f"{spread(cost[label])} / {spread(cost[CONTROL])} ms a rollout, {ROLLOUTS} rollouts",
            {"runs": {CONTROL: runs[CONTROL], label: runs[label]}},
        )
    for label, done in runs.items():
        computed, needed = (median(run[name] for run in done) for name in ("prefilled_tokens", "requested_tokens"))
        yield Case(
            f"context tokens computed / needed, {label}",
            computed / needed,
            "x",
            1.0,
            False,
            f"{computed:,.0f} / {needed:,.0f} tokens, {ROLLOUTS} rollouts",
            {"runs": done},
        )


def method_run(label: str, results: str) -> dict[str, Any]:
    """What one run cost."""
    config = configuration(
        *(f"algorithm={label}", f"results={results}"),
        *(f"budget.rollouts={ROLLOUTS}", "task.held_out.count=1", "evaluation.greedy=false"),
    )
    from rtpo.verl_harness.session import open_backend

    before = open_backend(config).engine_states()
    last = step_lines(train(config, StopRequest()).path)[-1]
    after = open_backend(config).engine_states()
    return (
        {"seconds": last["wall_seconds"] - last["seconds"]["evaluate"]}
        | {name: last[name] for name in ("rollouts", "generated_tokens", "trained_tokens", "optimizer_steps")}
        | last["seconds"]
        | {
            name: sum(getattr(state, name) for state in after) - sum(getattr(state, name) for state in before)
            for name in ("prefilled_tokens", "requested_tokens")
        }
    )


def step_lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]


# d: start-up


def start_up(repeats: int) -> list[Case]:
    with TemporaryDirectory() as folder:
        starts = [first_step(Path(folder, str(repeat))) for repeat in range(repeats)]
    seconds = {name: [start[name] for start in starts] for name in starts[0]}
    return [
        Case(
            "start-up, command to first step's record",
            median(seconds["total"]),
            "s",
            30.0,
            False,
            f"{spread(seconds['total'])}, of which from the engine's first weights on: evaluation "
            f"{spread(seconds['evaluation'])}, step {spread(seconds['step'])}",
            {"starts": starts},
        )
    ]


def first_step(results: Path) -> dict[str, float]:
    """Seconds until a fresh process has recorded its first training step; one held-out question is evaluated before."""
    overrides = (f"results={results}", "task.held_out.count=1")
    config = configuration(*overrides)
    worst = config.descriptor.rollouts_per_task(config.algorithm_config, config.task.max_turns)
    budget = f"budget.rollouts={worst * config.budget.tasks_per_step}"
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, str(PROJECT / "experiments" / "train.py"), *overrides, budget],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    lines = config.folder / "steps.jsonl"
    while not lines.exists() or not lines.stat().st_size:
        if process.poll() is not None:
            raise RuntimeError(f"experiments/train.py ended with status {process.returncode} before its first step")
        time.sleep(0.01)
    seconds = time.perf_counter() - start
    process.wait()
    first = step_lines(config.folder)[0]
    phases = first["seconds"]
    # the first synchronisation waits for the engine's process
    step = first["wall_seconds"] - phases["evaluate"] - phases["sync"]
    return {"total": seconds, "evaluation": phases["evaluate"], "first_sync": phases["sync"], "step": step}


# e: a turn outside the decoder


def turn_cost(repeats: int) -> list[Case]:
    config = configuration("algorithm=grpo")
    harness, backend = open_harness(config, config.task.make_env)
    harness.begin_step(0, 10**8)
    harness.sync()
    tasks = load_tasks(config.task, replace(config.task.train, count=64 * (repeats + 1)))
    return [turn_case(harness, backend, tasks, episodes, repeats) for episodes in (256, 512)]


def turn_case(harness: AgentHarness, backend: Any, tasks: Sequence[Task], episodes: int, repeats: int) -> Case:
    calls = []
    prompts = episodes // SAMPLES
    for call in range(repeats + 1):
        before = generate_seconds(backend)
        start = time.perf_counter()
        groups = harness.rollout(tasks[call * prompts : (call + 1) * prompts], n=SAMPLES, role=Role.CHAIN)
        seconds = time.perf_counter() - start
        turns = sum(len(rollout.turns) for group in groups for rollout in group)
        calls.append({"seconds": seconds, "decoder": generate_seconds(backend) - before, "turns": turns})
    costs = [1e3 * (call["seconds"] - call["decoder"]) / call["turns"] for call in calls[1:]]
    decoder = [1e3 * call["decoder"] / call["turns"] for call in calls[1:]]
    return Case(
        f"a turn outside the decoder, {episodes} episodes",
        median(costs),
        "ms",
        0.5,
        False,
        f"{spread(costs)}; the decoder takes {spread(decoder)} ms a turn",
        {"episodes": episodes, "calls": calls},
    )


def generate_seconds(backend: Any) -> float:
    return sum(state.generate_seconds for state in backend.engine_states())


# f: the driver

DRIVER_STEPS = (10, 100, 1000)
DRIVER_PROMPTS = 64


def driver_cost(repeats: int) -> Iterator[Case]:
    """The shortest run is repeated; a longer one is made of many steps and is run once."""
    for steps in DRIVER_STEPS:
        times = repeats if steps == min(DRIVER_STEPS) else 1
        yield from driver_cases([driver_record(steps) for _ in range(times)])


def driver_record(steps: int) -> dict[str, Any]:
    """`experiments.benchmarks.driver.driver_run` in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "experiments.benchmarks.driver", f"--steps={steps}", f"--prompts={DRIVER_PROMPTS}"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"experiments.benchmarks.driver ended with status {done.returncode}:\n{done.stderr[-4000:]}")
    record: dict[str, Any] = json.loads(done.stdout)
    return record


def driver_cases(runs: Sequence[dict[str, Any]]) -> list[Case]:
    """Time and memory of equal runs."""
    steps, prompts, rollouts = (runs[0][size] for size in ("steps", "prompts", "rollouts"))
    sizes = f"{prompts} x {rollouts // (steps * prompts)} x {steps} steps"
    wall, cpu = ([1e3 * run[f"{kind}_seconds"] / run["rollouts"] for run in runs] for kind in ("wall", "cpu"))
    grown = [run["grown_mib"] for run in runs]
    return [
        Case(
            f"driver, wall-clock a rollout, {sizes}",
            median(wall),
            "ms",
            1.0,
            False,
            f"{spread(wall)}; processor time {spread(cpu)}; runs: {len(runs)}",
            {"runs": runs},
        ),
        Case(
            f"driver, memory grown, {sizes}",
            median(grown),
            "MiB",
            8.0,
            False,
            f"{spread(grown)} from the first tenth's end on; {runs[0]['memory_mib'][-1]:.0f} MiB in all",
            {"grown_mib": grown},
        ),
    ]


# g: tools, search, forks


def tools(repeats: int) -> Iterator[Case]:
    """Each part's own benchmark, run once; what they time many times over is in `records`."""
    python = bench_python.compare(bench_python.PROGRAMS["small"], rounds=repeats, pool_calls=200, fresh_calls=6)
    pool = python["pool"]
    yield Case(
        "Python tool / fresh interpreter with sympy, calls a second",
        python["ratio"],
        "x",
        bench_python.LEAST_RATIO,
        True,
        f"{pool['calls_per_second']:.3g} a second; p50 {pool['p50_ms']:.3g} ms, p99 {pool['p99_ms']:.3g} ms",
        python,
    )
    search = bench_search.bench(50_000, 2_000)
    yield Case(
        "BM25 search of 50,000 passages, p99",
        search["search"]["p99_ms"],
        "ms",
        bench_search.P99_MS,
        False,
        f"p50 {search['search']['p50_ms']:.3g} ms; built in {search['build_seconds']:.3g} s",
        search,
    )
    for case in bench_fork.measure(forks=5000, copies=3):
        if case.limit_ms is not None:
            name, detail = f"booking desk, {case.name}", f"median; p99 {case.p99_ms:.3g} ms"
            yield Case(name, case.median_ms, "ms", case.limit_ms, False, detail, asdict(case))
    overlap = bench_overlap.measure(64, 0.3)
    yield Case(
        "64 episodes with slow tools, wall-clock / lower bound",
        overlap["ratio"],
        "x",
        overlap["limit"],
        False,
        f"engine busy {100 * overlap['engine_busy_share']:.3g} % of it",
        overlap,
    )


PARTS: dict[str, Callable[[int], Iterable[Case]]] = {
    "a": grpo_step,
    "b": decoder,
    "c": methods,
    "d": start_up,
    "e": turn_cost,
    "f": driver_cost,
    "g": tools,
}


@command
def main(arguments: Sequence[str] | None = None) -> None:
    parser = Parser(__doc__)
    parser.add_argument("parts", nargs="*", default=list(PARTS), metavar="part", help="letters of those to run")
    parser.add_argument("--repeats", type=whole(1), default=5, help="timings behind each median")
    parser.add_argument("--results", type=Path, default=PROJECT / "results" / "bench")
    args = parser.parse_args(arguments)
    args.results.mkdir(parents=True, exist_ok=True)
    unknown = sorted(set(args.parts) - PARTS.keys())
    if unknown:
        parser.error(f"there is no part {', '.join(unknown)}; choose from {', '.join(PARTS)}")
    head, dirty = commit(PROJECT)
    record: dict[str, Any] = {
        "started": utc_now(),
        "commit": head,
        "dirty": dirty,
        "machine": machine(),
        "packages": packages(),
        "repeats": args.repeats,
        "cases": [],
    }
    file = args.results / f"{record['started'].replace(':', '')}.json"
    print(HEADER)
    for part in args.parts:
        load = os.getloadavg()[0]
        for case in PARTS[part](args.repeats):
            print(f"{part}  {case}", flush=True)
            record["cases"].append({"part": part, "within": case.within, "load_before": load} | asdict(case))
            file.write_text(json.dumps(record, indent=1) + "\n")
        from rtpo.verl_harness.session import close_session

        close_session()
    print(f"load average {os.getloadavg()[0]:.1f}; records: {file}")


if __name__ == "__main__":
    sys.exit(main())
