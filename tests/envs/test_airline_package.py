"""tau2-bench is told apart from the unrelated project of its name, and from versions with other tasks.

Each case is a folder of real package files, which alone is on the path; nothing in them may be run.
"""

import sys
from importlib import invalidate_caches
from pathlib import Path

import pytest

from rtpo.envs.airline.package import COMMIT, find_package
from rtpo.errors import MachineError


def install(folder: Path, version: str | None, *, airline: bool) -> None:
    files = ["__init__.py", *(["domains/airline/environment.py"] if airline else [])]
    for file in files:
        (folder / "tau2" / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / "tau2" / file).write_text("raise SystemExit('the package was run')\n")
    if version is not None:
        info = folder / f"tau2-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tau2\nVersion: {version}\n")
    invalidate_caches()


@pytest.mark.parametrize(
    ("version", "airline", "refused"),
    [
        ("none", False, COMMIT),
        (None, False, "domains.airline"),
        (None, True, "path"),
        ("0.9.9", True, "older than 1"),
        ("1.0.1", True, ""),
    ],
)
def test_the_right_package_is_found_and_any_other_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, airline: bool, refused: str
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name in [name for name in sys.modules if name.split(".")[0] == "tau2"]:
        monkeypatch.delitem(sys.modules, name)
    if version != "none":
        install(tmp_path, version, airline=airline)
    if refused:
        with pytest.raises(MachineError, match=refused):
            find_package()
    else:
        assert find_package() == version
    assert "tau2" not in sys.modules
