"""The airline desk's tables, without the package: a record that is taken out is a copy, or taking it out is refused."""

import operator
import re
from collections.abc import Callable
from contextlib import suppress
from operator import methodcaller
from types import SimpleNamespace
from typing import Any

import pytest

from rtpo.envs.airline.desk import Desk, _Copied
from rtpo.errors import MachineError

Use = Callable[[Any], Any]
WAYS: dict[str, Use] = {
    "item": lambda table: table["a"],
    "get": lambda table: table.get("a"),
    "values": lambda table: next(iter(table.values())),
    "items": lambda table: dict(table.items())["a"],
    "dict": lambda table: dict(table)["a"],
    "unpacked": lambda table: {**table}["a"],
}


@pytest.mark.parametrize("way", WAYS)
def test_a_record_is_a_copy_and_the_same_one_each_time(way: str) -> None:
    base: dict[str, Any] = {"a": {"n": 1}, "b": {"n": 2}}
    table = _Copied(base)
    WAYS[way](table)["n"] = 3
    table["c"] = 5
    assert [other(table)["n"] for other in WAYS.values()] == [3] * len(WAYS)
    assert (table["c"], table.get("d"), table.get("d", 7)) == (5, None, 7)
    assert {"a", "c"} <= table.mine
    assert base == {"a": {"n": 1}, "b": {"n": 2}}


UNFOLLOWED: dict[str, Use] = {
    "del": lambda table: operator.delitem(table, "a"),
    "|": lambda table: table | {"a": 2},
    "|=": lambda table: operator.ior(table, {"a": 2}),
    **{name: methodcaller(name) for name in ("clear", "copy", "popitem")},
    "pop": methodcaller("pop", "a"),
    "setdefault": methodcaller("setdefault", "a", 2),
    "update": methodcaller("update", a=2),
}


class Environment:
    """As the package's: what a tool raises becomes the answer to the call. Its tools use the users' table."""

    tools = SimpleNamespace(tool_mutates_state=lambda name: True)

    def __init__(self, domain: str, policy: str, users: dict[str, int]) -> None:
        self.users = users

    def get_tools(self) -> list[Any]:
        return [SimpleNamespace(name=name, openai_schema={}) for name in UNFOLLOWED]

    def get_response(self, call: Any) -> Any:
        with suppress(NotImplementedError):
            UNFOLLOWED[call.name](self.users)
        return SimpleNamespace(content="", error=True)


@pytest.mark.parametrize("name", UNFOLLOWED)
def test_a_tool_that_the_adapter_cannot_follow_ends_the_run_and_is_not_the_policys_error(name: str) -> None:
    base = SimpleNamespace(flights={}, users={"a": 1}, reservations={})
    package: Any = SimpleNamespace(
        version="9.9.9",
        policy="",
        base=base,
        database_type=SimpleNamespace(model_construct=SimpleNamespace),
        tools_type=lambda database: database.users,
        environment_type=Environment,
        call_type=SimpleNamespace,
    )
    with pytest.raises(MachineError, match=re.escape(name)):
        Desk(package).call((), name, {})
    assert base.users == {"a": 1}
