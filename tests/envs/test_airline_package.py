"""tau2-bench is told apart from the unrelated project of its name, and from versions with other tasks.

Each case is a folder of real package files, which alone is on the path; nothing in them may be run.
"""

import sys
from importlib import invalidate_caches
from pathlib import Path

import pytest

from rtpo.envs.airline.package import COMMIT, find_package
from rtpo.errors import MachineError

LOUD = "raise SystemExit('the package was run')\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name in [name for name in sys.modules if name.split(".")[0] == "tau2"]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


def install(folder: Path, version: str | None, *, airline: bool) -> None:
    (folder / "tau2" / "domains" / "airline").mkdir(parents=True)
    (folder / "tau2" / "__init__.py").write_text(LOUD)
    if airline:
        (folder / "tau2" / "domains" / "airline" / "environment.py").write_text(LOUD)
    if version is not None:
        info = folder / f"tau2-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tau2\nVersion: {version}\n")
    invalidate_caches()


@pytest.mark.parametrize(
    ("version", "airline", "named"),
    [
        ("none", False, COMMIT),
        ("1.0.1", False, "domains.airline"),
        (None, False, "domains.airline"),
        (None, True, "path"),
    ],
)
def test_what_is_not_there_and_another_project_of_its_name_is_refused(
    folder: Path, version: str | None, airline: bool, named: str
) -> None:
    if version != "none":
        install(folder, version, airline=airline)
    with pytest.raises(MachineError, match=named):
        find_package()
    assert "tau2" not in sys.modules


@pytest.mark.parametrize("version", ["1.0.1", "2.0.0rc1"])
def test_a_new_enough_version_is_found_and_not_yet_run(folder: Path, version: str) -> None:
    install(folder, version, airline=True)
    assert (find_package(), "tau2" in sys.modules) == (version, False)
