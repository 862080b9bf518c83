"""All of the paper's tables, and the page that tells at a glance what agrees, what differs and what was not run."""

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from analysis.pages.markdown import changed, ruled, told_stale, write
from analysis.paper.grid import compared, grid, long_form
from analysis.paper.numbers import load_paper
from analysis.paper.records import Records
from analysis.paper.reproduction import load_reproduction
from analysis.paper.tables import (
    AGREES,
    DIFFERS,
    HIGHER,
    LOWER,
    NOT_RUN,
    UNDECIDED,
    VERDICTS,
    MadeTable,
    make_table,
)
from analysis.tables import FORMATS, Table, csv_text, latex, markdown
from rtpo.core.names import nearest
from rtpo.errors import DataError
from rtpo.run.config import PROJECT

COUNTED = (AGREES, UNDECIDED, HIGHER, LOWER, DIFFERS, NOT_RUN)
"""verdicts that the overview has columns for"""


@dataclass(frozen=True)
class Page:
    """A table in the paper's layout, its CSV, and of what it is made; None for one that compares rows."""

    table: Table
    csv: str
    made: MadeTable | None

    @property
    def formats(self) -> dict[str, str]:
        return {"md": markdown(self.table), "csv": self.csv, "tex": latex(self.table)}


def profiles() -> list[str]:
    """By name, the paper's first."""
    names = sorted(path.stem for path in (PROJECT / "configs" / "profile").glob("*.yaml"))
    return sorted(names, key=lambda name: name != load_reproduction().profile)


def all_pages(results: Path) -> list[Page]:
    """The tables of the paper's profile, in its order, and of the others those that have complete runs; below each what
    compares its rows. Raises DataError for records that are damaged, changed, of another schema, or not alike."""
    reproduction = load_reproduction()
    found = []
    for profile in profiles():
        records = Records(results, profile)
        for plan in reproduction.tables.values():
            if profile == reproduction.profile or records.started(plan.experiments, "manifest.json"):
                found += _pages(make_table(records, plan, reproduction), records)
    return found


def _pages(made: MadeTable, records: Records) -> list[Page]:
    reproduction = load_reproduction()
    if not made.has_data and made.profile != reproduction.profile:
        return []
    pages = [Page(grid(made, records, load_paper(), reproduction), long_form(made), made)]
    return pages + [Page(one, csv_text(one), None) for one in [compared(made)] if one is not None]


def one_table(results: Path, name: str) -> list[Page]:
    """A table of the paper, with _<profile> after its name that of another profile. Raises DataError for an unknown
    name, and for one without any data, saying which command would make them."""
    reproduction = load_reproduction()
    for profile in profiles():
        suffix = "" if profile == reproduction.profile else f"_{profile}"
        plan = reproduction.tables.get(name.removesuffix(suffix)) if name.endswith(suffix) else None
        if plan is not None and (plan.experiments or not suffix):
            records = Records(results, profile)
            made = make_table(records, plan, reproduction)
            if made.has_data:
                return _pages(made, records)
            raise DataError(f"The table {name} has no complete run: {reproduction.commands(plan.experiments, profile)}")
    raise DataError(
        f"There is no table {name!r}; {nearest(name, reproduction.tables)}. One that is made of runs is of another "
        "profile with _<profile> after its name."
    )


def files_of(pages: list[Page], output: Path) -> dict[Path, str]:
    """In every format."""
    return {output / f"{one.table.name}.{suffix}": text for one in pages for suffix, text in one.formats.items()}


def save(pages: list[Page], output: Path, page: Path) -> int:
    """Write all tables and the page, delete those that no record gives any more, and print the overview; 0."""
    files, extra = _files(pages, output, page)
    write(files)
    for path in extra:
        path.unlink()
        print(f"{path} is deleted: no record gives it any more")
    print(overview(pages, output, page))
    print(f"{len(files)} files: {output} and {page}")
    return 0


def check(pages: list[Page], output: Path, page: Path, command: str) -> int:
    """The exit status: 1 where a file is not what the records give."""
    files, extra = _files(pages, output, page)
    return told_stale([*changed(files), *extra], command)


def _files(pages: list[Page], output: Path, page: Path) -> tuple[dict[Path, str], list[Path]]:
    """All files, and those of the paper's tables that are made no more; a folder may hold other things."""
    files = files_of(pages, output) | {page: text(pages, output, page)}
    names = [f"{key}{of}" for key in load_reproduction().tables for of in ("", *(f"_{name}" for name in profiles()))]
    known = (output / f"{name}{kind}.{suffix}" for name in names for kind in ("", "_compared") for suffix in FORMATS)
    return files, [path for path in sorted(known) if path not in files and path.exists()]


def overview(pages: list[Page], output: Path, page: Path) -> str:
    """A line a table of the paper's profile."""
    header = ("Table", "Section", "What", "Cells", "Agree", "Undecided", "Higher or lower", "Not run", "Other")
    lines: list[tuple[str, ...]] = []
    for made in (one.made for one in pages if one.made is not None):
        if made.profile == load_reproduction().profile:
            counts = Counter(made.counts)
            differ = counts[HIGHER] + counts[LOWER] + counts[DIFFERS]
            told = (counts.total(), counts[AGREES], counts[UNDECIDED], differ, counts[NOT_RUN])
            rest = 2 * told[0] - sum(told)
            lines.append((_link(made.key, output, page), made.plan.section, made.plan.gist, *map(str, (*told, rest))))
    total = [str(sum(int(line[place]) for line in lines)) for place in range(3, 9)]
    other = ", ".join(verdict for verdict in VERDICTS if verdict not in COUNTED)
    return ruled(header, [*lines, ("All", "", "", *total)]) + f"\nOther: {other}.\n"


def text(pages: list[Page], output: Path, page: Path) -> str:
    """docs/results/tables.md."""
    reproduction = load_reproduction()
    others = [one for one in pages if one.made is None or one.made.profile != reproduction.profile]
    parts = [
        "# The paper's tables beside ours\n",
        "Generated by `python analysis/make_tables.py` from `results/`, `analysis/paper/paper.yaml` (what the paper "
        "prints) and `analysis/paper/reproduction.yaml` (what each of our cells is made of). Do not edit. Each table "
        "is there as the paper lays it out, as Markdown and as LaTeX (its first line names the packages), and as CSV "
        "with a line a cell for programs; what would run it stands below it. The paper's numbers are compared with "
        "runs of the profile "
        f"{reproduction.profile} alone; what other profiles gave stands in tables of their own, below.\n",
        overview(pages, output, page),
        "Cells are those that the paper prints. A setting is compared without a run: no run is behind what agrees in "
        "`all-hparams` and `settings`, or of the group sizes and coefficients in the group tables. The verdict of "
        "each cell is by one rule:\n",
        "".join(f"- **{verdict}**: {meaning}.\n" for verdict, meaning in VERDICTS.items()),
        "## Other profiles, and rows against one another\n",
        "Where a profile is named, other tasks or models stand in for the paper's: these are no reproduction of its "
        "numbers, and have no verdict.\n",
        *(f"### {_link(one.table.name, output, page)}\n\n{markdown(one.table)}" for one in others),
        *([] if others else ["There is no complete run.\n"]),
    ]
    return "\n".join(parts)


def _link(name: str, output: Path, page: Path) -> str:
    return f"[`{name}`]({Path(os.path.relpath(output / f'{name}.md', page.parent)).as_posix()})"
