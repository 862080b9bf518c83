"""Go through what a cluster's first hour is made of, on a machine without a GPU (docs/cluster/rehearsal.md):

    make rehearsal                                 makes .venv-gpu once, and runs every part
    .venv-gpu/bin/python -m experiments.rehearsal composition     some parts

A part is a module beside this one, and a line in PARTS. Each runs in a process of its own, and leaves a record in
results/rehearsal/; `python -m analysis.pages rehearsal` makes the page of them.
"""

import importlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from rtpo.run.command import Parser, command

from experiments.rehearsal.environment import PROJECT, check_gpu_set
from rtpo.errors import ConfigError, MachineError

RESULTS = PROJECT / "results" / "rehearsal"
PARTS = ("composition", "memory", "vllm", "tokens", "suite", "nodes")
"""modules beside this one, in the order that they run in; each has `rehearse`"""


def chosen(given: Sequence[str]) -> list[str]:
    """Raises ConfigError for a part that there is not."""
    if unknown := [name for name in given if name not in PARTS]:
        raise ConfigError(f"part {', '.join(unknown)}: no such part; use {', '.join(PARTS)}, or none for all.")
    return [name for name in PARTS if name in given] or list(PARTS)


@command
def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status, 1 where something failed."""
    parser = Parser(__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all without any")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the records")
    given = parser.parse_args(arguments)
    parts = chosen(given.parts)
    check_gpu_set()
    given.results.mkdir(parents=True, exist_ok=True)
    if len(parts) == 1:
        from experiments.rehearsal.shared import measure

        module = importlib.import_module(f"experiments.rehearsal.{parts[0]}")
        failed = measure(parts[0], module.rehearse, given.results)
        print("\n".join([*failed, f"{parts[0]}: {'failed' if failed else 'gone through'}"]))
        return int(bool(failed))
    # aside till the end: a committed record that is made anew would have the next part call its checkout changed
    with TemporaryDirectory(dir=given.results, prefix="made-") as name:
        again = [sys.executable, "-m", "experiments.rehearsal", "--results", str(Path(name).absolute())]
        try:
            ended = {part: subprocess.run([*again, part], cwd=PROJECT, check=False).returncode for part in parts}
        finally:
            for record in Path(name).glob("*.json"):
                record.replace(given.results / record.name)
    if broken := [part for part, status in ended.items() if status]:
        raise MachineError(f"of the rehearsal, {', '.join(broken)} failed: see above, and {given.results}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
