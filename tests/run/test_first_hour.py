"""The first hour, in the shell and as a notebook: its lines and its cells run, and what stands under the cells is what
they give."""

import importlib
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from rtpo.run.config import PROJECT

NOTEBOOK = PROJECT / "docs" / "run" / "first_hour.ipynb"
LINES = [
    shlex.split(line)
    for block in re.findall(r"^```\n(.*?)^```$", NOTEBOOK.with_suffix(".md").read_text(), re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]
EXPERIMENT = "mine"
"""of the page, for which the committed reference runs stand in"""
SET = ",rollouts=6000"
"""what the page's sweep adds to the names of its runs"""
REFUSED = ("launch.py stop", "export.py")
"""commands that refuse a finished run without saves, as the reference runs are"""


def words(notebook: Any) -> list[str]:
    """What each cell says, pictures as their size in inches."""
    said = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            assert output.get("name") != "stderr", output["text"]
            data = output.get("data", {})
            said.append(output.get("text") or data.get("text/markdown") or data["text/plain"])
    return said


def test_the_notebook_runs_and_its_outputs_are_what_the_records_give() -> None:
    committed = nbformat.read(NOTEBOOK, as_version=4)
    executed = nbformat.from_dict(committed)
    shown = words(committed)
    there = {"metadata": {"path": NOTEBOOK.parent}}
    NotebookClient(executed, timeout=300, kernel_name="python3", resources=there).execute()
    assert words(executed) == shown


def test_the_other_lines_of_the_page_run_as_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(PROJECT / "results" / "reference", tmp_path / "results" / "reference")
    monkeypatch.chdir(tmp_path)
    typed = [line[1:] for line in LINES[3:] if line[0] == "python"]
    assert len(typed) == 7
    for line in typed:
        module = f"{line[1]}.__main__" if line[0] == "-m" else line[0].removesuffix(".py").replace("/", ".")
        words = [word.replace(EXPERIMENT, "reference").replace(SET, "") for word in line[1 + (line[0] == "-m") :]]
        is_refused = " ".join(line).removeprefix("experiments/").startswith(REFUSED)
        assert importlib.import_module(module).main(words) == is_refused, line
    made = ("tables/reference_runs.tex", "figures/reference_training.png", "figures/reference_rtpo-seed0.png")
    assert all((tmp_path / "results" / file).exists() for file in made)
    assert (tmp_path / "outputs" / "rollouts.html").exists()
