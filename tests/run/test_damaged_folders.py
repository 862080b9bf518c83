"""What reads run records says of a damaged folder which file is damaged, in a sentence, and writes nothing."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from synthetic_runs import step, update, write_run

from analysis import audit, make_figures, make_tables
from analysis.load import load_run
from analysis.view import __main__ as view
from rtpo.errors import DataError
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


def test_a_field_of_the_manifest_of_another_kind_is_named_or_does_no_harm(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "rtpo", 0, [step(1, 28, 0.5, [update(10, 0.1, 0.5)])], [])
    file, refused = folder / "manifest.json", {}
    manifest = json.loads(file.read_text())
    for part in (manifest, manifest["ledger"]):
        for field, value in list(part.items()):
            for other in (float("nan"), "text", []):
                part[field] = other
                file.write_text(json.dumps(manifest))
                try:
                    load_run(folder)
                except DataError as error:
                    refused[field] = str(error)
            part[field] = value
    assert all("manifest" in sentence and len(sentence.splitlines()) == 1 for sentence in refused.values())
    assert refused.keys() >= {"schema", "ledger", "seconds", "budget", "steps", "wall_seconds", "files", "experiment"}
