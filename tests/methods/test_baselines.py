"""What holds for every algorithm of the registry, on the scripted engine."""

import re
import shutil
from collections import Counter
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from methods import TASKS, TRAINED, UngradableEnv, config_of, finished, one_step, parts_of
from scripted import CALL_1, always

from rtpo.algorithms import PROJECT, configured, load_algorithm
from rtpo.verbs import SequenceClip

FIXED = {"anchored", "arpo", "gigpo", "grpo", "grpo_state_values", "gspo", "refuel", "seeupo", "tree_grpo"}
"""those whose worst case is what every step uses"""


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize(("max_turns", "learning_rate"), [(1, 1e-3), (5, 0.3)])
def test_a_step_stays_in_its_worst_case_and_trains(name: str, max_turns: int, learning_rate: float) -> None:
    """Also where its first updates move the policy far."""
    config, settings = config_of(name), {"max_turns": max_turns, "max_context_tokens": 1024}
    harness = one_step(config, TASKS[:2], learning_rate=learning_rate, **settings)
    worst = 2 * load_algorithm(name).rollouts_per_task(config, max_turns)
    assert harness.ledger.rollouts == worst if name in FIXED else harness.ledger.rollouts <= worst
    assert harness.policy_version > 0 or max_turns == 1


@pytest.mark.parametrize("name", TRAINED)
def test_a_step_without_any_success_or_any_reward_trains_nothing(name: str) -> None:
    without_success = one_step(config_of(name), TASKS[:2], script=always(CALL_1))
    assert len(without_success.step_log.updates) > 0
    without_reward = one_step(config_of(name), TASKS[:2], make_env=UngradableEnv)
    assert not any(without_reward.updated)
    for harness in (without_success, without_reward):
        assert (harness.policy_version, harness.backend.steps) == (0, [])


@pytest.mark.parametrize("name", TRAINED)
def test_what_is_trained_is_what_was_sampled(name: str) -> None:
    """Every trained turn is one of the step's, after what the engine received, its ids and log-probs those of the
    engine, nothing else on the mask."""
    harness = one_step(config_of(name))
    received = {request.context_ids.tobytes() for request in harness.engine.requests}
    sampled = {id(turn) for path in harness.rollouts for turn in path.own_turns}
    assert any(harness.updated)
    for row in (row for rows in harness.updated for row in rows):
        assert {id(turn) for turn in row.turns} <= sampled
        assert {turn.context_ids.tobytes() for turn in row.turns} <= received
        assert row.ids[row.mask].tolist() == [int(i) for turn in row.turns for i in turn.output_ids]
        assert row.rollout_logprobs[row.mask].tolist() == [float(p) for turn in row.turns for p in turn.logprobs]
        assert np.array_equal(row.rollout_logprobs != 0, row.mask)
        assert not row.advantage[~row.mask].any()
        assert not row.weight[~row.mask].any()


@pytest.mark.parametrize("name", ["anchored", "arpo", "gigpo", "grpo", "gspo", "tree_grpo"])
@pytest.mark.parametrize("aggregation", ["path", "token"])
def test_whole_paths_weigh_the_same_or_their_tokens_do(name: str, aggregation: str) -> None:
    harness = one_step(config_of(name, aggregation=aggregation))
    (rows,) = harness.updated
    paths = {path.uid: path for paths in finished(harness).values() for path in paths}
    tokens, weights = Counter(dict.fromkeys(paths, 0)), Counter(dict.fromkeys(paths, 0.0))
    for row in rows:
        tokens[row.rollout_uid] += int(row.mask.sum())
        weights[row.rollout_uid] += float(row.weight.sum())
    assert tokens == {uid: sum(len(turn.output_ids) for turn in path.turns) for uid, path in paths.items()}
    assert list(weights.values()) == pytest.approx([1.0 if aggregation == "path" else tokens[uid] for uid in weights])


@pytest.mark.parametrize("name", ["anchored", "arpo", "gigpo", "grpo", "gspo", "seeupo", "tree_grpo"])
def test_the_two_training_contexts_differ_in_conditioning_only(name: str) -> None:
    """The ids after `strip_think` rollouts are the same, in the same paths with the same advantages and weights; what
    comes before them differs exactly where earlier thinking was stripped."""
    trained = {}
    prefixes = {}
    for context in ("recorded", "flattened"):
        harness = one_step(config_of(name, training_context=context), learning_rate=0.0)
        paths = {path.uid: path for path in harness.rollouts}
        trained[context], prefixes[context] = Counter(), {}
        for row in (row for rows in harness.updated for row in rows):
            for turn in row.turns:
                own = np.flatnonzero(row.mask & (row.turn_index == turn.k))
                trained[context].update(
                    (row.rollout_uid, turn.k, i, round(a, 5), round(w, 5))
                    for i, a, w in zip(*(c[own].tolist() for c in (row.ids, row.advantage, row.weight)), strict=True)
                )
                prefixes[context][row.rollout_uid, turn.k] = row.ids[: own[0]].tobytes()
    assert trained["recorded"] == trained["flattened"]
    thought = {(uid, k): any(4 in turn.output_ids for turn in paths[uid].turns[:k]) for uid, k in prefixes["recorded"]}
    assert {key: prefixes["recorded"][key] != prefixes["flattened"][key] for key in thought} == thought
    assert set(thought.values()) == {False, True}


def test_a_run_keeps_the_initial_policy_for_what_its_method_says() -> None:
    """Not for a number called kl that no loss has."""
    grpo, vanilla = load_algorithm("grpo"), load_algorithm("vanilla")
    kept = [grpo.has_reference(config_of("grpo", kl=kl)) for kl in (0.0, 0.02)]
    assert kept == [False, True]
    assert not vanilla.has_reference(config_of("vanilla", kl=0.02))
    assert replace(grpo, needs_reference=True).has_reference(config_of("grpo"))


AT_LIMITS: list[tuple[str, dict[str, Any]]] = [
    ("grpo", {"chains": 2}),
    ("rtpo", {"group_size": 3, "trunks": 1, "sync_every": 1, "tail_low": 1.0, "tail_high": 1.0}),
    ("rtpo", {"sync_kl": 1e-9}),
    ("rtpo", {"sync_every": None}),
    ("seeupo", {"chains": 2, "advantage_limit": 1e-9, "factor_low": 1.0, "factor_high": 1.0}),
    ("arpo", {"paths": 2, "roots": 1, "entropy_tokens": 1, "top_logprobs": 1}),
    ("arpo", {"roots": 16}),
    ("arpo", {"rule": "threshold", "tau": 0.5}),
    ("tree_grpo", {"trees": 1, "expansions": 1, "branches": 1}),
    ("tree_grpo", {"expansions": 0}),
    ("refuel", {"pairs": 1}),
    ("gigpo", {"chains": 2, "omega": 0.0}),
    ("anchored", {"forks": 14, "shrinkage": 1e-9, "fork_turn": "uniform"}),
    ("grpo_state_values", {"chains": 2, "continuations": 2, "order": "reverse", "fresh": True}),
]
BEYOND: list[tuple[str, dict[str, Any], str]] = [
    ("grpo", {"chains": 1}, "chains"),
    ("rtpo", {"group_size": 2, "trunks": 0, "training_context": "flattened"}, "group_size trunks training_context"),
    ("rtpo", {"sync_every": 0, "tail_low": 0.0}, "sync_every tail_low"),
    ("rtpo", {"sync_kl": 0.0, "tail_low": 1.1}, "sync_kl tail_low"),
    ("rtpo", {"sync_kl": 0.1, "sync_every": 2, "tail_high": 0.9}, "sync_kl tail_low"),
    ("seeupo", {"chains": 1, "advantage_limit": 0.0, "factor_low": 0.0}, "chains advantage_limit factor_low"),
    ("seeupo", {"factor_low": 1.1}, "factor_low"),
    ("seeupo", {"factor_high": 0.9}, "factor_low"),
    ("arpo", {"paths": 1, "roots": 1, "entropy_tokens": 0, "top_logprobs": 0}, "paths entropy_tokens top_logprobs"),
    ("arpo", {"roots": 0, "rule": "threshold"}, "paths rule"),
    ("arpo", {"roots": 17, "tau": 0.5}, "paths rule"),
    ("tree_grpo", {"trees": 0, "expansions": -1, "branches": 0}, "trees expansions branches trees"),
    ("tree_grpo", {"trees": 1, "expansions": 0}, "trees"),
    ("refuel", {"pairs": 0, "training_context": "flattened"}, "pairs training_context"),
    ("gspo", {"dual_clip": 3.0, "chains": 1}, "chains dual_clip"),
    ("gigpo", {"chains": 1, "omega": -1.0}, "chains omega"),
    ("gigpo", {"omega": float("nan")}, "omega"),
    ("anchored", {"chains": 1, "shrinkage": 0.0}, "chains shrinkage forks"),
    ("anchored", {"forks": 15, "fork_turn": 0}, "forks fork_turn"),
    ("rtpo_variants", {"trunks": 0, "group_size": 2, "forked": 0.0}, "trunks group_size forked"),
    ("rtpo_variants", {"training_context": "flattened", "forked": 1.5}, "training_context forked"),
    ("grpo_state_values", {"chains": 1, "continuations": 0}, "chains continuations"),
    ("grpo_state_values", {"training_context": "flattened", "order": "forward"}, "training_context order"),
    ("grpo_state_values", {"fresh": True, "continuations": 16}, "fresh"),
    ("grpo_state_values", {"fresh": True, "order": "reverse", "continuations": 8}, "fresh"),
]


@pytest.mark.parametrize(("name", "settings", "named"), [*((*each, "") for each in AT_LIMITS), *BEYOND])
def test_fields_are_refused_beyond_their_limits_alone(name: str, settings: dict[str, Any], named: str) -> None:
    """By the fields that the sentences begin with."""
    problems = load_algorithm(name).check(config_of(name, **settings))
    assert [problem.split()[0].removeprefix("algorithm.") for problem in problems] == named.split()


@pytest.mark.parametrize("name", TRAINED)
def test_a_path_is_one_line_of_the_records_with_all_its_own_turns(name: str) -> None:
    """However many pieces it was sampled in."""
    harness = one_step(config_of(name))
    lines, ledger = harness.step_log.paths, harness.ledger
    assert len(lines) == len({line["rollout"] for line in lines}) == ledger.rollouts
    assert sum(line["generated_tokens"] for line in lines) == ledger.generated_tokens
    assert sum(line["turns"] - line["start_k"] for line in lines) == ledger.turn_generations
    by_uid = {line["rollout"]: line for line in lines}
    for line in lines:
        assert (line["parent"] is None) == (line["start_k"] == 0 and line["role"] in ("chain", "trunk"))
        if line["parent"] is not None:
            assert by_uid[line["parent"]]["turns"] >= line["start_k"]


@pytest.mark.parametrize("name", TRAINED)
def test_a_method_has_the_loss_it_says_and_every_field_in_its_configuration(name: str) -> None:
    """A field that a configuration file leaves out would be one that records do not show. Of clip ranges a loss without
    one says nothing."""
    config, method = config_of(name, clip_low=1.5), load_algorithm(name)
    assert re.sub(r"\B([A-Z])", r" \1", type(config.loss).__name__).lower() == method.loss
    assert any("algorithm.clip_low" in problem for problem in config.loss.problems()) == hasattr(config.loss, "low")
    assert all(field.default is field.default_factory is MISSING for field in fields(config))


def test_gspo_is_grpo_under_a_clip_of_sequences() -> None:
    gspo, grpo = one_step(config_of("gspo")), one_step(config_of("grpo"))
    assert [parts_of(row) for row in gspo.updated[0]] == [parts_of(row) for row in grpo.updated[0]]
    assert gspo.losses == [SequenceClip(3e-4, 4e-4, "recompute", 0.0)]
    assert config_of("gspo", clip_low=0.1, clip_high=0.2, kl=0.5).loss == SequenceClip(0.1, 0.2, "recompute", 0.5)


@pytest.mark.parametrize("name", TRAINED)
def test_a_step_makes_its_epochs(name: str) -> None:
    once, twice = (one_step(config_of(name, epochs=n, minibatches=1), TASKS[:2], learning_rate=0.0) for n in (1, 2))
    assert len(twice.backend.steps) == 2 * len(once.backend.steps) > 0


def test_a_file_takes_the_defaults_of_another() -> None:
    assert configured("rtpo_off") == replace(configured("rtpo"), label="rtpo_off", sync_every=None)


def test_a_method_may_take_the_values_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(PROJECT / "configs", tmp_path / "configs")
    for package in ("rtpo", "baselines"):
        (tmp_path / package).symlink_to(PROJECT / package)
    own = {"name": "gspo", "label": "gspo_on_grpo", "old_logprobs": "recompute", "dual_clip": None}
    values = {"defaults": ["grpo", "_self_"], **own, "clip_low": 3e-4, "clip_high": 4e-4}
    (tmp_path / "configs" / "algorithm" / "gspo_on_grpo.yaml").write_text(yaml.safe_dump(values))
    monkeypatch.setattr("rtpo.algorithms.PROJECT", tmp_path)
    assert configured("gspo_on_grpo") == replace(configured("gspo"), label="gspo_on_grpo")
