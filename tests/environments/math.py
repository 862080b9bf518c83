import pytest

from rtpo.types import Task

MARKS = (pytest.mark.needs("bwrap"),)
LONGEST = 2
EXAMPLES = 10
TASK = Task("gsm8k/0", "A pen costs $3. What do 4 cost?", ("12",))
REPLIES = (
    '<think>\n3*4\n</think>\n\n<tool_call>\n{"name": "python", "arguments": {"code": "3*4"}}\n</tool_call>',
    '<tool_call>\n{"name": "python", "arguments": {"code": 3}}\n</tool_call>',
    '<tool_call>\n{"name": "python", "arguments"',
    "<think>\n3*4",
    "<think>\n12\n</think>\n\nThey cost \\boxed{12}.",
    "\\boxed{\\frac{12}{2}}",
    "12",
    "",
)
