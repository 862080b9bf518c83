"""The pages under docs/ as a site (mkdocs.yml)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rtpo.run.config import PROJECT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make docs` does, in a folder of its own."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=PROJECT, check=True, timeout=300)
    return folder


def test_the_site_has_every_page_and_finds_it(site: Path) -> None:
    pages = [page.relative_to(PROJECT / "docs").with_suffix(".html") for page in (PROJECT / "docs").rglob("*.md")]
    assert len(pages) > 10
    assert [page for page in pages if not (site / page).exists()] == []
    found = {entry["location"] for entry in json.loads((site / "search" / "search_index.json").read_bytes())["docs"]}
    assert {str(page) for page in pages} <= found


def test_links_to_the_code_open_its_text(site: Path) -> None:
    assert '<a href="../source/rtpo/rtpo.py.txt">' in (site / "method" / "rtpo.html").read_text(encoding="utf-8")
    assert (site / "source" / "rtpo" / "rtpo.py.txt").read_bytes() == (PROJECT / "rtpo" / "rtpo.py").read_bytes()


@pytest.mark.needs("chromium")
def test_a_browser_opens_the_first_page(site: Path, tmp_path: Path) -> None:
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--dump-dom"]
    command = ["chromium", *flags, (site / "index.html").as_uri()]
    seen = subprocess.run(command, capture_output=True, check=True, timeout=300, text=True)
    assert '<a href="method/rtpo.html">RTPO</a>' in seen.stdout
