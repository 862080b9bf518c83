"""Packs a demonstrated episode as a tree into one row. The last turn's context is the trunk, each reply a branch.

Contexts have no past thinking. So a row holds each reply twice, except the last. The reply's branch holds the whole
reply, and is trained. The trunk holds the reply without thinking, as later turns see it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rtpo.core.chat import ChatFormat
from rtpo.core.contexts import next_context
from rtpo.toy.demonstrator import Demonstration
from rtpo.types import Ids, StopReason, as_ids


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeRow:
    """One episode of T tokens, N of them trained. A reply's tokens attend to the reply and to the trunk before it."""

    ids: Ids  # [T]
    positions: Ids  # [T]
    branches: Ids  # [T]; 0 is the trunk, k + 1 the reply of turn k
    sources: Ids  # [N], indices into `ids`; the logits there predict the targets
    targets: Ids  # [N], ids of the trained tokens


def episode_row(demonstration: Demonstration, chat: ChatFormat, encode: Callable[[str], list[int]]) -> EpisodeRow:
    """The row of an episode. Contexts are those of a rollout with past thinking stripped."""
    context = chat.opening(demonstration.opening)
    ids, positions, branches = [context], [np.arange(len(context))], [np.zeros(len(context))]
    sources, targets, end = list[int](), list[int](), len(context)
    for k, turn in enumerate(demonstration.turns):
        reply = as_ids([*encode(turn.reply), chat.tags.stop_id])
        sources += [end - 1, *range(end, end + len(reply) - 1)]
        targets += reply.tolist()
        next_ids = (
            next_context(context, reply, chat.feedback(turn.feedback, StopReason.STOP), chat.tags, "strip_think")
            if turn.feedback
            else context
        )
        added = next_ids[len(context) :]
        ids += [reply, added]
        positions += [np.arange(len(context), len(context) + len(reply)), np.arange(len(context), len(next_ids))]
        branches += [np.full(len(reply), k + 1), np.zeros(len(added))]
        # `end` is the index after the trunk's last token. This token predicts the next reply's first token
        end += len(reply) + len(added)
        context = next_ids
    parts = (np.concatenate(ids), np.concatenate(positions), np.concatenate(branches), sources, targets)
    return EpisodeRow(*map(as_ids, parts))


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeBatch:
    """Rows padded on the right."""

    ids: torch.Tensor  # [B, T]
    positions: torch.Tensor  # [B, T]
    seen: torch.Tensor  # [B, 1, T, T], the attention mask
    sources: torch.Tensor  # [N], indices into the B x T tokens
    targets: torch.Tensor  # [N]


def batch_of(rows: Sequence[EpisodeRow]) -> EpisodeBatch:
    """Pad rows into a batch. A padding token sees only itself, and no other token sees it."""
    length = max(len(row.ids) for row in rows)
    ids, positions = (torch.zeros(len(rows), length, dtype=torch.int64) for _ in range(2))
    seen = torch.eye(length, dtype=torch.bool).repeat(len(rows), 1, 1)
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    sources = []
    for number, row in enumerate(rows):
        size = len(row.ids)
        ids[number, :size] = torch.tensor(row.ids)
        positions[number, :size] = torch.tensor(row.positions)
        branches = torch.tensor(row.branches)
        is_visible = (branches[None] == 0) | (branches[None] == branches[:, None])
        seen[number, :size, :size] = causal[:size, :size] & is_visible
        sources.append(torch.tensor(row.sources) + number * length)
    targets = torch.cat([torch.tensor(row.targets) for row in rows]).long()
    return EpisodeBatch(ids, positions, seen[:, None], torch.cat(sources).long(), targets)


def logprobs(model: Any, batch: EpisodeBatch) -> torch.Tensor:
    """[N] log-probs of the targets. Logits are computed only at `sources`."""
    hidden = model.get_decoder()(
        input_ids=batch.ids, position_ids=batch.positions, attention_mask=batch.seen, use_cache=False
    )[0]
    logits = model.get_output_embeddings()(hidden.flatten(0, 1)[batch.sources]).float()
    return logits.log_softmax(-1).gather(-1, batch.targets[:, None])[:, 0]
