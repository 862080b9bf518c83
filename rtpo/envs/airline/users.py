"""The simulated user of the airline domain: a served model, or a script.

Both are functions of the task and of the dialogue as the user has it, which is in the snapshot. No random state is
kept between messages: paths that are forked from one state cannot disturb each other's user, and those that say the
same hear the same.
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
"""that are no questions, which the scripted user hears before it leaves"""
MOST_MESSAGES = 20
"""of the agent, which the scripted user hears before it leaves"""


@dataclass(frozen=True, slots=True)
class Said:
    """A message of the dialogue, as the user has it: tool calls and their results are not in it."""

    speaker: Literal["agent", "user"]
    text: str


class User(Protocol):
    """Answers the last message of a dialogue, which is the agent's."""

    async def answer(self, scenario: "Scenario", dialogue: Sequence[Said]) -> str:
        """Raises InfrastructureError when the user could not be asked."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A task's side of the user. prompt: the package's system message for its simulated user. reason, known,
    instructions: parts of it, empty where the task has none."""

    prompt: str
    reason: str
    known: str
    instructions: str


@dataclass(frozen=True)
class ServerSettings:
    """An OpenAI-compatible server of the user's model.

    base_url: of the server; `/chat/completions` is added to it. model: as the server names it. key_variable: the
    environment variable that holds the key, which is written nowhere; null where the server takes none. seed: sent with
    every request. max_tokens: of a reply. cache: the folder that every request and raw reply is kept in and read from;
    null keeps them for as long as the process lives.
    """

    base_url: str | None = None
    model: str | None = None
    key_variable: str | None = None
    seed: int = 0
    max_tokens: Count = 512
    cache: str | None = None
    requests: RequestSettings = field(default_factory=RequestSettings)

    def problems(self, path: str) -> list[str]:
        problems = url_problems(self.base_url, f"{path}.base_url")
        if not self.model:
            problems.append(f"{path}.model is missing: a model on that server is the user; name it as the server does.")
        return problems + key_problems(self.key_variable, f"{path}.key_variable")

    def check(self) -> None:
        """Ask the user's model for one message. Not for use within an event loop. Raises ConfigError for a missing key,
        and MachineError for a server that does not answer."""
        try:
            asyncio.run(open_user("served", self).answer(_TRIAL, (Said("agent", "Hi! How can I help you today?"),)))
        except InfrastructureError as error:
            raise MachineError(f"{error}. Start the server, or name another base_url or model.") from error


_TRIAL = Scenario("You are a customer. Say what you want in one sentence.", "", "", "")


class ServedUser:
    """`User` on a served model, at temperature 0 and with one seed. A request's first reply is its reply from then on:
    it is kept under the whole request, so that a restored episode hears what the first one did, whatever the server
    would say the second time."""

    def __init__(self, settings: ServerSettings) -> None:
        url = f"{str(settings.base_url).rstrip('/')}/chat/completions"
        self._client = Client(url, settings.requests, settings.key_variable, "the user model's")
        self._fixed = {
            "model": settings.model,
            "temperature": TEMPERATURE,
            "seed": settings.seed,
            "max_tokens": settings.max_tokens,
        }
        whose = {"user": settings.base_url, **self._fixed}
        self._store = Memory() if settings.cache is None else Recording(Path(settings.cache), whose)

    async def answer(self, scenario: Scenario, dialogue: Sequence[Said]) -> str:
        request = self._fixed | {"messages": messages(scenario, dialogue)}

        async def ask() -> str:
            try:
                return json.dumps(await self._client.ask("POST", _checked, body=request))
            except InfrastructureError as error:
                raise InfrastructureError(f"the simulated user did not answer: {error}") from error

        return _text(json.loads(await self._store.once(json.dumps(request, sort_keys=True), ask)))


class ScriptedUser:
    """`User` without a model: it states its reason, says yes to questions and what it knows with it, insists once on
    its instructions, and leaves. It serves tests and the agent that does nothing; it plays no scenario out."""

    async def answer(self, scenario: Scenario, dialogue: Sequence[Said]) -> str:
        heard = [said.text for said in dialogue if said.speaker == "agent"][1:]
        if not heard:
            return " ".join(part for part in (scenario.reason, scenario.known) if part)
        statements = sum("?" not in text for text in heard)
        if "transferred to a human" in heard[-1].lower():
            return "###TRANSFER###"
        if statements >= MOST_STATEMENTS or len(heard) >= MOST_MESSAGES:
            return "###STOP###"
        if "?" in heard[-1]:
            return f"Yes. {scenario.known}".strip()
        return scenario.instructions or "Please check again."


def messages(scenario: Scenario, dialogue: Sequence[Said]) -> list[dict[str, str]]:
    """The chat as the user's model has it: it is the assistant of it."""
    roles = {"agent": "user", "user": "assistant"}
    return [
        {"role": "system", "content": scenario.prompt},
        *({"role": roles[said.speaker], "content": said.text} for said in dialogue),
    ]


@cache
def open_user(kind: Literal["served", "scripted"], settings: ServerSettings) -> User:
    """The process's user with these settings. Raises ConfigError for a missing key."""
    return ScriptedUser() if kind == "scripted" else ServedUser(settings)


def _checked(reply: Any) -> Any:
    """A server's reply, if it holds a message. Raises ValueError."""
    if not _text(reply):
        raise ValueError("its message says nothing after its thinking")
    return reply


def _text(reply: Any) -> str:
    match reply:
        case {"choices": [{"message": {"content": str(content)}}, *_]}:
            return visible_text(content).strip()
    raise ValueError("it is not {'choices': [{'message': {'content': text}}]}")
