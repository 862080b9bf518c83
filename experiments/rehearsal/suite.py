"""The project's test-suite under the GPU set."""

import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

from experiments.rehearsal.shared import Line, Rehearsed
from rtpo.errors import MachineError
from rtpo.run.config import PROJECT

COMMAND = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
PARALLEL = ("-n", "2", "--dist", "loadscope", "--no-loadscope-reorder")
TAGS = (("failure", "error"), ("skipped",))
"""of pytest's report: of a test that failed, and of one that was skipped"""


def rehearse() -> Rehearsed:
    """Raises MachineError where pytest ends without a report."""
    return run_tests("every test", PARALLEL)


def run_tests(
    what: str,
    arguments: Sequence[str],
    environment: Mapping[str, str] | None = None,
    named: Mapping[str, str] | None = None,
) -> Rehearsed:
    """The tests that pytest takes by these arguments: a line, and one for each of `named`, of the tests that have a
    word in their names, in place of the first. Skipped ones are left out, and a line of which none passed has failed.
    Raises MachineError where pytest ends without a report."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        given = [sys.executable, *COMMAND, *arguments, f"--junitxml={report}"]
        done = subprocess.run(given, cwd=PROJECT, env={**os.environ, **(environment or {})}, check=False)
        if not report.exists():
            raise MachineError(f"pytest ended with status {done.returncode} and no report: see what it printed above.")
        rest = list(ElementTree.parse(report).iter("testcase"))
    reasons = Counter(str(tag.get("message")) for case in rest for tag in case.iter("skipped"))
    lines = []
    for title, word in (named or {}).items():
        lines.append(_line(title, [case for case in rest if word in str(case.get("name"))]))
        rest = [case for case in rest if word not in str(case.get("name"))]
    left_out = [f"{number} of the tests: {reason.rstrip('.')}." for reason, number in reasons.items()]
    return Rehearsed([_line(what, rest), *lines], left_out)


def _line(what: str, cases: Sequence[ElementTree.Element]) -> Line:
    failed, skipped = (
        [
            f"{case.get('classname')}.{case.get('name')}"
            for case in cases
            if any(case.find(tag) is not None for tag in tags)
        ]
        for tags in TAGS
    )
    passed = len(cases) - len(failed) - len(skipped)
    none = () if passed or failed else ("no test of it was run.",)
    return Line(what, {"Passed": passed, "Skipped": len(skipped)}, (*failed, *none))
