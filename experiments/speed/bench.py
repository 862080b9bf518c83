"""Benchmarks beside their limits: `make bench` for all that need no file, or some of them, by name or by part
(docs/results/speed.md):

    python experiments/speed/bench.py decoder methods --repeats 3
    python experiments/speed/bench.py search passages=100000
    python experiments/speed/bench.py grading file=data/raw/math500

Every timing is kept in results/bench/<date>.json. Nothing here is a test: a limit that is missed is only reported.
A benchmark is a module beside this one: a function of the number of timings behind each median, and of settings of its
own, that returns cases (experiments/speed/shared.py), and a line in BENCHMARKS.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, get_type_hints

from rtpo.run.command import Parser, command, positive, whole

from experiments.speed import decoder, driver, grading, methods, python, search, stock_verl, trees
from experiments.speed.shared import HEADER, Case
from rtpo.core.files import utc_now, write_whole
from rtpo.errors import ConfigError
from rtpo.run.config import PROJECT
from rtpo.run.records import provenance

READERS: dict[Any, Callable[[str], Any]] = {int: whole(1), float: positive, Path: Path, Path | None: Path}


@dataclass(frozen=True)
class Benchmark:
    """part: a letter for those that stand together in the table. measure: takes the number of repeats, and settings."""

    part: str
    measure: Callable[..., Iterable[Case]]

    @property
    def settings(self) -> dict[str, Parameter]:
        return {name: one for name, one in signature(self.measure).parameters.items() if name != "repeats"}

    @property
    def needed(self) -> list[str]:
        return [name for name, one in self.settings.items() if one.default is Parameter.empty]


BENCHMARKS = {
    "stock_verl": Benchmark("a", stock_verl.measure),
    "decoder": Benchmark("b", decoder.measure),
    "methods": Benchmark("c", methods.measure),
    "trees": Benchmark("d", trees.measure),
    "driver": Benchmark("f", driver.measure),
    "python": Benchmark("g", python.measure),
    "search": Benchmark("g", search.measure),
    "grading": Benchmark("h", grading.measure),
}


def chosen(words: Sequence[str]) -> list[str]:
    """The benchmarks that are named, or of a part; without any, those that need no setting. Raises ConfigError."""
    if not words:
        return [name for name, one in BENCHMARKS.items() if not one.needed]
    known = {*BENCHMARKS, *(one.part for one in BENCHMARKS.values())}
    if unknown := sorted(set(words) - known):
        raise ConfigError(f"there is no benchmark {', '.join(unknown)}: choose from {', '.join(BENCHMARKS)}.")
    return [name for name, one in BENCHMARKS.items() if {name, one.part} & set(words)]


def settings_of(name: str, given: Sequence[str]) -> dict[str, Any]:
    """A benchmark's settings, from `setting=value`. Raises ConfigError."""
    one, found = BENCHMARKS[name], {}
    hints = get_type_hints(one.measure)
    for setting, _, value in (word.partition("=") for word in given):
        if setting not in one.settings:
            raise ConfigError(f"{name} has no setting {setting!r}: it has {', '.join(one.settings) or 'none'}.")
        try:
            found[setting] = READERS[hints[setting]](value)
        except argparse.ArgumentTypeError as error:
            raise ConfigError(f"{setting} of {name}: {error}.") from error
    if missing := [setting for setting in one.needed if setting not in found]:
        raise ConfigError(f"{name} needs a {missing[0]}: give {missing[0]}=...")
    return found


@command
def main(arguments: Sequence[str] | None = None) -> None:
    parser = Parser(__doc__)
    parser.add_argument("words", nargs="*", metavar="name", help=f"{', '.join(BENCHMARKS)}, a part, or setting=value")
    parser.add_argument("--repeats", type=whole(1), default=5, help="timings behind each median")
    parser.add_argument("--results", type=Path, default=PROJECT / "results" / "bench")
    args = parser.parse_intermixed_args(arguments)
    given = [word for word in args.words if "=" in word]
    settings = {name: settings_of(name, given) for name in chosen([word for word in args.words if "=" not in word])}
    args.results.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {"started": utc_now(), **provenance(), "repeats": args.repeats, "cases": []}
    file = args.results / f"{record['started'].replace(':', '')}.json"
    print(HEADER)
    for name in settings:
        part, load = BENCHMARKS[name].part, os.getloadavg()[0]
        for case in BENCHMARKS[name].measure(args.repeats, **settings[name]):
            print(f"{part}  {case}", flush=True)
            record["cases"].append({"part": part, "within": case.within, "load_before": load} | asdict(case))
            write_whole(file, (json.dumps(record, indent=1) + "\n").encode())
        from rtpo.verl_harness.session import close_session

        close_session()
    print(f"load average {os.getloadavg()[0]:.1f}; records: {file}")


if __name__ == "__main__":
    sys.exit(main())
