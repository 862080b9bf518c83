"""The airline domain's simulated users: a served one, against a real HTTP server, and the scripted one."""

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rtpo.core.http_client import RequestSettings
from rtpo.envs.airline.users import (
    MOST_MESSAGES,
    Said,
    Scenario,
    ScriptedUser,
    ServedUser,
    ServerSettings,
    open_user,
)
from rtpo.errors import ConfigError, InfrastructureError, MachineError

SCENARIO = Scenario("You are a customer.", "I want to cancel.", "You are Mia.", "Insist.")
OPENING = (Said("agent", "Hi!"),)
QUICK = RequestSettings(timeout_seconds=5, tries=2, first_wait_seconds=0.01, longest_wait_seconds=0.02)


class Server(ThreadingHTTPServer):
    """Answers every chat with the number of the request, so that no two replies are alike; keeps what it was sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.contents: list[Any] = []
        """replies to give first, in order; an int is a status"""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append({"path": self.path, **body})
        self.server.headers.append(dict(self.headers))
        content = self.server.contents.pop(0) if self.server.contents else f"reply {len(self.server.asked)}"
        status = content if isinstance(content, int) else 200
        data = json.dumps({"id": "x", "choices": [{"message": {"role": "assistant", "content": content}}]}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield found
        found.shutdown()


def settings(server: Server, **given: Any) -> ServerSettings:
    return ServerSettings(base_url=server.url, model="user-model", requests=QUICK, **given)


def ask(user: Any, dialogue: Sequence[Said] = OPENING, scenario: Scenario = SCENARIO) -> str:
    return str(asyncio.run(user.answer(scenario, dialogue)))


def test_the_request_has_the_scenario_the_turned_dialogue_and_no_randomness(server: Server) -> None:
    dialogue = (*OPENING, Said("user", "Cancel it."), Said("agent", "Which?"))
    assert ask(ServedUser(settings(server, seed=7, max_tokens=99)), dialogue) == "reply 1"
    assert server.asked == [
        {
            "path": "/v1/chat/completions",
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
    ]


def test_a_request_has_one_reply_whoever_asks_and_in_whatever_order(server: Server) -> None:
    user = ServedUser(settings(server))
    others = [(*OPENING, Said("user", "a"), Said("agent", text)) for text in ("b", "c")]
    first = [ask(user, dialogue) for dialogue in (OPENING, *others)]
    assert len(set(first)) == 3
    assert [ask(user, dialogue) for dialogue in reversed((OPENING, *others))] == first[::-1]
    assert len(server.asked) == 3


def test_siblings_that_ask_at_once_hear_the_same(server: Server) -> None:
    user = ServedUser(settings(server))

    async def both() -> list[str]:
        return await asyncio.gather(*[user.answer(SCENARIO, OPENING) for _ in range(4)])

    assert len(set(asyncio.run(both()))) == 1


def test_replies_are_kept_raw_in_the_folder_and_read_by_the_next_process(server: Server, tmp_path: Path) -> None:
    kept = settings(server, cache=str(tmp_path))
    assert ask(ServedUser(kept)) == "reply 1"
    assert ask(ServedUser(kept)) == "reply 1"
    assert len(server.asked) == 1
    (file,) = tmp_path.iterdir()
    _, line = (json.loads(text) for text in file.read_text().splitlines())
    assert json.loads(line["query"]) == {key: value for key, value in server.asked[0].items() if key != "path"}
    assert json.loads(line["text"])["id"] == "x"
    assert ask(ServedUser(settings(server, cache=str(tmp_path), seed=1))) == "reply 2"


def test_thinking_is_not_said(server: Server) -> None:
    server.contents = ["<think>\nwell\n</think>\n\nYes. ###STOP###"]
    assert ask(ServedUser(settings(server))) == "Yes. ###STOP###"


@pytest.mark.parametrize("contents", [[503, 503], [None, ""], ["<think>never closed", 429], [400]])
def test_a_user_that_cannot_be_asked_is_no_fault_of_the_policy(server: Server, contents: list[Any]) -> None:
    server.contents = list(contents)
    user = ServedUser(settings(server))
    with pytest.raises(InfrastructureError, match="the simulated user did not answer"):
        ask(user)
    assert len(server.asked) == len(contents)
    assert ask(user) == f"reply {len(contents) + 1}"


def test_a_failure_that_passes_is_tried_again(server: Server) -> None:
    server.contents = [503]
    assert ask(ServedUser(settings(server))) == "reply 2"


def test_the_key_goes_in_the_header_alone(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("USER_KEY", "s3cret")
    ask(ServedUser(settings(server, key_variable="USER_KEY", cache=str(tmp_path))))
    assert server.headers[0]["Authorization"] == "Bearer s3cret"
    assert "s3cret" not in json.dumps(server.asked) + "".join(path.read_text() for path in tmp_path.iterdir())
    for key, why in [("", "put it into the environment variable USER_KEY"), ("s3\ncret", "cannot carry")]:
        monkeypatch.setenv("USER_KEY", key)
        with pytest.raises(ConfigError, match=why):
            ServedUser(settings(server, key_variable="USER_KEY"))


def test_settings_that_cannot_be_are_named() -> None:
    assert ServerSettings("http://127.0.0.1:8000/v1", "m").problems("task.settings.server") == []
    wrong = ServerSettings(max_tokens=0, key_variable="sk-1 2", requests=RequestSettings(tries=0))
    found = wrong.problems("task.settings.server")
    names = ("base_url", "requests.tries", "model", "max_tokens", "key_variable")
    assert [problem.split()[0] for problem in found] == [f"task.settings.server.{name}" for name in names]
    assert "sk-1" not in "".join(found)


def test_a_check_asks_for_one_message(server: Server) -> None:
    settings(server).check()
    assert len(server.asked) == 1
    server.contents = [503, 503]
    with pytest.raises(MachineError, match="Start the server"):
        settings(server, seed=1).check()


def test_a_process_has_one_user_for_its_settings() -> None:
    assert open_user("scripted", ServerSettings()) is open_user("scripted", ServerSettings())


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
