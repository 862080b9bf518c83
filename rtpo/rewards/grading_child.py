"""What runs in the child process of `rtpo.rewards.grading`: a line of JSON with `gold` and `answer` in, a verdict out.

math-verify works in this process's main thread, with its own clocks off: they turn a comparison that takes too long
into False. The parent's clock ends the process instead. Run by its path; imports nothing of the project.
"""

import json
import logging
import os
import resource
import signal
import sys

from math_verify import parse, verify

MEMORY_BYTES = 4 << 30
ORPHAN_SECONDS = 120
"""after which a grade ends this process even if its parent is gone"""


def verdict(gold: str, answer: str) -> str:
    """`right`, `wrong`, `unreadable answer`, `unreadable gold`, or `no memory`."""
    try:
        golds = parse(f"\\boxed{{{gold}}}", parsing_timeout=None)
        # what is not mathematics comes back as its own text alone
        if all(isinstance(gold, str) for gold in golds):
            return "unreadable gold"
        answers = parse(f"\\boxed{{{answer}}}", parsing_timeout=None)
        if not answers:
            return "unreadable answer"
        return "right" if verify(golds, answers, timeout_seconds=None) else "wrong"
    except MemoryError:
        return "no memory"


def main() -> None:
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    # whatever a library prints goes to stderr
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        print(json.dumps("ready"), file=answers, flush=True)
        for line in sys.stdin:
            signal.alarm(ORPHAN_SECONDS)
            print(json.dumps(verdict(**json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
