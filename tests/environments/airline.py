from official_airline import FOLDER, needs_tau2

from rtpo.envs.airline.env import AirlineSettings, read_airline
from rtpo.tools.protocol import render_call

SETTINGS = AirlineSettings(user="scripted")
MARKS = (needs_tau2,)
TASK = read_airline(FOLDER / "tasks.json")[1]
REPLIES = (
    "<think>\nread</think>\n" + render_call("get_user_details", {"user_id": "ann_bell_1"}),
    render_call("cancel_reservation", {"reservation_id": "RES001"}),
    render_call("send_certificate", {"user_id": "ann_bell_1", "amount": 5}),
    '<tool_call>\n{"name": "cancel_reservation", "arguments"',
    "Which reservation is it?",
    "<think>\ndone\n</think>\n\nIt is done.",
    "",
)
