"""A page of docs/results/ whose blocks and figures are all made from records of its own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

from matplotlib.figure import Figure

from analysis.plots import METADATA, Files, drawn_from, png_from, save

Records = TypeVar("Records")


@dataclass(frozen=True)
class Drawn:
    """docs/results/<name>.png, in which the checksum of its records stands, and results/figures/<name>.pdf. checksum:
    None where there is nothing to draw."""

    name: str
    draw: Callable[[], Figure]
    checksum: str | None

    def png(self, project: Path) -> Path:
        return project / "docs" / "results" / f"{self.name}.png"

    def is_stale(self, project: Path) -> bool:
        return drawn_from(self.png(project)) != self.checksum

    def save(self, project: Path) -> list[Path]:
        """The files."""
        if self.checksum is None:
            return []
        pdf = project / "results" / "figures" / f"{self.name}.pdf"
        files: Files = {self.png(project): png_from(self.checksum), pdf: METADATA["pdf"]}
        save(self.draw, files)
        return list(files)


@dataclass(frozen=True)
class OwnPage:
    """blocks: name to text. figures: those that stand in the page."""

    blocks: Mapping[str, Callable[[], str]]
    figures: Callable[[], Sequence[Drawn]]


def from_records(
    load: Callable[[], Records],
    blocks: Mapping[str, Callable[[Records], str]],
    figures: Callable[[Records], Sequence[Drawn]],
) -> OwnPage:
    """Both from records that are loaded once, when the first of them is asked for."""
    loaded = cache(load)

    def text(block: Callable[[Records], str]) -> str:
        return block(loaded())

    return OwnPage({name: partial(text, block) for name, block in blocks.items()}, lambda: figures(loaded()))
