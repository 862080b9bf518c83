"""Download the paper's training and evaluation sets, and convert them to one file format (docs/run/data.md):

    python experiments/prepare_data.py                         all sets
    python experiments/prepare_data.py math_train math500      these sets
    python experiments/prepare_data.py --from gaia=FILE        a set from a local file
    python experiments/prepare_data.py --list                  all sets, and which are here

Each set goes to <folder>/<name>.jsonl; a run reads it with data=<folder>/<name>.jsonl. If a set fails, the command
goes on with the others, and ends with exit status 1.
"""

import argparse
import sys
from pathlib import Path

from rtpo.data.prepare import DataFolder
from rtpo.data.registry import REGISTRY, UNVERIFIED
from rtpo.errors import DataError, RTPOError
from rtpo.run.cli import Parser, aligned, command
from rtpo.run.config import PROJECT
from rtpo.run.records import RunFolder

COLUMNS = ("Name", "Role", "Task", "Rows", "Status", "Checksum", "Revision", "Licence")


def stand_in(text: str) -> tuple[str, Path]:
    """The type of an argument NAME=FILE."""
    name, _, file = text.partition("=")
    if not file:
        raise argparse.ArgumentTypeError(f"{text!r} is no NAME=FILE")
    return name, Path(file)


@command
def main(arguments: list[str] | None = None) -> int:
    parser = Parser(__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="name", help=f"sets to prepare; default: all of {', '.join(REGISTRY)}"
    )
    parser.add_argument(
        "--from",
        dest="stand_ins",
        action="append",
        default=[],
        metavar="NAME=FILE",
        type=stand_in,
        help="prepare the set NAME from a local FILE; can be repeated",
    )
    parser.add_argument(
        "--accept-other",
        action="store_true",
        help="take --from files with another checksum or number of rows; the manifest says so",
    )
    parser.add_argument("--folder", type=Path, default=PROJECT / "data", help="where the files go; default: data/")
    parser.add_argument("--list", action="store_true", help="print the status and source of every set; prepare nothing")
    options = parser.parse_args(arguments)
    folder = DataFolder(options.folder)
    stand_ins = dict(options.stand_ins)
    wanted = {*options.names, *stand_ins}
    if unknown := sorted(wanted - REGISTRY.keys()):
        raise DataError(f"no set is named {', '.join(unknown)}: there are {', '.join(REGISTRY)}")
    if options.list:
        print(table(folder))
        return 0
    options.folder.mkdir(parents=True, exist_ok=True)
    with RunFolder(options.folder).held():
        return prepare(folder, wanted or set(REGISTRY), stand_ins, options.accept_other)


def prepare(folder: DataFolder, names: set[str], stand_ins: dict[str, Path], accept_other: bool) -> int:
    """Prepare sets, evaluation sets first; returns the exit status. A training set that was compared with other
    evaluation sets than are there now is prepared again."""
    status = 0
    for name, known in sorted(REGISTRY.items(), key=lambda item: item[1].role == "train"):
        if name not in names and (known.role == "eval" or folder.status(name) != "stale"):
            continue
        if known.parse is None and name not in stand_ins:
            print(f"{name}: nothing to download, it comes with a package: install {known.source} (docs/run/tasks.md)")
            continue
        try:
            manifest = folder.prepare(name, stand_ins.get(name), accept_other)
        except RTPOError as error:
            print(error, file=sys.stderr)
            status = 1
        else:
            dropped = "".join(f", {count} dropped ({reason})" for reason, count in manifest["dropped"].items())
            print(f"{name}: {folder.status(name)}, {manifest['rows']} rows{dropped}", flush=True)
    return status


def table(folder: DataFolder) -> str:
    """The registry with each set's status, in columns, and its sources and notes below."""
    rows = [COLUMNS]
    for name, known in REGISTRY.items():
        checksum = "-" if known.parse is None else _short(known.sha256)
        count, revision = str(known.sample or known.rows), _short(known.revision)
        rows.append((name, known.role, known.kind, count, folder.status(name), checksum, revision, known.licence))
    notes = [
        f"{name}: {known.source}{f' , gated by {known.gate}' if known.gate else ''}\n  {known.note}".rstrip()
        for name, known in REGISTRY.items()
    ]
    return "\n".join([aligned(rows), "", *notes])


def _short(checksum: str) -> str:
    return checksum if checksum == UNVERIFIED else checksum[:12]


if __name__ == "__main__":
    sys.exit(main())
