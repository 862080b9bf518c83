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
    (tree,) = [text for text in shown if "sibling of S_0" in text]
    for k in (0, 1):  # at each of several turns siblings get unequal credit
        assert len(set(re.findall(rf"sibling of S_{k}: reward \S+ advantage (\S+)", tree))) > 1
    there = {"metadata": {"path": NOTEBOOK.parent}}
    NotebookClient(executed, timeout=300, kernel_name="python3", resources=there).execute()
    assert words(executed) == shown


def test_the_other_lines_of_the_page_run_as_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the committed reference runs, which are finished and have no saves to export."""
    shutil.copytree(PROJECT / "results" / "reference", tmp_path / "results" / "reference")
    monkeypatch.chdir(tmp_path)
    page = NOTEBOOK.with_suffix(".md").read_text().replace("mine", "reference").replace(",rollouts=6000", "")
    blocks = re.findall(r"^```\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    typed = [shlex.split(line)[1:] for block in blocks for line in block.splitlines() if line.startswith("python ")][1:]
    assert len(typed) == 7
    for line in typed:
        module = f"{line[1]}.__main__" if line[0] == "-m" else line[0].removesuffix(".py").replace("/", ".")
        is_refused = line[1] == "stop" or "export" in module
        assert importlib.import_module(module).main(line[1 + (line[0] == "-m") :]) == is_refused, line
    made = ("tables/reference_runs.tex", "figures/reference_training.png", "figures/reference_rtpo-seed0.png")
    assert all((tmp_path / "results" / file).exists() for file in made)
    assert (tmp_path / "outputs" / "rollouts.html").exists()
