"""The protocol of a tool."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rtpo.types import ToolOutcome

Arguments = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call."""

    outcome: ToolOutcome  # never INFRASTRUCTURE: the tool raises InfrastructureError instead
    output: str  # the text for the policy
    is_forgotten: bool = False  # later calls do not get this call among their `earlier` calls


class Tool(Protocol):
    """A function that the policy may call.

    A tool keeps no state of an episode. The same arguments after the same earlier calls give the same result, so all
    paths forked from one state see the same world.
    """

    @property
    def schema(self) -> Mapping[str, Any]:
        """An entry of a chat template's `tools`:
        `{"type": "function", "function": {"name": ..., "description": ..., "parameters": <JSON schema>}}`."""
        ...

    async def call(self, arguments: Arguments, earlier: Sequence[Arguments]) -> ToolResult:
        """Answer a call whose arguments fit the schema. Raises InfrastructureError if the tool cannot be reached after
        its own retries.

        earlier: arguments of the episode's earlier calls of this tool, without calls that did not run or are forgotten.
        """
        ...


def text_tool(name: str, description: str, argument: str, meaning: str) -> Mapping[str, Any]:
    """The schema of a tool with one text argument, which `meaning` describes to the policy."""
    parameters = {
        "type": "object",
        "properties": {argument: {"type": "string", "description": meaning}},
        "required": [argument],
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}
