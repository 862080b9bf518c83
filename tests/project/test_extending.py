"""The page Extending: its files laid over a copy of the project, and what it says run there."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rtpo.run.config import PROJECT

PAGE = PROJECT / "docs" / "extend" / "extending.md"
COPIED = ("analysis", "baselines", "configs", "docs", "experiments", "requirements", "rtpo", "tests")
BLOCK = re.compile(r"(?:^`(?P<path>[\w./]+)`\n\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = list(BLOCK.finditer(PAGE.read_text(encoding="utf-8")))
"""what stands between fences: a file with its `path`, or commands (no kind)"""


def commands() -> list[list[str]]:
    """Those that the page tells to type, in order, as words."""
    return [shlex.split(line) for block in BLOCKS if not block["kind"] for line in block["text"].splitlines()]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with all that the page adds."""
    folder = tmp_path_factory.mktemp("extended") / "project"
    (folder / "results").mkdir(parents=True)
    for name in COPIED:
        shutil.copytree(PROJECT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(PROJECT / name, folder / name)
    for block in BLOCKS:
        if block["path"]:
            assert not (folder / block["path"]).exists(), f"{block['path']} would be written over"
            (folder / block["path"]).write_text(block["text"])
    return folder


def python(project: Path, *words: str) -> str:
    paths = os.pathsep.join(map(str, [project, project / "tests", project / "tests" / "helpers"]))
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": paths, "HOME": str(project), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    return done.stdout


def test_what_the_page_claims_holds(project: Path) -> None:
    """The commands of the page that train, plan, tabulate and draw, and what they leave."""
    assert "all that the page says was run" in python(project, "tests/project/extended.py")


def test_the_projects_own_tests_take_what_was_added(project: Path) -> None:
    """The page's pytest commands, in one process."""
    given = [words[3:] for words in commands() if words[:3] == ["python", "-m", "pytest"]]
    files = sorted({word for words in given for word in words if word.startswith("tests/")})
    parts = [words[words.index("-k") + 1] for words in given if "-k" in words]
    whole = [Path(word).stem for words in given if "-k" not in words for word in words]
    assert "test_structure" in whole
    names = " or ".join([*parts, *whole, "index_has"])
    out = python(project, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files, "-k", names)
    assert int(re.search(r"(\d+) passed", out)[1]) > 20  # type: ignore[index]
