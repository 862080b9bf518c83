"""tau3-airline: the airline domain of tau2-bench, with states that can be forked (docs/run/tasks.md).

A turn is one message of the agent: tool calls, or text to the user. The tools and the user's stop words are the
package's. The reward and the end after errors follow the package's rules. The database is copy-on-write (`desk`).
"""

import json
import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from rtpo.core.bounds import Count
from rtpo.core.json_text import encodable
from rtpo.core.names import counted
from rtpo.envs.airline.desk import Changes, Desk, open_desk
from rtpo.envs.airline.package import load_package
from rtpo.envs.airline.tasks import TOO_MANY_ERRORS, read_criteria, read_splits
from rtpo.envs.airline.users import Said, Scenario, ServerSettings, User, open_user
from rtpo.envs.base import Environment, Settings
from rtpo.envs.episode import Episode, text_and_calls
from rtpo.errors import ConfigError, DataError
from rtpo.tools.protocol import CLOSE, CUT, OPEN, SHAPE, Call, Malformed
from rtpo.types import Feedback, Grade, GradeOutcome, Message, Opening, StopReason, Task, ToolOutcome, ToolUse

OFFICIAL_SPLITS = {"train": "train", "held_out": "test"}
"""this project's splits, and the package's names for them"""
_EMPTY = Message("tool", "Error: the reply is empty.")
_CALLS = re.compile(f"{OPEN}.*?{CLOSE}", re.DOTALL)


@dataclass(frozen=True)
class AirlineSettings(Settings):
    """Settings of the airline task."""

    user: Literal["served", "scripted"] = "served"  # who plays the user: a model on a server, or a script
    server: ServerSettings = field(default_factory=ServerSettings)  # for the served user
    max_errors: Count = 10  # this many errors (`State.errors`) end the episode without reward

    def problems(self, path: str) -> list[str]:
        return self.server.problems(f"{path}.server") if self.user == "served" else []

    def check(self) -> dict[str, Any]:
        """Load the package, and ask a served user for one message. Raises MachineError, DataError and ConfigError."""
        facts = {"tau2": load_package().version, "user": self.user}
        if self.user == "scripted":
            return facts
        self.server.check()
        return facts | {"model": self.server.model, "base_url": self.server.base_url}


@dataclass(frozen=True, slots=True)
class State:
    """An episode's state."""

    uid: str  # the task's
    changes: Changes = ()  # to the base database
    dialogue: tuple[Said, ...] = ()  # what the user has seen and written
    beside: tuple[str, ...] = ()  # the agent's text beside calls: hidden from the user, read by the reward
    errors: int = 0  # failed or malformed calls, and empty or cut replies
    ended: Literal["", "user", "errors"] = ""  # what ended the episode; empty while it runs


class AirlineEnv(Episode[State]):
    """One dialogue of the official domain. Raises MachineError and DataError if the package cannot be used."""

    def __init__(self, settings: AirlineSettings) -> None:
        super().__init__()
        self._desk: Desk = open_desk()
        self._package = load_package()
        self._user: User = open_user(settings.user, settings.server)
        self._max_errors = settings.max_errors

    async def reset(self, task: Task) -> Opening:
        greeting = Said("agent", self._package.greeting)
        first = await self._user.answer(scenario(task.meta["row"]), (greeting,))
        self._task, self._state = task, State(task.uid, dialogue=(greeting, Said("user", first)))
        opening = (
            Message("system", self._package.agent_prompt),
            Message("assistant", greeting.text),
            Message("user", first),
        )
        return Opening(opening, self._desk.schemas)

    async def step(self, reply: str, stop: StopReason) -> Feedback:
        """See `rtpo.envs.base.Env`. Raises InfrastructureError, and changes nothing, if the user does not answer."""
        task = self._active_task()
        parsed = text_and_calls(reply, stop)
        if parsed is None:
            return self._failed(CUT)
        text, calls = parsed
        if calls:
            return self._run(calls, _CALLS.sub("", text).strip())
        if not text.strip():
            return self._failed(_EMPTY)
        return await self._ask_user(task, text.strip())

    async def grade(self) -> Grade:
        """The package's reward, DB times COMMUNICATE (`tasks`), if the user ended the episode; else 0."""
        task = self._current_task()
        if self._state.ended == "errors":
            return Grade(GradeOutcome.GRADED, 0.0, TOO_MANY_ERRORS)
        if self._state.ended != "user":
            return Grade(GradeOutcome.GRADED, 0.0, "the user has not ended the dialogue")
        expected = gold(task.meta["row"])
        if expected is not None and self._state.changes != expected:
            return Grade(GradeOutcome.GRADED, 0.0, "the database is not what it should be")
        spoken = [message.text for message in self._state.dialogue if message.speaker == "agent"] + [
            *self._state.beside
        ]
        heard = [text.lower().replace(",", "") for text in spoken]
        if missing := [figure for figure in task.answer if not any(figure.lower() in text for text in heard)]:
            return Grade(GradeOutcome.GRADED, 0.0, f"the user was not told {', '.join(missing)}")
        return Grade(GradeOutcome.GRADED, 1.0)

    async def _ask_user(self, task: Task, text: str) -> Feedback:
        dialogue_so_far = (*self._state.dialogue, Said("agent", text))
        answer = await self._user.answer(scenario(task.meta["row"]), dialogue_so_far)
        ends = any(word in answer for word in self._package.stop_words)
        dialogue = (*dialogue_so_far, Said("user", answer))
        self._state = replace(self._state, dialogue=dialogue, ended="user" if ends else "")
        return Feedback(() if ends else (Message("user", answer),), done=ends)

    def _run(self, calls: tuple[Call | Malformed, ...], beside: str) -> Feedback:
        answers = [self._answer(call) for call in calls]
        if beside:
            self._state = replace(self._state, beside=(*self._state.beside, beside))
        messages = tuple(Message("tool", content) for content, _ in answers)
        return self._end_after_errors(Feedback(messages, done=False, calls=tuple(use for _, use in answers)))

    def _answer(self, call: Call | Malformed) -> tuple[str, ToolUse]:
        """The text that answers a call, and the call's outcome."""
        if isinstance(call, Malformed):
            self._state = replace(self._state, errors=self._state.errors + 1)
            return f"Error: {call.why}. Write {SHAPE}.", ToolUse("", ToolOutcome.MALFORMED)
        response = self._desk.call(self._state.changes, call.name, call.arguments)
        errors = self._state.errors + response.failed
        self._state = replace(self._state, changes=response.changes, errors=errors)
        content = encodable(response.content)
        if call.name not in self._desk.names:
            return content, ToolUse("", ToolOutcome.MALFORMED)
        return content, ToolUse(call.name, ToolOutcome.PROGRAM_ERROR if response.failed else ToolOutcome.OK)

    def _failed(self, answer: Message) -> Feedback:
        """Count an empty or cut reply as an error, and answer it."""
        self._state = replace(self._state, errors=self._state.errors + 1)
        return self._end_after_errors(Feedback((answer,), done=False))

    def _end_after_errors(self, feedback: Feedback) -> Feedback:
        if self._state.errors < self._max_errors:
            return feedback
        self._state = replace(self._state, ended="errors")
        return replace(feedback, messages=(), done=True)


@lru_cache(1024)
def scenario(row: str) -> Scenario:
    """The user's side of a task. row: the task's entry in the task file, in JSON."""
    package = load_package()
    task = package.task_type.model_validate_json(row)
    prompt = package.user_type(llm="none", instructions=str(task.user_scenario)).system_prompt
    instructions: Any = json.loads(row)["user_scenario"]["instructions"]
    parts = instructions if isinstance(instructions, dict) else {"reason_for_call": instructions}
    names = ("reason_for_call", "known_info", "task_instructions")
    return Scenario(prompt, *(str(parts.get(name) or "").strip() for name in names))


@lru_cache(1024)
def gold(row: str) -> Changes | None:
    """The changes after a task's gold calls on a fresh database. None if the task has no list of gold calls: then the
    package accepts any database."""
    actions = json.loads(row)["evaluation_criteria"].get("actions")
    if actions is None:
        return None
    return open_desk().replay([(action["name"], action["arguments"]) for action in actions])


def read_airline(path: Path) -> list[Task]:
    """Read tasks from a file in the airline domain's format (`tasks.json`). Raises DataError naming the task."""
    criteria = read_criteria(path)
    rows = json.loads(path.read_text(encoding="utf-8"))
    return [
        Task(
            uid=f"tau3_airline/{row['id']}",
            question=json.dumps(row.get("user_scenario")),
            answer=criteria[row["id"]].figures,
            meta={"id": row["id"], "row": json.dumps(row)},
        )
        for row in rows
    ]


def official_tasks(split: str, count: int, seed: int) -> list[Task]:
    """The first `count` tasks of an official split: the package's train, or its test as held_out. `seed` is ignored,
    because nothing is drawn. Raises ConfigError, DataError, and MachineError without the package."""
    if split not in OFFICIAL_SPLITS:
        raise ConfigError(f"tau3-airline has no split {split!r}: use one of {', '.join(OFFICIAL_SPLITS)}")
    folder = load_package().folder
    ids = read_splits(folder / "split_tasks.json")[OFFICIAL_SPLITS[split]]
    by_id = {task.meta["id"]: task for task in read_airline(folder / "tasks.json")}
    if count > len(ids):
        raise DataError(f"tau3-airline has {counted(len(ids), 'task')} in {split}, not {count}: ask for fewer")
    return [by_id[identity] for identity in ids[:count]]


ENVIRONMENT = Environment(
    lambda settings, max_turns: AirlineEnv(settings), read_airline, official_tasks, settings=AirlineSettings
)
