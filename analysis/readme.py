"""Fill the generated blocks of README.md and docs/*.md from records: python analysis/readme.py [--check]

A block stands between `<!-- generated:NAME -->` and `<!-- end -->`, each alone on its line.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from analysis.make_tables import make_tables
from analysis.tables import NOT_RUN, narrowest
from rtpo.errors import DataError, RTPOError
from rtpo.records import PACKAGES

PROJECT = Path(__file__).resolve().parents[1]
EXPERIMENT = "reference"
_BLOCK = re.compile(r"^<!-- generated:(\S+) -->\n(?:(?!<!-- generated:).*\n)*?<!-- end -->$", re.MULTILINE)
_MARKER = re.compile(r"^<!-- (?:generated:\S+|end) -->$", re.MULTILINE)


def quickstart(project: Path, page: Path) -> str:
    """The tables of the committed reference runs."""
    if not any((project / "results").glob(f"{EXPERIMENT}/*/manifest.json")):
        return f"{NOT_RUN}\n"
    return "\n".join(narrowest(table) for table in make_tables(project / "results", EXPERIMENT))


def figure(project: Path, page: Path) -> str:
    """The figures of the reference runs, as images beside the docs."""
    images = sorted((project / "docs").glob(f"{EXPERIMENT}*.png"))
    if not images:
        return f"{NOT_RUN}\n"
    return "".join(
        f"![Reference runs: success, ratio and KL against training rollouts. Toy scale, not the paper's results.]"
        f"({Path(os.path.relpath(image, page.parent)).as_posix()})\n"
        for image in images
    )


def warm_start(project: Path, page: Path) -> str:
    """What the shipped toy model is and how well it does before training."""
    folder = project / "rtpo" / "toy" / "warm_start_math"
    record, model = (_read_json(folder / name) for name in ("warm_start.json", "config.json"))
    settings, held_out = record["settings"], record["held_out"]
    return _table(
        ("What", "Value"),
        [
            ("Parameters", f"{record['parameters']:,}"),
            ("Vocabulary, tokens", f"{model['vocab_size']:,}"),
            ("Layers × hidden size", f"{model['num_hidden_layers']} × {model['hidden_size']}"),
            ("Fine-tuning", f"{settings['steps']:,} steps of {settings['batch_size']} turns, seed {settings['seed']}"),
            ("Episodes with past thinking kept, %", f"{100 * settings['full_history']:g}"),
            ("Fine-tuning, CPU seconds", f"{record['training_cpu_seconds']:,.0f}"),
            ("Demonstrator's success, %", f"{100 * record['demonstrator_success']:.1f}"),
            ("Held-out problems", f"{held_out['problems']:,}"),
            ("Held-out success sampled at temperature 1, %", f"{100 * held_out['sampled_success']:.1f}"),
            ("Held-out success greedy, %", f"{100 * held_out['greedy_success']:.1f}"),
            ("Turns an episode", f"{held_out['turns_per_episode']:.2f}"),
            ("Tokens a turn", f"{held_out['tokens_per_turn']:.1f}"),
            ("Ratio, flattened over recorded contexts (geometric mean a token)", f"{held_out['flattened_ratio']:.3f}"),
        ],
    )


def versions(project: Path, page: Path) -> str:
    """The two package sets."""
    sets = [_pins(project / "requirements" / f"{name}.txt") for name in ("cpu", "gpu")]
    python = [_found(project, "pyproject.toml", r'requires-python = "(.*)"')]
    python.append(_found(project, "environment.yml", r"- python=(\S+)"))
    rows = [("Python", *python), *((name, *(pins.get(name, "not listed") for pins in sets)) for name in PACKAGES)]
    return _table(("Package", "CPU (`requirements/cpu.txt`)", "GPU (`requirements/gpu.txt`)"), rows)


BLOCKS: dict[str, Callable[[Path, Path], str]] = {
    "quickstart": quickstart,
    "figure": figure,
    "warm_start": warm_start,
    "versions": versions,
}
"""name to text, given the project's folder and the page"""


def filled(project: Path, page: Path) -> str:
    """A page's text with every block as the records have it. Raises DataError for a block that is unknown or open."""

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        if name not in BLOCKS:
            raise DataError(f"{page} has a block {name!r}: no such block; there are {', '.join(BLOCKS)}.")
        return f"<!-- generated:{name} -->\n{BLOCKS[name](project, page)}<!-- end -->"

    text = page.read_text(encoding="utf-8")
    if len(_MARKER.findall(text)) != 2 * len(_BLOCK.findall(text)):
        raise DataError(f"{page}: a generated block is not closed by its own <!-- end -->, or not opened.")
    return _BLOCK.sub(fill, text)


def pages(project: Path) -> list[Path]:
    """The pages that may have blocks."""
    return [project / "README.md", *sorted((project / "docs").glob("*.md"))]


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a page would change")
    parser.add_argument("--project", type=Path, default=PROJECT, help="folder of README.md, docs/ and results/")
    given = parser.parse_args(arguments)
    try:
        texts = {page: filled(given.project, page) for page in pages(given.project)}
    except RTPOError as error:
        print(error, file=sys.stderr)
        return 1
    stale = [page for page, text in texts.items() if page.read_text(encoding="utf-8") != text]
    for page in stale:
        if given.check:
            print(f"{page} is not what the records give: python analysis/readme.py", file=sys.stderr)
        else:
            page.write_text(texts[page], encoding="utf-8")
            print(page)
    return 1 if given.check and stale else 0


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in (header, ["---"] * len(header), *rows))


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error}): restore it.") from error


def _pins(path: Path) -> dict[str, str]:
    """Package to version; `not pinned` where a line names none."""
    lines = [line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    pairs = [line.partition("==") for line in lines if line]
    return {name: version or "not pinned" for name, _, version in pairs}


def _found(project: Path, file: str, pattern: str) -> str:
    match = re.search(pattern, (project / file).read_text(encoding="utf-8"))
    if match is None:
        raise DataError(f"{project / file} names no Python version: write it as {pattern}.")
    return match[1]


if __name__ == "__main__":
    sys.exit(main())
