"""The project's test-suite under the GPU set."""

import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from experiments.rehearsal.shared import Line, Rehearsed
from rtpo.errors import MachineError
from rtpo.run.config import PROJECT

COMMAND = ("-m", "pytest", "-n", "2", "--dist", "loadscope", "--no-loadscope-reorder", "-q", "-p", "no:cacheprovider")


def rehearse() -> Rehearsed:
    """Raises MachineError where pytest ends without a report."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        done = subprocess.run([sys.executable, *COMMAND, f"--junitxml={report}"], cwd=PROJECT, check=False)
        if not report.exists():
            raise MachineError(f"pytest ended with status {done.returncode} and no report: see what it printed above.")
        cases = list(ElementTree.parse(report).iter("testcase"))
    failed, skipped = (_named(cases, *tags) for tags in (("failure", "error"), ("skipped",)))
    passed = len(cases) - len(failed) - len(skipped)
    figures = {"Passed": passed, "Skipped": len(skipped), "Failed": len(failed)}
    return Rehearsed([Line("every test", figures, tuple(failed))])


def _named(cases: list[ElementTree.Element], *tags: str) -> list[str]:
    return [
        f"{one.get('classname')}.{one.get('name')}" for one in cases if any(one.find(tag) is not None for tag in tags)
    ]
