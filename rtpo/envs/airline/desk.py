"""Calls of the airline tools on the package's database, copy-on-write.

The base is loaded once and never changed. A state is what differs from it: the changed records, each with its JSON as
the package's hash takes it. A call that may write gets tables that copy each record the first time it is looked at;
whatever differs afterwards is the new state, also when the call failed half-way, as on a database of its own.
"""

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NoReturn

from rtpo.envs.airline.package import INSTALL, Package, load_package
from rtpo.errors import MachineError

TABLES = ("flights", "users", "reservations")
_LONGEST_EXPRESSION = 1000


@dataclass(frozen=True, slots=True)
class Change:
    """A record that is new or differs from the base's. text: its content. record: the package's object, which is
    copied before anything may change it."""

    table: str
    key: str
    text: str
    record: Any = field(compare=False, repr=False)


Changes = tuple[Change, ...]
"""What differs from the base, by table and key. Equal exactly when the databases are."""


@dataclass(frozen=True, slots=True)
class Response:
    """content: what the agent is told. failed: whether the package calls it an error."""

    content: str
    failed: bool
    changes: Changes


class _Copied(dict[str, Any]):
    """A table whose records are copied before they are handed out. `mine` are the keys of those that were. unfollowed:
    what was done to it in a way that is not followed; the package takes the error for the call's own."""

    def __init__(self, records: Mapping[str, Any]) -> None:
        super().__init__(records)
        self.mine: set[str] = set()
        self.unfollowed = ""

    def __getitem__(self, key: str) -> Any:
        if key not in self.mine:
            super().__setitem__(key, deepcopy(super().__getitem__(key)))
            self.mine.add(key)
        return super().__getitem__(key)

    def __setitem__(self, key: str, record: Any) -> None:
        self.mine.add(key)
        super().__setitem__(key, record)

    def __iter__(self) -> Iterator[str]:
        return super().__iter__()  # one of its own makes dict(table) ask for each record

    def get(self, key: str, default: Any = None) -> Any:
        if key not in self:
            return default
        return self[key]

    def values(self) -> Iterator[Any]:  # type: ignore[override]
        return (self[key] for key in self)

    def items(self) -> Iterator[tuple[str, Any]]:  # type: ignore[override]
        return ((key, self[key]) for key in self)


def _refuse(method: str, shown: str) -> None:
    def refused(self: _Copied, *arguments: Any, **named: Any) -> NoReturn:
        self.unfollowed = shown
        raise NotImplementedError(f"{shown} of a table is not followed")

    setattr(_Copied, method, refused)


for _method, _shown in {"__delitem__": "del", "__or__": "|", "__ior__": "|="}.items():
    _refuse(_method, _shown)
for _method in ("clear", "copy", "pop", "popitem", "setdefault", "update"):
    _refuse(_method, _method)


class Desk:
    """The tools over one base.

    schemas: of the tools, as JSON. names: the tools'. writers: those that may change the database.
    """

    def __init__(self, package: Package) -> None:
        self._package = package
        self._base: dict[str, dict[str, Any]] = {table: getattr(package.base, table) for table in TABLES}
        environment = self._environment(self._base)
        tools = environment.get_tools()
        self.schemas: tuple[str, ...] = tuple(json.dumps(tool.openai_schema) for tool in tools)
        self.names = frozenset(tool.name for tool in tools)
        self.writers = frozenset(name for name in self.names if environment.tools.tool_mutates_state(name))

    def call(self, changes: Changes, name: str, arguments: Mapping[str, Any]) -> Response:
        """What the package answers to a call on the base with these changes, and the changes after it. Raises
        MachineError where the tool uses a table in a way that is not followed."""
        if why := _refusal(name, arguments):
            return Response(f"Error: {why}", True, changes)
        writes = name in self.writers
        tables: dict[str, dict[str, Any]] = self._tables(changes)
        if writes:
            tables = {table: _Copied(records) for table, records in tables.items()}
        call = self._package.call_type(name=name, arguments=dict(arguments), requestor="assistant")
        response = self._environment(tables).get_response(call)
        for table in tables.values():
            if isinstance(table, _Copied) and table.unfollowed:
                raise MachineError(
                    f"tau2-bench {self._package.version}: its tool {name} uses {table.unfollowed} on a table, which "
                    f"the adapter does not follow: {INSTALL}."
                )
        after = tuple(self._changes(tables, changes)) if writes else changes
        return Response(response.content, response.error, after)

    def replay(self, calls: Iterable[tuple[str, Mapping[str, Any]]]) -> Changes:
        """What these calls make of a fresh database; those that fail are passed over, as the package does."""
        changes: Changes = ()
        for name, arguments in calls:
            changes = self.call(changes, name, arguments).changes
        return changes

    def database(self, changes: Changes) -> Any:
        """The whole database, as the package's object; only to be read."""
        return self._package.database_type.model_construct(**self._tables(changes))

    def _tables(self, changes: Changes) -> dict[str, dict[str, Any]]:
        tables = {table: dict(records) for table, records in self._base.items()}
        for change in changes:
            tables[change.table][change.key] = change.record
        return tables

    def _environment(self, tables: Mapping[str, Mapping[str, Any]]) -> Any:
        package = self._package
        database = package.database_type.model_construct(**tables)
        return package.environment_type("airline", package.policy, package.tools_type(database))

    def _changes(self, tables: Mapping[str, Any], before: Changes) -> Iterator[Change]:
        known = {(change.table, change.key): change for change in before}
        for table in sorted(TABLES):
            touched = tables[table].mine
            for key in sorted({change.key for change in before if change.table == table} | touched):
                if key not in touched:
                    yield known[table, key]
                    continue
                record, fresh = tables[table][key], self._base[table].get(key)
                text = _text(record)
                if fresh is None or _text(fresh) != text:
                    yield Change(table, key, text, record)


@cache
def open_desk() -> Desk:
    """The process's desk. Raises as `load_package` does."""
    return Desk(load_package())


def _text(record: Any) -> str:
    """As the package writes a record into the text that it hashes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a tool may put another type into a field
        return json.dumps(record.model_dump(), sort_keys=True, default=str)


def _refusal(name: str, arguments: Mapping[str, Any]) -> str:
    """Why a call is not given to the package's calculator, which runs in this process; empty when it is."""
    expression = arguments.get("expression")
    if name != "calculate" or not isinstance(expression, str):
        return ""
    if "**" in expression.replace(" ", ""):
        return "powers are not calculated here"
    if len(expression) > _LONGEST_EXPRESSION:
        return f"the expression is longer than {_LONGEST_EXPRESSION} characters"
    return ""
