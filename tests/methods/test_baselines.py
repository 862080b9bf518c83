"""What holds for every algorithm of the registry, on the scripted engine."""

import re
from collections import Counter
from dataclasses import fields, replace

import numpy as np
import pytest
from conftest import compose_config
from methods import TASKS, TRAINED, UngradableEnv, config_of, finished, one_step, parts_of
from scripted import CALL_1, always, solver

from rtpo.algorithms import load_algorithm
from rtpo.errors import ConfigError
from rtpo.types import Rollout, Turn
from rtpo.verbs import SequenceClip

FIXED = {"anchored", "arpo", "gigpo", "grpo", "grpo_state_values", "gspo", "refuel", "seeupo", "tree_grpo"}
"""those whose worst case is what every step uses"""


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize(("max_turns", "seed"), [(1, 0), (3, 0), (3, 1), (6, 1)])
def test_a_step_stays_in_its_worst_case_and_trains(name: str, seed: int, max_turns: int) -> None:
    config = config_of(name)
    harness = one_step(config, seed=seed, max_turns=max_turns, max_context_tokens=1024)
    worst = len(TASKS) * load_algorithm(name).rollouts_per_task(config, max_turns)
    assert harness.ledger.rollouts == worst if name in FIXED else harness.ledger.rollouts <= worst
    assert harness.policy_version > 0 or max_turns == 1


@pytest.mark.parametrize("name", TRAINED)
def test_a_step_without_any_success_is_harmless(name: str) -> None:
    harness = one_step(config_of(name), script=always(CALL_1))
    assert (harness.policy_version, harness.backend.steps) == (0, [])
    assert len(harness.step_log.updates) > 0


@pytest.mark.parametrize("name", TRAINED)
def test_a_step_goes_on_after_training_has_moved_the_policy_far(name: str) -> None:
    assert one_step(config_of(name), learning_rate=0.3).policy_version > 0


@pytest.mark.parametrize("name", TRAINED)
def test_paths_without_a_reward_are_not_trained(name: str) -> None:
    harness = one_step(config_of(name), make_env=UngradableEnv)
    assert [len(rows) for rows in harness.updated] == [0] * len(harness.updated)
    assert harness.policy_version == 0


@pytest.mark.parametrize("name", TRAINED)
def test_what_is_trained_is_what_was_sampled(name: str) -> None:
    """Every trained turn is one of the step's, after what the engine received, its ids and log-probs those of the
    engine, nothing else on the mask."""
    harness = one_step(config_of(name))
    received = {request.context_ids.tobytes() for request in harness.engine.requests}
    sampled = {id(turn) for path in harness.rollouts for turn in path.own_turns}
    for row in (row for rows in harness.updated for row in rows):
        assert {id(turn) for turn in row.turns} <= sampled
        assert {turn.context_ids.tobytes() for turn in row.turns} <= received
        assert row.ids[row.mask].tolist() == [int(i) for turn in row.turns for i in turn.output_ids]
        assert row.rollout_logprobs[row.mask].tolist() == [float(p) for turn in row.turns for p in turn.logprobs]
        assert np.array_equal(row.rollout_logprobs != 0, row.mask)
        assert not row.advantage[~row.mask].any()
        assert not row.weight[~row.mask].any()


@pytest.mark.parametrize("name", ["arpo", "refuel", "rtpo", "tree_grpo", "vineppo"])
def test_paths_from_a_boundary_share_its_past_its_context_and_its_environment(name: str) -> None:
    harness = one_step(config_of(name), script=solver(0.5))
    paths = {path.uid: path for path in harness.rollouts}
    forked: dict[tuple[str, int], list[Rollout]] = {}
    for path in harness.rollouts:
        if path.parent_uid is not None:
            forked.setdefault((path.parent_uid, path.start_k), []).append(path)
    assert max(k for _, k in forked) == 2
    for (parent, k), own in forked.items():
        both = [path for path in (paths[parent], *own) if len(path.turns) > k]
        assert all(path.turns[:k] == paths[parent].turns[:k] for path in own)
        assert len({path.turns[k].context_ids.tobytes() for path in both}) == 1
        assert len({path.turns[k].snapshot.digest for path in both}) == 1


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
    thought = {key: any(map(thinks, paths[key[0]].turns[: key[1]])) for key in prefixes["recorded"]}
    assert {key: prefixes["recorded"][key] != prefixes["flattened"][key] for key in thought} == thought
    assert set(thought.values()) == {False, True}


def thinks(turn: Turn) -> bool:
    return 4 in turn.output_ids


@pytest.mark.parametrize("name", TRAINED)
def test_the_descriptor_says_everything_the_comparison_shows(name: str) -> None:
    descriptor = load_algorithm(name)
    for text in (descriptor.plan, descriptor.credit, descriptor.schedule, descriptor.contexts, descriptor.trained):
        assert text
        assert not text.endswith(".")
    assert descriptor.check(config_of(name)) == []


def test_a_run_keeps_the_initial_policy_for_what_its_method_says() -> None:
    """Not for a number called kl that no loss has."""
    grpo, vanilla = load_algorithm("grpo"), load_algorithm("vanilla")
    kept = [grpo.has_reference(config_of("grpo", kl=kl)) for kl in (0.0, 0.02)]
    assert kept == [False, True]
    assert not vanilla.has_reference(config_of("vanilla", kl=0.02))
    assert replace(grpo, needs_reference=True).has_reference(config_of("grpo"))


@pytest.mark.parametrize("name", TRAINED)
def test_a_plan_that_cannot_fit_the_budget_is_refused(name: str) -> None:
    worst = load_algorithm(name).rollouts_per_task(compose_config(f"algorithm={name}").algorithm_config, 3)
    with pytest.raises(ConfigError, match=rf"budget\.rollouts is {worst - 1} and one task can take {worst} rollouts"):
        compose_config(f"algorithm={name}", f"budget.rollouts={worst - 1}", "task.max_turns=3")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("algorithm=seeupo algorithm.order=random", ["algorithm.order is 'random'", "'reverse' or 'forward'"]),
        ("algorithm=seeupo algorithm.chains=1", ["algorithm.chains is 1"]),
        ("algorithm=seeupo algorithm.advantage_limit=0", ["algorithm.advantage_limit is 0"]),
        ("algorithm=seeupo algorithm.factor_low=1.1", ["algorithm.factor_low is 1.1", "algorithm.factor_high 1.2"]),
        ("algorithm=seeupo algorithm.factor_high=0.9", ["algorithm.factor_high 0.9"]),
        ("algorithm=arpo algorithm.rule=paper", ["algorithm.rule is 'paper'", "'probabilistic' or 'threshold'"]),
        ("algorithm=arpo algorithm.advantage=mean", ["algorithm.advantage is 'mean'", "'soft' or 'hard'"]),
        ("algorithm=arpo algorithm.tau=0.5", ["algorithm.rule is probabilistic and algorithm.tau 0.5"]),
        ("algorithm=arpo algorithm.rule=threshold", ["algorithm.rule is threshold and algorithm.tau None"]),
        ("algorithm=arpo algorithm.roots=0", ["algorithm.paths is 16 and algorithm.roots 0"]),
        ("algorithm=arpo algorithm.roots=17", ["algorithm.paths is 16 and algorithm.roots 17"]),
        ("algorithm=arpo algorithm.paths=1", ["algorithm.paths is 1 "]),
        ("algorithm=arpo algorithm.top_logprobs=0", ["algorithm.top_logprobs is 0"]),
        ("algorithm=arpo algorithm.entropy_tokens=0", ["algorithm.entropy_tokens is 0"]),
        ("algorithm=arpo algorithm.aggregation=row", ["algorithm.aggregation is 'row'", "'path' or 'token'"]),
        ("algorithm=tree_grpo algorithm.trees=0", ["algorithm.trees is 0"]),
        ("algorithm=tree_grpo algorithm.branches=0", ["algorithm.branches is 0"]),
        ("algorithm=tree_grpo algorithm.expansions=-1", ["algorithm.expansions is -1"]),
        (
            "algorithm=tree_grpo algorithm.trees=1 algorithm.expansions=0",
            ["algorithm.trees is 1 and algorithm.expansions 0"],
        ),
        ("algorithm=refuel algorithm.pairs=0", ["algorithm.pairs is 0"]),
        ("algorithm=refuel algorithm.eta=0", ["algorithm.eta is 0"]),
        ("algorithm=refuel algorithm.training_context=flattened", ["algorithm.training_context is flattened"]),
        ("algorithm.sync_every=0", ["algorithm.sync_every is 0"]),
        ("algorithm.sync_kl=0.01 algorithm.sync_every=2", ["algorithm.sync_kl is 0.01", "algorithm.sync_every 2"]),
        ("algorithm.sync_kl=-1", ["algorithm.sync_kl is -1"]),
        ("algorithm.tail_low=0", ["algorithm.tail_low is 0"]),
        ("algorithm.tail_high=0.9", ["algorithm.tail_high 0.9"]),
        ("algorithm=gspo algorithm.dual_clip=3.0", ["algorithm.dual_clip is 3.0"]),
        ("algorithm=gspo algorithm.chains=1", ["algorithm.chains is 1"]),
        ("algorithm=gigpo algorithm.chains=1", ["algorithm.chains is 1"]),
        ("algorithm=gigpo algorithm.omega=-1", ["algorithm.omega is -1"]),
        ("algorithm=gigpo algorithm.omega=nan", ["algorithm.omega is nan"]),
        ("algorithm=anchored algorithm.shrinkage=0", ["algorithm.shrinkage is 0"]),
        ("algorithm=anchored algorithm.forks=15", ["algorithm.forks is 15 and algorithm.chains 16"]),
        ("algorithm=anchored_forks algorithm.fork_turn=0", ["algorithm.fork_turn is 0"]),
        ("algorithm=rtpo_variants algorithm.trunks=0", ["algorithm.trunks is 0"]),
        ("algorithm=rtpo_variants algorithm.group_size=2", ["algorithm.group_size is 2"]),
        ("algorithm=rtpo_variants algorithm.training_context=flattened", ["algorithm.training_context is flattened"]),
        ("algorithm=rtpo_variants algorithm.forked=0", ["algorithm.forked is 0"]),
        ("algorithm=rtpo_variants algorithm.forked=1.5", ["algorithm.forked is 1.5"]),
        ("algorithm=vineppo algorithm.continuations=0", ["algorithm.continuations is 0"]),
        ("algorithm=grpo_state_values algorithm.chains=1", ["algorithm.chains is 1"]),
        ("algorithm=grpo_state_values algorithm.continuations=0", ["algorithm.continuations is 0"]),
        ("algorithm=grpo_state_values algorithm.order=forward", ["algorithm.order is 'forward'"]),
        ("algorithm=grpo_state_values algorithm.fresh=true", ["algorithm.fresh is true", "algorithm.order together"]),
        ("algorithm=grpo_state_values_fresh algorithm.continuations=8", ["continuations 8", "algorithm.chains 16"]),
        (
            "algorithm=grpo_state_values algorithm.training_context=flattened",
            ["algorithm.training_context is flattened"],
        ),
    ],
)
def test_what_cannot_be_is_refused_by_the_names_of_its_fields(override: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        compose_config(*override.split())
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize("name", TRAINED)
def test_a_loss_knows_its_own_range(name: str) -> None:
    """Of clip ranges those say nothing whose loss has none."""
    assert re.sub(r"\B([A-Z])", r" \1", type(config_of(name).loss).__name__).lower() == load_algorithm(name).loss
    overrides = f"algorithm={name}", "algorithm.clip_low=1.5"
    if not hasattr(config_of(name).loss, "low"):
        assert compose_config(*overrides).algorithm_config.clip_low == 1.5
        return
    with pytest.raises(ConfigError, match=r"algorithm\.clip_low is 1\.5 .*use 0 < clip_low < 1 and clip_high > 0"):
        compose_config(*overrides)


@pytest.mark.parametrize("name", TRAINED)
def test_every_field_can_be_set(name: str) -> None:
    """A field that a configuration file leaves out would be one that records do not show."""
    config = load_algorithm(name).config
    assert set(compose_config(f"algorithm={name}").algorithm) == {field.name for field in fields(config)}


def test_replies_of_the_common_script_differ_in_outcome() -> None:
    paths = [path for paths in finished(one_step(config_of("grpo"))).values() for path in paths]
    assert {path.reward for path in paths} == {0.0, 1.0}


def test_gspo_is_grpo_under_a_clip_of_sequences() -> None:
    gspo, grpo = one_step(config_of("gspo")), one_step(config_of("grpo"))
    assert [parts_of(row) for row in gspo.updated[0]] == [parts_of(row) for row in grpo.updated[0]]
    assert gspo.losses == [SequenceClip(3e-4, 4e-4, "recompute", 0.0)]
    assert config_of("gspo", clip_low=0.1, clip_high=0.2, kl=0.5).loss == SequenceClip(0.1, 0.2, "recompute", 0.5)
