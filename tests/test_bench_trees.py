"""The benchmark of trees trains what it says: the same tokens in either context, and contexts of the said lengths."""

import pytest

from experiments.speed.driver import CannedPolicy
from experiments.speed.trees import METHODS, TURNS, ReadingEnv, WrittenReplies, long_conversations, one_step, question
from rtpo.types import TrainRow


def rows_of(label: str) -> list[TrainRow]:
    harness = one_step(long_conversations(label), WrittenReplies(CannedPolicy()), ReadingEnv, question)
    return [row for call in harness.calls if "epochs" in call.keywords for row in call.args[1]]


@pytest.mark.parametrize("exact", METHODS)
def test_contexts_grow_as_said_and_flattened_rows_train_the_same_tokens(exact: str) -> None:
    rows = rows_of(exact)
    turns = {turn.k: len(turn.context_ids) for row in rows for turn in row.turns}
    assert (turns[0], turns[TURNS - 1]) == (512, 1023)
    assert all(len(turn.output_ids) == 48 for row in rows for turn in row.turns)
    if (label := METHODS[exact]) is not None:
        flattened = rows_of(label)
        assert sum(len(row.ids) for row in flattened) != sum(len(row.ids) for row in rows)
        assert sum(row.mask.sum() for row in flattened) == sum(row.mask.sum() for row in rows)
