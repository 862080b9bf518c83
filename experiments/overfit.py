"""Make a byte-level model that has a few problems of a real task by heart:

    python experiments/overfit.py task=math data=FILE
    python experiments/train.py task=math data=FILE

The settings are those of experiments/train.py. The problems are those that the run will train on, the first
`task.train.count` of the file's train split; the model goes to `model.path`.
"""

import argparse
import json
import sys
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException

from rtpo.config import PROJECT, compose_run
from rtpo.errors import RTPOError
from rtpo.tasks import load_tasks
from rtpo.toy.byte_model import Overfit, overfit


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", help="such as task=math data=FILE")
    parser.add_argument("--steps", type=int, default=240)
    given = parser.parse_args(arguments)
    try:
        with initialize_config_dir(str(PROJECT / "configs"), version_base=None):
            run = compose_run(compose("train", given.settings))
        tasks = load_tasks(run.task, run.task.train)
        record = overfit([(run.task, tasks)], Path(run.model.path), Overfit(steps=given.steps))
    except (HydraException, RTPOError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(record))
    return 0


if __name__ == "__main__":
    sys.exit(main())
