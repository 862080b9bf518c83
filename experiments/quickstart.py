"""Train RTPO, GRPO with the paper's contexts and GRPO with exact contexts on a toy task. Then make a table and a figure
(docs/run/first_hour.md).

    python experiments/quickstart.py                       toy math; `make quickstart` does the same
    python experiments/quickstart.py task=toy_knowledge    another task

Settings of experiments/train.py hold for all three runs, which share one Ray session. To resume after a stop, give the
same command again.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from analysis.figures.runs import draw_training
from analysis.run_table import run_table
from analysis.run_table import show as show_table
from experiments.training import train
from rtpo.errors import ConfigError, Stopped
from rtpo.run.cli import Parser, command, composed
from rtpo.run.config import PROJECT, RunConfig, compose_run
from rtpo.run.run import StopRequest

SETTINGS = {
    "toy_math": ("experiment_name=quickstart", "budget.rollouts=2048"),
    "toy_knowledge": ("experiment_name=quickstart_knowledge", "budget.rollouts=2048"),
}
"""each task's own"""
ALGORITHMS = ("rtpo", "grpo", "grpo_exact")
RATES = PROJECT / "results" / "quickstart_rates" / "learning_rates.json"
"""each method's learning rate on toy math, chosen on validation problems (configs/study/quickstart_rates.yaml)"""


def configurations(overrides: list[str]) -> list[RunConfig]:
    """The three runs. They differ in `algorithm`, and on toy math in the learning rate. Raises ConfigError."""
    task = str(composed("train", overrides).task.name)
    if task not in SETTINGS:
        raise ConfigError(f"task.name is {task!r}, which has no quickstart: use one of {', '.join(SETTINGS)}.")
    rates = json.loads(RATES.read_text()).get(task, {})
    own = {name: [f"algorithm={name}", *([f"optimizer.lr={rates[name]:g}"] if rates else [])] for name in ALGORITHMS}
    return [compose_run(composed("train", [*own[name], *SETTINGS[task], *overrides])) for name in ALGORITHMS]


def train_all(configs: list[RunConfig], stop: StopRequest) -> None:
    """One after another. Raises as `train` does; Stopped also when `stop` was heard as a run ended."""
    for config in configs:
        if stop.reason:
            raise Stopped(f"stopped by {stop.reason} before {config.folder}. Run the same command to go on.")
        train(config, stop)


def show(config: RunConfig) -> None:
    """Tables and figures of the configuration's experiment, beside its records. Raises DataError without any."""
    results = Path(config.results)
    show_table(run_table(results, config.experiment_name), results / "tables")
    print(*draw_training(results, config.experiment_name, results / "figures"), sep="\n")
    print(f"More columns: python analysis/make_tables.py --experiment {config.experiment_name} --columns all")


@command
def main(arguments: Sequence[str] | None = None) -> None:
    parser = Parser(__doc__)
    parser.add_argument(
        "overrides", nargs="*", metavar="override", help="a setting of experiments/train.py, for all three runs"
    )
    stop = StopRequest()
    configs = configurations(parser.parse_args(arguments).overrides)
    train_all(configs, stop)
    show(configs[0])


if __name__ == "__main__":
    sys.exit(main())
