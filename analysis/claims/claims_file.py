"""The paper's claims as they are written in claims.yaml, as typed data."""

from dataclasses import dataclass
from typing import Literal

Scale = Literal["paper", "toy", "theory", "printed"]


@dataclass(frozen=True)
class Part:
    """A test of a claim: one of `pair`, `run`, `theorem`, `recomputed` and `table`, each with the fields below it.

    A part claims that a number is above 0 or, with `slack`, equals `closed`.
    """

    scale: Scale | tuple[Scale, ...]  # complete runs of the paper's profile, the toy study, theory, the printed numbers
    pair: tuple[str, str] | None = None  # configurations of the toy study; the first is claimed to be better
    measure: str = ""  # their difference, by a key of MEASURES of analysis/study/results.py, or success (each decoding)
    reverse: bool = False  # whether the first is claimed to be worse
    run: str = ""  # a number of runs, or of pairs of runs with one seed, by a key of RUNS in claims.py
    labels: tuple[str, ...] = ()  # one or two labels of these runs
    task: str = ""  # of these runs
    experiment: str = ""  # of these runs, at the paper's scale
    theorem: str = ""  # a key of CLAIMS in analysis/theory/comparisons.py
    recomputed: str = ""  # a place of analysis/paper/slips.py
    kind: str = ""  # the kind of slip at that place
    table: str = ""  # a table of analysis/paper/cells.yaml
    read: str = ""  # a formula of its cells, by row.column
    what: str = ""  # the number in words; default: the two configurations and the measure
    closed: float = 0.0  # the claimed value
    slack: float | None = None  # the tolerance around it
    digits: int | None = None  # decimals of the number
    aside: Literal["", "ours", "beside"] = ""  # why it does not count: not the paper's claim, or only further evidence


@dataclass(frozen=True)
class Claim:
    """A claim of the paper."""

    title: str
    section: str
    tests: tuple[Part, ...] = ()
    every: bool = False  # whether it says "all", so that one contradicted part contradicts it
    untestable: str = ""  # why no test is possible
    untested: str = ""  # why there is no test here


@dataclass(frozen=True)
class StudyClaim:
    """A claim that the toy study tests on its own runs."""

    text: str
    source: str  # who claims it
    pair: tuple[str, str]  # configurations; the first is claimed to be better
    measure: str  # a key of MEASURES


@dataclass(frozen=True)
class ClaimsFile:
    """The file claims.yaml."""

    claims: dict[str, Claim]
    study: tuple[StudyClaim, ...]
