"""Check that the GPU set can be installed, without installing it, and print it:

    python experiments/maintenance/resolve_packages.py            requirements/gpu.txt against the package index
    python experiments/maintenance/resolve_packages.py --write    make it anew from requirements/gpu.in

Needs the package index and uv (`pip install uv`). Every package must come as a wheel for the platform below, but for
those of FROM_SOURCE.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rtpo.run.command import Parser, command

from rtpo.errors import DataError, MachineError
from rtpo.run.config import PROJECT

PYTHON = "3.12"
PLATFORM = "x86_64-manylinux_2_31"
"""glibc 2.31: llguidance, which vLLM needs, has no wheels for an older one"""
FROM_SOURCE = ("antlr4-python3-runtime",)
"""published as source alone; plain Python, which pip builds in seconds without a compiler"""
CUDA = "cuda-toolkit"
"""the package of which torch's wheel takes its CUDA libraries; its version is CUDA's"""
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)$", re.MULTILINE)


def resolve(requirements: Path) -> str:
    """What pip would install of `requirements`, one `name==version` a line.

    Raises MachineError without uv, and DataError with the resolver's reason where there is no such set."""
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv is None:
        raise MachineError("uv, which resolves packages, is not installed: pip install uv.")
    except_these = [word for name in FROM_SOURCE for word in ("--no-binary", name)]
    options = f"--python-version {PYTHON} --python-platform {PLATFORM} --only-binary :all: --no-python-downloads"
    shown = ("--no-header", "--no-annotate", "--quiet")
    done = subprocess.run(
        [uv, "pip", "compile", str(requirements), *options.split(), *except_these, *shown],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise DataError(f"{requirements} does not resolve for Python {PYTHON} on {PLATFORM}:\n{done.stderr.strip()}")
    return done.stdout


def pins(text: str) -> dict[str, str]:
    """Normalised name to version of every `name==version` line."""
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in _PIN.findall(text)}


def check(requirements: Path) -> dict[str, str]:
    """The set that `requirements` pins, which is all that it needs and fits together. Raises as `resolve`, and
    DataError where something it needs is not pinned."""
    pinned, found = pins(requirements.read_text(encoding="utf-8")), pins(resolve(requirements))
    missing = sorted(found.keys() - pinned.keys())
    if missing:
        raise DataError(f"{requirements} does not pin {', '.join(missing)}: make it anew with --write.")
    return found


@command
def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(__doc__)
    parser.add_argument("--write", action="store_true", help="make requirements/gpu.txt from requirements/gpu.in")
    options = parser.parse_args(arguments)
    lock = PROJECT / "requirements" / "gpu.txt"
    if options.write:
        lock.write_text(resolve(lock.with_suffix(".in")), encoding="utf-8")
    found = check(lock)
    print("\n".join(f"{name}=={version}" for name, version in found.items()))
    print(
        f"{len(found)} packages resolve for Python {PYTHON} on {PLATFORM}; from source: {', '.join(FROM_SOURCE)}; "
        f"CUDA of torch's libraries: {found.get(CUDA, 'unknown')}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
