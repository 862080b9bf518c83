"""Make a W&B report of an experiment whose runs were tracked there, by wandb_workspaces:

    python experiments/maintenance/wandb_report.py EXPERIMENT
    python experiments/maintenance/wandb_report.py EXPERIMENT --entity TEAM

It shows the paper's two panels, log-prob ratio and KL, then success and what explains it. A method has a line (the mean
over its seeds) and a band (their range) over rollouts used (docs/run/runs.md). It needs W&B's server and your key.
"""

import sys
from collections.abc import Sequence
from typing import Any

import wandb
import wandb_workspaces.reports.v2 as reports

from rtpo.errors import ConfigError, MachineError
from rtpo.harness.curves import X_AXIS
from rtpo.run.cli import Parser, command
from rtpo.run.config import FOLDER_NAME
from rtpo.run.tracking import PROJECT_NAME

PAPER_PANELS = {"Log-prob ratio": "train/ratio", "KL, rollout to training policy": "train/kl"}
FURTHER_PANELS = {
    "Held-out success, at temperature 1": "evaluation/sampled/success",
    "Success in training, at the task's sampling": "train/success",
    "Reward in training, at the task's sampling": "train/reward",
    "Groups without an advantage": "train/zero_advantage",
    "Entropy": "train/entropy",
    "Gradient norm": "train/grad_norm",
    "Tokens computed": "train/tokens/computed",
    "Seconds": "train/wall_seconds",
}
"""titles and keys of the two grids"""


def report(experiment: str, entity: str) -> reports.Report:
    """Build the report. A line of a panel is a group: the seeds of a method (`rtpo.run.tracking.tracked_group`)."""
    runs = reports.Runset(
        entity=entity,
        project=PROJECT_NAME,
        name=experiment,
        filters=f"Config('experiment_name') == '{experiment}'",
        groupby=["Group"],
    )
    blocks: list[Any] = []
    for heading, panels in (("The paper's panels", PAPER_PANELS), ("Success, and what explains it", FURTHER_PANELS)):
        lines: list[Any] = [
            reports.LinePlot(
                title=title,
                x=X_AXIS,
                y=[key],
                title_x="rollouts used",
                groupby="Group",
                groupby_aggfunc="mean",
                groupby_rangefunc="minmax",
                layout=reports.Layout(x=12 * (place % 2), y=8 * (place // 2), w=12, h=8),
            )
            for place, (title, key) in enumerate(panels.items())
        ]
        blocks += [reports.H2(text=heading), reports.PanelGrid(runsets=[runs], panels=lines)]
    return reports.Report(project=PROJECT_NAME, entity=entity, title=experiment, blocks=blocks, width="fluid")


@command
def main(arguments: Sequence[str] | None = None) -> None:
    parser = Parser(__doc__)
    parser.add_argument("experiment", help="experiment_name of the runs")
    parser.add_argument("--entity", help="W&B's entity that owns the project; default: yours")
    options = parser.parse_args(arguments)
    if not FOLDER_NAME.fullmatch(options.experiment):
        raise ConfigError(f"EXPERIMENT is {options.experiment!r}: give the experiment_name of tracked runs.")
    try:
        page = report(options.experiment, options.entity or str(wandb.Api().default_entity))
        page.save()
        print(page.url)
    except Exception as error:  # whatever W&B and its packages raise
        raise MachineError(f"W&B makes no report: {' '.join(str(error).split())}") from error


if __name__ == "__main__":
    sys.exit(main())
