"""All of the paper's tables, and the page that tells at a glance what agrees, what differs and what was not run."""

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from analysis.pages.markdown import changed, ruled, told_stale, write
from analysis.paper.comparisons import methods_table
from analysis.paper.records import Missing, Records
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
from analysis.tables import FORMATS, Table, files_of
from rtpo.errors import DataError
from rtpo.run.config import PROJECT


@dataclass(frozen=True)
class MadeTables:
    """paper: of the paper's profile, in its order. others: of the other profiles that have complete runs. comparisons:
    of methods on our records."""

    paper: tuple[MadeTable, ...]
    others: tuple[MadeTable, ...]
    comparisons: tuple[Table, ...]

    @property
    def tables(self) -> list[Table]:
        return [*(made.table for made in (*self.paper, *self.others)), *self.comparisons]


def profiles() -> list[str]:
    """By name, the paper's first."""
    names = sorted(path.stem for path in (PROJECT / "configs" / "profile").glob("*.yaml"))
    return sorted(names, key=lambda name: name != load_reproduction().profile)


def all_tables(results: Path) -> MadeTables:
    """Raises DataError for records that are damaged, changed, of another schema, or not alike."""
    reproduction = load_reproduction()
    records = [Records(results, profile) for profile in profiles()]
    plans = reproduction.tables.values()
    others = [
        make_table(one, plan, reproduction) for one in records[1:] for plan in plans if one.has_runs(plan.experiments)
    ]
    compared = [methods_table(one, methods) for one in records for methods in reproduction.comparisons.values()]
    return MadeTables(
        tuple(make_table(records[0], plan, reproduction) for plan in plans),
        tuple(made for made in others if made.has_data),
        tuple(table for table in compared if table is not None),
    )


def one_table(results: Path, name: str) -> Table:
    """A table of the paper, with _<profile> after its name that of another profile. Raises DataError for an unknown
    name, and for one without any data, saying which command would make them."""
    reproduction = load_reproduction()
    known = {
        (key if profile == reproduction.profile else f"{key}_{profile}"): (plan, profile)
        for profile in profiles()
        for key, plan in reproduction.tables.items()
        if plan.experiments or profile == reproduction.profile
    }
    if name not in known:
        raise DataError(
            f"There is no table {name!r}; there are {', '.join(reproduction.tables)}, and each that is made of runs "
            "with _<profile> after it."
        )
    plan, profile = known[name]
    made = make_table(Records(results, profile), plan, reproduction)
    if not made.has_data:
        raise DataError(f"The table {name} has no complete run: {reproduction.commands(plan.experiments, profile)}")
    return made.table


def save(made: MadeTables, output: Path, page: Path) -> int:
    """Write all tables and the page, delete those that no record gives any more, and print the overview; 0."""
    files, extra = _files(made, output, page)
    write(files)
    for path in extra:
        path.unlink()
        print(f"{path} is deleted: no record gives it any more")
    print(overview(made, output, page))
    print(f"{len(files)} files: {output} and {page}")
    return 0


def check(made: MadeTables, output: Path, page: Path, command: str) -> int:
    """The exit status: 1 where a file is not what the records give."""
    files, extra = _files(made, output, page)
    return told_stale([*changed(files), *extra], command)


def _files(made: MadeTables, output: Path, page: Path) -> tuple[dict[Path, str], list[Path]]:
    """All files, and those of tables that there are no more."""
    files = files_of(made.tables, output) | {page: text(made, output, page)}
    return files, [path for path in sorted(output.glob("*.*")) if path not in files and path.suffix[1:] in FORMATS]


def overview(made: MadeTables, output: Path, page: Path) -> str:
    """A line a table."""
    header = ("Table", "Section", "What", "Cells", "Agree", "Undecided", "Higher or lower", "Not run", "Other")
    lines: list[tuple[str, ...]] = []
    for table in made.paper:
        counts = Counter(table.counts)
        differ = counts[HIGHER] + counts[LOWER] + counts[DIFFERS]
        told = (counts[AGREES], counts[UNDECIDED], differ, counts[NOT_RUN])
        rest = sum(counts.values()) - sum(told)
        plan = table.plan
        lines.append(
            (_link(table.key, output, page), plan.section, plan.gist, *map(str, (sum(counts.values()), *told, rest)))
        )
    total = [str(sum(int(line[place]) for line in lines)) for place in range(3, 9)]
    return ruled(header, [*lines, ("All", "", "", *total)])


def text(made: MadeTables, output: Path, page: Path) -> str:
    """docs/results/tables.md."""
    reproduction = load_reproduction()
    parts = [
        "# The paper's tables beside ours\n",
        "Generated by `python analysis/make_tables.py` from `results/`, `analysis/paper/paper.yaml` (what the paper "
        "prints) and `analysis/paper/reproduction.yaml` (what each of our cells is made of). Do not edit. Each table "
        "is there as Markdown, CSV and LaTeX. The paper's column is compared with runs of the profile "
        f"{reproduction.profile} alone; what other profiles gave stands in tables of their own, below.\n",
        overview(made, output, page),
        "Cells are those that the paper prints. The verdict of each is by one rule:\n",
        "".join(f"- **{verdict}**: {meaning}.\n" for verdict, meaning in VERDICTS.items()),
        "## What would run them\n",
        ruled(
            ("Table", "Command"),
            [
                (f"`{table.key}`", reproduction.commands(table.plan.experiments, table.profile))
                for table in made.paper
                if table.plan.experiments
            ],
        ),
        "## Other profiles\n",
        "Other tasks or models stand in for the paper's here: these are no reproduction of its numbers, and have no "
        "verdict.\n",
        _others(made, output, page),
        "## Methods against one another\n",
        _list([_link(table.name, output, page) for table in made.comparisons]),
    ]
    return "\n".join(parts)


def _others(made: MadeTables, output: Path, page: Path) -> str:
    if not made.others:
        return "None has a complete run.\n"
    lines = [
        (
            _link(table.key, output, page),
            *(table.profile, table.plan.gist, str(len(table.cells))),
            str(sum(not isinstance(cell.outcome, Missing) for cell in table.cells)),
        )
        for table in made.others
    ]
    return ruled(("Table", "Profile", "What", "Cells", "With a number"), lines)


def _link(name: str, output: Path, page: Path) -> str:
    return f"[`{name}`]({Path(os.path.relpath(output / f'{name}.md', page.parent)).as_posix()})"


def _list(items: list[str]) -> str:
    return "".join(f"- {item}\n" for item in items) or "None: there is no complete run.\n"
