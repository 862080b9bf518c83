"""Contexts c_k from sampled turns, on token ids (psi in Sec. 3.1 of the paper). `rtpo.harness.episodes` encodes c_0 and
calls this module for each later context.

Two settings are always explicit. `rollout_context` is what the policy sees of its earlier turns: without their thinking
(`strip_think`, Qwen3's rule) or with it (`full`). `training_context` is what an update conditions on: the recorded c_k,
or the flattened history (`flattened_context`). If thinking was stripped, the policy did not see the flattened history.
Sampled ids are dropped or kept, never changed.
"""

from collections.abc import Sequence

import numpy as np

from rtpo.core.chat import THINK_CLOSE, THINK_OPEN, ThinkTags
from rtpo.core.names import counted
from rtpo.errors import ConfigError
from rtpo.types import Ids, RolloutContext, Turn, as_ids


def check_context(mode: RolloutContext, tags: ThinkTags) -> None:
    """Raises ConfigError if thinking is to be stripped and the tokenizer lacks one of its tags as a single token."""
    missing = [tag for tag, token in ((THINK_OPEN, tags.open_id), (THINK_CLOSE, tags.close_id)) if token is None]
    if mode == "strip_think" and missing:
        raise ConfigError(
            f"rollout_context is strip_think, and the tokenizer does not have {' and '.join(missing)} as one "
            "token each: use rollout_context=full, or a model that thinks between these tags."
        )


def strip_think(output_ids: Ids, tags: ThinkTags) -> Ids:
    """u_k without its thinking: a subsequence of its [len(u_k)] ids.

    Drops everything up to the last `</think>`, and the newlines right after it, as Qwen3's template does. If a
    `<think>` without a closing tag remains, it and all after it are dropped; the template has no rule for this
    (docs/method/deviations.md). A stop token at the end is kept. Without tags nothing changes.
    """
    has_stop = len(output_ids) > 0 and output_ids[-1] == tags.stop_id
    body, stop = (output_ids[:-1], output_ids[-1:]) if has_stop else (output_ids, output_ids[:0])
    closes = np.flatnonzero(body == tags.close_id)
    if len(closes):
        start = int(closes[-1]) + 1
        while start < len(body) and int(body[start]) in tags.newline_ids:
            start += 1
        body = body[start:]
    opens = np.flatnonzero(body == tags.open_id)
    if len(opens):
        body = body[: opens[0]]
    return as_ids(np.concatenate([body, stop]))


def next_context(context_ids: Ids, output_ids: Ids, feedback_ids: Ids, tags: ThinkTags, mode: RolloutContext) -> Ids:
    """c_{k+1} from c_k, u_k and f_k. Raises ValueError for an unknown mode, and ConfigError as `check_context` does."""
    check_context(mode, tags)
    if mode == "strip_think":
        output_ids = strip_think(output_ids, tags)
    elif mode != "full":
        raise ValueError(f"unknown rollout_context {mode!r}: use strip_think or full")
    return as_ids(np.concatenate([context_ids, output_ids, feedback_ids]))


def flattened_context(turns: Sequence[Turn], k: int) -> Ids:
    """What a flattened update puts before u_k: c_0, then u_j (with its thinking) and f_j of each turn j < k.

    `turns` runs from turn 0. Raises IndexError without turns, and unless 0 <= k <= len(turns).
    """
    if not turns or not 0 <= k <= len(turns):
        raise IndexError(f"a path of {counted(len(turns), 'turn')} has no flattened context of turn {k}")
    parts = [turns[0].context_ids]
    for turn in turns[:k]:
        parts += [turn.output_ids, turn.feedback_ids]
    return as_ids(np.concatenate(parts))
