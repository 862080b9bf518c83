"""What MkDocs does not do by itself (mkdocs.yml): the README as the site's home, links from the pages to files of the
repository, and formulas that need no script and no network.

A file outside docs/ is copied into the site as text. A folder cannot be opened there: its link becomes its name.
"""

import html
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

PROJECT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\[([^\]]*)\]\(([^):#\s]+)(#[^)\s]*)?\)")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
HOME, ALL_PAGES = "README.md", "index.md"


def on_files(files: Files, config: Any) -> Files:
    """The README becomes index.html, and the list of all pages pages.html."""
    pages = files.get_file_from_path(ALL_PAGES)
    assert pages is not None
    pages.dest_uri = pages.url = "pages.html"
    files.append(File.generated(config, HOME, content=(PROJECT / HOME).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """The page's text, with links out of docs/ as links to text files in the site. Raises FileNotFoundError for a link
    that leads nowhere."""
    docs = Path(config["docs_dir"])
    folder = PROJECT if page.file.src_uri == HOME else (docs / page.file.src_uri).parent

    def changed(match: re.Match[str]) -> str:
        text, target = match[1], (folder / match[2]).resolve()
        if not target.exists():
            raise FileNotFoundError(f"{page.file.src_uri} links to {match[2]}, which does not exist")
        if target.is_relative_to(docs):
            place = target.relative_to(docs).as_posix() if folder == PROJECT else match[2]
            return f"[{text}]({place}{match[3] or ''})"
        if target.is_dir():
            return text
        if target == PROJECT / HOME:
            return f"[{text}]({'../' * depth}{HOME}{match[3] or ''})"
        place = f"source/{target.relative_to(PROJECT)}.txt"
        if place not in files.src_uris:
            files.append(File.generated(config, place, content=target.read_bytes()))
        return f"[{text}]({'../' * depth}{place})"

    depth = len(Path(page.file.src_uri).parts) - 1
    return LINK.sub(changed, markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Formulas as MathML, which browsers show by themselves."""
    return FORMULA.sub(
        lambda match: convert(html.unescape(match[2]), display="block" if match[1] == "div" else "inline"), content
    )
