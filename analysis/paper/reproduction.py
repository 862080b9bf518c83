"""What the paper's tables are made of here: reproduction.yaml, checked against the paper's tables.

The head of reproduction.yaml says how it is written.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from analysis.looks import title_of
from analysis.paper.numbers import Line, Paper, PaperTable, Value, load_paper
from analysis.paper.quantities import QUANTITIES, RUN_QUANTITIES
from rtpo.errors import DataError
from rtpo.run.records import SAFE_LOADER

SOURCE = Path(__file__).with_name("reproduction.yaml")
MARK = " †"
"""of a line that the paper does not have"""
KINDS = ("quantity", "formula", "setting", "composed", "evaluate", "not_measured")
EPISODES = ("held_out", "first_paths")
TABLE_KEYS = ("cells", "notes", "rows", "columns", "single", "not_in_paper", "stated")
_NAME = re.compile(r"\{(\w+)\}")
Spec = Mapping[str, Any]
Origin = Literal["row", "column"]


@dataclass(frozen=True)
class Source:
    """Where a cell's number comes from; exactly one of KINDS is given. title: of a line that the paper does not have,
    where it is not the label's; unit: of one that is
    not measured. benchmark_of: the line that says which benchmark it is."""

    experiment: str | None = None
    label: str | None = None
    task: str | None = None
    benchmark: str | None = None
    where: tuple[tuple[str, str], ...] = ()
    episodes: str | None = None
    part: int | None = None
    quantity: str | None = None
    formula: str | None = None
    setting: str | None = None
    composed: str | tuple[str, ...] | None = None
    evaluate: str | None = None
    not_measured: str | None = None
    not_compared: str | None = None
    title: str | None = None
    unit: str | None = None
    benchmark_of: Origin | None = None


@dataclass(frozen=True)
class CellPlan:
    """A cell: its lines by key and as shown, what the paper prints (None: nothing), and its source. in_paper: whether
    the paper's table has the place."""

    row: str
    column: str
    row_title: str
    column_title: str
    unit: str
    paper: Value | None
    in_paper: bool
    source: Source


@dataclass(frozen=True)
class TablePlan:
    """A table of the paper. experiments: whose runs it needs, in the order of its cells."""

    key: str
    section: str
    gist: str
    notes: tuple[str, ...]
    cells: tuple[CellPlan, ...]
    experiments: tuple[str, ...]


@dataclass(frozen=True)
class Methods:
    """Methods to set against one another: `one` and each of `others`, on each benchmark's source."""

    experiment: str
    one: str
    others: tuple[str, ...]
    sources: Mapping[str, Source]


@dataclass(frozen=True)
class Reproduction:
    """All of it. launchers: of slurm/, by experiment. profile: of the paper's scale."""

    profile: str
    launchers: Mapping[str, str]
    tables: Mapping[str, TablePlan]
    comparisons: Mapping[str, Methods]

    def commands(self, experiments: Iterable[str], profile: str) -> str:
        """What makes the runs of experiments and their evaluations, with SLURM or without, in Markdown."""
        names = list(dict.fromkeys(experiments))
        chosen = "" if profile == self.profile else f"PROFILE={profile} "
        submitted = dict.fromkeys(
            f"`{chosen}sbatch slurm/{self.launchers[name]}.sh`"
            if name in self.launchers
            else f"`python experiments/launch.py submit {name} profile={profile}`"
            for name in names
        )
        here = (f"`python experiments/launch.py run {name} profile={profile}`" for name in names)
        return f"{' and '.join(submitted)}, or without SLURM {' and '.join(here)}."


@cache
def load_reproduction() -> Reproduction:
    """Raises DataError for a file that is not written as its head says."""
    return read_reproduction(SOURCE.read_text(encoding="utf-8"), load_paper())


def read_reproduction(text: str, paper: Paper) -> Reproduction:
    """A reproduction of `paper` from YAML. Raises DataError for a name that there is none of, and for a table or a cell
    of the paper that it does not say anything about."""
    given = yaml.load(text, Loader=SAFE_LOADER)
    missing = [key for key in paper.tables if key not in given["tables"]]
    if missing:
        raise DataError(f"reproduction.yaml has no table {', '.join(missing)}: say what its cells are made of.")
    names = _Names(given["benchmarks"], given["launchers"], given["notes"])
    tables = {key: _table(paper, paper.table(key), source, names) for key, source in given["tables"].items()}
    return Reproduction(
        given["profile"],
        given["launchers"],
        tables,
        {key: _methods(key, source, names) for key, source in given["comparisons"].items()},
    )


@dataclass(frozen=True)
class _Names:
    benchmarks: Mapping[str, str]
    experiments: Collection[str]
    notes: Mapping[str, str]


def _table(paper: Paper, table: PaperTable, given: Spec, names: _Names) -> TablePlan:
    _known(given, TABLE_KEYS, f"Table {table.key!r}")
    cells = list(_cells(table, given, names))
    for row, stated in given.get("stated", {}).items():
        for key, spec in stated.items():
            one = paper.statement(key)
            source = _source({**given["cells"], **_own(given["cells"], spec)}, {}, f"{table.key}, {key}", names)
            cells.append(CellPlan(row, key, row, _sentence(one.says), one.value.unit, one.value, True, source))
    needed = [cell.source for cell in cells if cell.source.quantity or cell.source.setting]
    experiments = dict.fromkeys(source.experiment for source in needed if source.experiment and source.label)
    notes = tuple(_get(names.notes, note, "note") for note in given.get("notes", ()))
    return TablePlan(table.key, table.section, table.gist, notes, tuple(cells), tuple(experiments))


def _cells(table: PaperTable, given: Spec, names: _Names) -> Iterator[CellPlan]:
    rows, columns = _matched(given.get("rows", {}), table.rows), _matched(given.get("columns", {}), table.columns)
    more = given.get("not_in_paper", {})
    _known(more, ("rows", "columns"), f"Table {table.key!r}, not_in_paper")
    extra_rows, extra_columns = more.get("rows", {}), more.get("columns", {})
    single: Spec = given.get("single", {})
    unused = set(single)
    for row, of_row in {**rows, **extra_rows}.items():
        for column, of_column in {**columns, **extra_columns}.items():
            place = f"{row}.{column}"
            matching = [pattern for pattern in single if fnmatchcase(place, pattern)]
            unused.difference_update(matching[:1])
            alone = [single[pattern] for pattern in matching[:1]]
            levels = (given.get("cells", {}), of_row or {}, of_column or {}, *alone)
            merged: dict[str, Any] = {}
            for level in levels:
                merged = {**merged, **_own(merged, level)}
            in_paper = row in table.rows and column in table.columns
            paper = table.value(row, column) if in_paper else None
            said = any(kind in merged for kind in KINDS) and (alone or None not in (of_row, of_column))
            if not said and paper is not None:
                raise DataError(f"Table {table.key!r} says nothing of {place}: give it one of {', '.join(KINDS)}.")
            if not said:
                continue
            origin = _origin(of_row or {}, of_column or {}, str(merged.get("benchmark")))
            keys = {"row": row, "column": column}
            source = _source(merged, keys, f"table {table.key!r}, {place}", names)
            source = replace(source, benchmark_of=origin if source.benchmark else None)
            titles = _title(table.rows, row, of_row, source), _title(table.columns, column, of_column, source)
            yield CellPlan(row, column, *titles, _unit(table, row, column, paper, source), paper, in_paper, source)
    if unused:
        raise DataError(f"Table {table.key!r}, single: no cell is {', '.join(sorted(unused))}.")


def _origin(of_row: Spec, of_column: Spec, benchmark: str) -> Origin | None:
    if "benchmark" in of_row or "{row}" in benchmark:
        return "row"
    return "column" if "benchmark" in of_column or "{column}" in benchmark else None


def _matched(given: Spec, lines: Mapping[str, Line]) -> dict[str, Spec | None]:
    """What each of the paper's lines is given: by its key, or else by the first pattern of keys that it matches. None:
    it has the cells of `single` alone."""
    found: dict[str, Spec | None] = {}
    used: set[str] = set()
    for key in lines:
        if key in given:
            found[key] = given[key]
            used.add(key)
            continue
        found[key] = {}
        for pattern in (pattern for pattern in given if "{" in pattern):
            match = re.fullmatch(_NAME.sub(r"(?P<\1>.+)", pattern), key)
            if match:
                found[key] = {**given[pattern], **match.groupdict()}
                used.add(pattern)
                break
    unknown = [key for key in given if key not in used]
    if unknown:
        raise DataError(f"The paper's table has no line {', '.join(unknown)}; there are {', '.join(lines)}.")
    return found


def _own(merged: Spec, level: Spec) -> Spec:
    """A level's entries, which put away the kind of the levels before it."""
    if any(kind in level for kind in KINDS):
        return {**{kind: None for kind in KINDS if kind in merged}, **level}
    return level


def _source(merged: Spec, keys: Mapping[str, str], place: str, names: _Names) -> Source:
    _known(merged, [one.name for one in fields(Source)], place)
    given = {key: _filled(value, keys) for key, value in merged.items() if value is not None}
    if "part" in given:
        given["part"] = int(given["part"])
    if "where" in given:
        given["where"] = tuple(given["where"].items())
    if isinstance(given.get("composed"), list):
        given["composed"] = tuple(given["composed"])
    source = Source(**given)
    kinds = [kind for kind in KINDS if getattr(source, kind) is not None]
    if len(kinds) != 1:
        raise DataError(f"{place} has {' and '.join(kinds) or 'none'} of {', '.join(KINDS)}: give one.")
    if source.benchmark is not None:
        source = replace(source, task=_get(names.benchmarks, source.benchmark, f"{place}: benchmark"))
    if source.experiment is not None:
        _known((source.experiment,), names.experiments, f"{place}: experiment")
    if source.episodes is not None:
        _known((source.episodes,), EPISODES, f"{place}: episodes")
    if source.quantity is not None:
        _known((source.quantity,), [*QUANTITIES, *RUN_QUANTITIES], f"{place}: quantity")
        short = [name for name in ("experiment", "label", "task") if getattr(source, name) is None]
        if source.quantity in QUANTITIES and not (source.benchmark or source.episodes):
            short.append("benchmark or episodes")
        if short:
            raise DataError(f"{place} lacks {', '.join(short)}.")
    return source


def _filled(value: Any, keys: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return _NAME.sub(lambda match: keys.get(match[1], match[0]), value)
    if isinstance(value, Mapping):
        return {key: _filled(one, keys) for key, one in value.items()}
    return value


def _unit(table: PaperTable, row: str, column: str, paper: Value | None, source: Source) -> str:
    quantity = QUANTITIES.get(source.quantity or "") or RUN_QUANTITIES.get(source.quantity or "")
    lines = [line for line in (table.rows.get(row), table.columns.get(column)) if line is not None]
    units = [paper.unit] if paper is not None else [line.unit for line in lines if line.unit is not None]
    if quantity is None:
        return source.unit or units[0]
    if units and quantity.unit != units[0]:
        raise DataError(
            f"Table {table.key!r}, {row}.{column} is in {units[0]} and the quantity {source.quantity!r} in "
            f"{quantity.unit}: choose another quantity."
        )
    return quantity.unit


def _title(lines: Mapping[str, Line], key: str, given: Spec | None, source: Source) -> str:
    if key in lines:
        return lines[key].title
    label = str(source.label)
    return ((given or {}).get("title") or title_of(label)) + MARK


def _sentence(says: str) -> str:
    return says[:1].upper() + says[1:]


def _methods(experiment: str, given: Spec, names: _Names) -> Methods:
    place = f"Comparison {experiment!r}"
    _known(given, ("one", "others", "quantity", "benchmarks", "with", "episodes", "task"), place)
    specs: dict[str, dict[str, Any]] = {}
    for benchmark in given.get("benchmarks", ()):
        specs[benchmark] = {"benchmark": benchmark, "quantity": given["quantity"]}
    for benchmark, quantity in given.get("with", {}).items():
        specs[benchmark] = {"benchmark": benchmark, "quantity": quantity}
    if "episodes" in given:
        specs[given["task"]] = {key: given[key] for key in ("episodes", "task", "quantity")}
    common = {"experiment": experiment, "label": given["one"]}
    sources = {name: _source({**common, **spec}, {}, place, names) for name, spec in specs.items()}
    return Methods(experiment, given["one"], tuple(given["others"]), sources)


def _known(given: Collection[str], known: Collection[str], what: str) -> None:
    unknown = [name for name in given if name not in known]
    if unknown:
        raise DataError(f"{what}: there is no {', '.join(map(repr, unknown))}; there are {', '.join(known)}.")


def _get(known: Mapping[str, str], name: str, what: str) -> str:
    _known((name,), known, what)
    return known[name]
