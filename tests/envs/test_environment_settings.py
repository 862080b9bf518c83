"""Settings of environments that cannot be are named by their field, and no secret is shown."""

from typing import Any

import pytest
from pydantic import TypeAdapter

from rtpo.envs.registry import ENVIRONMENTS
from rtpo.errors import ConfigError
from rtpo.run.building import build

INDEX = {"bm25": {"index": "i"}}
JUDGE = {"base_url": "http://h/v1", "model": "m", "cache": "c"}
SERVER = {"base_url": "http://127.0.0.1:8000/v1", "model": "m"}
RIGHT = {"math": {}, "search": {"search": INDEX}, "airline": {"server": SERVER}, "toy_math": {}}
WEB = {"backend": "web", "web": {}, "cache": "c"}
HTTP = {"backend": "http", "cache": "c"}
REPLAY = {"backend": "replay", "cache": "c"}
LIVE = {"file": "r.jsonl", "on_miss": "live"}
WRONG: list[tuple[str, str, dict[str, Any]]] = [
    ("math", "python.processes", {"python": {"processes": 2, "isolation": "limits"}}),
    ("search", "search.bm25.index", {"search": {}}),
    ("search", "search.http.url", {"search": HTTP | {"http": {"url": "http://me:secret@h/"}}}),
    ("search", "search.cache", {"search": {"backend": "http", "http": {"url": "http://host/"}}}),
    ("search", "search.web.url", {"search": WEB | {"web": {"url": "https://host/?key=secret"}}}),
    ("search", "search.web.key_variable", {"search": WEB | {"web": {"key_variable": "BSA-secret"}}}),
    ("search", "search.query_characters", {"search": WEB | {"query_characters": 401}}),
    ("search", "search.requests", {"search": WEB | {"requests": {"longest_wait_seconds": 0.5}}}),
    ("search", "search.replay.on_miss", {"search": REPLAY | {"replay": {"file": "r.jsonl"}}}),
    ("search", "search.replay.file", {"search": REPLAY | {"replay": {"file": "r.txt", "on_miss": "error"}}}),
    ("search", "search.http.url", {"search": REPLAY | {"replay": LIVE | {"live": "http"}}}),
    ("search", "search.replay.on_miss", {"search": REPLAY | {"replay": LIVE}}),
    ("search", "reward.kind", {"search": INDEX, "reward": {"kind": "judge"}}),
    ("search", "reward.kind", {"search": INDEX, "reward": {"kind": "em", "judge": JUDGE}}),
    ("airline", "server.base_url", {"server": SERVER | {"base_url": None}}),
    ("airline", "server.key_variable", {"server": SERVER | {"key_variable": "sk-secret 2"}}),
    ("toy_math", "luck.turns", {"luck": {"turns": [0, 0]}}),
    ("toy_math", "luck.faces", {"luck": {"turns": [0], "faces": 5}}),
    ("toy_math", "luck", {"luck": {"faces": 1_000_000}}),
]


def problems(env: str, values: dict[str, Any]) -> list[str]:
    try:
        return list(build(ENVIRONMENTS[env].settings, values, "task.settings").problems("task.settings"))
    except ConfigError as error:
        return str(error).splitlines()


@pytest.mark.parametrize(("env", "field", "values"), WRONG)
def test_a_wrong_setting_is_named(env: str, field: str, values: dict[str, Any]) -> None:
    assert problems(env, RIGHT[env]) == []
    (problem,) = problems(env, values)
    assert problem.split()[0] == f"task.settings.{field}"
    assert "secret" not in problem


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_every_number_but_a_seed_has_a_bound(env: str) -> None:
    schema = TypeAdapter(ENVIRONMENTS[env].settings).json_schema()
    for kind in (schema, *schema.get("$defs", {}).values()):
        for name, field in kind.get("properties", {}).items():
            numbers = [choice for choice in field.get("anyOf", [field]) if choice.get("type") in ("integer", "number")]
            bounds = [choice.get("minimum", choice.get("exclusiveMinimum", -1)) for choice in numbers]
            assert name == "seed" or all(bound >= 0 for bound in bounds), name
