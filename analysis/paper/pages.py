"""The paper's tables as files, and the tables of docs/results/tables.md."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from analysis import tables
from analysis.paper.tables import AGREES, COMPARED, HIGHER, LOWER, UNDECIDED, PaperTable, committed
from analysis.tables import FORMATS, NOT_RUN, Table, changed, report_stale, ruled, write
from rtpo.core.names import counted, nearest
from rtpo.errors import DataError

LINKS = "../../results/tables/paper"
"""from docs/results/"""


def layouts(paper_tables: Sequence[PaperTable]) -> list[Table]:
    """Each table in the paper's layout, followed by its table of differences, if it has one."""
    return [layout for table in paper_tables for layout in (table.layout, table.compared) if layout is not None]


def files_of(paper_tables: Sequence[PaperTable], folder: Path) -> dict[Path, str]:
    """Every table in every format; its CSV has one line per cell."""
    files = tables.files_of(layouts(paper_tables), folder)
    return files | {folder / f"{table.name}.csv": table.csv for table in paper_tables}


def save(paper_tables: Sequence[PaperTable], folder: Path, faults: Sequence[str] = ()) -> int:
    """Write the tables, and print the counts of verdicts. faults: what is wrong with records, one sentence each; they
    are printed, and tables of these records stay as they are. Returns the exit status: 1 with a fault."""
    files = files_of(paper_tables, folder)
    write(files)
    for path in [] if faults else _superfluous(files, folder):
        print(f"{path}: no record gives it any more; delete it")
    counts = _counts([table for table in paper_tables if table.is_paper])
    print(f"{ruled(list(counts.columns), counts.to_numpy().tolist())}{counted(len(files), 'file')} in {folder}")
    return _print_errors(faults)


def _print_errors(faults: Sequence[str]) -> int:
    for fault in faults:
        print(f"error: {fault}", file=sys.stderr)
    return int(bool(faults))


def check(paper_tables: Sequence[PaperTable], folder: Path, command: str, faults: Sequence[str] = ()) -> int:
    """Print stale, missing and superfluous files, and the faults of records. Returns the exit status: 1 with any."""
    files = files_of(paper_tables, folder)
    superfluous = [] if faults else _superfluous(files, folder)
    return max(report_stale([*changed(files), *superfluous], command), _print_errors(faults))


def _superfluous(files: dict[Path, str], folder: Path) -> list[Path]:
    """The tables in a folder that no record gives any more."""
    return sorted(path for path in folder.glob("*.*") if path.suffix[1:] in FORMATS and path not in files)


def _counts(paper_tables: Sequence[PaperTable]) -> pd.DataFrame:
    """One row per table: the number of printed cells with each verdict."""
    rows = []
    for table in paper_tables:
        verdicts = table.cells.loc[table.cells["paper"].notna(), "verdict"]
        known = [verdicts.isin(words).sum() for words in ([AGREES], [UNDECIDED], [HIGHER, LOWER], [NOT_RUN])]
        rows.append((table.name, table.plan.section, len(verdicts), *known, len(verdicts) - sum(known)))
    titles = ["Table", "Section", "Cells", "Agree", "Undecided", "Higher or lower", "Not run", "Not compared"]
    return pd.DataFrame(rows, columns=titles)


def shown(name: str) -> Table:
    """A table of the committed records, such as math_knowledge_toolcall_results_toy. Raises DataError for another
    name."""
    if (table := committed().get(name.removesuffix(COMPARED))) is None:
        raise DataError(f"{name!r} is not a table of the paper: {nearest(name, [*committed()])}.")
    layout = table.compared if name.endswith(COMPARED) else table.layout
    assert layout is not None
    return layout


def overview() -> pd.DataFrame:
    """The paper's tables: contents, experiments that they need, and counts of verdicts."""
    paper_tables = [table for table in committed().values() if table.is_paper]
    counts = _counts(paper_tables)
    counts["Table"] = [f"[`{name}`]({LINKS}/{name}.md)" for name in counts["Table"]]
    counts.insert(2, "What", [table.plan.title for table in paper_tables])
    experiments = [", ".join(f"`{name}`" for name in table.plan.experiments) for table in paper_tables]
    counts.insert(3, "Experiment", experiments)
    return counts.astype(str)
