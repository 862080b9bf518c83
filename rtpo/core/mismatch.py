"""How far the trained distribution is from the one that was sampled (fig. two_results of the paper).

Measured on trained tokens before the first optimizer step of every update, in nats. The log-ratio d of a token splits:

    d = [log p_train(u | training context) - log p_train(u | c_k)] + [log p_train(u | c_k) - log p_engine(u | c_k)]
        the context part                                              the engine part

The engine part includes what the policy has learnt since it sampled, in all updates of a step but those after a
synchronisation.

For each of d and its parts, over all tokens and over those of each turn k:

    mismatch/[turn_<k>/][context/|engine/]ratio_gm   exp(mean d), the geometric mean of the ratio, 1 without mismatch
    mismatch/[turn_<k>/][context/|engine/]kl_k1      -mean d, estimates KL(rollout || train) without bias
    mismatch/[turn_<k>/][context/|engine/]kl_k3      mean(exp(d) - 1 - d), the same KL with less variance; d is clamped
                                                     to [-10, 10] here, which can bias it

ratio_gm = exp(-kl_k1), and kl_k1 is the sum of its parts. A mean hides tails. So the engine part has four more
measures, over all tokens:

    mismatch/engine/largest       the largest |d|
    mismatch/engine/quantile_999  the 99.9 % quantile of |d|
    mismatch/engine/beyond_half   share of tokens with |d| above 0.5
    mismatch/engine/kl_clipped    as kl_k3, with d clamped to [-1, 1]. An engine with old weights raises it, since it
                                  changes d of most tokens; a few outlying tokens hardly raise it
"""

import numpy as np
import numpy.typing as npt

from rtpo.core.losses import LOG_RATIO_LIMIT
from rtpo.core.names import counted
from rtpo.errors import NonFinite

CLIP = 1.0


def mismatch(
    logp_train: npt.ArrayLike,
    logp_recorded: npt.ArrayLike,
    logp_engine: npt.ArrayLike,
    turn_index: npt.ArrayLike,
) -> dict[str, float]:
    """The metrics of the module's table, from four arrays with one entry for each trained token.

    logp_train: the trainer's log-probs in the training context; logp_recorded: the trainer's in the recorded c_k;
    logp_engine: as sampled. All at the sampling temperature. Raises ValueError for arrays that are empty or differ in
    length, and NonFinite for NaN or infinity.
    """
    turns = np.asarray(turn_index)
    train = _log_probs("logp_train", logp_train, turns)
    recorded = _log_probs("logp_recorded", logp_recorded, turns)
    engine = _log_probs("logp_engine", logp_engine, turns)
    parts = {"": train - engine, "context/": train - recorded, "engine/": recorded - engine}
    turn_masks = {k: turns == k for k in np.unique(turns).tolist()}
    metrics: dict[str, float] = {}
    for part, log_ratio in parts.items():
        metrics |= _measures(f"mismatch/{part}", log_ratio)
        for k, mask in turn_masks.items():
            metrics |= _measures(f"mismatch/turn_{k}/{part}", log_ratio[mask])
    size = np.abs(parts["engine/"])
    tails = {
        "largest": size.max(),
        "quantile_999": np.quantile(size, 0.999),
        "beyond_half": np.mean(size > 0.5),
        "kl_clipped": _k3(parts["engine/"], CLIP),
    }
    return metrics | {f"mismatch/engine/{name}": float(value) for name, value in tails.items()}


def _log_probs(name: str, values: npt.ArrayLike, turns: npt.NDArray[np.int_]) -> npt.NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.shape != turns.shape or not len(array):
        raise ValueError(f"{name} has shape {array.shape}, turn_index {turns.shape}: give one entry per trained token")
    if not np.isfinite(array).all():
        count = int((~np.isfinite(array)).sum())
        raise NonFinite(
            f"{name} is NaN or infinite for {count} of {counted(len(array), 'trained token')}; check the model that "
            "scored them."
        )
    return array


def _measures(prefix: str, log_ratio: npt.NDArray[np.float64]) -> dict[str, float]:
    mean = float(log_ratio.mean())
    return {
        f"{prefix}ratio_gm": float(np.exp(mean)),
        f"{prefix}kl_k1": 0.0 - mean,
        f"{prefix}kl_k3": _k3(log_ratio, LOG_RATIO_LIMIT),
    }


def _k3(log_ratio: npt.NDArray[np.float64], limit: float) -> float:
    clamped = log_ratio.clip(-limit, limit)
    return float(np.mean(np.exp(clamped) - 1 - clamped))
