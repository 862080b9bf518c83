"""Evaluations: settings, questions in flight, how a killed one goes on, what a folder holds. The policy is a script."""

import asyncio
import json
import os
import signal
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import compose_config
from evaluations import QUESTIONS, SAMPLES, Policy, changed, composed, evaluate, evaluation_in, folder_of, lines_of

from analysis.view.rollouts import RecordedTurn
from rtpo.core.files import sha256
from rtpo.core.seeds import stream_seed
from rtpo.data.registry import REGISTRY
from rtpo.engines.base import Generation, Request
from rtpo.envs.toy.math import problems
from rtpo.errors import ConfigError, DataError, FolderInUse, InfrastructureError, StaleEngine
from rtpo.evaluation import evaluate as evaluation
from rtpo.evaluation.folder import EvaluationFolder
from rtpo.evaluation.panel import EvaluateConfig, Panel, identity, manifest
from rtpo.tools.search.bm25 import Bm25Settings


@pytest.fixture
def config(tmp_path: Path) -> EvaluateConfig:
    return evaluation_in(tmp_path)


@pytest.fixture
def policy(monkeypatch: pytest.MonkeyPatch) -> Policy:
    policy = Policy()
    monkeypatch.setattr(evaluation, "find_checkpoint", policy.find)
    return policy


def test_every_evaluation_set_is_a_benchmark_with_the_papers_settings() -> None:
    evaluated = [name for name, known in REGISTRY.items() if known.role == "eval" and known.kind != "airline"]
    overrides = ("reward.kind=judge", "reward.judge={base_url: 'http://h/v1', model: m, cache: c}")
    config = composed(f"benchmarks=[{','.join(evaluated)}]", "data=/prepared", "search.bm25.index=/index", *overrides)
    assert list(config.benchmarks) == evaluated
    assert (config.decoding.temperature, config.decoding.top_p, config.decoding.top_k) == (0.6, 0.95, -1)
    assert (config.samples, config.ks, config.rollout_context) == (4, (1, 4), "strip_think")
    paper = {env: compose_config(f"task={env}_paper").task for env in ("math", "search")}
    for name, task in config.benchmarks.items():
        env, settings = REGISTRY[name].kind, task.env_settings
        own: Any = paper[env].env_settings
        if env == "search":
            own = replace(own, reward=config.reward, search=replace(own.search, bm25=Bm25Settings(index="/index")))
        assert (task.name, task.env, task.limits, settings) == (name, env, paper[env].limits, own)
        assert (task.held_out.split, task.held_out.file) == ("all", f"/prepared/{name}.jsonl")


def test_a_wrong_setting_is_named() -> None:
    file = "benchmarks.math500.held_out.file"
    judge = "benchmarks.hotpotqa.settings.reward.kind"
    for override, field in (("samples=2", "ks"), (f"{file}=null", file), ("reward.kind=judge", judge)):
        with pytest.raises(ConfigError, match=field):
            composed(f"benchmarks=[{'hotpotqa' if field == judge else 'math500'}]", override)


def test_an_engine_with_other_weights_is_refused(config: EvaluateConfig, policy: Policy) -> None:
    policy.engine.version = 3
    with pytest.raises(StaleEngine):
        evaluate(config)


def test_an_evaluation_and_the_manifest_of_it(config: EvaluateConfig, policy: Policy) -> None:
    """Its lines name the question, the sample and its seed."""
    summary = evaluate(config)["toy"]
    uids = [task.uid for task in problems("held_out", QUESTIONS, 0)]
    lines = lines_of(config)
    places = [(position, uid, sample) for position, uid in enumerate(uids) for sample in range(SAMPLES)]
    assert [(line["position"], line["uid"], line["sample"]) for line in lines] == places
    for line in lines:
        uid = f"eval.toy.{line['uid']}.{line['sample']}"
        assert line["seed"] == stream_seed(0, uid, 0)
        assert line["seed"] in {request.seed for request in policy.engine.requests if request.session == uid}
    decodings = {(request.sampling.temperature, request.sampling.top_p) for request in policy.engine.requests}
    assert decodings == {(0.6, 0.95)}
    assert 0 < summary["pass@1"] < summary["pass@k"]["2"] < 1

    folder = folder_of(config)
    manifest = json.loads((folder / "manifest.json").read_text())
    names = ("config.yaml", "samples.jsonl", "summary.json")
    assert manifest["files"] == {name: sha256(folder / name) for name in names}
    assert json.loads((folder / "summary.json").read_text()) == summary
    assert manifest["panel"]["file_sha256"] == sha256(Path(str(config.benchmarks["toy"].held_out.file)))
    assert (manifest["checkpoint"], manifest["samples"]) == ({"kind": "script"}, SAMPLES)
    assert manifest["decoding"] == {"temperature": 0.6, "top_p": 0.95, "top_k": -1}
    assert {"commit", "code_sha256", "machine", "packages", "seed", "rollout_context", "settings"} <= manifest.keys()


def test_the_first_questions_keep_what_the_policy_saw(config: EvaluateConfig, policy: Policy) -> None:
    evaluate(replace(config, contexts=2))
    seen = defaultdict[str, list[list[int]]](list)
    for request in policy.engine.requests:
        seen[request.session].append(list(request.context_ids))
    lines = lines_of(config)
    assert [line["position"] for line in lines if line["path"]] == [0] * SAMPLES + [1] * SAMPLES
    for path in (line["path"] for line in lines if line["path"]):
        assert [turn["context_ids"] for turn in path["turns"]] == seen[path["rollout"]] != []


def test_log_probs_that_a_server_does_not_tell_are_none(
    config: EvaluateConfig, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate = policy.generate

    async def untold(request: Request) -> Generation:
        generation = await generate(request)
        return replace(generation, logprobs=np.full(len(generation.output_ids), np.nan, np.float32))

    monkeypatch.setattr(policy, "generate", untold)
    evaluate(replace(config, contexts=1))
    turns = [turn for line in lines_of(config) if line["path"] for turn in line["path"]["turns"]]
    assert turns
    for turn in turns:
        assert turn["logprobs"] == [None] * len(turn["output_ids"])
        assert RecordedTurn.model_validate_json(json.dumps(turn)).logprobs == (None,) * len(turn["output_ids"])


def test_an_evaluation_without_an_answer_takes_other_settings(config: EvaluateConfig, policy: Policy) -> None:
    async def gone(request: Request) -> None:
        raise InfrastructureError("the server is gone")

    policy.before = gone
    with pytest.raises(InfrastructureError):
        evaluate(config)
    policy.before = None
    evaluate(replace(config, samples=2))
    assert len(lines_of(config)) == 2 * QUESTIONS


def test_at_most_a_batch_of_questions_is_in_flight_and_no_answer_depends_on_it(
    config: EvaluateConfig, policy: Policy
) -> None:
    now: list[str] = []
    in_flight: list[int] = []

    async def watch(request: Request) -> None:
        now.append(question := request.session.rpartition(".")[0])
        in_flight.append(len(set(now)))
        await asyncio.sleep(0.001)
        now.remove(question)

    policy.before = watch
    answers = []
    for batch in (4, 100):
        sized = replace(config, batch=batch, experiment_name=f"batch{batch}")
        in_flight.clear()
        evaluate(sized)
        assert max(in_flight) == min(batch, QUESTIONS)
        answers.append(lines_of(sized))
    assert answers[0] == answers[1]


def test_an_outage_is_no_score_and_the_evaluation_goes_on_after_it(config: EvaluateConfig, policy: Policy) -> None:
    """Questions in flight are played to their end; a passing failure is counted with its sample."""
    whole = replace(config, experiment_name="whole")
    evaluate(whole)
    policy.engine.requests.clear()
    uids = [task.uid for task in problems("held_out", QUESTIONS, 0)]

    async def down_for_one(request: Request) -> None:
        if request.session.split(".")[2] == uids[0]:
            raise InfrastructureError("the engine is down")
        await asyncio.sleep(0.001)

    policy.before = down_for_one
    with pytest.raises(InfrastructureError):
        evaluate(config)
    assert {line["position"] for line in lines_of(config)} == {1, 2, 3}
    assert not (folder_of(config) / "manifest.json").exists()

    policy.before = None
    policy.engine.failures = 2
    policy.engine.requests.clear()
    assert evaluate(config)["toy"]["retries"] == 2
    lines, undisturbed = lines_of(config), lines_of(whole)
    assert (sum(line.pop("retries") for line in lines), sum(line.pop("retries") for line in undisturbed)) == (2, 0)
    assert lines == undisturbed
    assert {request.session.split(".")[2] for request in policy.engine.requests} == {uids[0], *uids[4:]}


def test_wherever_the_file_is_torn_whole_questions_are_left(
    config: EvaluateConfig, policy: Policy, tmp_path: Path
) -> None:
    evaluate(config)
    raw = (folder_of(config) / "samples.jsonl").read_bytes()
    ends = [place + 1 for place, byte in enumerate(raw) if byte == ord("\n")]
    whole = [0, *ends[SAMPLES - 1 :: SAMPLES]]
    file = tmp_path / "samples.jsonl"
    for place in sorted({*range(0, len(raw), 499), *ends, *(end - 1 for end in ends), *(end + 1 for end in ends[:-1])}):
        file.write_bytes(raw[:place])
        kept = max(end for end in whole if end <= place)
        lines = EvaluationFolder(tmp_path).read_whole_questions(SAMPLES)
        assert (len(lines), file.read_bytes()) == (SAMPLES * whole.index(kept), raw[:kept])
    lines = raw.splitlines()
    for damaged in ([lines[0], b"{", *lines[2:]], lines[1:], [*lines[:3], lines[4], lines[3], *lines[5:]], lines * 2):
        file.write_bytes(b"\n".join(damaged) + b"\n")
        with pytest.raises(DataError, match=r"samples\.jsonl"):
            EvaluationFolder(tmp_path).read_whole_questions(SAMPLES)


def test_whole_questions_are_recovered_and_nothing_else(tmp_path: Path) -> None:
    file, sums = tmp_path / "samples.jsonl", tmp_path / "samples.sha256"
    asked = [{"position": position, "sample": sample} for position in (3, 1) for sample in (0, 1)]
    assert EvaluationFolder(tmp_path).read_whole_questions(2) == []
    for question in (asked[:2], asked[2:]):
        EvaluationFolder(tmp_path).append_durably(question)
    whole = file.read_text()
    file.write_text(whole + '{"position": 2, "sample": 0}\n{"posi')
    assert EvaluationFolder(tmp_path).read_whole_questions(2) == asked
    assert file.read_text() == whole
    file.write_text(whole.replace("3", "4"))
    with pytest.raises(DataError, match=r"samples\.jsonl is damaged"):
        EvaluationFolder(tmp_path).read_whole_questions(2)
    sums.write_text("100")
    with pytest.raises(DataError, match=r"samples\.sha256 is damaged"):
        EvaluationFolder(tmp_path).read_whole_questions(2)


def test_a_killed_evaluation_goes_on(config: EvaluateConfig, policy: Policy) -> None:
    """SIGKILL in a process of its own, at two moments, the second in the middle of a line."""
    whole = replace(config, experiment_name="whole")
    evaluate(whole)
    for requests in (20, 15):
        policy.end_after(requests, lambda: os.kill(os.getpid(), signal.SIGKILL))
        child = os.fork()
        if child == 0:
            try:
                evaluate(config)
            finally:
                os._exit(1)
        _, how = os.waitpid(child, 0)
        assert os.WIFSIGNALED(how)
        with (folder_of(config) / "samples.jsonl").open("ab") as out:
            out.write(b'{"position": 7, "uid": ')
    policy.before = None
    evaluate(config)
    assert lines_of(config) == lines_of(whole)


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_folder_holds_one_evaluation_which_is_not_played_again_nor_trusted_when_changed(
    config: EvaluateConfig, policy: Policy, is_finished: bool
) -> None:
    first = evaluate(config)
    if not is_finished:
        (folder_of(config) / "manifest.json").unlink()
    file = folder_of(config) / "samples.jsonl"
    before = file.read_bytes()
    hotter = replace(config.decoding, temperature=1.0)
    for other, field in (
        (replace(config, decoding=hotter), "decoding.temperature"),
        (changed(config, max_turns=2), "limits.max_turns"),
        (replace(config, samples=2), "samples"),
        (replace(config, seed=1), "seed"),
    ):
        with pytest.raises(DataError, match=field):
            evaluate(other)
    with EvaluationFolder(folder_of(config)).held(), pytest.raises(FolderInUse):
        evaluate(config)
    assert file.read_bytes() == before
    asked = len(policy.engine.requests)
    assert evaluate(config) == first
    assert evaluate(replace(config, ks=(1, 3)))["toy"]["pass@k"].keys() == {"1", "3"}
    assert len(policy.engine.requests) == asked
    file.write_bytes(before.replace(b'"reward": 0.0', b'"reward": 1.0', 1))
    with pytest.raises(DataError, match=r"samples.jsonl"):
        evaluate(config)


def test_a_machines_sandbox_is_recorded_but_does_not_tell_evaluations_apart(config: EvaluateConfig) -> None:
    facts = {"python": {"isolation": "limits"}, "search": {"index": "abc"}}
    panel = Panel("toy", config.benchmarks["toy"], (), facts)
    assert identity(config, panel, {})["environment"] == {"search": {"index": "abc"}}
    assert manifest(config, panel, "label", {})["environment"] == facts
