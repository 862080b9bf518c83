"""RTPO, GRPO as in the paper and GRPO with exact contexts on the toy math task, then a table and a figure.

`make quickstart`, or `python experiments/quickstart.py [override ...]` with Hydra overrides for all three. One Ray
start serves them all. Stopped half-way, the same command goes on.
"""

import sys

from hydra import compose, initialize_config_dir

from analysis import make_figures, make_tables
from experiments.train import STOPPED, train
from rtpo.config import PROJECT, RunConfig, compose_run
from rtpo.errors import RTPOError, Stopped
from rtpo.run import StopRequest

SETTINGS = ("experiment_name=quickstart", "budget.rollouts=4096")
ALGORITHMS = ("rtpo", "grpo", "grpo_exact")


def configurations(overrides: list[str]) -> list[RunConfig]:
    """The three runs; they differ in `algorithm` alone. Raises ConfigError."""
    with initialize_config_dir(str(PROJECT / "configs"), version_base=None):
        return [compose_run(compose("train", [f"algorithm={name}", *SETTINGS, *overrides])) for name in ALGORITHMS]


def main() -> None:
    stop = StopRequest()
    try:
        configs = configurations(sys.argv[1:])
        for config in configs:
            train(config, stop)
        records = ["--results", configs[0].results, "--experiment", configs[0].experiment_name]
        make_tables.main(records)
        make_figures.main(records)
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
        sys.exit(STOPPED)
    except RTPOError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
