"""The protocol of a tool."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rtpo.types import ToolOutcome

Arguments = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What became of a call, and what the policy is told. Never INFRASTRUCTURE: that is raised.

    is_over: a later call of the episode does not go on from it.
    """

    outcome: ToolOutcome
    output: str
    is_over: bool = False


class Tool(Protocol):
    """A function that the policy may call.

    The same arguments after the same earlier calls give the same result to every path that is forked from one state:
    a tool keeps no state of an episode itself.
    """

    @property
    def schema(self) -> Mapping[str, Any]:
        """Name, description and JSON schema of the arguments, as a chat template's `tools` takes them:
        `{"type": "function", "function": {"name": ..., "description": ..., "parameters": {...}}}`."""
        ...

    async def call(self, arguments: Arguments, earlier: Sequence[Arguments]) -> ToolResult:
        """Answer a call whose arguments fit the schema; `earlier` are the arguments of this episode's calls of this
        tool that were run before it and are not over.

        Raises InfrastructureError when the tool could not be reached, after its own retries.
        """
        ...


def text_tool(name: str, description: str, argument: str, meaning: str) -> Mapping[str, Any]:
    """The schema of a tool with one argument, which is text."""
    parameters = {
        "type": "object",
        "properties": {argument: {"type": "string", "description": meaning}},
        "required": [argument],
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}
