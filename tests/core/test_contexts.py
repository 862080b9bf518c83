"""psi on token ids, on spelled-out ids and on anything a policy might sample."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_paths import turn

from rtpo.core.chat import ThinkTags
from rtpo.core.contexts import flattened_context, next_context, strip_think
from rtpo.types import Ids, as_ids

OPEN, CLOSE, STOP, NL, NLNL = 91, 92, 93, 94, 95
TAGS = ThinkTags(open_id=OPEN, close_id=CLOSE, stop_id=STOP, newline_ids=frozenset({NL, NLNL}))


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ([OPEN, NL, 1, NL, CLOSE, NLNL, NL, NL, 2, NL, STOP], [2, NL, STOP]),
        ([OPEN, 1, 2], []),
        ([1, OPEN, 2, STOP], [1, STOP]),
        ([OPEN, 1, CLOSE, 2, OPEN, 3, STOP], [2, STOP]),
        ([OPEN, 1, OPEN, 2, CLOSE, 3, CLOSE, 4, STOP], [4, STOP]),
        ([CLOSE], []),
        ([], []),
    ],
)
def test_strip_think(output: list[int], expected: list[int]) -> None:
    assert strip_think(as_ids(output), TAGS).tolist() == expected


anything = st.lists(st.sampled_from([1, 2, 3, NL, NLNL, OPEN, CLOSE, STOP]), max_size=14).map(as_ids)


@given(anything)
def test_whatever_is_sampled_strips_to_a_subsequence_without_tags(output: Ids) -> None:
    stripped, rest = strip_think(output, TAGS), iter(output.tolist())
    assert all(i in rest for i in stripped.tolist())
    assert not np.isin([OPEN, CLOSE], stripped).any()
    assert strip_think(stripped, TAGS).tolist() == stripped.tolist()
    if len(output) and output[-1] == STOP:
        assert stripped[-1] == STOP
    if not np.isin([OPEN, CLOSE], output).any():
        assert stripped.tolist() == output.tolist()


def test_next_context() -> None:
    context, output, feedback = as_ids([1, 2]), as_ids([OPEN, 3, CLOSE, 4, STOP]), as_ids([5, OPEN, 6])
    assert next_context(context, output, feedback, TAGS, "strip_think").tolist() == [1, 2, 4, STOP, 5, OPEN, 6]
    assert next_context(context, output, feedback, TAGS, "full").tolist() == [*context, *output, *feedback]
    with pytest.raises(ValueError, match="rollout_context"):
        next_context(context, output, feedback, TAGS, "strip")  # type: ignore[arg-type]


def test_flattened_context() -> None:
    turns = (turn(0, [1, 2], [OPEN, 3, CLOSE, 4, STOP], [5, 6]), turn(1, [1, 2, 4, STOP, 5, 6], [7, STOP], [8]))
    assert flattened_context(turns, 0).tolist() == [1, 2]
    assert flattened_context(turns, 1).tolist() == [1, 2, OPEN, 3, CLOSE, 4, STOP, 5, 6]
    assert flattened_context(turns, 2).tolist() == [1, 2, OPEN, 3, CLOSE, 4, STOP, 5, 6, 7, STOP, 8]
    for path, k in ((turns, -1), (turns, 3), ((), 0)):
        with pytest.raises(IndexError):
            flattened_context(path, k)
