"""The experiments on the theory: exact values against brute force, records and back, verdicts both ways."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.stats import CONTRADICTED, SUPPORTED, UNDECIDED
from analysis.theory import comparisons
from analysis.theory import theorems as theory
from analysis.theory.comparisons import MissingRecords, compared, records, verdict
from experiments import theory as command
from rtpo import rtpo
from rtpo.algorithms import configured
from rtpo.errors import DataError
from rtpo.run.config import PROJECT
from rtpo.theory.continuation import ContinuationSettings, record_phases, tail_weights
from rtpo.theory.credit import harness_on
from rtpo.theory.mdp import MDP, Table, softmax
from rtpo.theory.mdps import ladder, lock, mixing, uniform, visits, weight_moments
from rtpo.theory.noise import break_even, noise_ratio
from rtpo.theory.tabular import tasks
from rtpo.types import Role

CONFIG = configured("rtpo", kl=0.0, trunks=12, group_size=4)
COMMITTED = PROJECT / "results" / "theory"


def paths(mdp: MDP, policy: Table, k: int, state: int) -> Iterator[tuple[float, list[tuple[int, int, int]], int]]:
    """Every path from a state at stage k: its chance, its stages, states and actions, and the state it ends in."""
    if k == mdp.horizon or mdp.is_terminal[state]:
        yield 1.0, [], state
        return
    for action, after in product(range(mdp.shape[2]), range(mdp.shape[1])):
        chance = policy[k, state, action] * mdp.transition[state, action, after]
        if chance:
            for rest, places, end in paths(mdp, policy, k + 1, after):
                yield chance * rest, [(k, state, action), *places], end


def test_exact_values_are_those_of_all_paths() -> None:
    mdp, logits = mixing(0, 3, 1, 0.1, 0.1, states=3, actions=2)
    old, new = softmax(logits), softmax(3 * logits[::-1])
    whole = list(paths(mdp, old, 0, 0))
    assert sum(chance for chance, *_ in whole) == pytest.approx(1)
    at = np.zeros(mdp.shape[:2])
    second = 0.0
    for chance, places, _ in whole:
        for k, state, _ in places:
            at[k, state] += chance
        second += chance * float(np.prod([new[place] / old[place] for place in places])) ** 2
    assert visits(mdp, old) == pytest.approx(at)
    moments = weight_moments(mdp, old, new)
    assert moments[0, 0] == pytest.approx(second)
    assert second > 1.05
    assert weight_moments(mdp, old, old) == pytest.approx(np.ones_like(moments))


def test_tail_weights_are_products_of_ratios() -> None:
    """Of the turns after k alone, with nothing clamped, and for failures as for successes."""
    mdp = ladder(0, 4)
    harness = harness_on(mdp, None, 0)
    (siblings,) = harness.rollout(tasks(mdp), n=30, role=Role.SIBLING)
    harness.logits = 3 * np.random.default_rng(0).normal(size=mdp.shape)
    weights = tail_weights(harness, siblings, 1, CONFIG)
    assert len(weights) == 30
    for sibling in siblings:
        ratios = [3 * harness.policy[t.k, t.snapshot.state, t.output_ids[0]] for t in sibling.turns[2:]]
        assert weights[sibling.uid] == pytest.approx(np.prod(ratios), rel=1e-4)
    assert max(weights.values()) > CONFIG.tail_high
    assert {sibling.reward for sibling in siblings} == {0.0, 1.0}


def test_a_watched_step_is_the_step() -> None:
    mdp = lock(0)
    harness, config = harness_on(mdp, None, 0), replace(CONFIG, trunks=100)
    rtpo.step(harness, tasks(mdp), config)
    phases = record_phases(mdp, config, 1, 1.0, 0)
    assert [phase.k for phase in phases] == [3, 2, 1, 0]
    assert [phase.version for phase in phases] == [0, 1, 2, 3]
    assert phases[-1].policy[1:] == pytest.approx(harness.policy[1:], abs=1e-12)
    assert phases[-1].policy[0] == pytest.approx(uniform(mdp)[0])


def test_all_intervals_together_give_the_verdict() -> None:
    """On a closed form, and on more than it."""
    for means, error, of_closed, of_sign in (
        ((), 0.01, UNDECIDED, UNDECIDED),
        ((0.01,), 0.01, SUPPORTED, UNDECIDED),
        ((0.1, 0.2), 0.01, CONTRADICTED, SUPPORTED),
        ((0.1, -0.2), 0.01, CONTRADICTED, CONTRADICTED),
        ((-0.2,), 0.2, UNDECIDED, UNDECIDED),
        # what contradicts alone does not among many
        ((0.021,), 0.01, CONTRADICTED, SUPPORTED),
        ((0.021, *[0.0] * 20), 0.01, SUPPORTED, UNDECIDED),
    ):
        estimates = compared([("", 0.5, 0.5 + mean, error, 1.0) for mean in means])
        assert (verdict(estimates, above=False), verdict(estimates, above=True)) == (of_closed, of_sign)


def test_wrong_closed_forms_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = comparisons.differences(COMMITTED, lambda siblings, chains, *sigmas: (1 - 1 / siblings) * sigmas[0] ** 2)
    monkeypatch.setattr(comparisons, "shrinkage", lambda group_size: (group_size - 1) / group_size)
    assert verdict(errors, above=False) == verdict(comparisons.factors(COMMITTED), above=False) == CONTRADICTED


@pytest.mark.parametrize(("theorem", "lines"), [(1, 5), (2, 1), (3, 40)])
def test_the_first_committed_measurements_are_made_again(theorem: int, lines: int) -> None:
    """Of reverse order with and without fresh continuations, of forward order; of G = 3; of weights and returns."""
    make, settings = command.THEOREMS[theorem]
    with (COMMITTED / f"theorem_{theorem}.jsonl").open() as file:
        committed = [json.loads(line) for line in islice(file, lines)]
        made = list(islice(make(settings), lines))
        assert len(committed) == len(made) == lines
        for line, again in zip(committed, made, strict=True):
            for name in (name for name, value in line.items() if isinstance(value, int | float | str)):
                assert again[name] == pytest.approx(line[name]), (line, name)


def stopped_after_a_line(stop: type[BaseException], _: object) -> Iterator[dict[str, Any]]:
    yield {}
    raise stop


def test_records_are_written_and_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a tiny run of Theorem 3, without those of the others."""
    tiny = ContinuationSettings(fresh_mdps=1, fresh_steps=1, fresh_trunks=12, stale_seeds=(0, 1), stale_turns=4)
    command.measure(3, tmp_path, replace(tiny, stale_trunks=12))
    manifest, lines = records(3, tmp_path)
    assert len(lines) == manifest["lines"] > 0
    verdicts = theory.verdicts(tmp_path).set_index("Key")["Verdict"]
    assert (verdicts["theorem_2a_factor"], verdicts["theorem_3a_weights"]) == ("not run", SUPPORTED)
    made = [(tmp_path / f"theorem_3.{kind}").read_bytes() for kind in ("json", "jsonl")]
    for stop in (KeyboardInterrupt, MemoryError):
        monkeypatch.setitem(command.THEOREMS, 3, (partial(stopped_after_a_line, stop), tiny))
        with pytest.raises(stop):
            command.measure(3, tmp_path)
        # what was there stays until the end
        assert [(tmp_path / f"theorem_3.{kind}").read_bytes() for kind in ("json", "jsonl")] == made
    with pytest.raises(MissingRecords, match=r"theorem_2\.json .*python experiments/theory\.py 2"):
        records(2, tmp_path)


def test_damaged_records_are_refused(tmp_path: Path) -> None:
    shutil.copytree(COMMITTED, tmp_path, dirs_exist_ok=True)
    for file, *damage in (("jsonl", "{", ""), ("json", "{", ""), ("json", '"theorem": 1', '"theorem": 2')):
        text = (path := tmp_path / f"theorem_1.{file}").read_text()
        path.write_text(text.replace(*damage, 1))
        assert path.read_text() != text
        with pytest.raises(DataError, match="theorem_1"):
            theory.verdicts(tmp_path)
        path.write_text(text)


def test_the_ratio_of_noises_is_that_of_the_variances_of_two_means() -> None:
    """Of M(G - 2) free siblings' returns, whose variance is the share f, and of N - 1 free chains'."""
    trunks, group_size, f = 4, 5, np.array([1.0, 0.3, 0.02])
    chains = trunks * (1 + len(f) * (group_size - 1))
    assert noise_ratio(f, group_size, chains) == pytest.approx(f * (chains - 1) / (trunks * (group_size - 2)))
    assert (noise_ratio(f, group_size, 10**9) < 1).tolist() == (f < break_even(len(f), group_size)).tolist()
