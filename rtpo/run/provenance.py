"""What a record was made with: commit, machine, packages."""

import os
import platform
import subprocess
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rtpo.algorithms import PROJECT

PACKAGES = ("torch", "verl", "ray", "transformers", "tensordict", "vllm", "numpy", "sympy", "hydra-core", "math-verify")
PASSED_ON = ("VLLM_USE_V2_MODEL_RUNNER",)
"""environment variables that change what workers compute; if set, every Ray worker gets them, and the records"""


def passed_on() -> dict[str, str]:
    """The variables of PASSED_ON that are set."""
    return {name: os.environ[name] for name in PASSED_ON if name in os.environ}


def provenance() -> dict[str, Any]:
    """What a record was made with: the project's commit, the machine and the packages."""
    head, dirty = commit(PROJECT)
    machine = {"platform": platform.platform(), "processor": platform.machine(), "logical_cpus": os.cpu_count()}
    packages = dict.fromkeys(PACKAGES, "not installed")
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            packages[name] = version(name)
    machine |= {"python": platform.python_version()} | passed_on()
    return {"commit": head, "dirty": dirty, "machine": machine, "packages": packages}


def commit(project: Path) -> tuple[str, bool | str]:
    """The project's git commit and whether the tree differs from it; `unknown` outside a checkout."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(project), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.CalledProcessError):
        return "unknown", "unknown"
