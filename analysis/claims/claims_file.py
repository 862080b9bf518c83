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
    measure: str = ""  # in a key of MEASURES of analysis/study/results.py; success counts at each decoding
    reverse: bool = False  # whether the first is claimed to be worse
    run: str = ""  # a key of RUNS in claims.py: a number of a run, or of a pair of runs with one seed,
    labels: tuple[str, ...] = ()  # of these one or two labels,
    task: str = ""  # on this task,
    experiment: str = ""  # in this experiment at the paper's scale
    theorem: str = ""  # a key of CLAIMS in analysis/theory/comparisons.py
    recomputed: str = ""  # a place in the paper of analysis/paper/slips.py,
    kind: str = ""  # recomputed for this kind of slip
    table: str = ""  # a table of analysis/paper/cells.yaml,
    read: str = ""  # and a formula of its cells, by row.column
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
