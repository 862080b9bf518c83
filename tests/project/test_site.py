"""The pages under docs/ as a site (mkdocs.yml)."""

import subprocess
import sys
from pathlib import Path

from rtpo.run.config import PROJECT


def test_the_site_has_every_page_and_the_code_that_it_links(tmp_path: Path) -> None:
    """Built as `make docs` does, in a folder of its own."""
    site = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)]
    subprocess.run(command, cwd=PROJECT, check=True)
    pages = [page.relative_to(PROJECT / "docs").with_suffix(".html") for page in (PROJECT / "docs").rglob("*.md")]
    assert len(pages) > 10
    assert [page for page in pages if not (site / page).exists()] == []
    assert '<a href="../source/rtpo/rtpo.py.txt">' in (site / "method" / "rtpo.html").read_text(encoding="utf-8")
    assert (site / "source" / "rtpo" / "rtpo.py.txt").read_bytes() == (PROJECT / "rtpo" / "rtpo.py").read_bytes()
