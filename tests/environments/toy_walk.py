from rtpo.envs.toy.luck import Luck
from rtpo.envs.toy.walk import WalkSettings
from rtpo.types import Task

TASK = Task(
    "toy_walk/train/e3from3712", " start e3 from 37 12", "boss neighbour friend neighbour friend friend teacher rival"
)
SETTINGS = WalkSettings(Luck((1,), 2.0), "early")
REPLIES = (
    "<think> e3 so boss</think><tool_call> boss</tool_call>",
    "<think> e12 so friend</think><tool_call> friend</tool_call>",
    "<think> e3 so boss</think><tool_call> e3</tool_call>",
    "<tool_call> boss",
    "<tool_call> boss</tool_call><tool_call> boss</tool_call>",
    " boss",
    "",
)
