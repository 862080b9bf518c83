"""A step that was left between two phases goes on as if it had not been."""

import pickle
from collections.abc import Callable, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import remembering
from scripted import RecordingHarness, scripted_harness, solver

from baselines.ladder import grpo_state_values
from rtpo import rtpo
from rtpo.algorithms import configured
from rtpo.envs.toy.math import problems
from rtpo.errors import DataError, Stopped
from rtpo.harness.budget import Ledger
from rtpo.harness.durable import Done, DurableHarness
from rtpo.harness.harness import AgentHarness
from rtpo.rows import trajectory_rows
from rtpo.run.lines import sample_line
from rtpo.types import Role, Task
from rtpo.verbs import Harness, SequenceClip, TokenClip

TASKS = problems("train", 3, seed=4)
Program = Callable[[Harness, Sequence[Task]], None]


def reverse_turns(harness: Harness, tasks: Sequence[Task]) -> None:
    rtpo.step(harness, tasks, configured("rtpo", trunks=2, kl=0.02))


def every_verb(harness: Harness, tasks: Sequence[Task]) -> None:
    """Open paths, scores, random numbers and both kinds of update, with synchronisations in between; the results are
    changed, and the first verb is one that a step may not be left at."""
    harness.sync()
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


def outside_the_budget(harness: Harness, tasks: Sequence[Task]) -> None:
    fields = {"order": "reverse", "fresh": True, "chains": 4, "continuations": 4, "kl": 0.02}
    grpo_state_values.step(harness, tasks, configured("grpo_state_values", **fields))


def with_notes(harness: Harness, tasks: Sequence[Task]) -> None:
    remembering.step(harness, tasks, configured("rtpo", kl=0.02))


def in_memory() -> RecordingHarness:
    return scripted_harness(solver(0.4), reserve=90, learning_rate=0.01)


def outcome(harness: RecordingHarness) -> dict[str, Any]:
    """Everything a step leaves, but seconds and synchronisations: a new engine needs one more."""
    log = harness.end_step()
    ledger = harness.ledger.as_dict()
    del ledger["seconds"], ledger["syncs"]
    return {
        "rollouts": [sample_line(0, rollout, log.trained) for rollout in log.samples],
        "logprobs": [turn.logprobs.tolist() for r in log.samples for turn in r.own_turns],
        "paths": log.paths,
        "calls": log.rollouts,
        "updates": log.updates,
        "notes": (log.numbers, harness.state),
        "version": harness.policy_version,
        "weights": harness.backend.weights,
        "ledger": ledger,
    }


def left_at(program: Program, places: Sequence[int], folder: Path) -> tuple[RecordingHarness, int]:
    """The harness that ends a step which was left, after a save as a run makes it, when so many verbs were done. Each
    time a new harness and engine go on, as in a new process. And the number of requests to all of them."""
    harness, done, requests = in_memory(), list[Done](), 0

    def leave_at(place: int) -> Callable[[list[Done]], None]:
        def leave(so_far: list[Done]) -> None:
            assert len(so_far) >= len(done)
            if len(so_far) == place:
                saved = so_far, harness.ledger.as_dict(), harness.save(folder)
                (folder / "state.pkl").write_bytes(pickle.dumps(saved))
                raise Stopped("asked to stop")

        return leave

    for place in places:
        with pytest.raises(Stopped):
            program(DurableHarness(harness, done, leave_at(place)), TASKS)
        requests += len(harness.engine.requests)
        harness = in_memory()
        done, ledger, state = pickle.loads((folder / "state.pkl").read_bytes())
        harness.ledger = Ledger.from_dict(ledger)
        harness.load(folder, state)
    program(DurableHarness(harness, done, lambda so_far: None), TASKS)
    return harness, requests + len(harness.engine.requests)


@pytest.mark.parametrize("program", [reverse_turns, every_verb, outside_the_budget, with_notes])
def test_a_step_left_between_phases_goes_on_as_if_never_left(program: Program, tmp_path: Path) -> None:
    """Left once, or at each place."""
    reference, places = in_memory(), list[int]()
    program(reference, TASKS)
    whole, syncs = outcome(reference), reference.ledger.syncs
    assert whole["version"] > 1
    program(DurableHarness(in_memory(), [], lambda done: places.append(len(done))), TASKS)
    assert places == sorted({*places} - {0})
    assert len(places) >= (2 if program is with_notes else 3)
    for chosen in ([], *([place] for place in places), places):
        ended, requests = left_at(program, chosen, tmp_path)
        assert outcome(ended) == whole
        assert 0 <= ended.ledger.syncs - syncs <= len(chosen)
        assert requests == len(reference.engine.requests)


def test_verbs_have_the_same_default_arguments() -> None:
    for verb in ("rollout", "score", "reference", "update", "sync", "log", "random"):
        signatures = [signature(getattr(harness, verb)).parameters for harness in (DurableHarness, AgentHarness)]
        ours, theirs = ({name: each.default for name, each in parameters.items()} for parameters in signatures)
        assert ours == theirs


def test_another_verb_than_the_one_done_is_refused() -> None:
    done = [Done("rollout", []), Done("update", None)]
    harness = DurableHarness(in_memory(), done, lambda so_far: None)
    harness.rollout(TASKS, n=1, role=Role.CHAIN)
    with pytest.raises(DataError, match=r"'update'.*'sync'"):
        harness.sync()
