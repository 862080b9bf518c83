"""Questions with tools, in Qwen3's tool protocol, and a final reply with the answer in `\\boxed{}`."""

import json
from collections.abc import Sequence
from dataclasses import replace

from rtpo.core.json_text import encodable
from rtpo.envs.episode import AnswerEpisode, Answering, text_and_calls
from rtpo.tools.base import Tool
from rtpo.tools.protocol import CUT, Call, Malformed, refusal
from rtpo.types import Feedback, Message, Opening, StopReason, Task, ToolUse


class ToolEnv(AnswerEpisode):
    """One question. A reply makes one or more calls, each answered in order, or is final.

    A final reply is one that stopped by itself and makes no call. What cannot be read as a call, names no tool, does
    not fit its schema or is one call too many is answered with what is wrong; nothing of it is run.

    instructions: the system message. calls_per_reply: calls run in one reply; the policy must be told of it there.
    """

    def __init__(self, instructions: str, tools: Sequence[Tool], calls_per_reply: int) -> None:
        super().__init__()
        self._instructions = instructions
        self._tools = {str(tool.schema["function"]["name"]): tool for tool in tools}
        self._calls_per_reply = calls_per_reply

    async def reset(self, task: Task) -> Opening:
        self._task, self._state = task, Answering(task.uid)
        messages = (Message("system", self._instructions), Message("user", task.question))
        return Opening(messages, tuple(json.dumps(tool.schema) for tool in self._tools.values()))

    async def step(self, reply: str, stop: StopReason) -> Feedback:
        self._goes_on()
        said = text_and_calls(reply, stop)
        if said is None:
            return Feedback((CUT,), done=False)
        text, calls = said
        if not calls:
            return self._end(text)
        answers = [await self._answer(call, number) for number, call in enumerate(calls)]
        messages = tuple(Message("tool", encodable(content)) for content, _ in answers)
        return Feedback(messages, done=False, calls=tuple(use for _, use in answers))

    async def _answer(self, call: Call | Malformed, number: int) -> tuple[str, ToolUse]:
        """What the policy is told of the reply's call `number`, and what became of it."""
        schemas = {name: tool.schema for name, tool in self._tools.items()}
        refused = refusal(call, schemas, number, self._calls_per_reply)
        if refused is not None:
            return refused
        assert isinstance(call, Call)
        earlier = [json.loads(arguments) for name, arguments in self._state.past if name == call.name]
        result = await self._tools[call.name].call(call.arguments, earlier)
        if not result.is_over:
            past = (*self._state.past, (call.name, json.dumps(call.arguments)))
            self._state = replace(self._state, past=past)
        return result.output or "(no output)", ToolUse(call.name, result.outcome)
