"""Make a byte-level model that has a few problems of a real task by heart (docs/run/real_tasks.md):

    python experiments/maintenance/overfit.py task=math data=FILE
    python experiments/train.py task=math data=FILE

The settings are those of experiments/train.py. The problems are those that the run will train on, the first
`task.train.count` of the file's train split; the model goes to `model.path`.
"""

import json
import sys
from pathlib import Path

from rtpo.run.command import Parser, command, whole

from rtpo.run.composition import composed
from rtpo.run.config import compose_run
from rtpo.run.tasks import load_tasks
from rtpo.toy.byte_model import Overfit, overfit


@command
def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = Parser(__doc__)
    parser.add_argument("settings", nargs="*", help="such as task=math data=FILE")
    parser.add_argument("--steps", type=whole(1), default=240)
    given = parser.parse_args(arguments)
    run = compose_run(composed("train", given.settings))
    tasks = load_tasks(run.task, run.task.train)
    record = overfit([(run.task, tasks)], Path(run.model.path), Overfit(steps=given.steps))
    print(json.dumps(record))
    return 0


if __name__ == "__main__":
    sys.exit(main())
