"""The paper's testable claims (claims.yaml), each with what tests it at each scale."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from analysis.paper.numbers import Paper, Value
from analysis.tables import MINUS
from rtpo.run.records import SAFE_LOADER

FILE = Path(__file__).with_name("claims.yaml")
PAPER_SCALE, TOY, THEORY, PRINTED = "paper scale", "toy", "tables of theory", "the paper's printed numbers"
SCALES = {"paper": PAPER_SCALE, "toy": TOY, "theory": THEORY, "printed": PRINTED}
"""by their keys in the file"""
NEAR = 0.1
"""slack of a number that the paper calls approximate, as a share of it"""


@dataclass(frozen=True)
class Lead:
    """That line `one` is above the best of `others` on each of `lines` of the other side of the paper's table; below
    the least of them where `lower`; above 0 without others. ours: not the paper's claim."""

    table: str
    lines: tuple[str, ...]
    one: str
    others: tuple[str, ...] = ()
    lower: bool = False
    by_row: bool = True
    ours: bool = False

    @property
    def formula(self) -> str:
        """The margin."""
        if not self.others:
            return self.one
        many_of = f"({', '.join(self.others)})"
        best = self.others[0] if len(self.others) == 1 else f"{'min' if self.lower else 'max'}{many_of}"
        return f"{best} - {self.one}" if self.lower else f"{self.one} - {best}"

    def title(self, paper: Paper, line: str, other: str = "") -> str:
        """A line's name, and what it is against where that is one thing alone. other: in our table's words."""
        table = paper.table(self.table)
        title = table.lines("columns" if self.by_row else "rows")[line].title
        if len(self.others) != 1:
            return title
        return f"{title}, against {other or table.rows[self.others[0]].title}"


@dataclass(frozen=True)
class Same:
    """That a formula of a table's rows, in `column`, is what the paper states as `claimed`, or 0."""

    what: str
    table: str
    column: str
    formula: str
    claimed: str = ""

    def closed(self, paper: Paper) -> float:
        return number(paper, self.claimed) if self.claimed else 0.0

    def slack(self, paper: Paper) -> float:
        """Of a number that is stated NEAR; else half of the least gain that the paper counts as one."""
        if self.claimed:
            return NEAR * abs(self.closed(paper))
        gains = LEADS["continued"]
        return min(number(paper, f"{gains.table}.{line}.{gains.one}") for line in gains.lines) / 2


@dataclass(frozen=True)
class Pair:
    """That the toy study's configuration `first` does better than `second`. `turned`: worse, in these words."""

    first: str
    second: str
    measure: str = "success"
    ours: bool = False
    turned: str = ""


@dataclass(frozen=True)
class Test:
    """What tests a claim at a scale; the fields are those of the file."""

    scale: str
    tables: tuple[Lead | Same, ...] = ()
    runs: tuple[str, ...] = ()
    pairs: tuple[Pair, ...] = ()
    theorems: tuple[str, ...] = ()
    ours: tuple[str, ...] = ()
    statements: tuple[str, ...] = ()
    sentences: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Claim:
    """A claim in our words."""

    key: str
    title: str
    text: str
    where: str
    tests: tuple[Test, ...] = ()
    untestable: str = ""
    every: bool = False

    def filled(self, paper: Paper) -> tuple[str, str]:
        """Title and text with the paper's numbers."""
        first, second = (
            re.sub(r"\{([\w.]+)\}", lambda match: printed_number(paper, match[1]), text)
            for text in (self.title, self.text)
        )
        return first, second


def number(paper: Paper, key: str) -> float:
    """Of a statement or of table.row.column. Raises DataError for one that there is none of."""
    value = _value(paper, key).number
    assert value is not None
    return value


def printed_number(paper: Paper, key: str) -> str:
    """As printed."""
    return _value(paper, key).printed.replace("-", MINUS)


def _value(paper: Paper, key: str) -> Value:
    parts = key.split(".")
    value = paper.value(*parts) if len(parts) == 3 else paper.statement(key).value
    assert value is not None
    return value


def _tuples(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}


def _test(scale: str, entry: Mapping[str, Any]) -> Test:
    tables: list[Lead | Same] = [LEADS[name] for name in entry.get("leads", ())]
    tables += [EQUALITIES[name] for name in entry.get("equalities", ())]
    pairs = tuple(Pair(**pair) for pair in entry.get("pairs", ()))
    needs = [*(one.table for one in tables), *(label for one in pairs for label in (one.first, one.second))]
    needs += entry.get("needs", ())
    made: dict[str, Any] = {"tables": tuple(tables), "pairs": pairs, "needs": tuple(dict.fromkeys(needs))}
    rest = {key: value for key, value in entry.items() if key not in (*made, "leads", "equalities")}
    return Test(SCALES[scale], **made, **_tuples(rest))


def _claim(key: str, entry: Mapping[str, Any]) -> Claim:
    tests = tuple(_test(scale, entry[scale]) for scale in SCALES if scale in entry)
    return Claim(key, tests=tests, **{name: value for name, value in entry.items() if name not in SCALES})


_READ = yaml.load(FILE.read_bytes(), SAFE_LOADER)
LEADS = {name: Lead(**_tuples(entry)) for name, entry in _READ["leads"].items()}
EQUALITIES = {name: Same(**entry) for name, entry in _READ["equalities"].items()}
CLAIMS = tuple(_claim(key, entry) for key, entry in _READ["claims"].items())
