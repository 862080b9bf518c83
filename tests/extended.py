"""What docs/extend/extending.md says, done in a copy of the project that has what the page adds (test_extending.py).

Its training commands run the whole of experiments/train.py but for the trainer, which is `LocalBackend` in the place of
verl's.
"""

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import compose_config
from local_backend import LocalBackend
from test_extending import commands

import rtpo.verl_harness.session as session
from experiments.train import train
from rtpo.algorithms import load_algorithm
from rtpo.core.chat import ChatFormat
from rtpo.core.losses import TokenBatch, loss
from rtpo.engines.base import Sampling
from rtpo.errors import ConfigError
from rtpo.harness.budget import Budget, Ledger
from rtpo.harness.episodes import EpisodeWorld, Plan, run_episodes
from rtpo.run.config import PROJECT
from rtpo.run.model_folder import check_model as check_folder
from rtpo.run.run import StopRequest
from rtpo.theory.mdp import value
from rtpo.theory.mdps import layered
from rtpo.theory.tabular import TabularHarness, tasks
from rtpo.toy.byte_model import build_model, byte_tokenizer
from rtpo.types import GradeOutcome, Role, StopReason, Task, Termination, ToolOutcome, as_ids


def type_it(words: Sequence[str]) -> None:
    """A command of the page, in this process."""
    if words[1] == "experiments/train.py":
        config = compose_config(*(word for word in words[2:] if word not in ("--cfg", "job")))
        if "--cfg" not in words:
            train(config, StopRequest())
        return
    named, rest = (words[2], words[3:]) if words[1] == "-m" else (words[1], words[2:])
    name = named.removesuffix(".py").replace("/", ".")
    assert importlib.import_module(name.replace("analysis.pages", "analysis.pages.__main__")).main(list(rest)) == 0


def make_model(folder: Path) -> None:
    """A Qwen3 with random weights."""
    tokenizer = byte_tokenizer()
    build_model(tokenizer, seed=0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def lines(folder: str, file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (PROJECT / "results" / folder / file).read_text().splitlines()]


def check_training() -> None:
    for method in ("rloo", "cispo"):
        steps = lines(f"trial/{method}-seed0", "steps.jsonl")
        assert steps[-1]["rollouts"] == 64
        assert all(0 <= step["algorithm"]["spread"] <= 0.5 for step in steps)
        assert [update["optimizer_steps"] > 0 for step in steps for update in step["updates"]] == [True] * len(steps)
    assert {line["algorithm"]["spread"] for line in steps} != {0.0}


def check_learning() -> None:
    """On a table, where what a policy is worth is known exactly."""
    for method in ("rloo", "cispo"):
        config: Any = compose_config(f"algorithm={method}").algorithm_config
        harness = TabularHarness(layered(0), Ledger(Budget(100_000)), learning_rate=3.0)
        before = value(harness.mdp, harness.policy)
        for step in range(12):
            harness.begin_step(step, 8 * config.chains)
            harness.sync()
            load_algorithm(method).step(harness, [task for task in tasks(harness.mdp) for _ in range(8)], config)
            harness.end_step()
        assert value(harness.mdp, harness.policy) > before + 0.05, method


def check_credit() -> None:
    rloo: Any = importlib.import_module("baselines.rloo")
    harness = TabularHarness(layered(0), Ledger(Budget(100)), learning_rate=1.0)
    harness.begin_step(0, 8)
    harness.sync()
    (group,) = harness.rollout(tasks(harness.mdp), n=8, role=Role.CHAIN)
    rows = rloo.group_rows(group, compose_config("algorithm=rloo").algorithm_config)
    returns = np.array([chain.reward for chain in group])
    assert len(set(returns)) > 1
    for row in rows:
        (own,) = [i for i, chain in enumerate(group) if chain.uid == row.rollout_uid]
        assert np.allclose(row.advantage[row.mask], returns[own] - np.delete(returns, own).mean(), atol=1e-6)


def check_loss() -> None:
    """dL/dlogp = -w min(ratio, cap) A, for tokens beyond the cap too."""
    verbs: Any = importlib.import_module("rtpo.verbs")
    ratio = np.array([0.5, 1.0, 1.1, 3.0, 3.0])
    advantage, weight = np.array([1.0, -2.0, 0.5, 1.0, -1.0]), np.array([0.1, 0.2, 0.3, 0.2, 0.2])
    logprobs = torch.tensor(np.log(ratio) - 2, requires_grad=True)
    batch = TokenBatch(
        logprobs, torch.full((5,), -2.0), torch.tensor(advantage), torch.tensor(weight), torch.arange(5), 5
    )
    total, sums = loss(batch, verbs.CappedWeight(cap=1.2))
    total.backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    assert np.allclose(logprobs.grad.numpy(), -weight * np.minimum(ratio, 1.2) * advantage)
    assert sums["clipped"] == 2


def check_reward() -> None:
    closeness = importlib.import_module("rtpo.rewards.closeness").closeness
    given = {"180": 1.0, " 1,80": 1.0, "90": 0.25, "171": 0.475, "0": 0.0, "9000": 0.0, "three": 0.0, "": 0.0}
    for answer, reward in given.items():
        grade = closeness(180, answer)
        assert (grade.outcome, round(grade.reward, 6)) == (GradeOutcome.GRADED, reward), answer
    assert closeness(0, "0").outcome is GradeOutcome.UNGRADABLE


CALL = '<tool_call>\n{"name": "convert", "arguments": {"count": 3, "unit": "hour", "to": "%s"}}\n</tool_call>'


def check_episode() -> None:
    """A scripted policy calls the tool, is told what it did, and is graded."""
    chat, replies = ChatFormat(byte_tokenizer()), [CALL % "day", CALL % "minute", "\\boxed{180}"]

    class Scripted:
        version = 0

        async def generate(self, request: Any) -> Any:
            from rtpo.engines.base import Generation

            reply = as_ids([*chat._encode(replies.pop(0)), chat.tags.stop_id])
            return Generation(reply, np.zeros(len(reply), np.float32), 0, StopReason.STOP, None)

    task = compose_config("task=durations", "algorithm=rloo").task
    world = EpisodeWorld(Scripted(), chat, task.make_env, task.limits, "strip_think", 0)
    question = Task("durations/held_out/3hourminute", "How many minutes are 3 hours?", 180)
    (rollout,) = run_episodes(world, [Plan("a", question, Role.CHAIN)], Sampling(), on_retry=print)
    outcomes = [use.outcome for turn in rollout.turns for use in turn.calls]
    assert outcomes == [ToolOutcome.PROGRAM_ERROR, ToolOutcome.OK]
    told = [chat.decode(turn.feedback_ids) for turn in rollout.turns]
    assert ["no whole number of days" in told[0], "\n180\n" in told[1], told[2]] == [True, True, ""]
    assert (rollout.termination, rollout.reward) == (Termination.ANSWERED, 1.0)


def check_model() -> None:
    """Its run sampled and was graded; the same folder as another architecture is refused."""
    (first, *_) = lines("mine/rloo-seed0", "steps.jsonl")
    assert first["rollouts"] == 4
    assert first["generated_tokens"] > 0
    assert {line["grade"] for line in lines("mine/rloo-seed0", "evaluations.jsonl")} == {"graded"}
    config = PROJECT / "models" / "mine" / "config.json"
    config.write_text(config.read_text().replace("qwen3", "gemma2"))
    with pytest.raises(
        ConfigError, match=r"a gemma2 model: its attention .* The embedded engine .* computes layers that"
    ):
        check_folder(config.parent, embedded=True)


def main() -> None:
    torch.set_num_threads(1)
    session.open_backend = LocalBackend  # type: ignore[assignment]
    make_model(PROJECT / "models" / "mine")
    for check in (check_credit, check_learning, check_loss, check_reward, check_episode):
        check()
    typed = [words for words in commands() if words[:3] != ["python", "-m", "pytest"]]
    for words in typed:
        assert words[0] == "python"
        type_it(words)
    check_training()
    check_model()
    table = (PROJECT / "results" / "tables" / "trial_runs.csv").read_text().splitlines()
    assert table[0].endswith(",algorithm/spread")
    for kind in ("pdf", "png"):
        assert (PROJECT / "results" / "figures" / f"trial_spread.{kind}").stat().st_size > 1000
    for method in ("rloo", "cispo"):
        page = (PROJECT / "docs" / "method" / f"{method}.md").read_text()
        assert "| `chains` | `8` |" in page
    assert "[`rloo`](rloo.md)" in (PROJECT / "docs" / "method" / "methods.md").read_text()
    print(f"all that the page says was run: {len(typed)} commands")


if __name__ == "__main__":
    main()
