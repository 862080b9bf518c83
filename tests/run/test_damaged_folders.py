"""What reads run records says of a damaged folder which file is damaged, in a sentence, and writes nothing."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from analysis import audit, make_figures, make_tables
from analysis.view import __main__ as view
from rtpo.run.config import PROJECT

RUN = "reference/rtpo-seed0"
COMMANDS: dict[str, tuple[Callable[..., int], str]] = {
    "table": (make_tables.main, "--results {at} --output {to} --experiment reference"),
    "curves": (make_figures.main, "--results {at} --output {to} --experiment reference"),
    "run": (make_figures.main, f"--results {{at}} --run {{at}}/{RUN} --output {{to}}"),
    "trunks": (audit.main, f"trunks {{at}}/{RUN}"),
    "view": (view.main, f"{{at}}/{RUN} --output {{to}}/page.html"),
}
DAMAGE = [
    *(("manifest.json", data) for data in (b"", b"[]", b"{}", b"\xff\xfe{\0}\0")),
    *(("config.yaml", data) for data in (b"", b"\0")),
    ("*.jsonl", b"\0"),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_damaged_folder_is_said_in_a_sentence(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(PROJECT / "results" / RUN, tmp_path / "results" / RUN))
    main, arguments = COMMANDS[command]
    words = arguments.format(at=tmp_path / "results", to=tmp_path / "made").split()
    for pattern, damage in DAMAGE:
        files = {file: file.read_bytes() for file in folder.glob(pattern)}
        assert files
        for file, data in files.items():
            file.write_bytes(damage * (len(data) if pattern == "*.jsonl" else 1))
        assert main(words) == 1, (pattern, damage)
        (sentence,) = capsys.readouterr().err.splitlines()
        assert any(str(file) in sentence for file in files)
        assert not (tmp_path / "made").exists()
        for file, data in files.items():
            file.write_bytes(data)
    assert main(words) == 0
