from typing import Any

from textworld_games import game, needs_textworld, replies

ENVIRONMENT = "textworld"
MARKS = (needs_textworld,)
EXAMPLES = 8


def __getattr__(name: str) -> Any:
    """The task, and the replies to it, when a test asks for them: a game takes seconds to make."""
    if name not in ("TASK", "REPLIES"):
        raise AttributeError(name)
    return game("treasure") if name == "TASK" else replies("treasure")
