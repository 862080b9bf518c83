"""Plays a benchmark's questions with a policy. Each question is recorded when it ends, so that a stopped evaluation can
resume (docs/run/evaluation.md)."""

import asyncio
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from rtpo.core.bounds import Count, Natural, Text, UpToMillion
from rtpo.core.chat import ChatFormat
from rtpo.core.files import sha256, utc_now
from rtpo.core.seeds import stream_seed
from rtpo.engines.base import Sampling
from rtpo.engines.endpoint import EndpointSettings
from rtpo.envs.registry import environment_facts
from rtpo.errors import ConfigError, RTPOError, StaleEngine
from rtpo.evaluation.call_audit import call_audit
from rtpo.harness.diagnostics import call_counts, cut_turns
from rtpo.harness.episodes import EpisodeWorld, Plan, run_episode
from rtpo.rewards.boxes import BOX, last_box
from rtpo.rewards.qa import output_hit, score
from rtpo.rewards.qa_reward import QASettings
from rtpo.run.config import FolderName, SamplingConfig, TaskConfig, portable, read_tree
from rtpo.run.lines import sample_line
from rtpo.run.provenance import provenance
from rtpo.run.tasks import check_prompts, load_tasks
from rtpo.tools.protocol import visible_text
from rtpo.tools.search.tool import SearchSettings
from rtpo.types import Role, Rollout, RolloutContext, StopReason, Task, Termination

SCHEMA = 1
"""version of the format of manifests, summaries and lines"""
SAMPLES = "samples.jsonl"
GROUPED_BY = ("level", "category")
"""keys of `Task.meta` by which results are broken down"""
QA_ENVIRONMENTS = ("search",)
"""environments with short answers: these get exact match and F1 besides the reward"""

_MARKUP = re.compile(rf"{BOX}\{{|</?(?:think|tool_call)>")
"""markup that would stick to the next word when a text is split into words"""

Line = dict[str, Any]


@dataclass(frozen=True)
class EvaluateConfig:
    """The whole configuration of an evaluation."""

    checkpoint: Text  # a run's folder, a Hugging Face model folder, or a server's address (`endpoint`)
    experiment_name: FolderName
    label: str | None  # of the checkpoint in the records; null makes one from its name
    results: Text  # the folder of all records
    data: Text  # the folder of prepared files
    limit: Count | None  # the most questions of each benchmark; null: all
    search: SearchSettings  # of all benchmarks with search
    reward: QASettings  # of all benchmarks with search
    seed: int
    samples: UpToMillion  # rollouts a question
    ks: tuple[int, ...]  # of pass@k and pass^k
    batch: Count  # questions in flight
    contexts: Natural  # number of each benchmark's first questions whose episodes are recorded as token ids
    rollout_context: RolloutContext
    decoding: SamplingConfig
    machine: str | None  # the profile on which verl serves the model, such as a100x8; null: this process decodes
    endpoint: EndpointSettings
    benchmarks: dict[str, TaskConfig]  # by name in configs/benchmarks/; each evaluates its held-out set

    @property
    def sampling(self) -> Sampling:
        """The decoding, for an engine. Raises ConfigError for a value out of range."""
        return Sampling(self.decoding.temperature, self.decoding.top_p, self.decoding.top_k)


def compose_evaluation(tree: DictConfig) -> EvaluateConfig:
    """Read and check a composed Hydra tree. Raises ConfigError with one sentence for each problem."""
    if not tree.get("benchmarks"):
        raise ConfigError("benchmarks is empty: name some, such as benchmarks=[math500,aime24] (configs/benchmarks/).")
    config = read_tree(EvaluateConfig, tree)
    _ = config.sampling
    if problems := list(_problems(config)):
        raise ConfigError("\n".join(problems))
    return config


def _problems(config: EvaluateConfig) -> Iterator[str]:
    if not config.ks or not all(1 <= k <= config.samples for k in config.ks):
        values = f"ks is {list(config.ks)} and samples {config.samples}"
        yield f"{values}: use numbers from 1 to samples, such as ks=[1]; evaluate.ks=[1] for an experiment's elements."
    for name, task in config.benchmarks.items():
        path = f"benchmarks.{name}"
        yield from task.problems(path)
        if task.held_out.file is None and task.held_out.count is None:
            yield f"{path}.held_out.file is missing, and held_out.count too: name a file, or say how many to generate."


@contextmanager
def name_in_errors(name: str) -> Iterator[None]:
    """Put the benchmark's name before the message of each RTPOError."""
    try:
        yield
    except RTPOError as error:
        raise type(error)(f"{name}: {error}") from error


@dataclass(frozen=True, eq=False)
class Panel:
    """A benchmark's questions, in the order of their file or generator."""

    name: str
    task: TaskConfig
    tasks: tuple[Task, ...]
    facts: dict[str, Any]  # what the environment reports about itself (`environment_facts`)


def load_panel(name: str, task: TaskConfig, chat: ChatFormat, limit: int | None) -> Panel:
    """Load a benchmark's questions (the first `limit`, or all) and check its environment. Raises RTPOError."""
    with name_in_errors(name):
        tasks = load_tasks(task, task.held_out)[:limit]
        check_prompts(tasks, task, chat)
        return Panel(name, task, tuple(tasks), environment_facts(task.env, task.env_settings))


def play(
    world: EpisodeWorld,
    panel: Panel,
    config: EvaluateConfig,
    version: int,
    done: set[int],
    write: Callable[[list[Line]], None],
) -> None:
    """Play a panel's questions, `config.batch` at once. When an episode fails, questions in flight are finished
    and written, then the error is raised.

    version: of the engine's weights. Raises StaleEngine if a turn was sampled with others.
    done: positions of questions to skip.
    write: gets the lines of each question when it ends.
    """
    waiting = ((position, task) for position, task in enumerate(panel.tasks) if position not in done)
    failures: list[BaseException] = []

    async def work() -> None:
        for position, task in waiting:
            try:
                async with asyncio.TaskGroup() as group:
                    samples = [
                        group.create_task(_sample(world, panel, config, version, position, task, sample))
                        for sample in range(config.samples)
                    ]
            except ExceptionGroup as errors:
                failures.append(errors.exceptions[0])
                return
            write([sample.result() for sample in samples])
            if failures:
                return

    async def play_all() -> None:
        await asyncio.gather(*[work() for _ in range(config.batch)])

    asyncio.run(play_all())
    if failures:
        raise failures[0]


async def _sample(
    world: EpisodeWorld, panel: Panel, config: EvaluateConfig, version: int, position: int, task: Task, sample: int
) -> Line:
    uid = f"eval.{panel.name}.{task.uid}.{sample}"
    retries: list[str] = []
    start = time.perf_counter()
    rollout = await run_episode(world, Plan(uid, task, Role.EVAL), config.sampling, retries.append)
    seconds = time.perf_counter() - start
    for turn in rollout.turns:
        if turn.policy_version != version:
            raise StaleEngine(
                f"{uid}, turn {turn.k}: the engine sampled with weights of version {turn.policy_version}, and holds "
                f"version {version}."
            )
    return {
        "position": position,
        "uid": task.uid,
        "meta": {key: task.meta[key] for key in GROUPED_BY if key in task.meta},
        "sample": sample,
        "seed": stream_seed(world.seed, uid, 0),
        **episode_facts(rollout, world.chat, panel.task.env in QA_ENVIRONMENTS),
        "retries": len(retries),
        "seconds": round(seconds, 3),
        "path": sample_line(0, rollout) if position < config.contexts else None,
    }


def episode_facts(rollout: Rollout, chat: ChatFormat, is_qa: bool) -> Line:
    """The part of a line that describes its episode. is_qa: add the scores of short answers."""
    output_ids = [turn.output_ids[:-1] if turn.stop is StopReason.STOP else turn.output_ids for turn in rollout.turns]
    replies = [chat.decode(ids) for ids in output_ids]
    answer = visible_text(replies[-1]) if rollout.termination is Termination.ANSWERED else None
    extracted = None if answer is None else last_box(answer)
    return {
        "answer": answer,  # the final reply's text after its thinking; None without one
        "extracted": extracted,  # what its last box holds
        "grade": rollout.grade.outcome.value,
        "reward": rollout.grade.reward,
        "detail": rollout.grade.detail,
        "qa": qa_scores(rollout.task, extracted, answer, replies) if is_qa else None,
        "termination": rollout.termination.value,
        "turns": len(rollout.turns),
        "cut_turns": cut_turns(rollout),
        "generated_tokens": sum(len(turn.output_ids) for turn in rollout.turns),
        "calls": call_counts(rollout),
        "audit": call_audit(rollout, replies),
    }


def qa_scores(task: Task, extracted: str | None, answer: str | None, replies: Sequence[str]) -> dict[str, Any] | None:
    """Score a short answer. None if every accepted answer is empty once normalised."""
    answers = tuple(map(str, task.answer))
    text = _MARKUP.sub(" ", answer or "")
    try:
        boxed, final = score(answers, extracted or ""), score(answers, text)
    except ValueError:
        return None
    return {
        "em": float(boxed.exact),  # exact match of the extracted answer
        "f1": boxed.f1,  # of the extracted answer
        "span_f1": final.span_f1,  # of the final reply's text
        # whether an accepted answer appears in the final reply's text, and in any reply
        "answer_hit": float(output_hit(answers, [text])),
        "output_hit": float(output_hit(answers, [_MARKUP.sub(" ", reply) for reply in replies])),
    }


# records


def identity(config: EvaluateConfig, panel: Panel, checkpoint: dict[str, Any]) -> dict[str, Any]:
    """The settings that determine an evaluation's lines. A folder holds the lines of one identity."""
    task, file = panel.task, panel.task.held_out.file
    uids = json.dumps([task.uid for task in panel.tasks]).encode()
    settings = {
        "schema": SCHEMA,
        "benchmark": panel.name,
        "panel": {
            "file_sha256": None if file is None else sha256(Path(file)),
            "questions": len(panel.tasks),
            "uids_sha256": hashlib.sha256(uids).hexdigest(),
        },
        "checkpoint": checkpoint,
        "samples": config.samples,
        "seed": config.seed,
        "decoding": asdict(config.decoding),
        "rollout_context": config.rollout_context,
        "env": task.env,
        "limits": asdict(task.limits),
        "settings": task.settings,
        # without the Python sandbox: it differs between machines and changes no answer
        "environment": {part: facts for part, facts in panel.facts.items() if part != "python"},
    }
    return dict(portable(settings))


def manifest(config: EvaluateConfig, panel: Panel, label: str, checkpoint: dict[str, Any]) -> dict[str, Any]:
    return identity(config, panel, checkpoint) | {
        "environment": panel.facts,
        "experiment": config.experiment_name,
        "label": label,
        "ks": list(config.ks),
        "ended": utc_now(),
        **provenance(),
    }
