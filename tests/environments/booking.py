from rtpo.envs.booking.tasks import task_of

TASK = task_of("bags:R8ARDG:1", "booking/bags")
REPLIES = (
    '<think>\nread</think>\n<tool_call>\n{"name": "get_reservation", "arguments": {"reservation_id": "R8ARDG"}}\n'
    "</tool_call>",
    '<tool_call>\n{"name": "change_bags", "arguments": {"reservation_id": "R8ARDG", "bags": 3}}\n</tool_call>',
    '<tool_call>\n{"name": "change_bags", "arguments": {"reservation_id": "R8ARDG", "bags": 4}}\n</tool_call>',
    '<tool_call>\n{"name": "change_bags", "arguments"',
    "<think>\nmaybe",
    "Which reservation is it?",
    "<think>\ndone\n</think>\n\nIt is done for 50 dollars.",
    "",
)
