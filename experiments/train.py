"""Train one configuration: `python experiments/train.py algorithm=rtpo task=toy_math seed=0`.

Hydra's own command line (`-m` for several runs, `--cfg job` to print the configuration) works as usual.
"""

import sys

from rtpo.run.command import command

import hydra
from omegaconf import DictConfig

from experiments.training import train
from rtpo.run.composition import in_words
from rtpo.run.config import PROJECT, compose_run
from rtpo.run.run import StopRequest


@command
def run(tree: DictConfig) -> None:
    folder = train(compose_run(tree), StopRequest())
    ledger = folder.manifest["ledger"]
    print(f"rollouts: {ledger['rollouts']} of {ledger['budget']['rollouts']}")
    print(f"records: {folder.path}")


@command
@in_words()
@hydra.main(version_base=None, config_path=str(PROJECT / "configs"), config_name="train")
def main(tree: DictConfig) -> None:
    if status := run(tree):
        sys.exit(status)  # which Hydra lets pass


if __name__ == "__main__":
    sys.exit(main())
