"""What every command says of itself: on one screen, with a page to read on and defaults that hold."""

import importlib
import re
import sys

import pytest
from omegaconf import OmegaConf
from test_bad_input import ROWS

from experiments import launch
from rtpo.run.cli import composed
from rtpo.run.config import PROJECT, portable

FIELDS = re.compile(r"^    ([a-z_.]+)=(\S+)  +\S", re.MULTILINE)
PARTS = [("experiments.launch", part) for part in launch.COMMANDS] + [("analysis.audit", "tools")]


@pytest.mark.parametrize("words", [*((command,) for command in ROWS), *PARTS], ids=" ".join)
def test_help_fits_a_screen_and_its_defaults_are_those_of_the_configuration(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *part = words
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr(sys, "argv", [command, "--help"])
    main = importlib.import_module(command).main
    of_hydra = command in ("experiments.train", "experiments.evaluate")
    try:
        status = main() if of_hydra else main([*part, "--help"])
    except SystemExit as ended:
        status = ended.code
    assert not status
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= 40
    pages = re.findall(r"(?:docs|results)/[a-z_/0-9]+\.md", text)
    assert pages or part or "results/README.md" in text
    assert all((PROJECT / page).exists() for page in pages)
    tree = composed(command.removeprefix("experiments."), []) if of_hydra else None
    for field, value in FIELDS.findall(text) if of_hydra else ():
        found = None if OmegaConf.is_missing(tree, field) else OmegaConf.select(tree, field)
        found = found.name if field in ("algorithm", "task", "profile") and found is not None else found
        plain = portable(found)
        expected = "null" if plain is None else str(plain).removeprefix("${project:}/")
        assert value == expected or field == "checkpoint"
