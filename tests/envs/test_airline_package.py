"""tau2-bench is told apart from other projects and versions, and a record that is taken out of its tables is a copy, or
taking it out is refused. The package is not needed here."""

import sys
from collections.abc import Callable
from importlib import invalidate_caches
from operator import methodcaller
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rtpo.envs.airline.desk import CopyOnReadTable, Desk
from rtpo.envs.airline.package import COMMIT, installed_version
from rtpo.errors import MachineError


def install(folder: Path, version: str | None, *, airline: bool) -> None:
    """Files of the package that must not be run."""
    files = ["__init__.py", *(["domains/airline/environment.py"] if airline else [])]
    for file in files:
        (folder / "tau2" / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / "tau2" / file).write_text("raise SystemExit('the package was run')\n")
    if version is not None:
        info = folder / f"tau2-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tau2\nVersion: {version}\n")
    invalidate_caches()


@pytest.mark.parametrize(
    ("version", "airline", "refused"),
    [("none", False, COMMIT), (None, False, "domains.airline"), ("0.9.9", True, "older than 1"), ("1.0.1", True, "")],
)
def test_the_right_package_is_found_and_any_other_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, airline: bool, refused: str
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name in [name for name in sys.modules if name.split(".")[0] == "tau2"]:
        monkeypatch.delitem(sys.modules, name)
    if version != "none":
        install(tmp_path, version, airline=airline)
    if refused:
        with pytest.raises(MachineError, match=refused):
            installed_version()
    else:
        assert installed_version() == version
    assert "tau2" not in sys.modules


WAYS: dict[str, Callable[[Any], Any]] = {
    "item": lambda table: table["a"],
    "get": lambda table: table.get("a"),
    "values": lambda table: next(iter(table.values())),
    "items": lambda table: dict(table.items())["a"],
    "dict": lambda table: dict(table)["a"],
}


@pytest.mark.parametrize("way", WAYS)
def test_a_record_is_a_copy_and_the_same_one_each_time(way: str) -> None:
    base: dict[str, Any] = {"a": {"n": 1}, "b": {"n": 2}}
    table = CopyOnReadTable(base)
    WAYS[way](table)["n"] = 3
    table["c"] = 5
    assert [other(table)["n"] for other in WAYS.values()] == [3] * len(WAYS)
    assert (table["c"], table.get("d"), table.get("d", 7)) == (5, None, 7)
    assert {"a", "c"} <= table.copied
    assert base == {"a": {"n": 1}, "b": {"n": 2}}


def test_what_the_adapter_cannot_follow_is_refused_and_noted() -> None:
    """Since the package takes the error for the call's own."""
    uses = {"del": methodcaller("__delitem__", "a"), "|=": methodcaller("__ior__", {"a": 2})}
    uses |= {"pop": methodcaller("pop", "a"), "update": methodcaller("update", a=2)}
    for name, use in uses.items():
        table = CopyOnReadTable({"a": 1})
        with pytest.raises(NotImplementedError):
            use(table)
        assert (table.unsupported, dict(table)) == (name, {"a": 1})


def test_a_tool_that_the_adapter_cannot_follow_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def get_response(tables: dict[str, Any]) -> SimpleNamespace:
        with pytest.raises(NotImplementedError):
            tables["users"].pop("a")
        return SimpleNamespace(content="the call's own error", error=True)

    desk = Desk.__new__(Desk)
    desk.writers, desk._package = frozenset({"book"}), SimpleNamespace(version="9", call_type=SimpleNamespace)
    monkeypatch.setattr(desk, "_tables", lambda changes: {"users": {"a": 1}})
    monkeypatch.setattr(desk, "_environment", lambda all: SimpleNamespace(get_response=lambda call: get_response(all)))
    with pytest.raises(MachineError, match="pop"):
        desk.call((), "book", {})
