"""The record of a toy task's warm start, warm_start.json in the model's folder."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from rtpo.core.files import write_whole

FILE = "warm_start.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStart:
    """The settings of one warm start. Models learn late in a cycle to copy from their context, reliably in a second."""

    steps: int  # optimizer steps per cycle; in each cycle the learning rate rises and then falls to 0
    cycles: int  # each with a new optimizer
    batch_size: int = 64  # samples per step
    learning_rate: float = 3e-3
    task: str
    seed: int = 0
    full_history: float  # share of episodes whose contexts keep past thinking
    held_out: int = 1000  # number of held-out problems to measure on


@dataclass(frozen=True)
class HeldOut:
    """What was measured on held-out problems, each played once per decoding, with past thinking stripped."""

    problems: int
    sampled_success: float  # share of problems solved at temperature 1
    greedy_success: float
    turns_per_episode: float  # at temperature 1
    tokens_per_turn: float  # at temperature 1
    flattened_ratio: float  # as `rtpo.toy.warm_start.flattened_ratio`
    paper_decoding_success: float | None = None  # with `PAPER_DECODING`; None: not measured


@dataclass(frozen=True)
class TurnRecord:
    """Where the return is decided (`rtpo.toy.variance`). Lists have one entry for each turn; None: not measured."""

    problems: int
    paths: int  # of each problem
    deviation: float  # the return's standard deviation within a problem
    left: list[float]  # f_k, the share of the return's variance that turn k and later turns cause
    reached: list[float] | None = None  # this and the next two as in `TurnMeasures`
    ties: list[float] | None = None
    recurring: list[float] | None = None


@dataclass(frozen=True)
class WarmStartRecord:
    """How a model was made, and what was measured."""

    settings: WarmStart
    held_out: HeldOut
    demonstrator_success: float  # share of the demonstrations that solve their problem
    parameters: int  # of the model
    training_cpu_seconds: float
    sha256: Mapping[str, str]  # of the folder's other files
    versions: Mapping[str, str]  # of the libraries
    loss: list[tuple[int, float]]  # step, and mean loss since the previous entry in nats per token
    decided: Mapping[str, TurnRecord] | None = None  # by name, as `Recipe.decided`; None: not measured


_RECORD = TypeAdapter(WarmStartRecord)


def read_record(folder: Path) -> WarmStartRecord:
    """Read the record in a model's folder."""
    return _RECORD.validate_json((folder / FILE).read_bytes())


def write_record(folder: Path, record: WarmStartRecord) -> None:
    """Write the record, whole or not at all."""
    write_whole(folder / FILE, (json.dumps(asdict(record), indent=1) + "\n").encode())
