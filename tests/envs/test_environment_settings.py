"""Settings of environments that cannot be are named by their field, and no secret is shown."""

from typing import Any

import pytest

from rtpo.envs.registry import ENVIRONMENTS
from rtpo.errors import ConfigError
from rtpo.run.config import build

INDEX = {"bm25": {"index": "i"}}
JUDGE = {"base_url": "http://h/v1", "model": "m", "cache": "c"}
SERVER = {"base_url": "http://127.0.0.1:8000/v1", "model": "m"}
WRONG: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "math": [
        ("calls_per_reply", {"calls_per_reply": 0}),
        *(
            (f"python.{name}", {"python": {name: value}})
            for name, values in {"cpu_seconds": [0], "wall_seconds": [0, 1e6], "memory_bytes": [1000]}.items()
            for value in values
        ),
        *((f"python.{name}", {"python": {name: 0}}) for name in ("processes", "output_characters", "workers")),
        ("python.processes", {"python": {"processes": 2, "isolation": "limits"}}),
    ],
    "search": [
        ("calls_per_reply", {"search": INDEX, "calls_per_reply": 0}),
        *((f"search.{name}", {"search": INDEX | {name: 0}}) for name in ("results", "characters", "query_characters")),
        ("search.bm25.index", {"search": {}}),
        ("search.http.url", {"search": {"backend": "http", "cache": "c"}}),
        ("search.cache", {"search": {"backend": "http", "http": {"url": "http://host/"}}}),
        *(
            (f"search.{name}", {"search": {"backend": "web", "cache": "c", "web": web} | more})
            for name, web, more in (
                ("web.url", {"url": "https://host/?key=secret"}, {}),
                ("web.key_variable", {"key_variable": "BSA-secret"}, {}),
                ("results", {}, {"results": 21}),
                ("query_characters", {}, {"query_characters": 401}),
                ("requests.tries", {}, {"requests": {"tries": 0}}),
                ("requests.per_second", {}, {"requests": {"per_second": 0}}),
                ("requests", {}, {"requests": {"longest_wait_seconds": 0.5}}),
            )
        ),
        ("search.http.url", {"search": {"backend": "http", "http": {"url": "http://me:secret@h/"}, "cache": "c"}}),
        *(
            (f"search.{name}", {"search": {"backend": "replay", "replay": {"file": "r.jsonl"} | replay, "cache": "c"}})
            for name, replay in (
                ("replay.on_miss", {}),
                ("replay.file", {"file": "r.txt", "on_miss": "error"}),
                ("replay.on_miss", {"on_miss": "live"}),
                ("http.url", {"on_miss": "live", "live": "http"}),
            )
        ),
        ("reward.kind", {"search": INDEX, "reward": {"kind": "judge"}}),
        ("reward.kind", {"search": INDEX, "reward": {"kind": "em", "judge": JUDGE}}),
        *(
            (f"reward.judge.{name}", {"search": INDEX, "reward": {"kind": "judge", "judge": JUDGE | {name: value}}})
            for name, value in (
                *(("base_url", "localhost:8000"), ("model", ""), ("cache", ""), ("at_once", 0)),
                ("key_variable", "sk-very-secret!"),
            )
        ),
        ("python.workers", {"search": INDEX, "python": {"workers": 0}}),
    ],
    "airline": [
        *((f"server.{name}", {"server": SERVER | {name: None}}) for name in ("base_url", "model")),
        ("server.max_tokens", {"server": SERVER | {"max_tokens": 0}}),
        ("server.key_variable", {"server": SERVER | {"key_variable": "sk-secret 2"}}),
        ("max_errors", {"user": "scripted", "max_errors": 0}),
    ],
    "toy_math": [
        *(("luck.turns", {"luck": {"turns": turns}}) for turns in ([0, 0], [-1])),
        *((f"luck.{name}", {"luck": {"turns": [0], name: value}}) for name, value in (("size", 0), ("faces", 5))),
        ("luck", {"luck": {"faces": 1_000_000}}),
        ("luck.worth", {"luck": {"turns": [0], "worth": 2}}),
    ],
    "toy_walk": [("decided", {"decided": "soon"})],
}
RIGHT = {"math": {}, "search": {"search": INDEX}, "airline": {"server": SERVER}, "toy_math": {}, "toy_walk": {}}


def problems(env: str, values: dict[str, Any]) -> list[str]:
    try:
        return list(build(ENVIRONMENTS[env].settings, values, "task.settings").problems("task.settings"))
    except ConfigError as error:
        return str(error).splitlines()


@pytest.mark.parametrize(("env", "field", "values"), [(env, *case) for env, cases in WRONG.items() for case in cases])
def test_a_setting_that_cannot_be_is_named(env: str, field: str, values: dict[str, Any]) -> None:
    assert problems(env, RIGHT[env]) == []
    (problem,) = problems(env, values)
    assert problem.split()[0].removesuffix(".0").removesuffix(".1") == f"task.settings.{field}"
    assert "secret" not in problem
