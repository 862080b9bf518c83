"""Small MDPs for the experiments on the theory, and exact moments of policies on them."""

from dataclasses import replace
from itertools import pairwise

import numpy as np

from rtpo.core.seeds import generator
from rtpo.theory.mdp import MDP, Table, action_values, advantages, backward_induction, softmax, state_values

TRIES = 100_000
"""most draws of a random MDP until one fits"""


def uniform(mdp: MDP) -> Table:
    """The policy of all-zero logits, [K, S, A]."""
    return np.full(mdp.shape, 1 / mdp.shape[2])


def greedy(values: Table) -> Table:
    """The policy that takes the best action (the first of equals), [K, S, A]. values: [K, S, A]."""
    return np.eye(values.shape[-1])[values.argmax(-1)]


def lock(seed: int, turns: int = 4, actions: int = 3) -> MDP:
    """Two corridors with Bernoulli rewards. One action of the start enters the better corridor, others the safe one.

    Later, a wrong action ends the episode: with reward 0 in the better corridor, with about 0.4 in the safe one. So a
    policy that is uniform in later turns does better in the safe one. Right actions, rewards and `slip` are random.
    """
    rng = generator(seed, "lock")
    best, good, fair, nothing = range(2 * turns - 1, 2 * turns + 3)  # the final states
    safe, better = [0, *range(1, turns)], [0, *range(turns, 2 * turns - 1)]  # each corridor's state, by turn
    transition = np.zeros((nothing + 1, actions, nothing + 1))
    transition[best:, :, nothing] = 1
    slip = rng.uniform(0.05, 0.15)  # chance that a turn ignores its action

    def fill(state: int, right: int, wrong: int, slips: list[int]) -> None:
        taken = np.where(np.arange(actions) == rng.integers(actions), right, wrong)
        transition[state, range(actions), taken] += 1 - slip
        transition[state][:, slips] += slip / len(slips)

    for k in range(turns):
        is_last = k + 1 == turns
        slips = [best, nothing] if is_last else [safe[k + 1], better[k + 1]]
        if k == 0:
            fill(0, better[1], safe[1], slips)
        else:
            fill(safe[k], good if is_last else safe[k + 1], fair, slips)
            fill(better[k], best if is_last else better[k + 1], nothing, slips)
    reward = np.zeros(nothing + 1)
    reward[[best, good, fair]] = rng.uniform(0.85, 1), rng.uniform(0.55, 0.65), rng.uniform(0.35, 0.45)
    terminal = frozenset({best, good, fair, nothing})
    return MDP(transition, reward, np.eye(nothing + 1)[0], turns, terminal, bernoulli=True)


def layered(seed: int, turns: int = 3, width: int = 3, actions: int = 3, gap: float = 0.08) -> MDP:
    """Layers of `width` states after the start. Each action has a random distribution over the next layer; the last
    layer has Bernoulli rewards. MDPs are drawn until `decision_gap` is at least `gap`. Raises ValueError after TRIES
    draws."""
    rng = generator(seed, "layered")
    layers = [[0], *(list(range(1 + width * k, 1 + width * (k + 1))) for k in range(turns))]
    states = layers[-1][-1] + 1
    for _ in range(TRIES):
        transition, reward = np.zeros((states, actions, states)), np.zeros(states)
        for layer, next_layer in pairwise(layers):
            transition[layer, :, next_layer[0] : next_layer[-1] + 1] = rng.dirichlet(
                np.full(width, 0.3), (len(layer), actions)
            )
        transition[layers[-1], :, 0] = 1
        reward[layers[-1]] = rng.random(width)
        mdp = MDP(transition, reward, np.eye(states)[0], turns, bernoulli=True)
        if decision_gap(mdp) >= gap:
            return mdp
    raise ValueError(f"none of {TRIES} layered MDPs has a gap of {gap}: ask for a smaller one")


def mixing(
    seed: int, turns: int, k: int, sigma_v: float, sigma_a: float, states: int = 4, actions: int = 3
) -> tuple[MDP, Table]:
    """An MDP and the logits of a policy on it. Any state may follow any other, episodes have all their turns, and
    rewards are Bernoulli. MDPs are drawn until their `deviations` at turn k are at least `sigma_v` and `sigma_a`.
    Raises ValueError after TRIES draws."""
    rng = generator(seed, "mixing")
    for _ in range(TRIES):
        transition = rng.dirichlet(np.full(states, 0.2), (states, actions))
        mdp = MDP(transition, rng.beta(0.3, 0.3, states), np.eye(states)[0], turns, bernoulli=True)
        logits = 0.5 * rng.normal(size=mdp.shape)
        drawn_v, drawn_a, _ = deviations(mdp, softmax(logits), k)
        if drawn_v >= sigma_v and drawn_a >= sigma_a:
            return mdp, logits
    raise ValueError(f"none of {TRIES} MDPs deviates by {sigma_v} and {sigma_a}: ask for less")


def ladder(seed: int, turns: int, actions: int = 3) -> MDP:
    """An MDP in which all turns count equally. In each state one random action goes a step up with chance 0.9, the
    others with chance 0.1. The chance of the Bernoulli reward is the share of steps climbed."""
    rng = generator(seed, "ladder")
    transition = np.zeros((turns + 1, actions, turns + 1))
    transition[turns, :, turns] = 1
    for state in range(turns):
        up = np.where(np.arange(actions) == rng.integers(actions), 0.9, 0.1)
        transition[state, :, state + 1], transition[state, :, state] = up, 1 - up
    return MDP(transition, np.arange(turns + 1) / turns, np.eye(turns + 1)[0], turns, bernoulli=True)


def three_coins(sigma_v: float, sigma_a: float, sigma_xi: float) -> MDP:
    """An MDP of two turns. Under a uniform policy the return is the sum of three independent fair coins: the state
    after the first turn (+-sigma_v), the second turn's action (+-sigma_a) and later noise (+-sigma_xi)."""
    transition, reward = np.zeros((11, 2, 11)), np.zeros(11)
    transition[0][:, [1, 2]] = 0.5
    transition[3:, :, 0] = 1
    for state, by_state in ((1, sigma_v), (2, -sigma_v)):
        for action, by_action in enumerate((sigma_a, -sigma_a)):
            ending = 3 + 4 * (state - 1) + 2 * action
            transition[state, action, ending : ending + 2] = 0.5
            reward[ending : ending + 2] = by_state + by_action + sigma_xi, by_state + by_action - sigma_xi
    return MDP(transition, reward, np.eye(11)[0], 2)


def visits(mdp: MDP, policy: Table) -> Table:
    """The chance that turn k is taken in state s, [K, S]. A row sums to the chance that the episode lasts so long."""
    continuing, chances, shares = ~mdp.is_terminal, mdp.start.copy(), []
    for k in range(mdp.horizon):
        shares.append(chances * continuing)
        chances = np.einsum("s,sa,sat->t", shares[-1], policy[k], mdp.transition)
    return np.array(shares)


def decisions(mdp: MDP) -> list[tuple[int, int]]:
    """The pairs (stage, state) that the uniform policy can reach."""
    return [(int(k), int(state)) for k, state in np.argwhere(visits(mdp, uniform(mdp)) > 0)]


def decision_gap(mdp: MDP) -> float:
    """The smallest difference, over all decisions, between the action values of the best and the second action."""
    ordered = np.sort(action_values(mdp, backward_induction(mdp)), -1)
    return min(float(ordered[decision][-1] - ordered[decision][-2]) for decision in decisions(mdp))


def return_variances(mdp: MDP, policy: Table) -> Table:
    """Var(R | S_k = s, u_k = a), [K, S, A]."""
    squares = mdp if mdp.bernoulli else replace(mdp, reward=mdp.reward**2)
    return action_values(squares, policy) - action_values(mdp, policy) ** 2


def deviations(mdp: MDP, policy: Table, k: int) -> tuple[float, float, float]:
    """The standard deviations at turn k: sigma_V of the state's value, sigma_A of the action's advantage, sigma_xi of
    the return's later noise. Assumes that every episode reaches turn k."""
    chances = visits(mdp, policy)[k]
    value = state_values(mdp, policy)[k]
    variance = chances @ value**2 - (chances @ value) ** 2
    advantage = chances @ (policy[k] * advantages(mdp, policy)[k] ** 2).sum(-1)
    noise = chances @ (policy[k] * return_variances(mdp, policy)[k]).sum(-1)
    return float(np.sqrt(variance)), float(np.sqrt(advantage)), float(np.sqrt(noise))


def weight_moments(mdp: MDP, old: Table, new: Table) -> Table:
    """E[w^2 | S_k = s], [K + 1, S], where `old` samples the actions from turn k on and w is the product of their ratios
    new / old. E[w | S_k = s] is 1."""
    moments, continuing = np.ones((mdp.horizon + 1, mdp.shape[1])), ~mdp.is_terminal
    for k in reversed(range(mdp.horizon)):
        next_moments = mdp.transition @ moments[k + 1]
        moments[k, continuing] = (new[k] ** 2 / old[k] * next_moments).sum(-1)[continuing]
    return moments
