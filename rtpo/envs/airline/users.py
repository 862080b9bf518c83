"""The simulated user of the airline domain: a served model, or a script.

A user's answer depends only on the task and on the dialogue, which is in the snapshot. A user keeps no random state
between messages. So paths forked from one state do not affect each other's user, and equal messages get equal answers.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, Protocol

from rtpo.core.bounds import Count
from rtpo.core.http_client import Client, RequestSettings, key_problems, url_problems
from rtpo.core.recording import Memory, Recording
from rtpo.errors import InfrastructureError, MachineError
from rtpo.tools.protocol import visible_text

TEMPERATURE = 0.0
MOST_STATEMENTS = 2
"""the scripted user leaves after this many agent messages without a question"""
MOST_MESSAGES = 20
"""the scripted user leaves after this many agent messages"""


@dataclass(frozen=True, slots=True)
class Said:
    """A message of the dialogue, without tool calls and their results, which the user does not see."""

    speaker: Literal["agent", "user"]
    text: str


class User(Protocol):
    """Answers the agent's last message."""

    async def answer(self, scenario: "Scenario", dialogue: Sequence[Said]) -> str:
        """Raises InfrastructureError if the user's model does not answer."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """The user's side of a task. The last three fields are empty if the task lacks them."""

    prompt: str  # the package's system message for its simulated user
    reason: str  # for contacting the agent
    known: str  # facts that the user knows
    instructions: str  # how the user behaves


@dataclass(frozen=True)
class ServerSettings:
    """The OpenAI-compatible server of the user's model."""

    base_url: str | None = None  # without `/chat/completions`
    model: str | None = None  # the server's name for it
    key_variable: str | None = None  # environment variable with the API key, which is never stored; null for no key
    seed: int = 0  # sent with every request
    max_tokens: Count = 512  # of a reply
    cache: str | None = None  # folder for all requests and raw replies; null keeps them in memory
    requests: RequestSettings = field(default_factory=RequestSettings)

    def problems(self, path: str) -> list[str]:
        problems = url_problems(self.base_url, f"{path}.base_url")
        if not self.model:
            problems.append(f"{path}.model is missing: give the server's name of the model that plays the user.")
        return problems + key_problems(self.key_variable, f"{path}.key_variable")

    def check(self) -> None:
        """Ask the user's model for one message. Do not call it in an event loop. Raises ConfigError if the key is
        missing, and MachineError if the server does not answer."""
        try:
            asyncio.run(open_user("served", self).answer(_TRIAL, (Said("agent", "Hi! How can I help you today?"),)))
        except InfrastructureError as error:
            raise MachineError(f"{error}. Start the server, or name another base_url or model.") from error


_TRIAL = Scenario("You are a customer. Say what you want in one sentence.", "", "", "")


class ServedUser:
    """A `User` played by a served model, at temperature 0 and with one seed. The first reply to each request is stored
    and reused, so a restored episode gets the same answers."""

    def __init__(self, settings: ServerSettings) -> None:
        url = f"{str(settings.base_url).rstrip('/')}/chat/completions"
        self._client = Client(url, settings.requests, settings.key_variable, "the user model's")
        self._fixed = {
            "model": settings.model,
            "temperature": TEMPERATURE,
            "seed": settings.seed,
            "max_tokens": settings.max_tokens,
        }
        identity = {"user": settings.base_url, **self._fixed}
        self._store = Memory() if settings.cache is None else Recording(Path(settings.cache), identity)

    async def answer(self, scenario: Scenario, dialogue: Sequence[Said]) -> str:
        request = self._fixed | {"messages": messages(scenario, dialogue)}

        async def ask() -> str:
            try:
                return json.dumps(await self._client.ask("POST", _checked, body=request))
            except InfrastructureError as error:
                raise InfrastructureError(f"the simulated user did not answer: {error}") from error

        return _text(json.loads(await self._store.once(json.dumps(request, sort_keys=True), ask)))


class ScriptedUser:
    """A `User` without a model. It states its reason, answers questions with yes and what it knows, insists once on its
    instructions, and leaves. It does not act out a scenario: it is for tests and the agent that does nothing."""

    async def answer(self, scenario: Scenario, dialogue: Sequence[Said]) -> str:
        received = [message.text for message in dialogue if message.speaker == "agent"][1:]
        if not received:
            return " ".join(part for part in (scenario.reason, scenario.known) if part)
        statements = sum("?" not in text for text in received)
        if "transferred to a human" in received[-1].lower():
            return "###TRANSFER###"
        if statements >= MOST_STATEMENTS or len(received) >= MOST_MESSAGES:
            return "###STOP###"
        if "?" in received[-1]:
            return f"Yes. {scenario.known}".strip()
        return scenario.instructions or "Please check again."


def messages(scenario: Scenario, dialogue: Sequence[Said]) -> list[dict[str, str]]:
    """The chat for the user's model, in which the user has the role `assistant`, and the agent the role `user`."""
    roles = {"agent": "user", "user": "assistant"}
    return [
        {"role": "system", "content": scenario.prompt},
        *({"role": roles[message.speaker], "content": message.text} for message in dialogue),
    ]


@cache
def open_user(kind: Literal["served", "scripted"], settings: ServerSettings) -> User:
    """The process's one user with these settings. Raises ConfigError if the key is missing."""
    return ScriptedUser() if kind == "scripted" else ServedUser(settings)


def _checked(reply: Any) -> Any:
    """The server's reply unchanged. Raises ValueError unless it holds a message."""
    if not _text(reply):
        raise ValueError("its message has no text after its thinking")
    return reply


def _text(reply: Any) -> str:
    match reply:
        case {"choices": [{"message": {"content": str(content)}}, *_]}:
            return visible_text(content).strip()
    raise ValueError("it is not {'choices': [{'message': {'content': text}}]}")
