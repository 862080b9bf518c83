from rtpo.envs.booking.world import task_of

TASK = task_of("cancel:R1007", "booking/cancel")
REPLIES = (
    '<think>\nread</think>\n<tool_call>\n{"name": "get_reservation", "arguments": {"reservation": "R1007"}}\n'
    "</tool_call>",
    '<tool_call>\n{"name": "cancel", "arguments": {"reservation": "R1007"}}\n</tool_call>',
    '<tool_call>\n{"name": "cancel", "arguments": {"reservation": "R1008"}}\n</tool_call>',
    '<tool_call>\n{"name": "cancel", "arguments"',
    "<think>\nmaybe",
    "Which reservation is it?",
    "<think>\ndone\n</think>\n\nIt is done for 50 dollars.",
    "",
)
