from rtpo.types import Task

TASK = Task("toy_knowledge/train/e53bossrivalfriendfrom37", " find e53 boss rival friend from 37", "e30")
REPLIES = (
    "<think> first e53 then boss</think><tool_call> search e53 boss</tool_call>",
    "<think> e53 boss is e36 then rival</think><tool_call> search e36 rival</tool_call>",
    "<think> first e53 then boss</think><tool_call> search e53</tool_call>",
    "<tool_call> search e53",
    "<think> e17 friend is e30 so answer e30</think> answer\\boxed{ e30}",
    " answer\\boxed{ e3}",
    "",
)
