"""What runs in a child process of `rtpo.rewards.grading`: a line of JSON in, with `gold`, `answer` and the parent's
limit in `seconds`; a verdict out.

math-verify works in this process's main thread, with its own clocks off: they turn a comparison that takes too long
into False. The parent's clock ends the process instead. Run by its path; imports nothing of the project.
"""

import json
import logging
import math
import os
import re
import resource
import signal
import sys
from collections.abc import Iterable, Iterator

from math_verify import parse, verify
from sympy.core.random import seed

MEMORY_BYTES = 1 << 30
ORPHAN_SECONDS = 5
"""past the limit, after which a grade ends this process: its parent, which would have, is gone"""
_SIGN = re.compile(r"\s*(?:\\?%|percent|°)\s*$")


def read(text: str) -> list[object]:
    """What math-verify makes of a box with `text` in it: expressions, and its own text last. A percent or degree sign
    at its end (`percent` becomes one), which this version cannot read, is left out: 25\\% is 25."""
    parsed: list[object] = parse(f"\\boxed{{{_SIGN.sub('', text)}}}", parsing_timeout=None, raise_on_error=True)
    return parsed


def verdict(gold: str, answer: str) -> str:
    """`right`, `wrong`, `unreadable answer`, `unreadable gold`, or the name of what math-verify raised, of which it
    would make "not equal" by itself."""
    try:
        golds = read(gold)
        # what is not mathematics comes back as its own text alone
        if all(isinstance(value, str) for value in golds):
            return "unreadable gold"
        answers = read(answer)
        if not answers:
            return "unreadable answer"
        return "right" if verify(golds, answers, timeout_seconds=None, raise_on_error=True) else "wrong"
    except Exception as error:  # its text can be without end
        return type(error).__name__


def verdicts(requests: Iterable[str]) -> Iterator[str]:
    """The verdict of each line, under an alarm that is off between them."""
    for request in requests:
        asked = json.loads(request)
        signal.alarm(math.ceil(asked["seconds"]) + ORPHAN_SECONDS)
        # sympy compares some expressions at random points
        seed(0)
        answer = verdict(asked["gold"], asked["answer"])
        signal.alarm(0)
        yield answer


def main() -> None:
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    # whatever a library prints goes to stderr
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        print(json.dumps("ready"), file=answers, flush=True)
        for answer in verdicts(sys.stdin):
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
