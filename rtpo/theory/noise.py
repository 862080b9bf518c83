"""When RTPO's gradient of a turn has less noise than GRPO's at equal rollouts (docs/results/theory.md derives it).

f_k is the share of the return's variance that arises at turn k or later. It is 1 at turn 0.
"""

from rtpo.theory.mdp import Table


def break_even(turns: float, group_size: int) -> float:
    """f* for K turns and groups of G: RTPO's gradient of turn k has less noise than GRPO's if f_k < f*."""
    return (group_size - 2) / (1 + turns * (group_size - 1))


def noise_ratio(f: Table, group_size: int, chains: int) -> Table:
    """RTPO's gradient variance over GRPO's, by turn, [K]. f: f_k, [K]. chains: rollouts of GRPO, as many as RTPO's."""
    return f / break_even(len(f), group_size) * (1 - 1 / chains)
