"""The airline desk's tables, without the package: whatever way a record is had, it is a copy, or refused."""

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from rtpo.envs.airline.desk import Desk, _Copied
from rtpo.errors import MachineError

WAYS: dict[str, Callable[[_Copied], Any]] = {
    "item": lambda table: table["a"],
    "get": lambda table: table.get("a"),
    "values": lambda table: next(iter(table.values())),
    "items": lambda table: dict(table.items())["a"],
    "dict": lambda table: dict(table)["a"],
    "unpacked": lambda table: {**table}["a"],
}


@pytest.mark.parametrize("way", WAYS)
def test_a_record_is_a_copy_and_the_same_one_each_time(way: str) -> None:
    base = {"a": {"n": 1}, "b": {"n": 2}}
    table = _Copied(base)
    WAYS[way](table)["n"] = 3
    assert base == {"a": {"n": 1}, "b": {"n": 2}}
    assert [other(table)["n"] for other in WAYS.values()] == [3] * len(WAYS)
    assert "a" in table.mine


def test_a_new_record_is_kept_and_a_missing_one_is_missing() -> None:
    base: dict[str, Any] = {"a": 1}
    table = _Copied(base)
    table["c"] = 5
    assert (table["c"], table.get("d"), table.get("d", 7), table.mine) == (5, None, 7, {"c"})
    assert base == {"a": 1}
    with pytest.raises(KeyError):
        table["d"]


UNFOLLOWED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "del": lambda table: operator.delitem(table, "a"),
    "|": lambda table: table | {"a": 2},
    "|=": lambda table: operator.ior(table, {"a": 2}),
    "clear": lambda table: table.clear(),
    "copy": lambda table: table.copy(),
    "pop": lambda table: table.pop("a"),
    "popitem": lambda table: table.popitem(),
    "setdefault": lambda table: table.setdefault("a", 2),
    "update": lambda table: table.update(a=2),
}


@dataclass
class Environment:
    """As the package's: what a tool raises becomes the answer to the call."""

    domain: str
    policy: str
    tools: Any

    def get_tools(self) -> list[Any]:
        return [SimpleNamespace(name=name, openai_schema={}) for name in UNFOLLOWED]

    def get_response(self, call: Any) -> Any:
        try:
            UNFOLLOWED[call.name](self.tools.db.users)
        except Exception as error:
            return SimpleNamespace(content=f"Error: {error}", error=True)
        return SimpleNamespace(content="done", error=False)


@dataclass
class Tools:
    db: Any

    def tool_mutates_state(self, name: str) -> bool:
        return True


class Tables(SimpleNamespace):
    @classmethod
    def model_construct(cls, **tables: Any) -> "Tables":
        return cls(**tables)


@pytest.mark.parametrize("name", UNFOLLOWED)
def test_a_tool_that_the_adapter_cannot_follow_ends_the_run_and_is_not_the_policys_error(name: str) -> None:
    base = Tables(flights={}, users={"a": 1}, reservations={})
    package: Any = SimpleNamespace(
        version="9.9.9",
        policy="",
        base=base,
        database_type=Tables,
        tools_type=Tools,
        environment_type=Environment,
        call_type=SimpleNamespace,
    )
    with pytest.raises(MachineError, match=re.escape(name)):
        Desk(package).call((), name, {})
    assert base.users == {"a": 1}
