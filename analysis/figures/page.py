"""The paper's figures as files, what of them was not run, and docs/results/figures.md."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from analysis.evaluation import PATHS
from analysis.figures.curves import FIFTHS
from analysis.figures.paper_figures import FIGURES, SCHEMATIC, PaperFigure, select
from analysis.figures.shared import Rows
from analysis.figures.sources import EXPERIMENTS, PAPER, STUDY_NAME, Row, Source, sources
from analysis.pages.markdown import ruled
from analysis.plots import Files, drawn_from, every_format, png_from, records_checksum, save
from analysis.tables import NOT_RUN

DOCS = Path("docs", "results")
PAGE = DOCS / "figures.md"
KEPT = ("toy", "main_table_toy_toy_math", "main_table_toy_toy_knowledge")
"""folders of results/ that the repository keeps, all that docs/results/figures.md shows"""
CASES = (
    "The paper's two case studies can be shown on training rollouts alone: evaluations keep no contexts "
    "([view.md](view.md)).\n"
)
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
    """Draw the figures of docs/results/figures.md and write it; returns the files."""
    found = drawings(project / "results", kept=KEPT)
    made = {project / picture(drawing): drawing for drawing in found if drawing.is_drawn}
    for path in (project / DOCS).glob("figure_*.png"):
        if path not in made:
            path.unlink()
    for path, drawing in made.items():
        drawing.draw({path: png_from(drawing.checksum)})
    (project / PAGE).write_text(page(found), encoding="utf-8")
    return [*made, project / PAGE]


def stale(project: Path) -> list[Path]:
    """Which of the files that `save_page` writes are not what the records give."""
    found = drawings(project / "results", kept=KEPT)
    made = {project / picture(drawing): drawing.checksum for drawing in found if drawing.is_drawn}
    pictures = sorted({*made, *(project / DOCS).glob("figure_*.png")})
    old = [path for path in pictures if path not in made or drawn_from(path) != made[path]]
    text = (project / PAGE).read_text(encoding="utf-8") if (project / PAGE).exists() else None
    return old + [project / PAGE] * (text != page(found))


def picture(drawing: Drawing) -> Path:
    """In the project's folder."""
    return DOCS / f"figure_{drawing.stem}.png"


def page(found: Sequence[Drawing]) -> str:
    """docs/results/figures.md."""
    return "\n".join(
        [
            "# The paper's figures\n",
            f"Generated by `{COMMAND} --page` from the records that the repository keeps (`results/"
            f"{', '.join(KEPT)}`). Do not edit.\n",
            f"`{COMMAND}` draws every figure that has complete runs, as PDF and PNG, to `results/figures/`, and says "
            f"what was not run and which command would. `--figure NAME` draws one, and fails where nothing of it was "
            f"run; `--check` fails where this page or its pictures are not what the kept records give; `--experiment "
            f"NAME` draws the training curves of one experiment instead, and `--run FOLDER` those of one run.\n",
            "## Which runs feed a figure\n",
            _rule(found),
            "## What was drawn\n",
            _overview(found),
            *(_section(name, [drawing for drawing in found if drawing.name == name]) for name in FIGURES),
            "## Not regenerated\n",
            "These figures of the paper show no measurement.\n",
            ruled(
                ("Figure", "What it shows", "Here"),
                [(f"`{key}`", what, here) for key, (what, here) in SCHEMATIC.items()],
            ),
            CASES,
        ]
    )


def _rule(found: Sequence[Drawing]) -> str:
    folders = ", ".join(f"`{first}` (`experiment={name}`)" for first, (name, _) in EXPERIMENTS.items())
    return (
        "A figure shows the runs of one source, never of two, and its file ends in the source's name:\n\n"
        "- a profile: the complete runs in `results/<experiment>_<profile>_<task>/`, where the experiment is one of "
        f"{folders};\n"
        f"- `{STUDY_NAME}`: the complete runs of the [toy study](toy_study.md) from the first warm start of each task, "
        "`results/toy/<task>/`, each configuration at a learning rate of its own.\n\n"
        "Each figure names its configurations below, with the number of runs, one a seed, in brackets: all complete "
        "ones. A configuration without any is left out and named on the figure, and so is a task with too few "
        f"configurations, and for fifths of the training a run with fewer than {FIFTHS} graded first paths. "
        "The profile stands on every figure. Bands and bars are the range over seeds unless a figure says otherwise. "
        "A run's last step is left out of curves over training where it has fewer tasks than the others, since the "
        "budget was nearly used up. "
        f"Readings of the paper's text are marked in figures of profile `{PAPER}` alone: beside toy "
        "tasks they would mislead.\n"
    )


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
    figure = FIGURES[name]
    lines = [f"## {figure.title}\n", f"{figure.caption.strip()}\n"]
    for drawing in found:
        if drawing.is_drawn:
            scale = "Toy scale, not the paper's results." if drawing.source.is_toy else "Of the paper's tasks."
            lines.append(f"![{figure.title}. {drawing.source.title}. {scale}]({picture(drawing).name})\n")
            lines += [f"{row.title}: {_runs(row)}.\n" for row in drawing.rows.drawn.values()]
    missing = [f"- `{drawing.source.name}`, {drawing.lack}\n" for drawing in found if drawing.lack]
    return "\n".join(lines) + ("\n" + "".join(missing) if missing else "")


def _runs(row: Row) -> str:
    return ", ".join(f"`{group.label}` ({len(group.runs)})" for group in row.groups)
