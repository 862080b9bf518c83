"""The experiments on the theory: exact values against brute force, records and back, verdicts both ways."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.stats import CONTRADICTED, SUPPORTED, UNDECIDED, normal
from analysis.theory import comparisons
from analysis.theory import theorems as theory
from analysis.theory.comparisons import compared, records, verdict
from analysis.theory.records import MissingRecords
from experiments import theory as command
from rtpo import rtpo
from rtpo.algorithms import configured
from rtpo.errors import DataError
from rtpo.run.config import PROJECT
from rtpo.theory.continuation import ContinuationSettings, tail_weights, watched
from rtpo.theory.credit import CreditSettings, harness_on
from rtpo.theory.mdp import MDP, Table
from rtpo.theory.mdps import ladder, lock, mixing, uniform, visits, weight_moments
from rtpo.theory.order import OrderSettings, Regime, forward, in_order
from rtpo.theory.tabular import softmax, tasks
from rtpo.types import Role

CONFIG = configured("rtpo", kl=0.0, trunks=12, group_size=4)
TINY = {
    1: OrderSettings(mdps=1, seeds=(0, 1), sweep=Regime(1, 20, 3, 1e4), training=Regime(2, 4, 3, 8.0), every=1),
    2: CreditSettings(
        **{"mdps": 1, "paths": 600, "group_sizes": (3, 4), "chains": (3,), "least_cell": 20, "error_paths": 200},
        **{"least_sigma_v": 0.05, "least_sigma_a": 0.05},
        sizes=((2, 2), (2, 16)),
        sigmas=((0.3, 1.0, 0.3),),
    ),
    3: ContinuationSettings(
        **{"fresh_mdps": 1, "fresh_steps": 1, "fresh_trunks": 12, "stale_seeds": (0, 1)},
        **{"stale_turns": 4, "stale_trunks": 12},
    ),
}


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


# exact values


def test_exact_values_are_those_of_all_paths() -> None:
    mdp, logits = mixing(0, 3, 1, 0.1, 0.1, states=3, actions=2)
    old, new = softmax(logits), softmax(3 * logits[::-1])
    found = list(paths(mdp, old, 0, 0))
    assert sum(chance for chance, *_ in found) == pytest.approx(1)
    at = np.zeros(mdp.shape[:2])
    second = 0.0
    for chance, places, _ in found:
        for k, state, _ in places:
            at[k, state] += chance
        second += chance * float(np.prod([new[place] / old[place] for place in places])) ** 2
    assert visits(mdp, old) == pytest.approx(at)
    moments = weight_moments(mdp, old, new)
    assert moments[0, 0] == pytest.approx(second)
    assert second > 1.05
    assert weight_moments(mdp, old, old) == pytest.approx(np.ones_like(moments))


@pytest.mark.parametrize(("siblings", "chains"), [(2, 2), (2, 3), (3, 2)])
def test_error_formulas_are_those_of_all_coins(siblings: int, chains: int) -> None:
    """The estimators' errors and the factor, over every outcome of every path of a group."""
    sigma_v, sigma_a, sigma_xi = 0.3, 1.0, 0.5
    signs = (-1, 1)
    errors, products = [], []
    for v, *rest in product(signs, *[signs] * (2 * siblings)):
        a, xi = sigma_a * np.array(rest[:siblings]), sigma_xi * np.array(rest[siblings:])
        estimate = sigma_v * v + a + xi
        estimate = estimate - estimate.mean()
        errors.append((estimate[0] - a[0]) ** 2)
        products.append(estimate[0] * a[0])
    of_chains, slopes = [], []
    for coins in product(signs, repeat=3 * chains):
        v, a, xi = np.array(coins).reshape(3, chains) * np.array([[sigma_v], [sigma_a], [sigma_xi]])
        estimate = v + a + xi
        estimate = estimate - estimate.mean()
        of_chains.append((estimate[0] - a[0]) ** 2)
        slopes.append(estimate[0] * v[0] / sigma_v**2)
    general = comparisons.general(siblings, chains, sigma_v, sigma_a, sigma_xi)
    assert np.mean(of_chains) - np.mean(errors) == pytest.approx(general)
    assert np.mean(products) / sigma_a**2 == pytest.approx(comparisons.shrinkage(siblings + 1))
    assert np.mean(slopes) == pytest.approx(1 - 1 / chains)
    printed = comparisons.printed(siblings, chains, sigma_v, sigma_a, sigma_xi)
    assert (general == pytest.approx(printed)) == (siblings == chains)


# the algorithm's own code


def test_reversed_turns_in_order_are_rtpo_itself() -> None:
    mdp = lock(0)
    ends = []
    for step in (
        rtpo.step,
        lambda harness, tasks, config: in_order(harness, tasks, config, reversed(range(harness.max_turns))),
        forward,
    ):
        harness = harness_on(mdp, None, seed=3)
        for number in range(3):
            harness.end_step()
            harness.begin_step(number, 1000)
            harness.sync()
            step(harness, tasks(mdp), CONFIG)
        ends.append(harness.logits)
    assert np.abs(ends[0]).max() > 0.1
    assert np.array_equal(ends[0], ends[1])
    assert not np.allclose(ends[0], ends[2])


def test_tail_weights_are_products_of_ratios() -> None:
    """Of the turns after k alone, with nothing clamped, and for failures as for successes."""
    mdp = ladder(0, 4)
    harness = harness_on(mdp, None, 0)
    (siblings,) = harness.rollout(tasks(mdp), n=30, role=Role.SIBLING)
    harness.logits = 3 * np.random.default_rng(0).normal(size=mdp.shape)
    found = tail_weights(harness, siblings, 1, CONFIG)
    assert len(found) == 30
    for sibling in siblings:
        ratios = [3 * harness.policy[t.k, t.snapshot.state, t.output_ids[0]] for t in sibling.turns[2:]]
        assert found[sibling.uid] == pytest.approx(np.prod(ratios), rel=1e-4)
    assert max(found.values()) > CONFIG.tail_high
    assert {sibling.reward for sibling in siblings} == {0.0, 1.0}


def test_a_watched_step_is_the_step() -> None:
    mdp = lock(0)
    harness, config = harness_on(mdp, None, 0), replace(CONFIG, trunks=100)
    rtpo.step(harness, tasks(mdp), config)
    phases = watched(mdp, config, 1, 1.0, 0)
    assert [phase.k for phase in phases] == [3, 2, 1, 0]
    assert [phase.version for phase in phases] == [0, 1, 2, 3]
    assert phases[-1].policy[1:] == pytest.approx(harness.policy[1:], abs=1e-12)
    assert phases[-1].policy[0] == pytest.approx(uniform(mdp)[0])


# the rule


def estimates(*means: float, error: float = 0.01) -> pd.DataFrame:
    return compared([("", 0.5, mean, error, 1.0) for mean in means])


def above(*means: float, error: float = 0.01) -> str:
    return verdict(compared([("", 0.0, mean, error, 1.0) for mean in means]), above=True)


def test_closed_forms_are_judged_by_all_intervals_together() -> None:
    assert verdict(estimates(0.51), above=False) == SUPPORTED
    assert verdict(estimates(0.51, 0.53), above=False) == CONTRADICTED
    assert verdict(estimates(0.51, error=0.2), above=False) == UNDECIDED
    assert verdict(estimates(0.3, error=0.2), above=False) == UNDECIDED
    assert verdict(estimates(), above=False) == UNDECIDED
    # what contradicts alone does not among many
    assert verdict(estimates(0.521), above=False) == CONTRADICTED
    assert verdict(estimates(0.521, *[0.5] * 20), above=False) == SUPPORTED
    assert normal(20) > 3


def test_more_is_judged_by_the_sign() -> None:
    assert above(0.1, 0.2) == SUPPORTED
    assert above(0.1, -0.2) == CONTRADICTED
    assert above(0.1, 0.01) == UNDECIDED
    assert above() == UNDECIDED


def word(folder: Path, claim: str) -> str:
    """A claim's verdict."""
    theory.verdicts.cache_clear()
    return str(theory.verdicts(folder).set_index("Key").loc[claim, "Verdict"])


COMMITTED = PROJECT / "results" / "theory"


@pytest.mark.parametrize(
    ("claim", "form", "wrong"),
    [
        ("theorem_2a_factor", "shrinkage", lambda group_size: 1.0),
        ("theorem_2a_factor", "shrinkage", lambda group_size: (group_size - 1) / group_size),
    ],
)
def test_a_wrong_closed_form_is_rejected(claim: str, form: str, wrong: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert word(COMMITTED, claim) == SUPPORTED
    monkeypatch.setattr(comparisons, form, wrong)
    assert word(COMMITTED, claim) == CONTRADICTED


def test_a_wrong_difference_of_errors_is_rejected() -> None:
    def wrong(siblings: int, chains: int, *sigmas: float) -> float:
        return (1 - 1 / siblings) * sigmas[0] ** 2

    assert verdict(comparisons.differences(COMMITTED, wrong), above=False) == CONTRADICTED


# records and back


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records of a tiny run of every theorem."""
    folder = tmp_path_factory.mktemp("theory")
    for theorem, settings in TINY.items():
        command.measure(theorem, folder, settings)
    return folder


@pytest.fixture
def folder(tiny: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "theory"))


def test_the_same_settings_give_the_same_lines(tiny: Path, tmp_path: Path) -> None:
    command.measure(2, tmp_path, TINY[2])
    assert (tmp_path / "theorem_2.jsonl").read_bytes() == (tiny / "theorem_2.jsonl").read_bytes()


# wrong input


def test_missing_and_unfinished_records_name_their_command(folder: Path) -> None:
    (folder / "theorem_2.json").unlink()
    with pytest.raises(MissingRecords, match=r"theorem_2\.json .*python experiments/theory\.py 2"):
        records(2, folder)
    assert word(folder, "theorem_2a_factor") == "not run"
    assert word(folder, "theorem_3a_weights") == SUPPORTED


@pytest.mark.parametrize(
    ("file", "damage"), [("jsonl", ("{", "")), ("json", ("{", "")), ("json", ('"theorem": 1', '"theorem": 2'))]
)
def test_damaged_records_are_refused(folder: Path, file: str, damage: tuple[str, str]) -> None:
    path = folder / f"theorem_1.{file}"
    text = path.read_text()
    path.write_text(text.replace(*damage, 1))
    assert path.read_text() != text
    with pytest.raises(DataError, match="theorem_1"):
        theory.verdicts(folder)
