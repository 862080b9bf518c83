"""The airline domain's served user, against a real HTTP server."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from json_server import Server, completion

from rtpo.core.http_client import RequestSettings
from rtpo.envs.airline.users import Said, Scenario, ServedUser, ServerSettings
from rtpo.errors import InfrastructureError

SCENARIO = Scenario("You are a customer.", "I want to cancel.", "You are Mia.", "Insist.")
OPENING = (Said("agent", "Hi!"),)
QUICK = RequestSettings(timeout_seconds=5, tries=2, first_wait_seconds=0.01, longest_wait_seconds=0.02)


@pytest.fixture
def server() -> Iterator[Server]:
    """Answers every chat with the number of the request, so that no two replies are alike."""
    with Server("/v1", lambda asked: completion(f"reply {len(server.asked)}")) as server:
        yield server


def settings(server: Server, **fields: Any) -> ServerSettings:
    return ServerSettings(base_url=server.url, model="user-model", requests=QUICK, **fields)


def ask(user: ServedUser, dialogue: Sequence[Said] = OPENING) -> str:
    return asyncio.run(user.answer(SCENARIO, dialogue))


def test_a_request_has_one_reply_whoever_asks_and_in_whatever_order(server: Server) -> None:
    user = ServedUser(settings(server, seed=7, max_tokens=99))
    dialogues = [OPENING, *((*OPENING, Said("user", "Cancel it."), Said("agent", text)) for text in ("No.", "Which?"))]
    assert [ask(user, dialogue) for dialogue in dialogues] == ["reply 1", "reply 2", "reply 3"]
    assert [ask(user, dialogue) for dialogue in reversed(dialogues)] == ["reply 3", "reply 2", "reply 1"]
    assert [asked.path for asked in server.asked] == ["/v1/chat/completions"] * 3
    heard = [("system", SCENARIO.prompt), ("user", "Hi!"), ("assistant", "Cancel it."), ("user", "Which?")]
    messages = [{"role": role, "content": content} for role, content in heard]
    drawn = {"temperature": 0.0, "seed": 7, "max_tokens": 99}
    assert server.asked[-1].body == {"model": "user-model", "messages": messages} | drawn


def test_raw_replies_are_kept_and_read_by_the_next_process_and_the_key_is_in_the_header_alone(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("USER_KEY", "s3cret")
    kept = settings(server, cache=str(tmp_path), key_variable="USER_KEY")
    assert [ask(ServedUser(kept)) for _ in range(2)] == ["reply 1"] * 2
    (asked,), (file,) = server.asked, tmp_path.iterdir()
    _, line = (json.loads(text) for text in file.read_text().splitlines())
    assert (json.loads(line["query"]), json.loads(line["text"])["id"]) == (asked.body, "x")
    assert asked.headers["Authorization"] == "Bearer s3cret"
    assert "s3cret" not in json.dumps(asked.body) + file.read_text()
    assert ask(ServedUser(settings(server, cache=str(tmp_path), seed=1))) == "reply 2"


@pytest.mark.parametrize("contents", [[503, 503], ["<think>never closed", 429], [400]])
def test_a_failure_of_the_user_model_is_no_fault_of_the_policy(server: Server, contents: list[Any]) -> None:
    server.in_turn(*map(completion, contents))
    user = ServedUser(settings(server))
    with pytest.raises(InfrastructureError, match="user"):
        ask(user)
    assert len(server.asked) == len(contents)
    assert ask(user) == f"reply {len(contents) + 1}"
