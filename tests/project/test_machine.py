"""A machine that lacks what tests need: they are skipped with the reason, or, where CI is set, an error."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from machine import PARTS

from rtpo.run.config import PROJECT

PACKAGES = "bubblewrap chromium texlive-latex-base texlive-latex-recommended util-linux munge slurm-wlm procps iproute2"


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process and those that it starts have no programs but those put into the folder."""
    for name in os.environ:
        if name in ("CI", "RTPO_SLURM") or name.startswith("PYTEST_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_what_needs_a_part_is_skipped_with_the_reason_and_an_error_where_ci_is_set(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By tests that fail where they run, one a part, under the tests' conftest.py."""
    test = "@pytest.mark.needs({!r})\ndef test_{}():\n    assert {}"
    tests = [test.format(name, number, not part.programs) for number, (name, part) in enumerate(PARTS.items())]
    (bare / "test_parts.py").write_text("\n".join(["import pytest", *tests]))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (PROJECT, PROJECT / "tests", PROJECT / "tests/helpers"))))
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-c", str(PROJECT / "pyproject.toml"), str(bare)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert PACKAGES in done.stdout
    skipped = re.findall(r"^SKIPPED \[1\] \S*test_parts\.py:\d+: (.*)$", done.stdout, re.MULTILINE)
    assert skipped == [part.lack for part in PARTS.values() if part.programs]
    assert "1 passed" in done.stdout
    monkeypatch.setenv("CI", "true")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert PACKAGES in done.stderr


def test_a_program_that_does_not_work_here_has_its_remedy(bare: Path) -> None:
    program = bare / "bwrap"
    program.write_text("#!/bin/sh\necho no namespaces >&2\nexit 1\n")
    program.chmod(0o755)
    assert "no namespaces" in PARTS["bwrap"].lack
