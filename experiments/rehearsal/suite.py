"""The project's test-suite under the GPU set."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

from experiments.rehearsal.shared import Line, Rehearsed
from rtpo.errors import MachineError
from rtpo.run.config import PROJECT

COMMAND = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
PARALLEL = ("-n", "2", "--dist", "loadscope", "--no-loadscope-reorder")


def rehearse() -> Rehearsed:
    """Raises MachineError where pytest ends without a report."""
    return Rehearsed([run_tests("every test", PARALLEL)])


def run_tests(what: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> Line:
    """The tests that pytest takes by these arguments. Raises MachineError where it ends without a report."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        given = [sys.executable, *COMMAND, *arguments, f"--junitxml={report}"]
        done = subprocess.run(given, cwd=PROJECT, env={**os.environ, **(environment or {})}, check=False)
        if not report.exists():
            raise MachineError(f"pytest ended with status {done.returncode} and no report: see what it printed above.")
        cases = list(ElementTree.parse(report).iter("testcase"))
    failed, skipped = (_named(cases, *tags) for tags in (("failure", "error"), ("skipped",)))
    passed = len(cases) - len(failed) - len(skipped)
    figures = {"Passed": passed, "Skipped": len(skipped)}
    return Line(what, figures, tuple(failed))


def _named(cases: list[ElementTree.Element], *tags: str) -> list[str]:
    return [
        f"{one.get('classname')}.{one.get('name')}" for one in cases if any(one.find(tag) is not None for tag in tags)
    ]
