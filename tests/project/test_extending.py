"""The page Extending: its files laid over a copy of the project, and what it says run there."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from rtpo.run.config import PROJECT

PAGE = PROJECT / "docs" / "extend" / "extending.md"
COPIED = ("analysis", "baselines", "configs", "docs", "experiments", "requirements", "rtpo", "tests")
BLOCK = re.compile(r"(?:^`(?P<path>[\w./]+)`\n\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = list(BLOCK.finditer(PAGE.read_text(encoding="utf-8")))
"""what stands between fences: a file with its `path`, or commands (no kind)"""


def commands() -> list[list[str]]:
    """Those that the page tells to type, in order, as words."""
    return [shlex.split(line) for block in BLOCKS if not block["kind"] for line in block["text"].splitlines()]


def test_what_the_page_claims_holds_and_the_projects_own_tests_take_what_was_added(tmp_path: Path) -> None:
    """Its commands, those of pytest too, in one process in a copy of the project with all that the page adds."""
    project = tmp_path / "project"
    (project / "results").mkdir(parents=True)
    for name in COPIED:
        shutil.copytree(PROJECT / name, project / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(PROJECT / name, project / name)
    for block in BLOCKS:
        if block["path"]:
            assert not (project / block["path"]).exists(), f"{block['path']} would be written over"
            (project / block["path"]).write_text(block["text"])

    tests = [words[3:] for words in commands() if words[:3] == ["python", "-m", "pytest"]]
    files = sorted({word for words in tests for word in words if word.startswith("tests/")})
    parts = [words[words.index("-k") + 1] for words in tests if "-k" in words]
    whole = [Path(word).stem for words in tests if "-k" not in words for word in words]
    assert "test_structure" in whole
    apart = "stand_in_the_composed or imports_without_verl"  # long
    names = f"({' or '.join([*parts, *whole, 'extended', 'index_has'])}) and not ({apart})"
    paths = os.pathsep.join(map(str, [project, project / "tests", project / "tests" / "helpers"]))
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": paths, "HOME": str(project), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "tests/project/extended.py", *files]
    done = subprocess.run([*command, "-k", names], cwd=project, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    for part in (*parts, *whole, "extended", "index_has"):
        assert re.search(rf"{re.escape(part)}\S* PASSED", done.stdout), part
