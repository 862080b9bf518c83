"""Whether this Python is the pinned GPU set, which may be half installed: nothing here needs a package."""

import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rtpo.errors import MachineError

PROJECT = Path(__file__).resolve().parents[2]
_TEXT = (PROJECT / "requirements" / "gpu.txt").read_text(encoding="utf-8")
PINNED = dict(re.findall(r"^([\w.-]+)==(\S+)", _TEXT, re.MULTILINE))
SHOWN = 3


def check_gpu_set() -> None:
    """Raises MachineError where packages that requirements/gpu.txt pins are missing or others."""
    wrong = [
        f"{name} {there} instead of {pinned}"
        for name, pinned in PINNED.items()
        if (there := _version(name)).partition("+")[0] != pinned
    ]
    if wrong:
        more = f", and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise MachineError(
            f"this Python has not the pinned GPU set: {', '.join(wrong[:SHOWN])}{more}. Use .venv-gpu, which `make "
            "rehearsal` makes; delete that folder first where it is of another set or half made."
        )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"
