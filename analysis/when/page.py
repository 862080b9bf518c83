"""The blocks of docs/results/when.md, and its figures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

from analysis import since
from analysis.looks import title_of
from analysis.map.records import Records
from analysis.map.records import load as load_map
from analysis.pages.markdown import ruled
from analysis.pages.own_page import Drawn, OwnPage, from_records
from analysis.plots import records_checksum
from analysis.study.findings import Site, sites
from analysis.study.plan import STUDIES
from analysis.study.records import StudyRecords, load_study
from analysis.study.tables import shown
from analysis.tables import NOT_RUN, UNKNOWN, number
from analysis.when import ladder
from analysis.when.answers import in_short, sentences
from analysis.when.beside import decodings_table, room_table
from analysis.when.ladder import cost_table, groups, rungs_table, worth_table
from analysis.when.shares import FORKING, Point, point, settings_table, shares_table
from analysis.when.shares import draw as draw_map
from rtpo.planning.plan import plan
from rtpo.run.experiments import load_experiment

NAMES = ("toy", "credit")
"""of the studies whose runs are on the page"""
LATER = ("anchors",)
"""of those that are on it once runs of their tests are there"""

TWO_DAYS = 8 * 48
"""GPU-hours"""


@dataclass(frozen=True, eq=False)
class Evidence:
    """The records of the studies, and those of the map."""

    studies: tuple[StudyRecords, ...]
    regimes: Records

    @cached_property
    def sites(self) -> list[Site]:
        return sites(self.studies)

    @cached_property
    def placed(self) -> list[Point]:
        """The tasks that can be put on the map."""
        return [one for site in self.sites if (one := point(site)) is not None]

    @cached_property
    def manifests(self) -> list[Path]:
        """Of the runs that the figures show."""
        return [run.folder / "manifest.json" for group in groups(self.sites) for run in group.runs]


def own_page(project: Path) -> OwnPage:
    """What the page is made of."""
    regimes = project / "results" / "map"

    def load() -> Evidence:
        names = (*NAMES, *LATER)
        studies = [load_study(project / "results" / name, STUDIES / f"{name}.yaml") for name in names]
        on_it = [one for name, one in zip(names, studies, strict=True) if name in NAMES or groups(sites([one]))]
        return Evidence(tuple(on_it), load_map(regimes))

    def figures(evidence: Evidence) -> list[Drawn]:
        measured = [regimes / "map.json"] * (evidence.regimes.manifest is not None)
        of_map = [regimes / "predicted.jsonl", *measured]
        placed = [*evidence.manifests, *of_map] if evidence.placed else []
        return [
            Drawn("when_ladder", lambda: ladder.draw(evidence.sites), records_checksum(evidence.manifests)),
            Drawn("when_map", lambda: draw_map(evidence.placed, evidence.regimes), records_checksum(placed)),
        ]

    blocks: dict[str, Callable[[Evidence], str]] = {
        "short": lambda of: in_short(of.sites),
        "room": lambda of: shown(room_table(of.sites)) if of.manifests else f"{NOT_RUN}\n",
        "decodings": lambda of: shown(decodings_table(of.sites)) if of.manifests else f"{NOT_RUN}\n",
        "hours": lambda of: _hours(of.studies),
        "answer": lambda of: "\n".join([*_made(of), sentences(of.sites, of.placed)]),
        "ladder": lambda of: _picture("ladder", "Where each rung ends, by task.", of.manifests),
        "ends": lambda of: shown(rungs_table(of.sites)),
        "worth": lambda of: shown(worth_table(of.sites)),
        "cost": lambda of: shown(cost_table(of.sites)) if of.manifests else f"{NOT_RUN}\n",
        "on_the_map": lambda of: _picture("map", "The map's points, the tasks among them.", of.placed),
        "shares": lambda of: shown(shares_table(of.sites, of.placed)),
        "settings": lambda of: shown(settings_table()),
        "planned": lambda of: _plan(),
    }
    return from_records(load, blocks, figures)


def _made(evidence: Evidence) -> list[str]:
    """By which code the runs were made."""
    note = since.note([run for group in groups(evidence.sites) for run in group.runs])
    return [f"{note}\n"] if note else []


def _hours(studies: Sequence[StudyRecords]) -> str:
    """What all runs of the studies took."""
    each = {one.study.name: sum(float(run.manifest["wall_seconds"]) for run in one.every_run) / 3600 for one in studies}
    return (
        f"All runs of the studies took {number(sum(each.values()), 1)} h, run by run "
        f"({', '.join(f'{name} {number(hours, 1)}' for name, hours in each.items())}), and half of that with two side "
        "by side; what was searched or tried and not kept is not in it, and part of it ran beside other work.\n"
    )


def _picture(name: str, title: str, shown_in_it: Sequence[object]) -> str:
    return f"![{title} Toy scale, not the paper's results.](when_{name}.png)\n" if shown_in_it else f"{NOT_RUN}\n"


@cache
def _plan() -> str:
    """What the experiment `ladder` takes."""
    overrides = ["profile=a100x8"]
    made = plan("ladder", overrides)
    header = ("Configuration", "Runs", "Rollouts", "Generated, M", "Beside the budget, M", "GPU-hours")
    rows = [
        (
            title_of(row.label),
            str(row.count),
            number(row.rollouts, 0),
            *(_known(value, 1e-6) for value in (row.counts.generated, row.counts.free)),
            _known(row.hours),
        )
        for row in made.rows
    ]
    charged = replace(made, rows=tuple(row for row in made.rows if row.counts.free == 0))
    with_evaluation = [
        None if row.hours is None or row.evaluation_hours is None else row.hours + row.evaluation_hours
        for row in charged.rows
    ]
    most = None if None in with_evaluation else max(one for one in with_evaluation if one is not None)
    whole, of_methods = (_known(one.sum(lambda row: row.hours)) for one in (made, charged))
    forking = next(row for row in made.rows if row.label == FORKING)
    elements = load_experiment("ladder", overrides).elements
    run = next(element.run for element in elements if element.run.label == FORKING)
    first = run.budget.tasks_per_step * forking.worst
    hours = None if forking.hours is None else forking.hours * first / forking.rollouts
    afford = None if hours is None or most is None else (TWO_DAYS - hours) // most
    told = (
        f"Of a run each. In all {sum(row.count for row in made.rows)} runs of {made.rows[0].model}: {whole} GPU-hours "
        f"of training, {of_methods} of them without the rungs that sample beside the budget, and "
        f"{_known(made.sum(lambda row: row.evaluation_hours))} of evaluation. A run of these others takes "
        f"{_known(most)} at most with its evaluation; f_k alone, by a data step of `{FORKING}` "
        f"of {number(first, 0)} rollouts at most, {_known(hours, digits=1)}. Eight GPUs for two days, "
        f"{TWO_DAYS} GPU-hours, are f_k and {_known(afford)} of these runs. Runs: **{NOT_RUN}**."
    )
    return f"{ruled(header, rows, aligned=True)}\n{told}\n"


def _known(value: float | None, scale: float = 1, digits: int = 0) -> str:
    return UNKNOWN if value is None else number(value, digits, scale)
