from environments.math import MARKS as MARKS
from environments.math import TASK as TASK

from rtpo.envs.math import MathSettings
from rtpo.tools.python.tool import PythonSettings

ENVIRONMENT = "math"
SETTINGS = MathSettings(python=PythonSettings(session=True))
LONGEST = 2
EXAMPLES = 10
REPLIES = (
    '<tool_call>\n{"name": "python", "arguments": {"code": "x = 3"}}\n</tool_call>',
    '<tool_call>\n{"name": "python", "arguments": {"code": "x = x * 4\\nx"}}\n</tool_call>',
    "\\boxed{12}",
)
