from official_airline import FOLDER, needs_tau2

from rtpo.envs.airline.env import AirlineSettings, read_airline

SETTINGS = AirlineSettings(user="scripted")
MARKS = (needs_tau2,)
TASK = read_airline(FOLDER / "tasks.json")[1]
REPLIES = (
    '<think>\nread</think>\n<tool_call>\n{"name": "get_user_details", "arguments": {"user_id": "ann_bell_1"}}\n'
    "</tool_call>",
    '<tool_call>\n{"name": "cancel_reservation", "arguments": {"reservation_id": "RES001"}}\n</tool_call>',
    '<tool_call>\n{"name": "send_certificate", "arguments": {"user_id": "ann_bell_1", "amount": 5}}\n</tool_call>',
    '<tool_call>\n{"name": "cancel_reservation", "arguments"',
    "<think>\nmaybe",
    "Which reservation is it?",
    "<think>\ndone\n</think>\n\nIt is done.",
    "",
)
