"""What every command says of itself: on one screen, with an example, defaults that hold, and a page to read on."""

import importlib
import re
import subprocess
import sys

import pytest
from omegaconf import OmegaConf
from test_bad_input import ROWS

from experiments import launch
from rtpo.run.cli import composed
from rtpo.run.config import PROJECT, portable

FIELDS = re.compile(r"^    ([a-z_.]+)=(\S+)  +\S", re.MULTILINE)


def said(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *part: str) -> str:
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr(sys, "argv", [command, "--help"])
    name = command.removesuffix(".__main__")  # of a package
    as_typed = f"python -m {name}" if command != name else f"python {name.replace('.', '/')}.py"
    monkeypatch.setattr("rtpo.run.cli._typed", lambda: as_typed)  # which is pytest's here
    main = importlib.import_module(command).main
    try:
        status = main() if command in ("experiments.train", "experiments.evaluate") else main([*part, "--help"])
    except SystemExit as ended:
        status = ended.code
    assert not status
    return capsys.readouterr().out


@pytest.mark.parametrize("command", ROWS)
def test_help_fits_a_screen_and_leads_on(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(command, monkeypatch, capsys)
    lines = text.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    name = command.removesuffix(".__main__")
    assert f"python -m {name}" in text or f"python {name.replace('.', '/')}.py" in text
    pages = re.findall(r"(?:docs|results)/[a-z_/0-9]+\.md|results/README\.md", text)
    assert pages
    assert all((PROJECT / page).exists() for page in pages)


@pytest.mark.parametrize(
    ("command", "part"),
    [
        *(("experiments.launch", part) for part in launch.COMMANDS),
        *(("analysis.audit", part) for part in ("tools", "trunks", "airline")),
    ],
)
def test_help_of_a_part_fits_a_screen_and_leads_on(
    command: str, part: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(command, monkeypatch, capsys, part)
    assert len(text.splitlines()) <= 40
    assert max(map(len, text.splitlines())) <= 100
    assert f"python {command.replace('.', '/')}.py {part}" in text
    assert all((PROJECT / page).exists() for page in re.findall(r"docs/[a-z_/0-9]+\.md", text))


@pytest.mark.parametrize("typed", ["-m analysis.pages", "experiments/maintenance/frames.py"])
def test_usage_has_the_command_as_it_is_typed(typed: str) -> None:
    command = [sys.executable, *typed.split(), "--help"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"usage: python {typed} [-h]")


@pytest.mark.parametrize("name", ["train", "evaluate"])
def test_defaults_in_a_help_text_are_those_of_the_configuration(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    named = FIELDS.findall(said(f"experiments.{name}", monkeypatch, capsys))
    assert len(named) >= 9
    tree = composed(name, [])
    for field, value in named:
        if field == "checkpoint":
            assert OmegaConf.is_missing(tree, field)
            continue
        found = OmegaConf.select(tree, field)
        found = found.name if field in ("algorithm", "task", "profile") and found is not None else found
        plain = portable(found)
        assert value == ("null" if plain is None else str(plain).removeprefix("${project:}/")), field
