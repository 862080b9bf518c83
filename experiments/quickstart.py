"""Train RTPO and its baselines on a task in minutes. Then make a table, a figure and a page of rollouts
(docs/run/first_hour.md).

    python experiments/quickstart.py                       toy math; `make quickstart` does the same
    python experiments/quickstart.py task=toy_knowledge    another toy task
    python experiments/quickstart.py task=textworld        a language model on text games; `make quickstart-lm` also
                                                           makes the games and the model (docs/run/language_model.md)

Settings of experiments/train.py hold for all runs, which share one Ray session. To resume after a stop, give the same
command again.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.figures.runs import draw_training
from analysis.run_table import run_table
from analysis.run_table import show as show_table
from analysis.view.__main__ import main as view
from experiments.training import check_all, train
from rtpo.errors import ConfigError
from rtpo.run.cli import Parser, command, composed
from rtpo.run.config import PROJECT, RunConfig, compose_run
from rtpo.run.stopping import StopRequest

TOY_METHODS = ("rtpo", "grpo", "grpo_exact")


@dataclass(frozen=True)
class Quickstart:
    """The runs of a task's quickstart."""

    algorithms: tuple[str, ...]
    settings: tuple[str, ...]  # of experiments/train.py, for every run


QUICKSTARTS = {
    "toy_math": Quickstart(TOY_METHODS, ("experiment_name=quickstart", "budget.rollouts=2048")),
    "toy_knowledge": Quickstart(TOY_METHODS, ("experiment_name=quickstart_knowledge", "budget.rollouts=2048")),
    "textworld": Quickstart(
        ("rtpo", "grpo_exact"),
        (
            "experiment_name=quickstart_lm",
            "profile=laptop_lm",
            "budget.rollouts=256",
            "budget.tasks_per_step=8",
            "task.train.count=64",
            "task.held_out.count=24",
            "evaluation.greedy=false",
        ),
    ),
}
"""by the task's name"""
RATES = PROJECT / "results" / "quickstart_rates" / "learning_rates.json"
"""each method's learning rate on toy math, chosen on validation problems (configs/study/quickstart_rates.yaml)"""


def configurations(overrides: list[str]) -> list[RunConfig]:
    """The runs. They differ in `algorithm`, and on toy math in the learning rate. Raises ConfigError."""
    task = str(composed("train", overrides).task.name)
    if task not in QUICKSTARTS:
        raise ConfigError(f"task.name is {task!r}, which has no quickstart: use one of {', '.join(QUICKSTARTS)}.")
    rates, quickstart = json.loads(RATES.read_text()).get(task, {}), QUICKSTARTS[task]
    run_settings = [
        [f"algorithm={name}", *([f"optimizer.lr={rates[name]:g}"] if rates else [])] for name in quickstart.algorithms
    ]
    return [compose_run(composed("train", [*settings, *quickstart.settings, *overrides])) for settings in run_settings]


def train_all(configs: list[RunConfig], stop: StopRequest) -> None:
    """Train the runs one after another. Raises as `train`."""
    for config in configs:
        train(config, stop)


def show(config: RunConfig) -> None:
    """Make tables and figures of the experiment, and a page of this run's rollouts, beside the records. Raises
    DataError if there are no records."""
    results = Path(config.results)
    show_table(run_table(results, config.experiment_name), results / "tables")
    print(*draw_training(results, config.experiment_name, results / "figures"), sep="\n")
    if config.samples_per_rollout:
        view([str(config.folder), "--output", str(results / "figures" / f"{config.experiment_name}_rollouts.html")])
    print(f"More columns: python analysis/make_tables.py --experiment {config.experiment_name} --columns all")


@command
def main(arguments: Sequence[str] | None = None) -> None:
    parser = Parser(__doc__)
    parser.add_argument(
        "overrides", nargs="*", metavar="override", help="a setting of experiments/train.py, for all runs"
    )
    stop = StopRequest()
    configs = configurations(parser.parse_args(arguments).overrides)
    check_all(configs)
    train_all(configs, stop)
    show(configs[0])


if __name__ == "__main__":
    sys.exit(main())
