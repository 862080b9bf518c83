"""Evaluations: what is recorded of a sample, what a folder holds, how a killed one goes on, and the three kinds of
checkpoint. The policy is a script or the toy warm start; environments, tools and grading are the real ones."""

import asyncio
import json
import os
import re
import shlex
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from completion_server import serving
from conftest import compose_config
from local_backend import LocalBackend
from omegaconf import OmegaConf
from scripted import TOKENIZER, ScriptedEngine, solver
from transformers import Qwen3ForCausalLM

import rtpo.verl_harness.session as session
from analysis.summary import summarise
from experiments import evaluate as command
from rtpo.core.chat import ChatFormat
from rtpo.core.files import sha256
from rtpo.core.seeds import stream_seed
from rtpo.data.registry import REGISTRY
from rtpo.engines.base import Generation, Request
from rtpo.envs.math import MathEnv, MathSettings
from rtpo.envs.search import SearchEnv, SearchEnvSettings
from rtpo.envs.toy.math_problems import problems
from rtpo.errors import ConfigError, DataError, Held, InfrastructureError, MachineError, StaleEngine
from rtpo.evaluation import evaluate as evaluation
from rtpo.evaluation.panel import (
    EvaluateConfig,
    call_counts,
    compose_evaluation,
    episode_facts,
    qa_scores,
)
from rtpo.evaluation.policies import Checkpoint
from rtpo.harness.episodes import EpisodeLimits, EpisodeWorld, Plan, run_episodes
from rtpo.run import cli
from rtpo.run.config import PROJECT, RunConfig
from rtpo.run.records import RunFolder
from rtpo.tools.protocol import render_call
from rtpo.tools.search.bm25 import Bm25Settings, build_index
from rtpo.tools.search.tool import SearchSettings
from rtpo.toy.byte_tokenizer import byte_tokenizer
from rtpo.types import Role, Rollout, StopReason, Task, as_ids

evaluate = partial(evaluation.evaluate, summarise=summarise)
WARM_START = PROJECT / "rtpo" / "toy" / "warm_start_math"
PASSAGES = Path(__file__).parents[1] / "fixtures" / "passages.jsonl"
COMMAND = ("evaluate.py", "--config-path", str(PROJECT / "configs"))
QUESTIONS, SAMPLES = 9, 3
EVALUATED = [name for name, known in REGISTRY.items() if known.role == "eval" and known.kind != "airline"]
OTHERS = ("gsm8k_audit", "toy_math", "toy_knowledge", "toy_walk")
"""benchmarks that are no set of the registry"""


@cache
def composed(*overrides: str) -> EvaluateConfig:
    return compose_evaluation(cli.composed("evaluate", ["checkpoint=somewhere", *overrides]))


@cache
def toy_run() -> RunConfig:
    return compose_config("task=toy_math", "algorithm=grpo", "seed=5")


@pytest.fixture
def panel_file(tmp_path: Path) -> Path:
    file = tmp_path / "toy.jsonl"
    rows = [
        {"uid": task.uid, "question": task.question, "answer": task.answer}
        for task in problems("held_out", QUESTIONS, 0)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture
def config(tmp_path: Path, panel_file: Path) -> EvaluateConfig:
    task = toy_run().task
    task = replace(task, held_out=replace(task.held_out, split="all", count=None, file=str(panel_file)))
    config = composed("benchmarks=[math500]", f"samples={SAMPLES}", "ks=[1,2]")
    return replace(config, results=str(tmp_path / "results"), benchmarks={"toy": task}, batch=4)


class Policy:
    """A script in place of a checkpoint. opened: how often it was."""

    def __init__(self) -> None:
        self.engine = ScriptedEngine(solver(0.3))
        self.opened = 0
        self.identity: dict[str, Any] = {"kind": "script"}
        self.tokenizer: Any = TOKENIZER

    def find(self, config: EvaluateConfig) -> Checkpoint:
        return Checkpoint("script", self.identity, self.tokenizer, self.open)

    def open(self) -> tuple[Any, int]:
        self.opened += 1
        return self.engine, 0


@pytest.fixture
def policy(monkeypatch: pytest.MonkeyPatch) -> Policy:
    policy = Policy()
    monkeypatch.setattr(evaluation, "find_checkpoint", policy.find)
    return policy


def folder_of(config: EvaluateConfig, label: str = "script") -> Path:
    return Path(config.results) / config.experiment_name / label / "toy"


def lines_of(config: EvaluateConfig, label: str = "script") -> list[dict[str, Any]]:
    """By position and sample, without what a clock says."""
    lines = [json.loads(line) for line in (folder_of(config, label) / "samples.jsonl").read_text().splitlines()]
    for line in lines:
        del line["seconds"]
    return sorted(lines, key=lambda line: (line["position"], line["sample"]))


# settings


def test_every_evaluation_set_is_a_benchmark() -> None:
    files = {file.stem for file in (PROJECT / "configs" / "benchmarks").glob("[!_]*.yaml")}
    assert files >= {*EVALUATED, *OTHERS}
    config = composed(f"benchmarks=[{','.join(EVALUATED)}]", "data=/prepared", "limit=7", "search.bm25.index=/index")
    assert (list(config.benchmarks), config.limit) == (EVALUATED, 7)
    paper = {env: compose_config(f"task={env}_paper").task for env in ("math", "search")}
    for name, task in config.benchmarks.items():
        env = REGISTRY[name].kind
        settings = {key: value for key, value in paper[env].settings.items() if key != "search"}
        assert (task.name, task.env, task.limits) == (name, env, paper[env].limits)
        assert (task.held_out.split, task.held_out.count, task.held_out.file) == (
            "all",
            None,
            f"/prepared/{name}.jsonl",
        )
        assert (
            task.settings.items()
            >= (settings | {"reward": {"kind": "em", "judge": None}} if env == "search" else settings).items()
        )
        if env == "search":
            searched: Any = task.env_settings
            assert searched.search == replace(
                paper[env].env_settings.search,
                bm25=Bm25Settings(index="/index"),  # type: ignore[attr-defined]
            )


def test_decoding_is_the_papers() -> None:
    config = composed("benchmarks=[math500]")
    assert (config.decoding.temperature, config.decoding.top_p, config.decoding.top_k) == (0.6, 0.95, -1)
    assert (config.samples, config.ks, config.rollout_context) == (4, (1, 4), "strip_think")


def test_a_judge_and_a_retriever_can_be_named_for_all_search_sets() -> None:
    judge = "{base_url: 'http://h/v1', model: m, cache: c}"
    retriever = ("search.backend=http", "search.http.url=http://127.0.0.1:8000/retrieve", "search.cache=kept")
    config = composed("benchmarks=[hotpotqa,xbench]", "reward.kind=judge", f"reward.judge={judge}", *retriever)
    for task in config.benchmarks.values():
        settings: Any = task.env_settings
        assert (settings.reward.kind, settings.reward.judge.base_url) == ("judge", "http://h/v1")
        assert (settings.search.backend, settings.search.http.url) == ("http", "http://127.0.0.1:8000/retrieve")


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ([], "benchmarks is empty: name some"),
        (["benchmarks=[math500]", "samples=0"], "samples is 0: Input should be greater"),
        (["benchmarks=[math500]", "samples=2"], r"ks is \[1, 4\] and samples 2: use numbers from 1 to samples"),
        (["benchmarks=[math500]", "ks=[]"], r"ks is \[\]"),
        (["benchmarks=[math500]", "batch=0"], "batch is 0"),
        (["benchmarks=[math500]", "limit=0"], "limit is 0"),
        (["benchmarks=[math500]", "experiment_name=../up"], "experiment_name is '../up': it names a folder"),
        (["benchmarks=[math500]", "decoding.top_p=0"], "top_p is 0"),
        (["benchmarks=[math500]", "rollout_context=none"], "rollout_context is 'none'"),
        (["benchmarks=[math500]", "benchmarks.math500.max_turns=0"], r"benchmarks.math500.max_turns is 0"),
        (["benchmarks=[math500]", "benchmarks.math500.env=chess"], "benchmarks.math500.env is 'chess'"),
        (
            ["benchmarks=[math500]", "benchmarks.math500.held_out.file=null"],
            "benchmarks.math500.held_out.file is missing",
        ),
        (
            ["benchmarks=[math500]", "benchmarks.math500.max_context_tokens=8192"],
            "a longest prompt would leave no room",
        ),
        (
            ["benchmarks=[math500]", "benchmarks.math500.settings.python.cpu_seconds=0"],
            "benchmarks.math500.settings.python.cpu_seconds is 0",
        ),
        (
            ["benchmarks=[math500]", "+benchmarks.math500.settings.python.cpu_secnds=1"],
            "math500.settings.python.cpu_secnds is not a field of PythonSettings: the nearest is cpu_seconds",
        ),
        (["benchmarks=[math500]", "+search.result=1"], "search.result is not a field of SearchSettings"),
        (["benchmarks=[math500]", "+reward.kinds=em"], "reward.kinds is not a field of QASettings"),
        (["benchmarks=[math500]", "+endpoint.requests.tri=1"], "endpoint.requests.tri is not a field of Request"),
        (["benchmarks=[math500]", "decoding.temperature=nan"], "decoding.temperature is nan"),
        (["benchmarks=[hotpotqa]", "search.backend=http"], "benchmarks.hotpotqa.settings.search.http.url is missing"),
        (["benchmarks=[hotpotqa]", "reward.kind=judge"], "benchmarks.hotpotqa.settings.reward.kind is judge"),
    ],
)
def test_settings_that_cannot_be_are_named(overrides: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        composed(*overrides)


def test_a_missing_file_is_named_with_the_command_that_makes_it(config: EvaluateConfig, policy: Policy) -> None:
    task = config.benchmarks["toy"]
    config = replace(config, benchmarks={"toy": replace(task, held_out=replace(task.held_out, file="/nowhere.jsonl"))})
    with pytest.raises(DataError, match=r"toy: /nowhere.jsonl does not exist: make it with .*prepare_data.py nowhere"):
        evaluate(config)


# what is recorded


class Replies:
    """An engine that says what it is told, by turn, in bytes; `cut` marks a reply that meets its limit."""

    cut = "✂"

    def __init__(self, *replies: str) -> None:
        self._replies = iter(replies)
        self._tokenizer = byte_tokenizer()

    async def generate(self, request: Request) -> Generation:
        text = next(self._replies)
        stop = StopReason.LENGTH if text.endswith(self.cut) else StopReason.STOP
        text = text.removesuffix(self.cut) + ("" if stop is StopReason.LENGTH else "<|im_end|>")
        ids = as_ids(self._tokenizer.encode(text, add_special_tokens=False))
        return Generation(ids, np.zeros(len(ids), np.float32), 0, stop, None)


BYTES = ChatFormat(byte_tokenizer())


def played(make_env: Callable[[], Any], task: Task, *replies: str, max_turns: int = 4) -> Rollout:
    limits = EpisodeLimits(max_turns, 8192, 4096, 32768)
    world = EpisodeWorld(Replies(*replies), BYTES, make_env, limits, "strip_think", 0)
    (rollout,) = run_episodes(world, [Plan("p", task, Role.EVAL)], world_sampling(), on_retry=print)
    return rollout


def world_sampling() -> Any:
    return composed("benchmarks=[math500]").sampling


def math_env() -> MathEnv:
    return MathEnv(MathSettings(calls_per_reply=2), 4)


def python(code: str) -> str:
    return render_call("python", {"code": code})


@pytest.mark.needs("bwrap")
def test_a_sample_is_recorded_with_its_answer_calls_and_end() -> None:
    rollout = played(
        math_env,
        Task("t", "1/2 + 1/4?", ("\\frac{3}{4}",)),
        f"<think>\nhm\n</think>\n\nFirst.\n{python('1/2')}{python('1/')}{python('3')}",
        "<tool_call>\nnonsense\n</tool_call>" + render_call("search", {"query": "x"}),
        "<think>" + "x" * 50 + Replies.cut,
        "<think>\n\\boxed{1}\n</think>\n\nSo \\boxed{0.75}.",
    )
    facts = episode_facts(rollout, BYTES, is_qa=False)
    assert facts == {
        "answer": "\n\nSo \\boxed{0.75}.",
        "extracted": "0.75",
        "grade": "graded",
        "reward": 1.0,
        "detail": rollout.grade.detail,
        "qa": None,
        "termination": "answered",
        "turns": 4,
        "cut_turns": 1,
        "generated_tokens": sum(len(turn.output_ids) for turn in rollout.turns),
        "calls": {
            "python": {"attempted": 3, "executed": 2, "ok": 1, "failed": 1},
            "none": {"attempted": 2, "executed": 0, "ok": 0, "failed": 2},
        },
        "audit": {"repeated": 0, "programs": 3, "valid_programs": 2, "answer_first": False},
    }


@pytest.mark.needs("bwrap")
def test_an_episode_without_a_final_reply_has_no_answer() -> None:
    rollout = played(math_env, Task("t", "?", ("1",)), *[python("1")] * 2, max_turns=2)
    facts = episode_facts(rollout, BYTES, is_qa=False)
    assert (facts["answer"], facts["extracted"], facts["reward"], facts["termination"]) == (None, None, 0, "turn_limit")
    assert call_counts(rollout) == {"python": {"attempted": 2, "executed": 2, "ok": 2, "failed": 0}}
    assert facts["audit"] == {"repeated": 1, "programs": 2, "valid_programs": 2, "answer_first": False}


@pytest.mark.needs("bwrap")
@pytest.mark.parametrize(("thought", "is_first"), [("it is 14.", True), ("140 or 1.14", False), ("14.5", False)])
def test_an_answer_known_before_the_first_call_is_noted(thought: str, is_first: bool) -> None:
    called = f"<think>\n{thought}\n</think>\n\n{python('14')}"
    facts = episode_facts(played(math_env, Task("t", "?", ("14",)), called, "\\boxed{14}"), BYTES, is_qa=False)
    assert facts["audit"]["answer_first"] is is_first
    silent = episode_facts(played(math_env, Task("t", "?", ("14",)), "\\boxed{14}"), BYTES, is_qa=False)
    assert silent["audit"] is None


def test_short_answers_have_their_scores(tmp_path: Path) -> None:
    build_index(PASSAGES, tmp_path / "index")
    settings = SearchEnvSettings(search=SearchSettings(bm25=Bm25Settings(index=str(tmp_path / "index"))))
    task = Task("t", "Which sea?", ("The Aral Sea", "Aral"))
    searched = render_call("search", {"query": "sea"})
    rollout = played(lambda: SearchEnv(settings, 4), task, f"The Caspian?{searched}", "It is \\boxed{the sea of Aral}.")
    facts = episode_facts(rollout, BYTES, is_qa=True)
    # sea of aral: 2 tokens in common of 3 and 2, one of 3 and 1; in the text the span "aral" is an alias
    assert facts["qa"] == {"em": 0.0, "f1": 0.8, "span_f1": 1.0, "answer_hit": 1.0, "output_hit": 1.0}
    assert facts["calls"] == {"search": {"attempted": 1, "executed": 1, "ok": 1, "failed": 0}}
    assert facts["reward"] == 0


def test_output_hits_are_on_the_answer_and_on_all_that_was_written() -> None:
    task = Task("t", "?", ("Paris",))
    assert qa_scores(task, "Rome", "\\boxed{Rome}", ["<think>Paris?</think>", "\\boxed{Rome}"]) == {
        "em": 0.0,
        "f1": 0.0,
        "span_f1": 0.0,
        "answer_hit": 0.0,
        "output_hit": 1.0,
    }
    nothing = qa_scores(task, None, None, ["x"])
    assert nothing is not None
    assert not any(nothing.values())
    assert qa_scores(Task("t", "?", ("",)), "x", "x", ["x"]) is None


def test_lines_name_the_question_the_sample_and_its_seed(config: EvaluateConfig, policy: Policy) -> None:
    summaries = evaluate(config)
    tasks = problems("held_out", QUESTIONS, 0)
    lines = lines_of(config)
    assert [(line["position"], line["uid"], line["sample"]) for line in lines] == [
        (position, task.uid, sample) for position, task in enumerate(tasks) for sample in range(SAMPLES)
    ]
    for line in lines:
        uid = f"eval.toy.{line['uid']}.{line['sample']}"
        assert line["seed"] == stream_seed(0, uid, 0)
        assert line["seed"] in {request.seed for request in policy.engine.requests if request.session == uid}
    assert {request.sampling.temperature for request in policy.engine.requests} == {0.6}
    assert {request.sampling.top_p for request in policy.engine.requests} == {0.95}
    assert summaries["toy"]["samples"] == QUESTIONS * SAMPLES
    assert 0 < summaries["toy"]["pass@1"] < summaries["toy"]["pass@k"]["2"] < 1


# playing


class Watched:
    """An engine that yields a while, and counts the questions in flight."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.most = 0
        self._now: dict[str, int] = {}

    async def generate(self, request: Request) -> Generation:
        question = request.session.rpartition(".")[0]
        self._now[question] = self._now.get(question, 0) + 1
        self.most = max(self.most, sum(n > 0 for n in self._now.values()))
        await asyncio.sleep(0.001)
        self._now[question] -= 1
        return await self._engine.generate(request)  # type: ignore[no-any-return]


@pytest.mark.parametrize("batch", [1, 4, 100])
def test_at_most_a_batch_of_questions_is_in_flight(config: EvaluateConfig, policy: Policy, batch: int) -> None:
    watched = Watched(policy.engine)
    policy.engine = watched  # type: ignore[assignment]
    evaluate(replace(config, batch=batch))
    assert watched.most == min(batch, QUESTIONS)


def test_the_answers_do_not_depend_on_the_batch(config: EvaluateConfig, policy: Policy) -> None:
    evaluate(replace(config, batch=1))
    evaluate(replace(config, batch=100, experiment_name="other"))
    assert lines_of(config) == lines_of(replace(config, experiment_name="other"))


def test_an_outage_is_no_score_and_the_evaluation_goes_on_after_it(config: EvaluateConfig, policy: Policy) -> None:
    evaluate(replace(config, experiment_name="whole"))
    policy.engine.requests.clear()
    engine = policy.engine
    policy.engine = DownAfter(engine, 30)  # type: ignore[assignment]
    with pytest.raises(InfrastructureError, match="toy: the engine is down"):
        evaluate(config)
    done = {line["position"] for line in lines_of(config)}
    assert 0 < len(done) < QUESTIONS
    assert not (folder_of(config) / "manifest.json").exists()
    engine.requests.clear()
    policy.engine = engine
    evaluate(config)
    assert lines_of(config) == lines_of(replace(config, experiment_name="whole"))
    again = {request.session.split(".")[2] for request in engine.requests}
    assert len(again) == QUESTIONS - len(done)


class DownAfter:
    """An engine that is down after that many requests."""

    def __init__(self, engine: Any, requests: int) -> None:
        self._engine = engine
        self._left = requests

    async def generate(self, request: Request) -> Generation:
        self._left -= 1
        if self._left < 0:
            raise InfrastructureError("the engine is down")
        return await self._engine.generate(request)  # type: ignore[no-any-return]


def test_questions_in_flight_are_ended_when_one_fails(config: EvaluateConfig, policy: Policy) -> None:
    class DownForOne:
        async def generate(self, request: Request) -> Generation:
            if request.session.split(".")[2] == first:
                raise InfrastructureError("the engine is down")
            await asyncio.sleep(0.001)
            return await engine.generate(request)

    first, engine = problems("held_out", QUESTIONS, 0)[0].uid, policy.engine
    policy.engine = DownForOne()  # type: ignore[assignment]
    with pytest.raises(InfrastructureError):
        evaluate(replace(config, batch=4))
    assert {line["position"] for line in lines_of(config)} == {1, 2, 3}


def test_a_passing_failure_is_counted_with_its_sample(config: EvaluateConfig, policy: Policy) -> None:
    evaluate(replace(config, experiment_name="whole"))
    policy.engine.failures = 2
    assert evaluate(config)["toy"]["retries"] == 2
    lines, whole = lines_of(config), lines_of(replace(config, experiment_name="whole"))
    assert sum(line.pop("retries") for line in lines) == 2
    assert sum(line.pop("retries") for line in whole) == 0
    assert lines == whole


def test_an_engine_with_other_weights_is_refused(config: EvaluateConfig, policy: Policy) -> None:
    policy.engine.version = 3
    with pytest.raises(StaleEngine, match="sampled with weights of version 3, and holds version 0"):
        evaluate(config)


# resuming


@pytest.fixture
def raw(config: EvaluateConfig, policy: Policy) -> bytes:
    evaluate(config)
    return (folder_of(config) / "samples.jsonl").read_bytes()


def test_wherever_the_file_is_torn_whole_questions_are_left(tmp_path: Path, raw: bytes) -> None:
    ends = [place + 1 for place, byte in enumerate(raw) if byte == ord("\n")]
    whole = [0, *ends[SAMPLES - 1 :: SAMPLES]]
    places = {*range(0, len(raw), 97), *ends, *(end - 1 for end in ends), *(end + 1 for end in ends[:-1])}
    for place in sorted(places):
        file = tmp_path / "samples.jsonl"
        file.write_bytes(raw[:place])
        kept = max(end for end in whole if end <= place)
        lines = RunFolder(tmp_path, [file.name]).recover(file.name, SAMPLES)
        assert len(lines) == SAMPLES * whole.index(kept)
        assert file.read_bytes() == raw[:kept]


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda lines: [lines[0], b"{", *lines[2:]], "line 2 is not JSON"),
        (lambda lines: lines[1:], "has other lines than those of whole questions"),
        (lambda lines: [*lines[:3], lines[4], lines[3], *lines[5:]], "has other lines than those of whole questions"),
        (lambda lines: [*lines, *lines[:3]], "has other lines than those of whole questions, each once"),
    ],
)
def test_a_damaged_file_is_refused(
    tmp_path: Path, raw: bytes, damage: Callable[[list[bytes]], list[bytes]], sentence: str
) -> None:
    (tmp_path / "samples.jsonl").write_bytes(b"\n".join(damage(raw.splitlines())) + b"\n")
    with pytest.raises(DataError, match=sentence):
        RunFolder(tmp_path, ["samples.jsonl"]).recover("samples.jsonl", SAMPLES)


def test_a_damaged_line_is_refused_when_the_evaluation_goes_on(config: EvaluateConfig, policy: Policy) -> None:
    evaluate(replace(config, experiment_name="whole"))
    engine = policy.engine
    policy.engine = DownAfter(engine, 30)  # type: ignore[assignment]
    with pytest.raises(InfrastructureError):
        evaluate(config)
    policy.engine = engine
    file = folder_of(config) / "samples.jsonl"
    whole = file.read_bytes()
    assert b'"reward": 0.0' in whole
    file.write_bytes(whole.replace(b'"reward": 0.0', b'"reward": 1.0', 1))
    with pytest.raises(DataError, match=r"samples\.jsonl is damaged in its first \d+ bytes: delete"):
        evaluate(config)
    file.write_bytes(whole)
    so_far = folder_of(config) / "samples.sha256"
    known = so_far.read_bytes()
    so_far.write_bytes(b"")
    with pytest.raises(DataError, match=r"samples\.sha256 is damaged: delete"):
        evaluate(config)
    so_far.write_bytes(known)
    evaluate(config)
    assert lines_of(config) == lines_of(replace(config, experiment_name="whole"))
    assert not so_far.exists()


@pytest.mark.parametrize("file", ["config.yaml", "samples.jsonl"])
def test_there_is_no_manifest_of_a_damaged_file(tmp_path: Path, file: str) -> None:
    folder = RunFolder(tmp_path, ["samples.jsonl"])
    folder.open({"seed": 0})
    folder.append_for_good("samples.jsonl", [{"position": 0, "sample": 0}])
    (tmp_path / file).write_bytes((tmp_path / file).read_bytes().replace(b"0", b"1", 1))
    with pytest.raises(DataError, match=rf"{file} is damaged: its sha256 .* start afresh"):
        folder.finish({}, summary={})
    assert not (tmp_path / "manifest.json").exists()


def test_a_killed_evaluation_goes_on(config: EvaluateConfig, policy: Policy) -> None:
    """SIGKILL in a process of its own, at two moments, the second in the middle of a line."""
    evaluate(replace(config, experiment_name="whole"))
    engine = policy.engine
    for kill in (KilledAfter(engine, 20), KilledAfter(engine, 15)):
        policy.engine = kill  # type: ignore[assignment]
        child = os.fork()
        if child == 0:
            try:
                evaluate(config)
            finally:
                os._exit(1)
        _, how = os.waitpid(child, 0)
        assert os.WIFSIGNALED(how)
        assert os.WTERMSIG(how) == signal.SIGKILL
        with (folder_of(config) / "samples.jsonl").open("ab") as out:
            out.write(b'{"position": 7, "uid": ')
    policy.engine = engine
    evaluate(config)
    assert lines_of(config) == lines_of(replace(config, experiment_name="whole"))


class KilledAfter(DownAfter):
    """An engine whose process is killed at a request."""

    async def generate(self, request: Request) -> Generation:
        self._left -= 1
        if self._left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return await self._engine.generate(request)  # type: ignore[no-any-return]


# the folder


def test_a_finished_evaluation_is_not_played_again(config: EvaluateConfig, policy: Policy) -> None:
    first = evaluate(config)
    assert policy.opened == 1
    assert evaluate(config) == first
    assert evaluate(replace(config, ks=(1, 3)))["toy"]["pass@k"].keys() == {"1", "3"}
    assert policy.opened == 1


def test_a_finished_evaluation_that_was_changed_is_refused(config: EvaluateConfig, policy: Policy) -> None:
    evaluate(config)
    file = folder_of(config) / "samples.jsonl"
    file.write_text(file.read_text().replace('"reward": 0.0', '"reward": 1.0', 1))
    with pytest.raises(DataError, match=r"samples.jsonl was changed since it was written"):
        evaluate(config)


def test_the_manifest_is_written_last_with_what_was_evaluated(config: EvaluateConfig, policy: Policy) -> None:
    summary = evaluate(config)["toy"]
    folder = folder_of(config)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["files"] == {
        name: sha256(folder / name) for name in ("config.yaml", "samples.jsonl", "summary.json")
    }
    assert json.loads((folder / "summary.json").read_text()) == summary
    assert manifest["panel"]["questions"] == QUESTIONS
    assert manifest["panel"]["file_sha256"] == sha256(Path(str(config.benchmarks["toy"].held_out.file)))
    assert manifest["decoding"] == {"temperature": 0.6, "top_p": 0.95, "top_k": -1}
    assert manifest["checkpoint"] == {"kind": "script"}
    assert (manifest["benchmark"], manifest["label"], manifest["samples"]) == ("toy", "script", SAMPLES)
    assert manifest["environment"] == {}
    assert (manifest["env"], manifest["limits"]["max_turns"]) == ("toy_math", 3)
    assert {"commit", "machine", "packages", "ended", "seed", "rollout_context", "settings"} <= manifest.keys()


def changed(config: EvaluateConfig, **changes: Any) -> EvaluateConfig:
    task = replace(config.benchmarks["toy"], **changes)
    return replace(config, benchmarks={"toy": task})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda config: replace(config, seed=1), ["seed was 0 and is 1"]),
        (lambda config: replace(config, samples=4), ["samples was 3 and is 4"]),
        (
            lambda config: replace(config, decoding=replace(config.decoding, temperature=1.0)),
            ["decoding.temperature was 0.6 and is 1.0"],
        ),
        (lambda config: replace(config, rollout_context="full"), ["rollout_context was 'strip_think' and is 'full'"]),
        (lambda config: changed(config, max_turns=2), ["limits.max_turns was 3 and is 2"]),
        (
            lambda config: changed(config, held_out=replace(config.benchmarks["toy"].held_out, count=5)),
            ["panel.questions was 9 and is 5", "panel.uids_sha256 was"],
        ),
    ],
)
@pytest.mark.parametrize("is_finished", [True, False])
def test_a_folder_holds_one_evaluation(
    config: EvaluateConfig,
    policy: Policy,
    change: Callable[[EvaluateConfig], EvaluateConfig],
    named: list[str],
    is_finished: bool,
) -> None:
    evaluate(config)
    if not is_finished:
        (folder_of(config) / "manifest.json").unlink()
    before = (folder_of(config) / "samples.jsonl").read_bytes()
    with pytest.raises(DataError, match="holds a run with another configuration") as raised:
        evaluate(change(config))
    assert all(sentence in str(raised.value) for sentence in named)
    assert (folder_of(config) / "samples.jsonl").read_bytes() == before


def test_a_folder_belongs_to_one_process(config: EvaluateConfig, policy: Policy) -> None:
    folder_of(config).mkdir(parents=True)
    with RunFolder(folder_of(config)).held(), pytest.raises(Held, match="another process"):
        evaluate(config)
    assert policy.opened == 0


def test_a_label_names_a_folder(config: EvaluateConfig, policy: Policy) -> None:
    with pytest.raises(ConfigError, match="label is 'a/b': it names a folder"):
        evaluate(replace(config, label="a/b"))


# checkpoints


@pytest.fixture(scope="module")
def model() -> Qwen3ForCausalLM:
    loaded: Qwen3ForCausalLM = Qwen3ForCausalLM.from_pretrained(WARM_START)
    return loaded


@pytest.fixture
def greedy(config: EvaluateConfig) -> EvaluateConfig:
    decoding = replace(config.decoding, temperature=0.0)
    config = replace(config, checkpoint=str(WARM_START), decoding=decoding, samples=1, ks=(1,))
    return changed(config, held_out=replace(config.benchmarks["toy"].held_out, count=6))


@pytest.fixture
def run(tmp_path: Path) -> tuple[Path, RunConfig]:
    """A run with a save, on the trainer in plain torch."""
    config = replace(toy_run(), results=str(tmp_path / "runs"))
    folder = RunFolder(config.folder)
    folder.open(config.as_dict())
    backend = LocalBackend(config)

    def write(weights: Path) -> dict[str, Any]:
        backend.save(weights)
        (weights / "state.pt").rename(weights / "model.pt")
        return {"policy_version": 7}

    folder.save("step00003", {"name": "step00003"}, write, keep=1)
    return config.folder, config


class Trainer(LocalBackend):
    """Reads its weights where `run` wrote them."""

    def load(self, folder: Path) -> None:
        (folder / "state.pt").write_bytes((folder / "model.pt").read_bytes())
        super().load(folder)

    def push(self, version: int) -> None:
        assert version == 7
        super().push(version)


def test_a_folder_a_server_and_a_run_with_the_same_weights_give_the_same_answers(
    greedy: EvaluateConfig, model: Qwen3ForCausalLM, run: tuple[Path, RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, run_config = run
    opened: list[RunConfig] = []

    def open_backend(config: RunConfig) -> Trainer:
        opened.append(config)
        return Trainer(config)

    monkeypatch.setattr(session, "open_backend", open_backend)
    evaluate(greedy)
    evaluate(replace(greedy, checkpoint=str(path)))
    assert opened == [run_config]
    with serving(model, TOKENIZER) as server:
        served = replace(greedy.endpoint, model="org/served", tokenizer=str(WARM_START))
        evaluate(replace(greedy, checkpoint=server.url, endpoint=served))
    lines = [lines_of(greedy, label) for label in ("warm_start_math", "grpo-seed5", "served")]
    assert lines[0] == lines[1] == lines[2]
    assert any(line["calls"].get("calculator", {}).get("executed") for line in lines[0])
    kinds = {}
    for label in ("warm_start_math", "grpo-seed5", "served"):
        kinds[label] = json.loads((folder_of(greedy, label) / "manifest.json").read_text())["checkpoint"]
    weights = {"model.safetensors": sha256(WARM_START / "model.safetensors")}
    tokenizer = kinds["served"]["tokenizer_sha256"]
    assert tokenizer["tokenizer.json"] == sha256(WARM_START / "tokenizer.json")
    assert kinds["warm_start_math"] == {
        "kind": "model",
        "name": "warm_start_math",
        "engine": "embedded decoder",
        "model_sha256": weights,
        "tokenizer_sha256": tokenizer,
    }
    assert kinds["grpo-seed5"] == {
        "kind": "run",
        "run": "default/grpo-seed5",
        "save": "step00003",
        "policy_version": 7,
        "engine": "verl, profile toy",
        "model_sha256": {"model.pt": sha256(path / "checkpoints" / "step00003" / "weights" / "model.pt")},
        "initial_model": "toy_math_warm_start",
        "tokenizer_sha256": tokenizer,
    }
    assert kinds["served"].pop("url") == server.url
    assert kinds["served"] == {
        "kind": "endpoint",
        "model": "org/served",
        "model_sha256": "unknown",
        "tokenizer_sha256": tokenizer,
        "dialect": "vllm",
        "ids": "server",
    }


def test_a_run_without_a_checkpoint_is_refused(greedy: EvaluateConfig, run: tuple[Path, RunConfig]) -> None:
    path, _ = run
    folder = RunFolder(path)
    folder.finish({}, keep=1)
    folder.delete_saves()
    with pytest.raises(DataError, match=f"the run {path} has no checkpoint any more: its saves were deleted"):
        evaluate(replace(greedy, checkpoint=str(path)))
    (path / "manifest.json").unlink()
    with pytest.raises(DataError, match="has no checkpoint yet"):
        evaluate(replace(greedy, checkpoint=str(path)))


def test_a_run_is_left_as_it_was(
    greedy: EvaluateConfig, run: tuple[Path, RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines after the save too, which a run that goes on cuts off."""
    path, _ = run
    RunFolder(path).append("steps.jsonl", [{"step": 4}])
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    monkeypatch.setattr(session, "open_backend", LocalBackendThatIsNotReached)
    with pytest.raises(MachineError, match="not reached"):
        evaluate(replace(greedy, checkpoint=str(path)))
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before
    with RunFolder(path).held(), pytest.raises(Held):
        evaluate(replace(greedy, checkpoint=str(path)))


def LocalBackendThatIsNotReached(config: RunConfig) -> Any:
    raise MachineError("not reached")


def copied(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for file in WARM_START.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def without_tag(tokenizer: Path) -> None:
    text = tokenizer.read_text(encoding="utf-8")
    tokenizer.write_text(text.replace("</think>", "</thought>"), encoding="utf-8")


def reconfigure(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    layers = changes.get("num_hidden_layers")
    types = {} if layers is None else {"layer_types": ["full_attention"] * layers}
    file.write_text(json.dumps(json.loads(file.read_text()) | types | changes))


@pytest.mark.parametrize(
    ("spoil", "error", "sentence"),
    [
        (lambda folder: (folder / "config.json").unlink(), DataError, "no run .config.yaml. and no model"),
        (lambda folder: (folder / "model.safetensors").unlink(), DataError, "has no weights"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"x" * 99), DataError, "is damaged"),
        (lambda folder: (folder / "config.json").write_text("{"), DataError, r"config\.json is not JSON"),
        (lambda folder: (folder / "config.json").write_text("[]"), DataError, r"config\.json is no JSON object"),
        (lambda folder: (folder / "config.json").write_text("{}"), DataError, "names no model_type"),
        (lambda folder: reconfigure(folder, model_type="llama"), ConfigError, "model_type is .llama."),
        (lambda folder: reconfigure(folder, num_hidden_layers=4), DataError, "are not those of its config.json"),
        (lambda folder: reconfigure(folder, num_hidden_layers=2), DataError, "are not those of its config.json"),
        (lambda folder: reconfigure(folder, intermediate_size=64), DataError, "cannot be loaded"),
        (
            lambda folder: reconfigure(folder, layer_types=["full_attention"]),
            DataError,
            "number of (layer types|`layer_types`)",
        ),
        (
            lambda folder: reconfigure(folder, max_position_embeddings=200),
            ConfigError,
            "benchmarks.toy.max_context_tokens is 256 and the model has 200 positions",
        ),
        (lambda folder: (folder / "tokenizer.json").unlink(), DataError, "the tokenizer in .* cannot be read"),
        (lambda folder: without_tag(folder / "tokenizer.json"), ConfigError, "rollout_context is strip_think, and the"),
    ],
    ids=[
        "no model",
        "no weights",
        "damaged",
        "no JSON",
        "no object",
        "no type",
        "llama",
        "missing",
        "too many",
        "misshapen",
        "inconsistent",
        "short",
        "no tokenizer",
        "no tag",
    ],
)
def test_a_model_folder_that_cannot_be_is_named(
    greedy: EvaluateConfig, tmp_path: Path, spoil: Callable[[Path], Any], error: type[Exception], sentence: str
) -> None:
    folder = copied(tmp_path)
    spoil(folder)
    with pytest.raises(error, match=sentence):
        evaluate(replace(greedy, checkpoint=str(folder)))


def test_every_documented_line_is_an_evaluation() -> None:
    pages = [PROJECT / "README.md", *(PROJECT / "docs").rglob("*.md")]
    texts = [str(command.__doc__).replace("\\\n", ""), *(page.read_text(encoding="utf-8") for page in pages)]
    lines = [
        line for text in texts for line in re.findall(r"^ *python experiments/evaluate\.py (.+)$", text, re.MULTILINE)
    ]
    found = [compose_evaluation(cli.composed("evaluate", shlex.split(line, comments=True))) for line in lines]
    assert {config.machine for config in found} == {None, "a100x8"}


def test_a_profile_serves_a_model_folder_through_verl(greedy: EvaluateConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[RunConfig] = []

    def open_backend(config: RunConfig) -> LocalBackend:
        opened.append(config)
        return LocalBackend(config)

    monkeypatch.setattr(session, "open_backend", open_backend)
    evaluate(greedy)
    evaluate(replace(greedy, machine="a100x8", label="served"))
    assert lines_of(greedy, "warm_start_math") == lines_of(greedy, "served")
    (run,) = opened
    rollout = OmegaConf.create(run.verl).actor_rollout_ref.rollout
    assert (run.profile.platform, rollout.name, run.model.path) == ("cuda", "vllm", str(WARM_START))
    assert (rollout.prompt_length, rollout.response_length, rollout.max_model_len) == (32, 32, 256)
    with pytest.raises(ConfigError, match="nonesuch"):
        evaluate(replace(greedy, machine="nonesuch", label="other"))


def test_a_profile_is_for_a_model_folder(greedy: EvaluateConfig, run: tuple[Path, RunConfig]) -> None:
    with pytest.raises(ConfigError, match="checkpoint a run, which has its own"):
        evaluate(replace(greedy, checkpoint=str(run[0]), machine="a100x8"))
    with pytest.raises(ConfigError, match="checkpoint a server"):
        evaluate(replace(greedy, checkpoint="http://127.0.0.1:9/v1", machine="a100x8"))


# the command


def test_the_command_prints_a_table(
    config: EvaluateConfig, policy: Policy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "compose_evaluation", lambda tree: config)
    monkeypatch.setattr("sys.argv", [*COMMAND, "checkpoint=x", "benchmarks=[math500]"])
    command.main()
    printed = capsys.readouterr().out
    assert "\n|  | toy |\n| --- | --- |\n" in printed
    assert f"| Questions × samples | {QUESTIONS} × {SAMPLES} |" in printed


@pytest.mark.parametrize(
    ("error", "exit_status", "words"),
    [
        (DataError("no such file."), 1, "error: no such file.\n"),
        (InfrastructureError("it is down."), 1, "error: it is down. What was played is kept: run the same command to"),
        (KeyboardInterrupt(), 75, "stopped: run the same command to go on\n"),
    ],
)
def test_how_the_command_ends(
    error: BaseException,
    exit_status: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(config: EvaluateConfig, summarise: object) -> Any:
        raise error

    monkeypatch.setattr(command, "evaluate", fail)
    monkeypatch.setattr("sys.argv", [*COMMAND, "checkpoint=x", "benchmarks=[math500]"])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == exit_status
    assert capsys.readouterr().err.startswith(words)
