from rtpo.types import Task

TASK = Task("toy_math/held_out/12+5*3", " compute 12 + 5 * 3", 27)
REPLIES = (
    "<think> first 5 * 3</think><tool_call> 5 * 3</tool_call>",
    "<think> 5 * 3 is 15 then 12 + 15</think><tool_call> 12 + 15</tool_call>",
    "<think> first 5 * 3</think><tool_call> 12 + 5 * 3</tool_call>",
    "<tool_call> 5 * 3",
    "<think> 12 + 15 is 27 so answer 27</think> answer\\boxed{ 27}",
    " answer\\boxed{ 3}",
    "",
)
