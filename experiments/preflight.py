"""Say what an experiment lacks before it is launched (docs/cluster/gpus.md):

    python experiments/preflight.py main_table profile=a100x8           check files and disk
    python experiments/preflight.py main_table profile=a100x8 --here    check this machine too

An element is one run of the experiment. Further arguments are settings of experiments/train.py for every element.
Those that begin with `evaluate.` are settings of experiments/evaluate.py.
"""

import sys
from collections.abc import Sequence

from rtpo.core.names import counted
from rtpo.planning.preflight import problems, unusable_gold_notes
from rtpo.run.cli import Parser, command
from rtpo.run.experiments import load_experiment, split_overrides


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Print a sentence for each problem and note; returns the exit status, 1 if there is a problem."""
    parser = Parser(__doc__)
    parser.add_argument("experiment", help="a file of configs/experiment/, such as main_table")
    parser.add_argument("overrides", nargs="*", default=[], help="settings for every element, such as seed=1")
    parser.add_argument("--here", action="store_true", help="check this machine too: GPUs, CPUs, servers, sandbox")
    options = parser.parse_intermixed_args(arguments)
    print(f"python: {sys.executable}", flush=True)
    training, evaluation = split_overrides(options.overrides)
    experiment = load_experiment(options.experiment, training)
    for note in unusable_gold_notes(experiment, evaluation=evaluation):
        print(note, file=sys.stderr, flush=True)
    faults = problems(experiment, here=options.here, evaluation=evaluation)
    what = f"{experiment.name}, profile {experiment.profile}, {counted(len(experiment.elements), 'element')}"
    if faults:
        print("\n".join(faults), file=sys.stderr)
        print(f"{what}: {counted(len(faults), 'problem')}", file=sys.stderr)
        return 1
    machine = "this machine" if options.here else "not checked: this machine (--here)"
    print(f"{what}: nothing is missing: models, data, benchmarks, packages, run folders, disk; {machine}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
