"""The airline domain's simulated users: a served one, against a real HTTP server, and the scripted one."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from json_server import Reply, Server

from rtpo.core.http_client import RequestSettings
from rtpo.envs.airline.users import MOST_MESSAGES, Said, Scenario, ScriptedUser, ServedUser, ServerSettings
from rtpo.errors import InfrastructureError

SCENARIO = Scenario("You are a customer.", "I want to cancel.", "You are Mia.", "Insist.")
OPENING = (Said("agent", "Hi!"),)
QUICK = RequestSettings(timeout_seconds=5, tries=2, first_wait_seconds=0.01, longest_wait_seconds=0.02)


def reply(content: Any) -> Reply:
    """Of a chat; an int is a status."""
    if isinstance(content, int):
        return Reply(content)
    message = {"role": "assistant", "content": content}
    return Reply(body=json.dumps({"id": "x", "choices": [{"message": message}]}).encode())


@pytest.fixture
def server() -> Iterator[Server]:
    """Answers every chat with the number of the request, so that no two replies are alike."""
    server = Server("/v1", lambda asked: reply(f"reply {len(server.asked)}"))
    yield server
    server.close()


def settings(server: Server, **given: Any) -> ServerSettings:
    return ServerSettings(base_url=server.url, model="user-model", requests=QUICK, **given)


def ask(user: Any, dialogue: Sequence[Said] = OPENING, scenario: Scenario = SCENARIO) -> str:
    return str(asyncio.run(user.answer(scenario, dialogue)))


def test_the_request_has_the_scenario_the_turned_dialogue_and_no_randomness(server: Server) -> None:
    dialogue = (*OPENING, Said("user", "Cancel it."), Said("agent", "Which?"))
    assert ask(ServedUser(settings(server, seed=7, max_tokens=99)), dialogue) == "reply 1"
    (asked,) = server.asked
    assert asked.path == "/v1/chat/completions"
    assert asked.body == {
        "model": "user-model",
        "temperature": 0.0,
        "seed": 7,
        "max_tokens": 99,
        "messages": [
            {"role": "system", "content": "You are a customer."},
            {"role": "user", "content": "Hi!"},
            {"role": "assistant", "content": "Cancel it."},
            {"role": "user", "content": "Which?"},
        ],
    }


def test_a_request_has_one_reply_whoever_asks_and_in_whatever_order(server: Server) -> None:
    user = ServedUser(settings(server))
    others = [(*OPENING, Said("user", "a"), Said("agent", text)) for text in ("b", "c")]
    first = [ask(user, dialogue) for dialogue in (OPENING, *others)]
    assert len(set(first)) == 3
    assert [ask(user, dialogue) for dialogue in reversed((OPENING, *others))] == first[::-1]
    assert len(server.asked) == 3


def test_replies_are_kept_raw_in_the_folder_and_read_by_the_next_process(server: Server, tmp_path: Path) -> None:
    kept = settings(server, cache=str(tmp_path))
    assert ask(ServedUser(kept)) == "reply 1"
    assert ask(ServedUser(kept)) == "reply 1"
    assert len(server.asked) == 1
    (file,) = tmp_path.iterdir()
    _, line = (json.loads(text) for text in file.read_text().splitlines())
    assert json.loads(line["query"]) == server.asked[0].body
    assert json.loads(line["text"])["id"] == "x"
    assert ask(ServedUser(settings(server, cache=str(tmp_path), seed=1))) == "reply 2"


@pytest.mark.parametrize("contents", [[503, 503], [None, ""], ["<think>never closed", 429], [400]])
def test_a_user_that_cannot_be_asked_is_no_fault_of_the_policy(server: Server, contents: list[Any]) -> None:
    server.in_turn(*map(reply, contents))
    user = ServedUser(settings(server))
    with pytest.raises(InfrastructureError, match="user"):
        ask(user)
    assert len(server.asked) == len(contents)
    assert ask(user) == f"reply {len(contents) + 1}"


def test_the_key_goes_in_the_header_alone(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("USER_KEY", "s3cret")
    ask(ServedUser(settings(server, key_variable="USER_KEY", cache=str(tmp_path))))
    assert server.asked[0].headers["Authorization"] == "Bearer s3cret"
    assert "s3cret" not in json.dumps(server.asked[0].body) + "".join(path.read_text() for path in tmp_path.iterdir())


def test_the_scripted_user_states_answers_insists_and_leaves() -> None:
    def said(*heard: str, scenario: Scenario = SCENARIO) -> str:
        dialogue = [*OPENING]
        for text in heard:
            dialogue += [Said("user", "..."), Said("agent", text)]
        return ask(ScriptedUser(), dialogue, scenario)

    assert said() == "I want to cancel. You are Mia."
    assert said("Your name?") == "Yes. You are Mia."
    assert said("No.") == "Insist."
    assert said("Sure?", "No.") == "Insist."
    assert said("No.", "No.") == "###STOP###"
    assert said(*["Why?"] * MOST_MESSAGES) == "###STOP###"
    assert said("YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON.") == "###TRANSFER###"
    bare = Scenario("", "Help me.", "", "")
    assert (said(scenario=bare), said("Eh?", scenario=bare)) == ("Help me.", "Yes.")
    assert said("No.", scenario=bare) == "Please check again."
