from pathlib import Path

from rtpo.envs.search import SearchEnvSettings
from rtpo.tools.search.replay import ReplaySettings
from rtpo.tools.search.tool import SearchSettings
from rtpo.types import Task

RECORDING = Path(__file__).parents[1] / "fixtures" / "recording.json"
SETTINGS = SearchEnvSettings(SearchSettings("replay", replay=ReplaySettings(str(RECORDING), "empty")))
TASK = Task("hotpotqa/0", "What is the capital of Norway?", ("Oslo", "Oslo, Norway"))
REPLIES = (
    '<tool_call>\n{"name": "search", "arguments": {"query": "Capital of  Norway"}}\n</tool_call>',
    '<tool_call>\n{"name": "search", "arguments": {"query": "elsewhere"}}\n</tool_call>',
    '<tool_call>\n{"name": "search", "arguments": {"query": ""}}\n</tool_call>\n<tool_call>\n'
    '{"name": "python", "arguments": {"code": "1+1"}}\n</tool_call>',
    "<think>\nOslo\n</think>\n\n\\boxed{oslo, norway}",
    "\\boxed{Bergen}",
    "",
)
