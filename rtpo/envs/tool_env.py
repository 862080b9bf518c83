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
    """One question. A reply makes calls, which are answered in order, or is final.

    A final reply is not cut and makes no call. An invalid call, or one beyond `calls_per_reply`, is not run: its
    answer says what is wrong. instructions: the system message, which must state `calls_per_reply`.
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
        self._active_task()
        parsed = text_and_calls(reply, stop)
        if parsed is None:
            return Feedback((CUT,), done=False)
        text, calls = parsed
        if not calls:
            return self._end(text)
        answers = [await self._answer(call, number) for number, call in enumerate(calls)]
        messages = tuple(Message("tool", encodable(content)) for content, _ in answers)
        return Feedback(messages, done=False, calls=tuple(use for _, use in answers))

    async def _answer(self, call: Call | Malformed, number: int) -> tuple[str, ToolUse]:
        """The text that answers the reply's call `number` (from 0), and the call's outcome."""
        schemas = {name: tool.schema for name, tool in self._tools.items()}
        refused = refusal(call, schemas, number, self._calls_per_reply)
        if refused is not None:
            return refused
        assert isinstance(call, Call)
        earlier = [json.loads(arguments) for name, arguments in self._state.past if name == call.name]
        result = await self._tools[call.name].call(call.arguments, earlier)
        if not result.is_forgotten:
            past = (*self._state.past, (call.name, json.dumps(call.arguments)))
            self._state = replace(self._state, past=past)
        return result.output or "(no output)", ToolUse(call.name, result.outcome)
