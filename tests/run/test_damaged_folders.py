"""What reads run records says of a damaged folder which file is damaged, in a sentence, and writes nothing."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from analysis import audit, make_figures, make_tables
from analysis.view import __main__ as view
from rtpo.run.config import PROJECT

RUN = "reference/rtpo-seed0"
Command = Callable[[Path, Path], int]
"""given the folder of records and one for what it writes"""

COMMANDS: dict[str, tuple[str, Command]] = {
    "table": (RUN, lambda at, to: make_tables.main(_flags(results=at, output=to, experiment=RUN.partition("/")[0]))),
    "curves": (RUN, lambda at, to: make_figures.main(_flags(results=at, output=to, experiment=RUN.partition("/")[0]))),
    "run": (RUN, lambda at, to: make_figures.main(["--results", str(at), "--run", str(at / RUN), "--output", str(to)])),
    "trunks": (RUN, lambda at, to: audit.main(["trunks", str(at / RUN)])),
    "view": (RUN, lambda at, to: view.main([str(at / RUN), "--output", str(to / "page.html")])),
}

DAMAGE = [
    *(("manifest.json", data) for data in (b"", b"[]", b"{}", b"\xff\xfe{\0}\0")),
    *(("config.yaml", data) for data in (b"", b"\0")),
    ("*.jsonl", b"\0"),
]


def _flags(**values: object) -> list[str]:
    return [part for name, value in values.items() for part in (f"--{name}", str(value))]


@pytest.fixture(params=COMMANDS)
def command(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Callable[[], int], Path]:
    """A folder of records, the command on a copy of it, and where that writes."""
    folder, act = COMMANDS[request.param]
    shutil.copytree(PROJECT / "results" / RUN, tmp_path / "results" / RUN)
    return tmp_path / "results" / folder, lambda: act(tmp_path / "results", tmp_path / "made"), tmp_path / "made"


def test_a_damaged_folder_is_said_in_a_sentence(
    command: tuple[Path, Callable[[], int], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, act, made = command
    for pattern, damage in DAMAGE:
        files = {file: file.read_bytes() for file in folder.glob(pattern)}
        assert files
        for file, data in files.items():
            file.write_bytes(damage * (len(data) if pattern == "*.jsonl" else 1))
        assert act() == 1, (pattern, damage)
        (sentence,) = capsys.readouterr().err.splitlines()
        assert any(str(file) in sentence for file in files)
        assert not made.exists()
        for file, data in files.items():
            file.write_bytes(data)
    assert act() == 0
