"""Pack the finished runs below a folder into a few files, which everything that reads runs reads like their folders
(results/README.md).

    python experiments/maintenance/pack.py results/toy            into results/toy/packed/
    python experiments/maintenance/pack.py results/toy --unpack   back into folders

Every file is compared with its checksum in the run's manifest before, and what was packed is read back and compared
before anything is deleted. Nothing is packed while one of the runs is unfinished, damaged, or has saves.
"""

import gzip
import sys
from collections import defaultdict
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from rtpo.run.command import Parser, command

from rtpo.core.files import write_whole
from rtpo.errors import DataError
from rtpo.run import archives
from rtpo.run.records import SCHEMA, RunFolder, read_manifest


def pack(folder: Path) -> int:
    """Returns how many runs and evaluations were packed. Raises DataError, and Held for a run in use."""
    runs = sorted(file.parent for file in folder.rglob("config.yaml"))
    if not runs:
        raise DataError(f"{folder} holds no run that could be packed: give one above runs, such as results/toy.")
    kinds: dict[Path, dict[str, bytes]] = defaultdict(dict)
    files = []
    for run in runs:
        if run == folder:
            raise DataError(f"{folder} is a run: give the folder that it lies in.")
        with RunFolder(run).held():
            for file, data in _records(run).items():
                name = file.relative_to(folder).as_posix()
                kinds[archives.archive_of(folder, file.name)][name] = archives.line(name, data)
                files.append(file)
    for archive, lines in kinds.items():
        archive.parent.mkdir(exist_ok=True)
        write_whole(archive, b"".join(line for _, line in sorted((_packed(archive, lines) | lines).items())))
    _check_same(folder, files)
    # a run is found by its configuration, should this be cut off
    for file in sorted(files, key=lambda file: file.name == "config.yaml"):
        file.unlink()
    _tidy(folder, runs)
    return len(runs)


def unpack(folder: Path) -> int:
    """Returns how many runs and evaluations were unpacked. Raises DataError."""
    kinds = sorted((folder / archives.PACKED).glob("*.jsonl.gz"))
    if not kinds:
        raise DataError(f"{folder / archives.PACKED} holds no packed runs: give the folder that packed/ lies in.")
    files = []
    for archive in kinds:
        for name, place in archives.members(archive).items():
            file, data = folder / name, archives.member(archive, *place)
            if file.exists() and file.read_bytes() != data:
                raise DataError(f"{file} is there and differs from the packed one: move it away.")
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, data)
            files.append(file)
    _check_same(folder, files)
    for archive in kinds:
        archive.unlink()
    _tidy(folder, [folder / archives.PACKED])
    return sum(file.name == "config.yaml" for file in files)


def _records(run: Path) -> Mapping[Path, bytes]:
    """The files on disk of a run, which are all text and as its manifest says. Raises DataError."""
    manifest = run / "manifest.json"
    if not archives.exists(manifest):
        raise DataError(f"{run} is not finished: finish it by its command, or move it away, and pack again.")
    for name, expected in read_manifest(manifest, SCHEMA, ("files",))["files"].items():
        if not archives.exists(run / name) or sha256(archives.read(run / name)).hexdigest() != expected:
            raise DataError(f"{run / name} is not the file the run left: restore it, or run again.")
    found = {}
    for file in sorted(run.iterdir()):
        if file.is_dir() and (file / "config.yaml").exists():
            continue
        if not file.is_file() or file.is_symlink():
            raise DataError(f"{file} is not packed, being no record: delete it or move it away, and pack again.")
        found[file] = file.read_bytes()
        try:
            found[file].decode()
        except ValueError as error:
            raise DataError(f"{file} is no text: move it away, and pack again.") from error
    return found


def _packed(archive: Path, lines: Mapping[str, bytes]) -> dict[str, bytes]:
    """What the archive holds already. Raises DataError for one of `lines` that it holds otherwise."""
    data = archive.read_bytes() if archive.exists() else b""
    held = {name: data[start:end] for name, (start, end) in archives.members(archive).items()}
    for name in held.keys() & lines.keys():
        if gzip.decompress(held[name]) != gzip.decompress(lines[name]):
            raise DataError(f"{archive} has another {name}: unpack it elsewhere, and keep one of the two.")
    return held


def _check_same(folder: Path, files: list[Path]) -> None:
    """Raises DataError for a file on disk that the archives hold otherwise, or not."""
    for file in files:
        archive = archives.archive_of(folder, file.name)
        place = archives.members(archive).get(file.relative_to(folder).as_posix())
        if place is None or archives.member(archive, *place) != file.read_bytes():
            raise DataError(f"{archive} does not hold {file} as it is on disk; nothing was deleted: try again.")


def _tidy(folder: Path, emptied: list[Path]) -> None:
    """Delete these folders and those between them and `folder`, where they are empty."""
    for place in sorted({*emptied, *(above for one in emptied for above in one.parents)}, reverse=True):
        if place.is_relative_to(folder) and place != folder and not any(place.iterdir()):
            place.rmdir()


@command
def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = Parser(__doc__)
    parser.add_argument("folder", type=Path, help="above the runs")
    parser.add_argument("--unpack", action="store_true", help="the other way")
    given = parser.parse_args(arguments)
    count = (unpack if given.unpack else pack)(given.folder)
    print(f"{'un' if given.unpack else ''}packed {count} runs and evaluations in {given.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
