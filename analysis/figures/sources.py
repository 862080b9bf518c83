"""Which runs a figure of the paper is drawn from.

A source is a set of runs that may share a figure: those of one profile, in the folders of the paper's experiments
(configs/experiment/), or those of the toy study's first warm start of each task. Runs of two sources are never in one
figure.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from analysis.evaluation import PATHS, first_paths, graded
from analysis.figures.curves import FIFTHS
from analysis.looks import TASKS, Style, styles
from analysis.paper.records import stand_ins
from analysis.paper.reproduction import load_reproduction
from analysis.records import Run, RunGroup, by_label, load_run
from analysis.study.plan import TOY_STUDY
from rtpo.errors import DataError
from rtpo.run import archives
from rtpo.run.config import PROJECT

TOY, PAPER = "toy", "a100x8"
"""the profiles of the toy tasks, and of the paper's machine and models"""
STUDY_NAME = "toy_study"
EXPERIMENTS = {
    "main_table": ("main_table", ("math", "search")),
    "ablations": ("ablate_group", ("math", "search")),
    "airline": ("airline", ("airline",)),
    "sync": ("sync", ("search",)),
}
"""by what a folder's name begins with: the experiment that fills it, and the roles of its tasks"""


@dataclass(frozen=True)
class Part:
    """Configurations of one of EXPERIMENTS. needed: whether one without runs is named as missing."""

    experiment: str
    labels: tuple[str, ...]
    needed: bool = True


@dataclass(frozen=True)
class Row:
    """The runs of one task in a figure. missing: labels without a run that the figure can use, with the experiment that
    has them. short: runs with fewer graded first paths than fifths, which the figure cannot use."""

    title: str
    groups: tuple[RunGroup, ...]
    missing: Mapping[str, str]
    short: tuple[Run, ...] = ()

    def group(self, label: str) -> RunGroup | None:
        return next((group for group in self.groups if group.label == label), None)


@dataclass(eq=False)
class Source:
    """name: in file names. tasks: by role in the paper, the task that stands for it. folders: of the toy study, by
    task; other sources have one for each experiment and task. kept: the folders of `results` that are read; all where
    it is None."""

    name: str
    profile: str
    results: Path
    tasks: Mapping[str, str]
    folders: Mapping[str, Path] | None = None
    kept: Collection[str] | None = None
    _loaded: dict[tuple[Path, str], list[Run]] = field(default_factory=dict)

    @property
    def is_toy(self) -> bool:
        return self.profile == TOY

    @property
    def title(self) -> str:
        if self.folders is not None:
            return f"Toy study (profile {self.profile}; first warm starts)"
        return f"Profile {self.profile}"

    def plans(self, role: str, parts: Sequence[Part]) -> bool:
        """Whether these can have runs on the task of a role."""
        in_experiments = all(role in EXPERIMENTS[part.experiment][1] for part in parts)
        return role in self.tasks and (self.folders is not None or in_experiments)

    def folder(self, experiment: str, role: str) -> Path:
        """Where its runs of an experiment on the task of a role are."""
        task = self.tasks[role]
        return self.results / f"{experiment}_{self.profile}_{task}" if self.folders is None else self.folders[task]

    def row(self, role: str, parts: Sequence[Part], needs_paths: bool = False) -> Row:
        """The runs of these configurations on the task of a role; with `needs_paths` those that kept their paths.

        Raises DataError as `analysis.records` does, and for a run of another profile or task than its folder's.
        """
        task = self.tasks[role]
        title = f"{TASKS[role]} ({TASKS[task].lower()})" if role == "airline" != task else TASKS[task]
        wanted = [(part, label) for part in parts for label in part.labels]
        runs = [run for part, label in wanted for run in self._runs(self.folder(part.experiment, role), task, label)]
        runs = [run for run in runs if not needs_paths or PATHS in run.manifest["files"]]
        found = {run.label for run in runs}
        short = tuple(run for run in runs if needs_paths and len(graded(first_paths(run))) < FIFTHS)
        groups = by_label(run for run in runs if run not in short)
        missing = {label: part.experiment for part, label in wanted if part.needed and label not in found}
        return Row(title, tuple(groups), missing, short)

    def commands(self, missing: Sequence[str]) -> str:
        """What makes the runs that the source lacks, of these of EXPERIMENTS."""
        return load_reproduction().commands((EXPERIMENTS[experiment][0] for experiment in missing), self.profile)

    def _runs(self, folder: Path, task: str, label: str) -> list[Run]:
        """The complete ones, by seed; each is read once."""
        if not _is_kept(folder, self.results, self.kept):
            return []
        if (folder, label) not in self._loaded:
            found = archives.find(folder, f"{label}-seed*/manifest.json")
            runs = [load_run(manifest.parent) for manifest in found]
            for run in runs:
                _check_place(run, {"profile": self.profile, "task": task, "label": label})
            self._loaded[folder, label] = runs
        return self._loaded[folder, label]


def sources(results: Path, kept: Collection[str] | None = None) -> list[Source]:
    """The toy study, the profiles of toy tasks and of the paper, and other profiles that have runs.

    kept: the folders of `results` that are read; all where it is None.
    """
    return [_study(results, kept), *_profiles(results, kept)]


def looks(rows: Sequence[Row]) -> dict[str, Style]:
    """How the configurations of a figure look, in the order of its legend."""
    return styles(group.label for row in rows for group in row.groups)


def _study(results: Path, kept: Collection[str] | None) -> Source:
    warm_starts = yaml.safe_load(TOY_STUDY.read_text(encoding="utf-8"))["warm_starts"]
    folders = {task: results / "toy" / names[0] for task, names in warm_starts.items()}
    return Source(STUDY_NAME, TOY, results, {"math": "toy_math", "search": "toy_knowledge"}, folders, kept)


def _profiles(results: Path, kept: Collection[str] | None) -> Iterator[Source]:
    names = sorted(path.stem for path in (PROJECT / "configs" / "profile").glob("*.yaml"))
    for name in sorted(names, key=lambda name: (name != TOY, name != PAPER, name)):
        runs = (run for first in EXPERIMENTS for run in archives.find(results, f"{first}_{name}_*/*/manifest.json"))
        if name in (TOY, PAPER) or any(_is_kept(run, results, kept) for run in runs):
            yield Source(name, name, results, stand_ins(name), kept=kept)


def _check_place(run: Run, wanted: Mapping[str, str]) -> None:
    for key, name in wanted.items():
        if run.manifest[key] != name:
            raise DataError(
                f"{run.folder / 'manifest.json'} says {key} {run.manifest[key]!r} and lies where runs of {name!r} do: "
                "move the run to a folder of its own."
            )


def _is_kept(path: Path, results: Path, kept: Collection[str] | None) -> bool:
    return kept is None or path.relative_to(results).parts[0] in kept
