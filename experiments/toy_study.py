"""The toy study (configs/study/toy.yaml): many configurations at equal rollouts, each at a learning rate of its own.

    python experiments/toy_study.py rates      the learning rates, on the validation split, one seed
    python experiments/toy_study.py core       the main configurations: seed by seed, so that seeds come before breadth
    python experiments/toy_study.py rest       the others
    python experiments/toy_study.py list       what is missing

A part goes on where it was left. Records go to results/toy/<part>_<task>_<warm start>/. The chosen rates stand in
results/toy/learning_rates.json, made from the records of `rates`; a configuration without one there is not run.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir

from experiments.train import STOPPED, train
from rtpo.config import PROJECT, RunConfig, compose_run
from rtpo.errors import RTPOError, Stopped
from rtpo.records import RunFolder
from rtpo.run import StopRequest

STUDY = PROJECT / "configs" / "study" / "toy.yaml"
RESULTS = PROJECT / "results" / "toy"
RATES = RESULTS / "learning_rates.json"


@dataclass(frozen=True)
class Planned:
    """A run of the study."""

    part: str
    task: str
    warm_start: str
    label: str
    seed: int
    rate: float | None = None

    def config(self, settings: Sequence[str], rate: float) -> RunConfig:
        searched = () if self.rate is None else (f"algorithm.label={self.label}_lr{rate:g}",)
        split = ("task.held_out.split=validation",) if self.part == "rates" else ()
        overrides = [
            f"algorithm={self.label}",
            f"task={self.task}",
            f"model={self.warm_start}",
            f"seed={self.seed}",
            f"optimizer.lr={rate:g}",
            f"results={RESULTS}",
            f"experiment_name={self.part}_{self.warm_start}",
            *settings,
            *searched,
            *split,
        ]
        with initialize_config_dir(str(PROJECT / "configs"), version_base=None):
            return compose_run(compose("train", overrides))


def plan(study: dict[str, Any], part: str) -> Iterator[Planned]:
    """The runs of a part, in the order they are run."""
    for warm_start, task, seed, label in places(study, "core" if part == "rates" else part):
        if part != "rates":
            yield Planned(part, task, warm_start, label, seed)
    if part == "rates":
        chosen = {(task, label) for each in ("core", "rest") for _, task, _, label in places(study, each)}
        for task, label in sorted(chosen):
            for rate in study["learning_rates"]:
                yield Planned("rates", task, study["warm_starts"][task][0], label, 0, rate)


def places(study: dict[str, Any], part: str) -> Iterator[tuple[str, str, int, str]]:
    """(warm start, task, seed, configuration): all configurations of a seed before the next seed."""
    warm_starts = 2 if part == "core" else 1
    for seed in study[part]["seeds"]:
        for task in study[part]["tasks"]:
            for warm_start in study["warm_starts"][task][:warm_starts]:
                for label in study[part]["configurations"]:
                    yield warm_start, task, seed, label


def chosen_rates(study: dict[str, Any]) -> dict[str, dict[str, float]]:
    """By task and configuration, the rate with the highest sampled success after training; ties go to the lower.
    A configuration with a rate still to run has none."""
    success: dict[tuple[str, str], dict[float, float]] = {}
    for run in plan(study, "rates"):
        assert run.rate is not None
        folder = RunFolder(run.config(study["settings"], run.rate).folder)
        if folder.is_finished:
            success.setdefault((run.task, run.label), {})[run.rate] = sampled_success(folder.path)
    rates: dict[str, dict[str, float]] = {}
    for (task, label), found in success.items():
        if len(found) == len(study["learning_rates"]):
            rates.setdefault(task, {})[label] = max(sorted(found), key=lambda rate: found[rate])
    return rates


def sampled_success(folder: Path) -> float:
    lines = [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()]
    rewards = [line["reward"] for line in lines if (line["when"], line["mode"]) == ("after", "sampled")]
    return float(sum(rewards) / len(rewards))


def run_part(study: dict[str, Any], part: str, stop: StopRequest, minutes: float) -> None:
    """Run what is missing of a part until it is done, or no longer than `minutes`. Raises as `train` does."""
    begun = time.monotonic()
    rates = {} if part == "rates" else json.loads(RATES.read_text()) if RATES.exists() else {}
    for run in plan(study, part):
        rate = run.rate if run.rate is not None else rates.get(run.task, {}).get(run.label)
        if rate is None:
            print(f"{run.label} on {run.task} has no learning rate yet: run the part rates first")
            continue
        config = run.config(study["settings"], rate)
        if RunFolder(config.folder).is_finished:
            continue
        if time.monotonic() - begun > 60 * minutes:
            print(f"{minutes:g} minutes are over; the same command goes on")
            return
        train(config, stop)
        if stop.reason:
            raise Stopped(f"stopped by {stop.reason} after {config.folder}. Run the same command to go on.")


def write_rates(study: dict[str, Any]) -> None:
    RATES.parent.mkdir(parents=True, exist_ok=True)
    RATES.write_text(json.dumps(chosen_rates(study), indent=1, sort_keys=True) + "\n")


def missing(study: dict[str, Any]) -> dict[str, list[str]]:
    """Runs not finished, by part."""
    rates = json.loads(RATES.read_text()) if RATES.exists() else {}
    left: dict[str, list[str]] = {}
    for part in ("rates", "core", "rest"):
        for run in plan(study, part):
            rate = run.rate if run.rate is not None else rates.get(run.task, {}).get(run.label)
            if rate is None or not RunFolder(run.config(study["settings"], rate).folder).is_finished:
                left.setdefault(part, []).append(
                    f"{run.warm_start} {run.label} seed {run.seed} {run.rate or ''}".strip()
                )
    return left


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["rates", "core", "rest", "list"])
    parser.add_argument("--minutes", type=float, default=240.0, help="begin no run after this long")
    given = parser.parse_args(arguments)
    study: dict[str, Any] = yaml.safe_load(STUDY.read_text())
    try:
        if given.part == "list":
            for part, runs in missing(study).items():
                print(f"{part}: {len(runs)} missing", *runs, sep="\n  ")
            return 0
        run_part(study, given.part, StopRequest(), given.minutes)
        if given.part == "rates":
            write_rates(study)
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
        return STOPPED
    except RTPOError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
