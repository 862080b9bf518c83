"""Whether LaTeX is as it should be, by LaTeX itself."""

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

FIRST = re.compile(r"% needs (\\usepackage\{[a-z,]+\})\n")
BAD = re.compile(r"^(!.*|Overfull .*|.*[Ff]loat too large.*|.*multiply defined.*|.*undefined.*)$", re.MULTILINE)


def compile_latex(texts: Sequence[str], folder: Path) -> None:
    """All in a plain article that loads what their first line says; nothing stands over the line or the page."""
    needs = {match[1] if (match := FIRST.match(text)) else text[:80] for text in texts}
    assert len(needs) == 1, needs
    body = "\n\\clearpage\n".join(texts)
    (folder / "document.tex").write_text(
        f"\\documentclass{{article}}\n{needs.pop()}\n\\begin{{document}}\n{body}\n\\end{{document}}\n", encoding="utf-8"
    )
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "document.tex"]
    subprocess.run(command, cwd=folder, capture_output=True, check=False)
    log = (folder / "document.log").read_text(encoding="utf-8", errors="replace")
    warnings = [line for line in BAD.findall(log) if "LaTeX Font" not in line]
    if warnings or "Output written" not in log:
        pytest.fail(f"{warnings or log[-400:]}")
