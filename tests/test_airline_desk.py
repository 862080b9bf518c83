"""The airline desk's tables, without the package: whatever way a record is had, it is a copy."""

from collections.abc import Callable
from typing import Any

import pytest

from rtpo.airline.desk import _Copied

WAYS: dict[str, Callable[[_Copied], Any]] = {
    "item": lambda table: table["a"],
    "get": lambda table: table.get("a"),
    "values": lambda table: next(iter(table.values())),
    "items": lambda table: dict(table.items())["a"],
}


@pytest.mark.parametrize("way", WAYS)
def test_a_record_is_a_copy_and_the_same_one_each_time(way: str) -> None:
    base = {"a": {"n": 1}, "b": {"n": 2}}
    table = _Copied(base)
    WAYS[way](table)["n"] = 3
    assert base == {"a": {"n": 1}, "b": {"n": 2}}
    assert [other(table)["n"] for other in WAYS.values()] == [3] * 4
    assert "a" in table.mine


def test_a_new_record_is_kept_and_a_missing_one_is_missing() -> None:
    base: dict[str, Any] = {"a": 1}
    table = _Copied(base)
    table["c"] = 5
    assert (table["c"], table.get("d"), table.get("d", 7), table.mine) == (5, None, 7, {"c"})
    assert base == {"a": 1}
    with pytest.raises(KeyError):
        table["d"]


def test_a_tool_that_removes_a_record_is_noticed() -> None:
    table = _Copied({"a": 1})
    with pytest.raises(NotImplementedError, match="removes the record 'a'"):
        del table["a"]
    with pytest.raises(NotImplementedError, match="removes the record 'a'"):
        table.pop("a")
