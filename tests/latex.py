"""Whether LaTeX is as it should be, by LaTeX itself."""

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

FIRST = re.compile(r"% needs (\\usepackage\{[a-z,]+\})\n")
BAD = re.compile(r"^(!.*|Overfull .*|.*[Ff]loat too large.*|.*multiply defined.*|.*undefined.*)$", re.MULTILINE)


def compile_latex(texts: Sequence[str], folder: Path) -> None:
    """Each in a plain article that loads what its first line says."""
    for text in texts:
        needs = FIRST.match(text)
        assert needs is not None, text[:80]
        compile_document(
            f"\\documentclass{{article}}\n{needs[1]}\n\\begin{{document}}\n{text}\\end{{document}}\n", folder
        )


def compile_document(text: str, folder: Path) -> None:
    """In the folder; nothing stands over the line or the page."""
    (folder / "document.tex").write_text(text, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "document.tex"]
    subprocess.run(command, cwd=folder, capture_output=True, check=False)
    log = (folder / "document.log").read_text(encoding="utf-8", errors="replace")
    found = [one for one in BAD.findall(log) if "LaTeX Font" not in one]
    if found or "Output written" not in log:
        pytest.fail(f"{text[:400]}\n{found or log[-400:]}")
