"""The toy study's plan (configs/study/toy.yaml) beside those of its runs that are finished."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from analysis.records import Run, RunGroup, load_run, over_warm_starts
from analysis.toy_study.plan import PARTS, STUDY, Place, Study
from rtpo.errors import DataError
from rtpo.run import archives

TRAINED = ("core", "rest", "controls")
"""the parts whose runs are compared, in the order of their rows"""


@dataclass(frozen=True, eq=False)
class StudyRecords:
    """`planned`: the runs of each part. `groups`: by task, the finished ones of TRAINED by configuration, in the order
    of tables. `search`: those of the learning-rate search, by task and configuration a group with a run for each rate.
    `chosen`: by task and label the rate of the study. `grid`: the rates it is chosen from."""

    study: Study
    planned: Mapping[str, tuple[Place, ...]]
    groups: Mapping[str, tuple[RunGroup, ...]]
    search: tuple[RunGroup, ...]
    chosen: Mapping[tuple[str, str], float]
    grid: tuple[float, ...]

    @property
    def tasks(self) -> list[str]:
        return list(self.groups)

    @property
    def runs(self) -> list[Run]:
        """All finished runs but those of the search."""
        return [run for groups in self.groups.values() for group in groups for run in group.runs]

    @property
    def every_run(self) -> list[Run]:
        """Those of the search too."""
        return [*self.runs, *(run for group in self.search for run in group.runs)]

    def places(self, task: str, label: str) -> list[Place]:
        """The planned runs of a configuration."""
        planned = (place for part in TRAINED for place in self.planned[part])
        return [place for place in planned if (place.task, place.label) == (task, label)]

    def group(self, task: str, label: str) -> RunGroup | None:
        """The finished runs of a configuration; None without any."""
        return next((group for group in self.groups[task] if group.label == label), None)

    def tried(self, task: str, label: str) -> list[float]:
        """The learning rates of the search for a configuration: those that were run, and the grid."""
        algorithms = {place.configuration.algorithm for place in self.places(task, label)}
        groups = (group for group in self.search if group.first.manifest["task"] == task and group.label in algorithms)
        return sorted({*self.grid, *(learning_rate(run) for group in groups for run in group.runs)})

    def unfinished(self, part: str) -> list[Place]:
        return [place for place in self.planned[part] if not self.study.folder(place).is_finished]

    def is_begun(self, place: Place) -> bool:
        """Whether a run that is not finished has been started."""
        folder = self.study.folder(place)
        return archives.exists(folder.path / "config.yaml") and not folder.is_finished


def load_study(results: Path, file: Path = STUDY) -> StudyRecords:
    """The study's records under `results`. Raises DataError as `analysis.records` does, and for a run with another
    learning rate than learning_rates.json has for it."""
    study = Study(file, results)
    planned = {part: list(study.planned(part)) for part in PARTS}
    runs: dict[str, list[Run]] = {place.task: [] for part in TRAINED for place, _ in planned[part]}
    chosen: dict[tuple[str, str], float] = {}
    for place, rate in (each for part in TRAINED for each in planned[part]):
        if rate is not None:
            chosen[place.task, place.label] = rate
        if study.folder(place).is_finished:
            runs[place.task].append(_checked(load_run(study.folder(place).path), rate))
    order = {place.label: rank for rank, part in enumerate(TRAINED) for place, _ in planned[part]}
    return StudyRecords(
        study=study,
        planned={part: tuple(place for place, _ in planned[part]) for part in PARTS},
        groups={
            task: tuple(sorted(over_warm_starts(found), key=lambda group: order[group.label]))
            for task, found in runs.items()
        },
        search=tuple(_search(study)),
        chosen=chosen,
        grid=tuple(sorted({rate for _, rate in study.search()})),
    )


def _search(study: Study) -> Iterator[RunGroup]:
    """Runs at rates that are no longer in the grid too."""
    for place in {(place.task, place.configuration): place for place, _ in study.search()}.values():
        label = place.configuration.label
        found = archives.find(study.folder(place).path.parent, f"{label}_lr*-seed{place.seed}/manifest.json")
        runs = sorted((load_run(manifest.parent) for manifest in found), key=learning_rate)
        if runs:
            yield RunGroup(label, tuple(runs))


def _checked(run: Run, rate: float | None) -> Run:
    if rate is not None and learning_rate(run) != rate:
        raise DataError(
            f"{run.folder} was trained at the learning rate {learning_rate(run):g} and is planned at {rate:g}: restore "
            "learning_rates.json, or delete the run."
        )
    return run


def learning_rate(run: Run) -> float:
    return float(run.config["optimizer"]["lr"])


def missing_lines(records: StudyRecords) -> list[str]:
    """How many runs of each part and experiment have not been run; `experiments/toy_study.py missing` names them."""
    lines = []
    for part in PARTS:
        left = Counter(place.experiment for place in records.unfinished(part))
        planned = Counter(place.experiment for place in records.planned[part])
        begun = Counter(place.experiment for place in records.unfinished(part) if records.is_begun(place))
        for experiment, count in left.items():
            note = f" ({begun[experiment]} begun)" if begun[experiment] else ""
            lines.append(f"{part}, {experiment}: {count} of {planned[experiment]} runs{note}")
    return lines
