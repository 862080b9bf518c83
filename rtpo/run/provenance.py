"""What a record was made with: commit, code, machine, packages."""

import hashlib
import os
import platform
import subprocess
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rtpo.algorithms import PROJECT
from rtpo.core.files import sha256

PACKAGES = ("torch", "verl", "ray", "transformers", "tensordict", "vllm", "numpy", "sympy", "hydra-core", "math-verify")
CODE = ("rtpo", "baselines", "configs")
"""the folders that decide what a run computes"""
WORKER_VARIABLES = ("VLLM_USE_V2_MODEL_RUNNER",)
"""environment variables that change what workers compute. If set, all Ray workers get them, and records contain them"""


def worker_variables() -> dict[str, str]:
    """The variables of WORKER_VARIABLES that are set."""
    return {name: os.environ[name] for name in WORKER_VARIABLES if name in os.environ}


def provenance() -> dict[str, Any]:
    """What a record was made with: the project's commit and code, the machine and the packages."""
    head, dirty = commit(PROJECT)
    machine = {"platform": platform.platform(), "processor": platform.machine(), "logical_cpus": os.cpu_count()}
    packages = dict.fromkeys(PACKAGES, "not installed")
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            packages[name] = version(name)
    machine |= {"python": platform.python_version()} | worker_variables()
    facts = {"commit": head, "dirty": dirty, "code_sha256": code_sha256()}
    return {**facts, "machine": machine, "packages": packages}


@cache
def code_sha256(project: Path = PROJECT) -> str:
    """The checksum of all Python and YAML files in CODE, with their paths: equal in two checkouts that run the same
    code. The first call in a process reads the files."""
    files = (file for folder in CODE for file in (project / folder).rglob("*.*") if file.suffix in (".py", ".yaml"))
    lines = sorted(f"{file.relative_to(project).as_posix()} {sha256(file)}\n" for file in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def commit(project: Path) -> tuple[str, bool | str]:
    """The project's git commit and whether the tree differs from it; `unknown` outside a checkout."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(project), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.CalledProcessError):
        return "unknown", "unknown"
