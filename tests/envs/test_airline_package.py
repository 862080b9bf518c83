"""tau2-bench is told apart from the unrelated project of its name, and from versions with other tasks.

Each case is a folder of real package files on the path of a new process; nothing in them may be run.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rtpo.envs.airline.package import COMMIT
from rtpo.run.config import PROJECT

PROGRAM = """
import sys
sys.path[:0] = [{project!r}, {folder!r}]
from rtpo.envs.airline.package import find_package
from rtpo.errors import MachineError
try:
    print("found", find_package())
except MachineError as error:
    print(error)
print("tau2" in sys.modules)
"""
LOUD = "raise SystemExit('the package was run')\n"


def found(folder: Path) -> tuple[str, str]:
    """What is said of the tau2 in a folder, and whether it was imported."""
    program = PROGRAM.format(project=str(PROJECT), folder=str(folder))
    # -S -I: only what the folder has, not what this environment may have installed
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True)
    said, imported = ran.stdout.splitlines()
    return said, imported


def package(folder: Path, version: str | None, *, airline: bool) -> Path:
    (folder / "tau2" / "domains" / "airline").mkdir(parents=True)
    (folder / "tau2" / "__init__.py").write_text(LOUD)
    if airline:
        (folder / "tau2" / "domains" / "airline" / "environment.py").write_text(LOUD)
    if version is not None:
        info = folder / f"tau2-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tau2\nVersion: {version}\n")
    return folder


def test_without_it_the_sentence_says_how_to_install_it(tmp_path: Path) -> None:
    said, imported = found(tmp_path)
    assert COMMIT in said
    assert imported == "False"


@pytest.mark.parametrize("version", ["1.0.1", None])
def test_another_project_of_its_name_is_refused(tmp_path: Path, version: str | None) -> None:
    said, imported = found(package(tmp_path, version, airline=False))
    assert re.search(r"tau2\.domains\.airline", said)
    assert imported == "False"


@pytest.mark.parametrize("version", ["1.0.1", "2.0.0rc1"])
def test_a_new_enough_version_is_found_and_not_yet_run(tmp_path: Path, version: str) -> None:
    assert found(package(tmp_path, version, airline=True)) == (f"found {version}", "False")
