"""The paper's figures as files, what of them was not run, and the blocks of docs/results/figures.md, which stand
between `<!-- figures:NAME -->` and `<!-- figures end -->`."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from analysis.evaluation import PATHS
from analysis.figures.paper_figures import FIGURES, PaperFigure, select
from analysis.figures.shared import Rows
from analysis.figures.sources import Row, Source, sources
from analysis.pages.markdown import changed, filled, ruled, write
from analysis.plots import Files, drawn_from, every_format, png_from, records_checksum, save
from analysis.tables import NOT_RUN

DOCS = Path("docs", "results")
PAGE = DOCS / "figures.md"
KEPT = ("toy", "main_table_toy_toy_math", "main_table_toy_toy_knowledge")
"""folders of results/ that the repository keeps, all that docs/results/figures.md shows"""
COMMAND = "python analysis/make_figures.py"


@dataclass(frozen=True)
class Drawing:
    """A figure of one source, as far as it has runs."""

    name: str
    source: Source
    rows: Rows

    @property
    def figure(self) -> PaperFigure:
        return FIGURES[self.name]

    @property
    def is_drawn(self) -> bool:
        return bool(self.rows.drawn)

    @property
    def stem(self) -> str:
        """Of its files."""
        return f"{self.name}_{self.source.name}"

    @property
    def checksum(self) -> str | None:
        """Of the records it is drawn from."""
        runs = (run for row in self.rows.drawn.values() for group in row.groups for run in group.runs)
        return records_checksum([run.folder / "manifest.json" for run in runs])

    @property
    def commands(self) -> str:
        """What makes the runs that it lacks; empty for the toy study, whose plan has no others."""
        rows = (*self.rows.drawn.values(), *self.rows.left_out)
        needed = list(dict.fromkeys(experiment for row in rows for experiment in row.missing.values()))
        return self.source.commands(needed) if needed and self.source.folders is None else ""

    def draw(self, files: Files) -> None:
        """Into `files`, each with its metadata."""
        save(partial(self.figure.draw, self.rows, self.source), files)

    def not_run(self) -> str:
        """What of it was not run, and the commands that would; empty where nothing is missing."""
        return f"{self.name}, {self.source.name}: {self.lack}" if self.lack else ""

    @property
    def lack(self) -> str:
        """What of it was not run or cannot be drawn, and the commands that would; empty where nothing is missing."""
        missing = f"{NOT_RUN}: {', '.join(self.rows.missing)}" if self.rows.missing else ""
        if not self.is_drawn and not self.rows.short:
            missing = f"no runs that kept {PATHS}" if self.figure.needs_paths and self.source.folders else NOT_RUN
        return "; ".join(filter(None, (self.rows.too_short, missing, self.commands)))


def drawings(results: Path, names: Iterable[str] = FIGURES, kept: Collection[str] | None = None) -> list[Drawing]:
    """Each figure of each source. Raises DataError as `analysis.records` does."""
    found = sources(results, kept)
    return [Drawing(name, source, select(FIGURES[name], source)) for name in names for source in found]


def save_figures(found: Iterable[Drawing], output: Path) -> list[Path]:
    """Draw those that have runs in every format and return the files."""
    made: list[Path] = []
    for drawing in found:
        if drawing.is_drawn:
            files = every_format(output, f"paper_{drawing.stem}")
            drawing.draw(files)
            made += files
    return made


def save_page(project: Path) -> list[Path]:
    """Draw the figures of docs/results/figures.md and fill it; returns the files. Raises DataError as `drawings` does,
    and for a block that is unknown or open."""
    found = drawings(project / "results", kept=KEPT)
    text = page(project, found)
    made = _pictures(project, found)
    for path in (project / DOCS).glob("figure_*.png"):
        if path not in made:
            path.unlink()
    for path, drawing in made.items():
        drawing.draw({path: png_from(drawing.checksum)})
    write({project / PAGE: text})
    return [*made, project / PAGE]


def stale(project: Path) -> list[Path]:
    """Which of the files that `save_page` writes are not what the records give."""
    found = drawings(project / "results", kept=KEPT)
    made = _pictures(project, found)
    old = [path for path, drawing in made.items() if drawn_from(path) != drawing.checksum]
    left = [path for path in (project / DOCS).glob("figure_*.png") if path not in made]
    return [*sorted(old + left), *changed({project / PAGE: page(project, found)})]


def page(project: Path, found: Sequence[Drawing]) -> str:
    """The text of docs/results/figures.md with every block as the records have it."""
    blocks = {"overview": partial(_overview, found)} | {name: partial(_section, name, found) for name in FIGURES}
    return filled(project / PAGE, blocks, marks=("figures", "figures end"))


def _pictures(project: Path, found: Sequence[Drawing]) -> dict[Path, Drawing]:
    return {project / DOCS / picture(drawing): drawing for drawing in found if drawing.is_drawn}


def picture(drawing: Drawing) -> str:
    """The name of its file in docs/results/."""
    return f"figure_{drawing.stem}.png"


def _overview(found: Sequence[Drawing]) -> str:
    names = list(dict.fromkeys(drawing.source.name for drawing in found))
    lines = []
    for name, figure in FIGURES.items():
        drawn = {drawing.source.name: drawing for drawing in found if drawing.name == name}
        states = [_state(drawn[source]) for source in names]
        lines.append((f"[{name}](#{_anchor(figure)})", figure.stands_for, *states))
    return ruled(("Figure", "In the paper", *(f"`{name}`" for name in names)), lines)


def _state(drawing: Drawing) -> str:
    if not drawing.is_drawn:
        return "not drawn" if drawing.rows.short else NOT_RUN
    return "drawn in part" if drawing.lack else "drawn"


def _anchor(figure: PaperFigure) -> str:
    return figure.title.lower().replace(" ", "-")


def _section(name: str, found: Sequence[Drawing]) -> str:
    """A figure's pictures, the runs that they show, and what was not run."""
    mine, lines = [drawing for drawing in found if drawing.name == name], []
    for drawing in mine:
        if drawing.is_drawn:
            scale = "Toy scale, not the paper's results." if drawing.source.is_toy else "Of the paper's tasks."
            lines.append(f"![{FIGURES[name].title}. {drawing.source.title}. {scale}]({picture(drawing)})\n")
            lines += [f"{row.title}: {_runs(row)}.\n" for row in drawing.rows.drawn.values()]
    missing = "".join(f"- `{drawing.source.name}`, {drawing.lack}\n" for drawing in mine if drawing.lack)
    return "\n".join(filter(None, (*lines, missing)))


def _runs(row: Row) -> str:
    return ", ".join(f"`{group.label}` ({len(group.runs)})" for group in row.groups)
