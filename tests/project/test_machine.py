"""A machine that lacks what tests need: they are skipped with the reason, or, where CI is set, an error."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from machine import PARTS

from rtpo.run.config import PROJECT

MACHINE = PROJECT / "tests" / "machine.py"
PACKAGES = "bubblewrap chromium texlive-latex-base texlive-latex-recommended util-linux munge slurm-wlm procps iproute2"


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process and those that it starts have no programs but those put into the folder."""
    for name in os.environ:
        if name in ("CI", "RTPO_SLURM") or name.startswith("PYTEST_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def run_what_needs_a_part() -> subprocess.CompletedProcess[str]:
    files = [str(file) for file in MACHINE.parent.rglob("test_*.py") if "mark.needs(" in file.read_text()]
    command = [sys.executable, "-m", "pytest", "-m", "needs", "-p", "no:cacheprovider", *files]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)


@pytest.mark.usefixtures("bare")
def test_the_suite_is_collected_and_what_needs_a_part_is_skipped_with_the_reason() -> None:
    lacks = {name: part.lack for name, part in PARTS.items() if part.programs}
    done = run_what_needs_a_part()
    assert done.returncode == 0, done.stdout
    assert PACKAGES in done.stdout
    skipped = re.findall(r"^SKIPPED \[(\d+)\] tests/\w+/test_\w+\.py:\d+: (.*)$", done.stdout, re.MULTILINE)
    assert {reason for _, reason in skipped} >= set(lacks.values())
    assert sum(int(count) for count, _ in skipped) > 100


@pytest.mark.usefixtures("bare")
def test_where_ci_is_set_what_is_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    done = run_what_needs_a_part()
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert PACKAGES in done.stderr


def test_a_program_that_does_not_work_here_has_its_remedy(bare: Path) -> None:
    program = bare / "bwrap"
    program.write_text("#!/bin/sh\necho no namespaces >&2\nexit 1\n")
    program.chmod(0o755)
    assert "no namespaces" in PARTS["bwrap"].lack
