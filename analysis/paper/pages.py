"""The paper's tables as files, and the tables of docs/results/tables.md."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from analysis.paper.tables import AGREES, COMPARED, HIGHER, LOWER, UNDECIDED, PaperTable, committed
from analysis.tables import FORMATS, NOT_RUN, Table, changed, ruled, told_stale, write

LINKS = "../../results/tables/paper"
"""from docs/results/"""


def layouts(tables: Sequence[PaperTable]) -> list[Table]:
    """Each table in the paper's layout, and what compares its rows."""
    return [layout for table in tables for layout in (table.layout, table.compared) if layout is not None]


def files_of(tables: Sequence[PaperTable], folder: Path) -> dict[Path, str]:
    """Every table in every format; its CSV has a line a cell."""
    files = {
        folder / f"{layout.name}.{suffix}": render(layout)
        for layout in layouts(tables)
        for suffix, render in FORMATS.items()
    }
    return files | {folder / f"{table.name}.csv": table.csv for table in tables}


def save(tables: Sequence[PaperTable], folder: Path) -> None:
    """Write the tables and print how they stand."""
    files = files_of(tables, folder)
    write(files)
    for path in _left(files, folder):
        print(f"{path}: no record gives it any more; delete it")
    counts = _counts([table for table in tables if table.is_paper])
    print(f"{ruled(list(counts.columns), counts.to_numpy().tolist())}{len(files)} files in {folder}")


def check(tables: Sequence[PaperTable], folder: Path, command: str) -> int:
    """The exit status: 1 where a file is not what the records give, and where none is there."""
    files = files_of(tables, folder)
    return told_stale([*changed(files), *_left(files, folder)], command)


def _left(files: dict[Path, str], folder: Path) -> list[Path]:
    """Tables in the folder that are made no more."""
    return sorted(path for path in folder.glob("*.*") if path.suffix[1:] in FORMATS and path not in files)


def _counts(tables: Sequence[PaperTable]) -> pd.DataFrame:
    """A row a table."""
    rows = []
    for table in tables:
        counts = table.counts
        differ = counts.get(HIGHER, 0) + counts.get(LOWER, 0)
        known = [counts.get(AGREES, 0), counts.get(UNDECIDED, 0), differ, counts.get(NOT_RUN, 0)]
        whole = sum(counts.values())
        rows.append((table.name, table.plan.section, whole, *known, whole - sum(known)))
    titles = ["Table", "Section", "Cells", "Agree", "Undecided", "Higher or lower", "Not run", "Not compared"]
    return pd.DataFrame(rows, columns=titles)


def shown(name: str) -> Table:
    """A table of committed records by its name, such as math_knowledge_toolcall_results_toy. Raises KeyError."""
    table = committed()[name.removesuffix(COMPARED)]
    layout = table.compared if name.endswith(COMPARED) else table.layout
    assert layout is not None
    return layout


def overview() -> pd.DataFrame:
    """The paper's tables: what each has, whose runs it needs, and how its cells stand."""
    tables = [table for table in committed().values() if table.is_paper]
    counts = _counts(tables)
    counts["Table"] = [f"[`{name}`]({LINKS}/{name}.md)" for name in counts["Table"]]
    experiments = [", ".join(f"`{name}`" for name in table.plan.experiments) for table in tables]
    counts.insert(2, "What", [table.plan.title for table in tables])
    counts.insert(3, "Experiment", experiments)
    return counts.astype(str)
