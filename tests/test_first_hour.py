"""The first hour, as a notebook: its cells run, and what stands under them is what they give."""

from typing import Any

import nbformat
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
    NotebookClient(
        executed, timeout=300, kernel_name="python3", resources={"metadata": {"path": NOTEBOOK.parent}}
    ).execute()
    assert words(executed) == shown
    assert (
        sum("image/png" in output.get("data", {}) for cell in executed.cells for output in cell.get("outputs", [])) == 1
    )
    assert any("Zero adv." in said for said in shown)
