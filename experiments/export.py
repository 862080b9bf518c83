"""Make a Hugging Face model folder from a run's trained policy, with a model card
(docs/cluster/gpus.md):

    python experiments/export.py results/EXPERIMENT/RUN OUTPUT
    python experiments/export.py results/EXPERIMENT/RUN OUTPUT --dtype bfloat16
    python experiments/export.py results/EXPERIMENT/RUN OUTPUT --push OWNER/NAME

OUTPUT must be new or empty. An unfinished run is exported from its last save, and the card says so. --push also uploads
the folder to a repository of the Hugging Face Hub. A new repository is private.

Loading a save can run code that its files hold. Export and resume only runs of people whom you trust.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from rtpo.core.files import check_is_free
from rtpo.run.cli import Parser, command
from rtpo.run.export import DTYPES, TrainedPolicy, check_push, find_trained, push, write_model


def export(run: Path, output: Path, dtype: str | None = None, repository: str | None = None) -> TrainedPolicy:
    """Write the policy of `run` to the folder `output`, and upload it if a repository is named. Raises RTPOError."""
    check_is_free(output)
    if repository is not None:
        check_push(repository)
    trained = find_trained(run)
    write_model(trained, output, dtype, repository)
    if repository is not None:
        print(f"pushed: {push(output, repository)}")
    return trained


@command
def main(arguments: Sequence[str] | None = None) -> None:
    parser = Parser(__doc__)
    parser.add_argument("run", type=Path, help="a run's folder, results/<experiment>/<run>")
    parser.add_argument("output", type=Path, help="the folder to make")
    parser.add_argument("--dtype", choices=DTYPES, help="number type of the weights; default: as saved")
    parser.add_argument("--push", metavar="OWNER/NAME", help="also upload to this repository of the Hugging Face Hub")
    options = parser.parse_args(arguments)
    trained = export(options.run, options.output, options.dtype, options.push)
    state = "finished" if trained.manifest is not None else "not finished"
    print(f"{options.output}: {trained.save_name} of {trained.folder} ({state})")


if __name__ == "__main__":
    sys.exit(main())
