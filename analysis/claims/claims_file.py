"""The paper's claims as they are written in claims.yaml, as typed data."""

from dataclasses import dataclass
from typing import Literal

Scale = Literal["paper", "toy", "theory", "printed"]
"""where a number comes from: runs at the paper's scale, the toy main table, tabular problems, or the paper itself"""


@dataclass(frozen=True)
class Part:
    """A test of a claim. It compares a number with `closed`: the number must be above it, or equal to it if `slack` is
    given. Exactly one of `run`, `theorem`, `recomputed` and `table` says where the number comes from.
    """

    scale: Scale | tuple[Scale, ...]
    run: str = ""  # a number that runs give, a key of MEASUREMENTS in claims.py
    labels: tuple[str, ...] = ()  # of these runs; with two, runs of one seed are paired
    task: str = ""  # of these runs
    experiment: str = ""  # of these runs, at the paper's scale; at toy scale it is the main table
    theorem: str = ""  # a key of CLAIMS in analysis/theory/comparisons.py
    recomputed: str = ""  # a printed number, by `Recomputed.place` of analysis/paper/slips.py
    kind: str = ""  # `Recomputed.kind` of that number
    table: str = ""  # a table of analysis/paper/cells.yaml
    read: str = ""  # a formula of its cells, by row.column
    what: str = ""  # the number in words: "place, measurement"
    closed: float = 0.0  # the claimed value
    slack: float | None = None  # the tolerance around it
    digits: int | None = None  # decimals of the number
    aside: Literal["", "ours", "beside"] = ""
    """set if the test has no part in the verdict: the paper does not claim it (`ours`), or it is further evidence"""


@dataclass(frozen=True)
class PaperClaim:
    """A claim of the paper."""

    title: str
    section: str
    tests: tuple[Part, ...] = ()
    every: bool = False  # whether the paper says "all": one contradicted test then contradicts the claim
    untestable: str = ""  # why no test is possible
    untested: str = ""  # why there is no test here


@dataclass(frozen=True)
class ClaimsFile:
    """The file claims.yaml."""

    claims: dict[str, PaperClaim]
