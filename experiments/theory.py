"""Test the paper's three theorems on tabular problems, with the algorithm files that train language models
(docs/results/theory.md).

    python experiments/theory.py          all three theorems
    python experiments/theory.py 2 3      some of them

Records go to results/theory/: theorem_<n>.jsonl, then its manifest theorem_<n>.json. They replace earlier records.
`python -m analysis.pages docs/results/theory.md` and `python analysis/make_figures.py --docs` show them.
"""

import json
import sys
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rtpo.algorithms import PROJECT
from rtpo.core.files import disk_errors, partial_of, sha256, utc_now, write_whole
from rtpo.run.cli import Parser, command
from rtpo.run.provenance import provenance
from rtpo.run.records import RunFolder
from rtpo.theory import continuation as theory_continuation
from rtpo.theory import credit as theory_credit
from rtpo.theory import order as theory_order
from rtpo.theory.continuation import ContinuationSettings
from rtpo.theory.credit import CreditSettings
from rtpo.theory.order import OrderSettings

RESULTS = PROJECT / "results" / "theory"
SCHEMA = 1
THEOREMS: dict[int, tuple[Callable[[Any], Iterator[dict[str, Any]]], Any]] = {
    1: (theory_order.lines, OrderSettings()),
    2: (theory_credit.lines, CreditSettings()),
    3: (theory_continuation.lines, ContinuationSettings()),
}
"""by theorem: the function that makes its lines, and the default settings"""


def measure(theorem: int, folder: Path, settings: Any = None) -> None:
    """Make a theorem's records in `folder`. settings: by default those of THEOREMS."""
    make_lines, default = THEOREMS[theorem]
    settings = default if settings is None else settings
    started, wall, cpu = utc_now(), time.monotonic(), time.process_time()
    records, manifest = folder / f"theorem_{theorem}.jsonl", folder / f"theorem_{theorem}.json"
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with RunFolder(folder).held():
            new_records = partial_of(records)
            with new_records.open("w", encoding="utf-8") as out:
                count = 0
                for line in make_lines(settings):
                    out.write(json.dumps(line) + "\n")
                    count += 1
            manifest.unlink(missing_ok=True)
            new_records.replace(records)
            content = {
                "schema": SCHEMA,
                "theorem": theorem,
                "settings": asdict(settings),
                "started": started,
                "ended": utc_now(),
                "wall_seconds": time.monotonic() - wall,
                "cpu_seconds": time.process_time() - cpu,
                **provenance(),
                "lines": count,
                "sha256": sha256(records),
            }
            write_whole(manifest, (json.dumps(content, indent=1) + "\n").encode())


def theorem(text: str) -> int:
    """An argument's type: the number of a theorem."""
    if text not in map(str, THEOREMS):
        raise ArgumentTypeError(f"{text!r} is not one of {', '.join(map(str, THEOREMS))}")
    return int(text)


@command
def main(arguments: list[str] | None = None) -> None:
    parser = Parser(__doc__)
    parser.add_argument("theorems", nargs="*", type=theorem, help="1, 2 or 3; default: all")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the records")
    options = parser.parse_args(arguments)
    for number in sorted({*options.theorems}) or THEOREMS:
        measure(number, options.results)
        print(options.results / f"theorem_{number}.json")


if __name__ == "__main__":
    sys.exit(main())
