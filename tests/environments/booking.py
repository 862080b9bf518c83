from rtpo.envs.booking.world import task_of
from rtpo.tools.protocol import render_call

TASK = task_of("cancel:R1007", "booking/cancel")
REPLIES = (
    "<think>\nread</think>\n" + render_call("get_reservation", {"reservation": "R1007"}),
    *(render_call("cancel", {"reservation": reservation}) for reservation in ("R1007", "R1008")),
    '<tool_call>\n{"name": "cancel", "arguments"',
    "Which reservation is it?",
    "<think>\ndone\n</think>\n\nIt is done for 50 dollars.",
    "",
)
