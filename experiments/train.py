"""Train one configuration (docs/run/runs.md):

    python experiments/train.py algorithm=rtpo task=toy_math seed=0
    python experiments/train.py -m algorithm=rtpo,grpo seed=0,1,2     several, one after another
    python experiments/train.py -m optimizer.lr=1e-4,2e-4             any field, which names runs

Every field can be set so. The common ones, with their defaults:

    algorithm=rtpo               the method: a file of configs/algorithm/
    task=toy_math                a file of configs/task/
    profile=toy                  the machine: a file of configs/profile/; toy is any CPU
    experiment=null              a file of configs/experiment/, whose elements are runs of tables
    experiment_name=default      records are in results/<experiment_name>/<label>-seed<seed>/
    seed=0                       of everything that is drawn
    data=null                    a file of tasks, where the task is not generated
    budget.rollouts=8192         the run ends where fewer are left than one task may need
    budget.tasks_per_step=16     tasks in a data step
    optimizer.lr=0.0005          constant, unless verl's own fields have a schedule
    evaluation.every_rollouts=0  held-out tasks are played before and after, and so often between
    save.every_steps=5           steps between saves

--cfg job prints all fields with their values, and runs nothing. Ctrl-C saves the run; the same
command goes on from there.
"""

import sys

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from experiments.training import train
from rtpo.run.cli import command, with_configuration
from rtpo.run.config import compose_run
from rtpo.run.experiments import check_one_run
from rtpo.run.naming import named
from rtpo.run.run import StopRequest


def train_one(tree: DictConfig) -> None:
    """The run of a composed tree, named after what its command line changes."""
    check_one_run(HydraConfig.get())
    config = named(compose_run(tree), tree, HydraConfig.get())
    folder = train(config, StopRequest())
    ledger = folder.manifest["ledger"]
    print(f"rollouts: {ledger['rollouts']} of {ledger['budget']['rollouts']}")
    print(f"records: {folder.path}")


@command
def main() -> None:
    with_configuration("train", __doc__, train_one)


if __name__ == "__main__":
    sys.exit(main())
