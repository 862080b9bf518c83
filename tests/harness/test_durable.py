"""A step that was left between two phases goes on as if it had not been."""

import pickle
from collections.abc import Callable, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted import RecordingHarness, scripted_harness, solver

from baselines.ladder import grpo_state_values
from rtpo import rtpo
from rtpo.algorithms import configured
from rtpo.envs.toy.math import problems
from rtpo.errors import Stopped
from rtpo.harness.budget import Ledger
from rtpo.harness.durable import Done, DurableHarness
from rtpo.harness.harness import AgentHarness
from rtpo.rows import trajectory_rows
from rtpo.run.run import sample_line
from rtpo.types import Role, Task
from rtpo.verbs import Harness, SequenceClip, TokenClip

TASKS = problems("train", 3, seed=4)
Program = Callable[[Harness, Sequence[Task]], None]


def reverse_turns(harness: Harness, tasks: Sequence[Task]) -> None:
    rtpo.step(harness, tasks, configured("rtpo", trunks=2, kl=0.02))


def every_verb(harness: Harness, tasks: Sequence[Task]) -> None:
    """Open paths, scores, random numbers and both kinds of update, with synchronisations in between."""
    groups = harness.rollout(tasks, n=3, role=Role.CHAIN, turns=1)
    harness.sync()
    for _ in range(2):
        tips = [path.tip for group in groups for path in group if path.tip is not None]
        groups += harness.rollout(tips, n=1, role=Role.BRANCH, turns=1)
        harness.sync()
    chains = [path for group in groups for path in group if path.tip is None]
    signs = harness.random("signs").choice([-1.0, 1.0], size=len(chains))
    for k, loss in enumerate((TokenClip(), SequenceClip())):
        rows = [
            row
            for chain, sign in zip(chains, signs, strict=True)
            for row in trajectory_rows(chain, "recorded", float(sign), 1.0, chain.task.uid, first_k=0)
        ]
        scores = harness.score(rows)
        drift = scores[0].mean() - harness.reference(rows)[0].mean()
        harness.update(rows[k:], loss, epochs=2)
        signs = signs * np.sign(scores[0].mean() - harness.score(rows)[0].mean() + drift + 1e-6)
        harness.sync()


def beside_the_budget(harness: Harness, tasks: Sequence[Task]) -> None:
    fields = {"order": "reverse", "fresh": True, "chains": 4, "continuations": 4, "kl": 0.02}
    grpo_state_values.step(harness, tasks, configured("grpo_state_values", **fields))


PROGRAMS = pytest.mark.parametrize("program", [reverse_turns, every_verb, beside_the_budget])


def never(done: list[Done]) -> None:
    return None


def in_memory(**settings: Any) -> RecordingHarness:
    return scripted_harness(solver(0.4), reserve=90, learning_rate=0.01, **settings)


def outcome(harness: RecordingHarness) -> dict[str, Any]:
    """Everything a step leaves, but seconds and synchronisations: a new engine needs one more."""
    ledger = harness.ledger.as_dict()
    del ledger["seconds"], ledger["syncs"]
    return {
        "rollouts": [sample_line(0, rollout, harness.step_log.trained) for rollout in harness.step_log.samples],
        "logprobs": [turn.logprobs.tolist() for r in harness.step_log.samples for turn in r.own_turns],
        "calls": harness.step_log.rollouts,
        "updates": harness.step_log.updates,
        "version": harness.policy_version,
        "weights": harness.backend.weights,
        "ledger": ledger,
    }


class Interruption:
    """Leaves a step at the n-th place it may be left at, after saving as a run does."""

    def __init__(self, harness: RecordingHarness, folder: Path, place: int) -> None:
        self._harness, self._folder, self._place, self._looks = harness, folder, place, 0

    def __call__(self, done: list[Done]) -> None:
        self._looks += 1
        if self._looks == self._place:
            state = {
                "done": done,
                "ledger": self._harness.ledger.as_dict(),
                "harness": self._harness.save(self._folder),
            }
            (self._folder / "state.pkl").write_bytes(pickle.dumps(state))
            raise Stopped("asked to stop")


def resumed(folder: Path) -> tuple[RecordingHarness, list[Done]]:
    """A new harness and engine, as in a new process, that go on from a save."""
    state = pickle.loads((folder / "state.pkl").read_bytes())
    harness = in_memory()
    harness.ledger = Ledger.from_dict(state["ledger"])
    harness.load(folder, state["harness"])
    return harness, state["done"]


def places(program: Program) -> int:
    looks: list[int] = []
    program(DurableHarness(in_memory(), [], lambda done: looks.append(len(done))), TASKS)
    assert looks == sorted(set(looks))
    return len(looks)


def uninterrupted(program: Program) -> RecordingHarness:
    harness = in_memory()
    program(harness, TASKS)
    return harness


@pytest.mark.parametrize("verb", ["rollout", "score", "reference", "update", "sync", "log", "random"])
def test_what_is_not_said_of_a_verb_is_the_same(verb: str) -> None:
    ours, theirs = (signature(getattr(harness, verb)).parameters.items() for harness in (DurableHarness, AgentHarness))
    assert {name: each.default for name, each in ours} == {name: each.default for name, each in theirs}


@PROGRAMS
def test_remembering_changes_nothing(program: Program) -> None:
    harness = in_memory()
    program(DurableHarness(harness, [], never), TASKS)
    assert outcome(harness) == outcome(uninterrupted(program))
    assert harness.policy_version > 1


@PROGRAMS
def test_a_step_left_between_any_two_phases_goes_on_as_if_never_left(program: Program, tmp_path: Path) -> None:
    reference = uninterrupted(program)
    whole = outcome(reference)
    assert places(program) >= 3
    for place in range(1, places(program) + 1):
        folder = tmp_path / str(place)
        harness = in_memory()
        with pytest.raises(Stopped):
            program(DurableHarness(harness, [], Interruption(harness, folder, place)), TASKS)
        again, done = resumed(folder)
        requests = len(again.engine.requests)
        program(DurableHarness(again, done, never), TASKS)
        assert outcome(again) == whole
        assert again.ledger.syncs - reference.ledger.syncs in (0, 1)
        already = sum(len(p.own_turns) for d in done if d.verb == "rollout" for group in d.result for p in group)
        assert len(again.engine.requests) - requests == len(reference.engine.requests) - already


def test_a_step_can_be_left_again_and_again(tmp_path: Path) -> None:
    harness = in_memory()
    done: list[Done] = []
    for place in range(places(reverse_turns)):
        folder = tmp_path / str(place)
        # a step that was gone on with looks again where it was left
        leave = Interruption(harness, folder, 1 if place == 0 else 2)
        with pytest.raises(Stopped):
            reverse_turns(DurableHarness(harness, done, leave), TASKS)
        harness, done = resumed(folder)
    reverse_turns(DurableHarness(harness, done, never), TASKS)
    assert outcome(harness) == outcome(uninterrupted(reverse_turns))


def test_a_step_is_not_left_among_verbs_already_done() -> None:
    seen: list[int] = []
    done = [Done("rollout", []), Done("sync", 0), Done("score", [])]
    harness = DurableHarness(in_memory(), done, lambda done: seen.append(len(done)))
    harness.rollout(TASKS, n=1, role=Role.TRUNK)
    harness.sync()
    harness.score([])
    assert seen == []
    harness.sync()
    assert seen == [3]


def test_what_an_algorithm_does_to_a_result_does_not_change_what_is_remembered() -> None:
    harness = DurableHarness(in_memory(), [], never)
    groups = harness.rollout(TASKS, n=1, role=Role.CHAIN)
    groups += harness.rollout(TASKS, n=2, role=Role.CHAIN)
    assert [len(d.result) for d in harness.done] == [3, 3]
    again = DurableHarness(in_memory(), harness.done, never)
    again.rollout(TASKS, n=1, role=Role.CHAIN).clear()
    assert [len(d.result) for d in again.done] == [3, 3]


def test_another_verb_than_the_one_done_is_refused() -> None:
    done = [Done("rollout", []), Done("update", None)]
    harness = DurableHarness(in_memory(), done, never)
    harness.rollout(TASKS, n=1, role=Role.CHAIN)
    with pytest.raises(RuntimeError, match=r"'update'.*'sync'"):
        harness.sync()


def test_the_log_of_the_verbs_before_is_kept(tmp_path: Path) -> None:
    harness = in_memory()
    with pytest.raises(Stopped):
        reverse_turns(DurableHarness(harness, [], Interruption(harness, tmp_path, 2)), TASKS)
    before = outcome(harness)
    again, done = resumed(tmp_path)
    assert [d.verb for d in done] == ["rollout", "sync", "rollout", "update"]
    assert outcome(again) == before
    assert len(before["updates"]) == 1
    reverse_turns(DurableHarness(again, done, never), TASKS)
    log = again.end_step()
    assert log.updates[:1] == before["updates"]
    assert [update["trained_turns"] for update in log.updates] == [[2], [1], [0]]
    assert again.ledger.reserved == 0


def test_verbs_already_done_are_not_done_again() -> None:
    first = DurableHarness(in_memory(), [], never)
    groups = first.rollout(TASKS, n=1, role=Role.CHAIN)
    harness = in_memory()
    second = DurableHarness(harness, first.done, never)
    assert second.rollout(TASKS, n=1, role=Role.CHAIN) == groups
    assert (harness.engine.requests, harness.ledger.rollouts) == ([], 0)
    second.rollout(TASKS, n=1, role=Role.CHAIN)
    assert harness.ledger.rollouts == 3
    assert [d.verb for d in second.done] == ["rollout", "rollout"]
    assert [d.verb for d in first.done] == ["rollout"]
