"""Runs the airline tools on a copy-on-write view of the package's database.

The base database is loaded once and never changes. A state is the tuple of records that differ from the base. A tool
that may write gets tables that copy each record on its first read. The records that differ after the call are the new
state, even if the call failed half-way.
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
    """A record that is new or differs from the base's record."""

    table: str
    key: str
    text: str  # the record's content in JSON
    record: Any = field(compare=False, repr=False)  # the package's object; copied before a tool may change it


Changes = tuple[Change, ...]
"""All changes to the base, sorted by table and key. Two are equal exactly when their databases are equal."""


@dataclass(frozen=True, slots=True)
class Response:
    """The result of a tool call."""

    content: str  # the text for the agent
    failed: bool  # the package reports an error, or the call was refused before it ran
    changes: Changes  # after the call


class CopyOnReadTable(dict[str, Any]):
    """A table that copies each record when it is first read. It refuses operations that it cannot track."""

    def __init__(self, records: Mapping[str, Any]) -> None:
        super().__init__(records)
        self.copied: set[str] = set()  # keys of copied and new records
        self.unsupported = ""  # the operation it refused; kept because the package turns the error into a failed call

    def __getitem__(self, key: str) -> Any:
        if key not in self.copied:
            super().__setitem__(key, deepcopy(super().__getitem__(key)))
            self.copied.add(key)
        return super().__getitem__(key)

    def __setitem__(self, key: str, record: Any) -> None:
        self.copied.add(key)
        super().__setitem__(key, record)

    def __iter__(self) -> Iterator[str]:
        return super().__iter__()  # overridden so that dict(table) calls __getitem__ for each record

    def get(self, key: str, default: Any = None) -> Any:
        if key not in self:
            return default
        return self[key]

    def values(self) -> Iterator[Any]:  # type: ignore[override]
        return (self[key] for key in self)

    def items(self) -> Iterator[tuple[str, Any]]:  # type: ignore[override]
        return ((key, self[key]) for key in self)


def _refuse(method: str, shown: str) -> None:
    def refused(self: CopyOnReadTable, *arguments: Any, **named: Any) -> NoReturn:
        self.unsupported = shown
        raise NotImplementedError(f"a copy-on-read table does not support {shown}")

    setattr(CopyOnReadTable, method, refused)


for _method, _shown in {"__delitem__": "del", "__or__": "|", "__ior__": "|="}.items():
    _refuse(_method, _shown)
for _method in ("clear", "copy", "pop", "popitem", "setdefault", "update"):
    _refuse(_method, _method)


class Desk:
    """The airline tools on one base database.

    schemas: the tools' schemas in JSON. names: all tools. writers: tools that may change the database.
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
        """Run a call on the base with these changes. Raises MachineError if the tool does something to a table that the
        adapter cannot track."""
        if reason := _refusal(name, arguments):
            return Response(f"Error: {reason}", True, changes)
        writes = name in self.writers
        tables: dict[str, dict[str, Any]] = self._tables(changes)
        if writes:
            tables = {table: CopyOnReadTable(records) for table, records in tables.items()}
        call = self._package.call_type(name=name, arguments=dict(arguments), requestor="assistant")
        response = self._environment(tables).get_response(call)
        for table in tables.values():
            if isinstance(table, CopyOnReadTable) and table.unsupported:
                raise MachineError(
                    f"tau2-bench {self._package.version}: its tool {name} uses {table.unsupported} on a table, which "
                    f"this project's adapter does not support: {INSTALL}."
                )
        new_changes = tuple(self._changes(tables, changes)) if writes else changes
        return Response(response.content, response.error, new_changes)

    def replay(self, calls: Iterable[tuple[str, Mapping[str, Any]]]) -> Changes:
        """The changes of these calls on a fresh database. A failed call does not end the replay, as in the package."""
        changes: Changes = ()
        for name, arguments in calls:
            changes = self.call(changes, name, arguments).changes
        return changes

    def database(self, changes: Changes) -> Any:
        """The whole database as the package's object. Do not change it."""
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
        previous = {(change.table, change.key): change for change in before}
        for table in sorted(TABLES):
            touched = tables[table].copied
            for key in sorted({change.key for change in before if change.table == table} | touched):
                if key not in touched:
                    yield previous[table, key]
                    continue
                record, base_record = tables[table][key], self._base[table].get(key)
                text = _text(record)
                if base_record is None or _text(base_record) != text:
                    yield Change(table, key, text, record)


@cache
def open_desk() -> Desk:
    """The process's one desk. Raises what `load_package` raises."""
    return Desk(load_package())


def _text(record: Any) -> str:
    """A record in the JSON that the package hashes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a tool may put another type into a field
        return json.dumps(record.model_dump(), sort_keys=True, default=str)


def _refusal(name: str, arguments: Mapping[str, Any]) -> str:
    """Why a call is refused; empty if it may run. The package's calculator runs in this process, so slow expressions
    must not reach it."""
    expression = arguments.get("expression")
    if name != "calculate" or not isinstance(expression, str):
        return ""
    if "**" in expression.replace(" ", ""):
        return "powers are not calculated here"
    if len(expression) > _LONGEST_EXPRESSION:
        return f"the expression is longer than {_LONGEST_EXPRESSION} characters"
    return ""
