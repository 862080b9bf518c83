"""A study's plan (analysis/study/plan.py) beside those of its runs that are finished."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from analysis.looks import styles
from analysis.records import Run, RunGroup, load_run, over_warm_starts
from analysis.study.plan import STUDIES, Place, Study
from rtpo.errors import DataError
from rtpo.run import archives

OF_ANOTHER = ("budget.generated_tokens",)
"""a run's own setting where it has the generated tokens of another's"""


@dataclass(frozen=True, eq=False)
class StudyRecords:
    """`planned`: the runs of each part. `groups`: by task, the finished ones at each configuration's own rate, by
    configuration, in the order of tables; `common`: those at the rate that all share. `search`: those of the
    learning-rate search, by task and configuration. `chosen`: by the task searched on and algorithm the rate of
    the study."""

    study: Study
    planned: Mapping[str, tuple[Place, ...]]
    groups: Mapping[str, tuple[RunGroup, ...]]
    common: Mapping[str, tuple[RunGroup, ...]]
    search: Mapping[tuple[str, str], RunGroup]
    chosen: Mapping[tuple[str, str], float]

    @property
    def tasks(self) -> list[str]:
        return list(self.groups)

    @property
    def runs(self) -> list[Run]:
        """All finished runs but those of the search, each once."""
        groups = (group for table in (self.groups, self.common) for found in table.values() for group in found)
        return list({run.folder: run for group in groups for run in group.runs}.values())

    @property
    def every_run(self) -> list[Run]:
        """Those of the search too."""
        return [*self.runs, *(run for group in self.search.values() for run in group.runs)]

    @cached_property
    def grid(self) -> tuple[float, ...]:
        """The rates that the plan has runs at in the search."""
        choices = (self.study.choice(row, algorithm) for row, algorithm in self.study.searched())
        return tuple(sorted({rate for choice in choices for rate in choice.tried}))

    def places(self, task: str, label: str, *, is_common: bool = False) -> list[Place]:
        """The planned runs of a configuration at its own rate, or at the common one."""
        return [
            place
            for part in self.study.trained
            if self.study.is_common(part) == is_common
            for place in self.planned[part]
            if (place.task, place.configuration.label) == (task, label)
        ]

    def group(self, task: str, label: str, *, is_common: bool = False) -> RunGroup | None:
        """The finished runs of a configuration; None without any."""
        groups = (self.common if is_common else self.groups)[task]
        return next((group for group in groups if group.label == label), None)

    def tried(self, task: str, label: str) -> list[float]:
        """The learning rates of the search for a configuration: those that were run, and those that are planned."""
        places = self.places(task, label)
        keys = {(place.row.rates_from, place.configuration.rate_of) for place in places}
        found = [run for key, group in self.search.items() if key in keys for run in group.runs]
        return sorted({*self.grid, *(learning_rate(run) for run in found)})

    def unfinished(self, part: str) -> list[Place]:
        return [place for place in self.planned[part] if not self.study.folder(place).is_finished]

    def is_begun(self, place: Place) -> bool:
        """Whether a run that is not finished has been started."""
        folder = self.study.folder(place)
        return archives.exists(folder.path / "config.yaml") and not folder.is_finished


def load_study(results: Path, file: Path) -> StudyRecords:
    """The study's records under `results`, read once while all files are as they are: several pages show them. Raises
    DataError as `analysis.records` does, and for a run with another learning rate than learning_rates.json has for it.
    """
    files = [path for path in (file, *sorted(results.rglob("*"))) if path.is_file()]
    return _load(results, file, tuple((path, path.stat().st_mtime_ns) for path in files))


@lru_cache(maxsize=len(list(STUDIES.glob("*.yaml"))))
def _load(results: Path, file: Path, files: tuple[tuple[Path, int], ...]) -> StudyRecords:
    study = Study(file, results)
    planned = {part: list(study.planned(part)) for part in study.parts}
    chosen: dict[tuple[str, str], float] = {}
    runs: dict[Place, Run] = {}
    for part in study.trained:
        for place, rate in planned[part]:
            if rate is not None and not study.is_common(part):
                chosen[place.row.rates_from, place.configuration.rate_of] = rate
            if place not in runs and study.folder(place).is_finished:
                runs[place] = _checked(load_run(study.folder(place).path), rate)
    tasks = dict.fromkeys(place.task for part in study.trained for place, _ in planned[part])

    def grouped(is_common: bool) -> dict[str, tuple[RunGroup, ...]]:
        parts = [part for part in study.trained if study.is_common(part) == is_common]
        order = {place.configuration.label: rank for rank, part in enumerate(parts) for place, _ in planned[part]}
        places = list(dict.fromkeys(place for part in parts for place, _ in planned[part] if place in runs))
        titled = {(place.task, place.label): place.configuration.label for place in places}
        made = {}
        for task in tasks:
            here = [place for place in places if place.task == task]
            found = [
                *over_warm_starts(runs[place] for place in here if place.configuration.tokens_of is None),
                *over_warm_starts((runs[place] for place in here if place.configuration.tokens_of), OF_ANOTHER),
            ]
            by_title = {titled[task, group.label]: group.runs for group in found}
            labels = sorted(styles(by_title), key=order.__getitem__)
            made[task] = tuple(RunGroup(label, by_title[label]) for label in labels)
        return made

    return StudyRecords(
        study=study,
        planned={part: tuple(place for place, _ in planned[part]) for part in study.parts},
        groups=grouped(False),
        common=grouped(True),
        search=dict(_search(study)),
        chosen=chosen,
    )


def _search(study: Study) -> Iterator[tuple[tuple[str, str], RunGroup]]:
    """Runs at rates that are no longer in the grid too."""
    for place in {(place.task, place.configuration): place for place, _ in study.search()}.values():
        label = place.configuration.label
        found = archives.find(study.folder(place).path.parent, f"{label}_lr*-seed*/manifest.json")
        runs = [load_run(manifest.parent) for manifest in found]
        runs = sorted((run for run in runs if run.manifest["seed"] in study.seeds), key=learning_rate)
        if runs:
            yield (place.task, label), RunGroup(label, tuple(runs))


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
    """How many runs of each part and experiment have not been run; `experiments/study.py` with `missing` names them."""
    lines = []
    for part in records.study.parts:
        left = Counter(place.experiment for place in records.unfinished(part))
        planned = Counter(place.experiment for place in records.planned[part])
        begun = Counter(place.experiment for place in records.unfinished(part) if records.is_begun(place))
        for experiment, count in left.items():
            note = f" ({begun[experiment]} begun)" if begun[experiment] else ""
            lines.append(f"{part}, {experiment}: {count} of {planned[experiment]} runs{note}")
    return lines
