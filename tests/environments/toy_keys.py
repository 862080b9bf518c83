from rtpo.types import Task

TASK = Task("toy_keys/train/e3leftbossrightteacherfrom3712", " start e3 left boss right teacher from 37 12", "")
REPLIES = (
    "<think> e3 so boss</think><tool_call> boss</tool_call>",
    "<tool_call> teacher</tool_call>",
    "<tool_call> friend</tool_call>",
    "<tool_call> rival</tool_call>",
    "<tool_call> parent</tool_call>",
    "<tool_call> neighbour</tool_call>",
    "<tool_call> e3</tool_call>",
    "<tool_call> boss",
    " boss",
    "",
)
