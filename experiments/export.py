"""Make a Hugging Face model folder of a run's trained policy, with a model card:

    python experiments/export.py results/EXPERIMENT/RUN OUTPUT
    python experiments/export.py results/EXPERIMENT/RUN OUTPUT --dtype bfloat16

OUTPUT must be new or empty. A run that is not finished is exported from its last save, and its card says so.
"""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rtpo.run.command import Parser, command

from analysis.pages.model_card import model_card
from rtpo.core.files import check_is_free
from rtpo.run.export import DTYPES, TrainedPolicy, find_trained, write_model


def export(run: Path, output: Path, dtype: str | None = None) -> TrainedPolicy:
    """The policy of `run` in the folder `output`. Raises an RTPOError with a sentence for the user."""
    check_is_free(output)
    trained = find_trained(run)
    write_model(trained, output, partial(model_card, trained), dtype)
    return trained


@command
def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(__doc__)
    parser.add_argument("run", type=Path, help="a run's folder, results/<experiment>/<run>")
    parser.add_argument("output", type=Path, help="a new folder")
    parser.add_argument("--dtype", choices=DTYPES, help="of the weights; without it, as they were saved")
    options = parser.parse_args(arguments)
    trained = export(options.run, options.output, options.dtype)
    state = "finished" if trained.manifest is not None else "not finished"
    print(f"{options.output}: {trained.save} of {trained.folder} ({state})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
