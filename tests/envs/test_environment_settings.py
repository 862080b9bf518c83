"""Settings of environments that cannot be are named by their field, and no secret is shown."""

import functools
from collections.abc import Iterator
from dataclasses import is_dataclass
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pytest

from rtpo.envs.registry import ENVIRONMENTS
from rtpo.errors import ConfigError
from rtpo.run.config import build

INDEX = {"bm25": {"index": "i"}}
JUDGE = {"base_url": "http://h/v1", "model": "m", "cache": "c"}
SERVER = {"base_url": "http://127.0.0.1:8000/v1", "model": "m"}
RIGHT = {"math": {}, "search": {"search": INDEX}, "airline": {"server": SERVER}, "toy_math": {}, "toy_walk": {}}
WEB = {"backend": "web", "web": {}, "cache": "c"}
REPLAY = {"backend": "replay", "cache": "c"}
WRONG: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "math": [
        ("python.wall_seconds", {"python": {"wall_seconds": 1e6}}),
        ("python.memory_bytes", {"python": {"memory_bytes": 1000}}),
        ("python.processes", {"python": {"processes": 2, "isolation": "limits"}}),
    ],
    "search": [
        ("search.bm25.index", {"search": {}}),
        ("search.http.url", {"search": {"backend": "http", "cache": "c"}}),
        ("search.http.url", {"search": {"backend": "http", "http": {"url": "http://me:secret@h/"}, "cache": "c"}}),
        ("search.cache", {"search": {"backend": "http", "http": {"url": "http://host/"}}}),
        ("search.web.url", {"search": WEB | {"web": {"url": "https://host/?key=secret"}}}),
        ("search.web.key_variable", {"search": WEB | {"web": {"key_variable": "BSA-secret"}}}),
        ("search.results", {"search": WEB | {"results": 21}}),
        ("search.query_characters", {"search": WEB | {"query_characters": 401}}),
        ("search.requests", {"search": WEB | {"requests": {"longest_wait_seconds": 0.5}}}),
        ("search.replay.on_miss", {"search": REPLAY | {"replay": {"file": "r.jsonl"}}}),
        ("search.replay.file", {"search": REPLAY | {"replay": {"file": "r.txt", "on_miss": "error"}}}),
        ("search.replay.on_miss", {"search": REPLAY | {"replay": {"file": "r.jsonl", "on_miss": "live"}}}),
        ("search.http.url", {"search": REPLAY | {"replay": {"file": "r.jsonl", "on_miss": "live", "live": "http"}}}),
        ("reward.kind", {"search": INDEX, "reward": {"kind": "judge"}}),
        ("reward.kind", {"search": INDEX, "reward": {"kind": "em", "judge": JUDGE}}),
        *(
            (f"reward.judge.{name}", {"search": INDEX, "reward": {"kind": "judge", "judge": JUDGE | {name: value}}})
            for name, value in {
                "base_url": "localhost:8000",
                "model": "",
                "cache": "",
                "key_variable": "sk-secret!",
            }.items()
        ),
        ("python.processes", {"search": INDEX, "python": {"processes": 2, "isolation": "limits"}}),
    ],
    "airline": [
        *((f"server.{name}", {"server": SERVER | {name: None}}) for name in SERVER),
        ("server.key_variable", {"server": SERVER | {"key_variable": "sk-secret 2"}}),
    ],
    "toy_math": [
        ("luck.turns", {"luck": {"turns": [0, 0]}}),
        ("luck.faces", {"luck": {"turns": [0], "faces": 5}}),
        ("luck", {"luck": {"faces": 1_000_000}}),
        ("luck.turns.0", {"luck": {"turns": [-1]}}),
    ],
}


def problems(env: str, values: dict[str, Any]) -> list[str]:
    try:
        return list(build(ENVIRONMENTS[env].settings, values, "task.settings").problems("task.settings"))
    except ConfigError as error:
        return str(error).splitlines()


@pytest.mark.parametrize(("env", "field", "values"), [(env, *case) for env, cases in WRONG.items() for case in cases])
def test_a_setting_that_cannot_be_is_named(env: str, field: str, values: dict[str, Any]) -> None:
    assert problems(env, RIGHT[env]) == []
    (problem,) = problems(env, values)
    assert problem.split()[0] == f"task.settings.{field}"
    assert "secret" not in problem


def numbers(kind: Any) -> Iterator[list[str]]:
    """The paths of the numeric settings of a type, also of those that are null by default."""
    for name, hint in get_type_hints(kind, include_extras=True).items():
        for choice in get_args(hint) if get_origin(hint) in (Union, UnionType) else [hint]:
            plain = get_args(choice)[0] if get_origin(choice) is Annotated else choice
            if is_dataclass(plain):
                yield from ([name, *rest] for rest in numbers(plain))
            elif plain in (int, float) and name != "seed":
                yield [name]


@pytest.mark.parametrize("env", RIGHT)
def test_every_number_but_a_seed_has_a_bound(env: str) -> None:
    for path in numbers(ENVIRONMENTS[env].settings):
        values: Any = functools.reduce(lambda value, name: {name: value}, reversed(path), 0)
        assert any(problem.startswith(f"task.settings.{'.'.join(path)} ") for problem in problems(env, values)), path
