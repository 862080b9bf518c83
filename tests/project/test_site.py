"""The pages under docs/ as a site (mkdocs.yml)."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rtpo.run.config import PROJECT

WIDTH = 1280
"""of a laptop's screen, in pixels"""
WIDE = """<body><script>
const seen = {}, frames = [...document.querySelectorAll("iframe")];
onload = () => {
  for (const frame of frames) {
    const page = frame.contentDocument;
    const parts = [page.documentElement, ...page.querySelectorAll("table, .wy-table-responsive")];
    const cut = part => part.scrollWidth > part.clientWidth + 1 || part.getBoundingClientRect().right > WIDTH;
    seen[frame.src] = [page.querySelectorAll("table").length, parts.filter(cut).length];
  }
  document.body.textContent = JSON.stringify(seen);
};
</script>"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make docs` does, in a folder of its own."""
    folder = tmp_path_factory.mktemp("site") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=PROJECT, check=True)
    return folder


def test_the_site_has_every_page_in_its_menu_and_the_code_that_it_links(site: Path) -> None:
    home = (site / "index.html").read_text(encoding="utf-8")
    pages = [page.relative_to(PROJECT / "docs").with_suffix(".html") for page in (PROJECT / "docs").rglob("*.md")]
    assert len(pages) > 10
    names = ["pages.html" if str(page) == "index.html" else str(page) for page in pages]
    assert [name for name in names if not (site / name).exists() or f'href="{name}"' not in home] == []
    assert '<a href="../source/rtpo/rtpo.py.txt">' in (site / "method" / "rtpo.html").read_text(encoding="utf-8")
    assert (site / "source" / "rtpo" / "rtpo.py.txt").read_bytes() == (PROJECT / "rtpo" / "rtpo.py").read_bytes()


def test_the_home_is_the_readme_and_its_links_lead_somewhere(site: Path) -> None:
    home = (site / "index.html").read_text(encoding="utf-8")
    title = (PROJECT / "README.md").read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
    assert f">{title}</h1>" in home
    links = re.findall(r'(?:href|src)="([^":#]+)(?:#[^"]*)?"', home)
    assert {"source/rtpo/rtpo.py.txt", "pages.html", "results/gain.png"} <= set(links)
    assert [link for link in links if not (site / link).exists()] == []


def test_the_site_needs_no_network_and_its_formulas_no_script(site: Path) -> None:
    pages = {page: page.read_text(encoding="utf-8") for page in site.rglob("*.html")}
    assert not any(re.search(r'<(script|link|img)[^>]*(src|href)="(https?:)?//', text) for text in pages.values())
    assert not any('class="arithmatex"' in text for text in pages.values())
    assert sum(text.count("<math") for text in pages.values()) > 100


@pytest.mark.needs("chromium")
def test_no_page_and_no_table_is_cut_on_a_laptop(site: Path, tmp_path: Path) -> None:
    pages = sorted(page for page in site.rglob("*.html") if page.name not in ("404.html", "search.html"))
    frames = "".join(f'<iframe src="{page.as_uri()}" width="{WIDTH}" height="800"></iframe>' for page in pages)
    probe = tmp_path / "probe.html"
    probe.write_text(frames + WIDE.replace("WIDTH", str(WIDTH)), encoding="utf-8")
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--dump-dom"]
    flags += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    command = ["chromium", *flags, f"--user-data-dir={tmp_path / 'profile'}", probe.as_uri()]
    document = subprocess.run(command, capture_output=True, check=True, timeout=300).stdout.decode()
    seen = json.loads(document[document.index("{") : document.rindex("}") + 1])
    assert len(seen) == len(pages)
    assert sum(tables for tables, _ in seen.values()) > 50
    assert {page: cut for page, (_, cut) in seen.items() if cut} == {}
