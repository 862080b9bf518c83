"""What MkDocs does not do by itself (mkdocs.yml): links from the pages to files of the repository.

A file outside docs/ is copied into the site as text. A folder cannot be opened there: its link becomes its name.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

PROJECT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\[([^\]]*)\]\((\.[^)#\s]*)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """The page's text, with links out of docs/ as links to text files in the site. Raises FileNotFoundError for a link
    that leads nowhere."""
    docs, folder = Path(config["docs_dir"]), Path(page.file.abs_src_path).parent

    def changed(match: re.Match[str]) -> str:
        text, target = match[1], (folder / match[2]).resolve()
        if not target.exists():
            raise FileNotFoundError(f"{page.file.src_uri} links to {match[2]}, which does not exist")
        if target.is_dir():
            return text
        if target.is_relative_to(docs):
            return match[0]
        place = f"source/{target.relative_to(PROJECT)}.txt"
        depth = len(Path(page.file.src_uri).parts) - 1
        if place not in files.src_uris:
            files.append(File.generated(config, place, content=target.read_bytes()))
        return f"[{text}]({'../' * depth}{place})"

    return LINK.sub(changed, markdown)
