"""Train one run, or with -m several (docs/run/runs.md):

    python experiments/train.py algorithm=rtpo task=toy_math seed=0
    python experiments/train.py -m algorithm=rtpo,grpo seed=0,1,2     several runs, one after another
    python experiments/train.py -m optimizer.lr=1e-4,2e-4             a sweep over any field

Every field of configs/ can be set like this. The common ones, with their defaults:

    algorithm=rtpo               the method: a file of configs/algorithm/
    task=toy_math                the task: a file of configs/task/
    profile=toy                  the machine: a file of configs/profile/; toy runs on any CPU
    experiment=null              an experiment, of which to train one run: a file of configs/experiment/
    experiment_name=default      records are in results/<experiment_name>/<label>-seed<seed>/
    seed=0                       the seed of all random draws
    data=null                    a file of problems, for tasks that do not generate their own
    budget.rollouts=8192         training rollouts; the run ends when one more task might exceed them
    budget.tasks_per_step=16     tasks in a data step
    optimizer.lr=0.0005          the learning rate; constant, unless fields of verl set a schedule
    evaluation.every_rollouts=0  rollouts between two evaluations during training; 0: none
    save.every_steps=5           data steps between two saves; 0: save only on a stop and at the end

Settings that the command line changes become part of the run's name. --cfg job prints all fields
with their values, and runs nothing. Ctrl-C saves and ends the run; the same command resumes it.
"""

import sys

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from experiments.training import check_all, train
from rtpo.run.cli import command, with_configuration
from rtpo.run.config import RunConfig, compose_run
from rtpo.run.experiments import check_one_run
from rtpo.run.naming import with_label
from rtpo.run.stopping import StopRequest


def configured(tree: DictConfig) -> RunConfig:
    """The run of a composed tree, named after what its command line changes. Raises ConfigError."""
    check_one_run(HydraConfig.get())
    return with_label(compose_run(tree), tree, HydraConfig.get())


def train_one(config: RunConfig) -> None:
    train(config, StopRequest())


@command
def main() -> int:
    return with_configuration("train", __doc__, configured, train_one, check_all)


if __name__ == "__main__":
    sys.exit(main())
