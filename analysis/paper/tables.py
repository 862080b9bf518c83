"""The paper's tables beside ours: one line a cell, with our interval and a verdict; other profiles' in tables of their
own.

The verdict of a cell is by one rule: it `agrees` where the paper's number lies in our 95 % interval, its rounding
included, and is `undecided` where that interval is too wide to tell; else ours is `higher` or `lower`. A number without
an interval has `no interval`; one that is known exactly is compared as it is. What was made at another scale than the
experiment's is `not compared`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import isfinite, isnan
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir

from analysis import since
from analysis.evaluation import (
    Evaluation,
    Sample,
    check_alike,
    first_paths,
    graded,
    held_out,
    incomplete_evaluations,
    load_evaluation,
    part,
)
from analysis.paper import formulas
from analysis.paper.estimates import Cells, Estimate, estimate, evaluate, exact
from analysis.paper.numbers import TEXT
from analysis.paper.quantities import (
    QUANTITIES,
    RUN_QUANTITIES,
    Quantity,
    cells_in_order,
    cells_of,
    run_cells,
    seeds_of,
)
from analysis.paper.reproduction import CellPlan, Reproduction, Source, TablePlan, load_reproduction
from analysis.records import Run, RunGroup, by_label, incomplete_runs, load_runs
from analysis.tables import MINUS, NO_VALUE, NOT_RUN, ONE_SEED, Table, number, said
from rtpo.data.registry import REGISTRY
from rtpo.errors import DataError
from rtpo.run import archives
from rtpo.run.config import PROJECT, RunConfig
from rtpo.run.elements import Element, load_experiment, outline, read_launch
from rtpo.run.records import SAFE_LOADER

PARTS = 5
NOT_MEASURED, NOT_COMPARED, NO_INTERVAL, AGREES = "not measured", "not compared", "no interval", "agrees"
HIGHER, LOWER, DIFFERS, UNDECIDED = "higher", "lower", "differs", "undecided"
EXACT = "exact"
AIRLINE = "airline"
"""role of the tasks whose user is a served model"""
TOY = "toy"
TOY_RATE = (
    "All methods share a toy task's learning rate, which was chosen for RTPO alone; docs/results/toy_study.md has "
    "each at a rate of its own."
)
SHORT_ANSWERS = ("f1", "span_f1", "hit_rate")
HEADER = ("Row", "Column", "Unit", "Paper", "Ours", "95 % interval", "Seeds", "Questions", "Verdict")
DECIMALS = {"points": 2, "percent": 2, "calls": 1, "questions": 1, "tokens": 1, "turns": 2, "hours": 2, "gpu_hours": 2}
ONE_DECIMAL = ("calls", "questions", "count", "points", "percent")
"""which have one at least, since ours are means"""
QUESTIONS, PROMPTS = "questions", "prompts"
"""kinds of what is drawn beside seeds"""
COUNTS = ("count", "questions", "setting")
"""units of what is printed without rounding"""
POINTS_WIDTH, RELATIVE_WIDTH = 10.0, 0.25
"""the widest half of an interval in which a number agrees: in points, and of all else a part of the paper's number"""
SCALE = ("budget.rollouts", "budget.seconds", "model.name")
"""settings of a run of the experiment's own scale"""
SERVER = ("task.settings.server.base_url=http://127.0.0.1:8000/v1", "task.settings.server.model=any")
"""which user's model serves is no part of an airline run's scale, and must be said to compose one"""
VERDICTS = {
    AGREES: "the paper's number lies in our 95 % interval, its rounding included (half a unit of the last printed "
    "digit; counts and settings have none); a number known exactly is the paper's",
    UNDECIDED: f"it lies there too, and half of the interval is wider than {POINTS_WIDTH:g} points, or of what is not "
    f"in points than {100 * RELATIVE_WIDTH:g} % of the paper's number",
    HIGHER: "our whole interval is above the paper's number",
    LOWER: "our whole interval is below it",
    DIFFERS: "a setting that is another than the paper's",
    NO_INTERVAL: "ours has none, such as of a single run",
    NOT_COMPARED: "ours is shown, and something else than the method differs, such as the size of a run or a panel",
    NOT_MEASURED: "the records do not have it",
    NO_VALUE: "there is nothing to compare: the paper prints none, or ours has no value",
    NOT_RUN: "there is no complete run",
}


@dataclass(frozen=True)
class Missing:
    """Why a cell has no number: NOT_RUN, or NOT_MEASURED with its reason."""

    kind: str
    why: str = ""


Outcome = Estimate | str | Missing


@dataclass(frozen=True, eq=False)
class Condition:
    """The runs of results/<experiment>_<profile>_<task>/. incomplete: folders that started."""

    folder: Path
    task: str
    groups: Mapping[str, RunGroup]
    incomplete: tuple[Path, ...]

    @cached_property
    def evaluations(self) -> Mapping[str, Mapping[tuple[str, int], Evaluation]]:
        """The complete ones of complete runs' final policies, by benchmark, then label and seed. Raises DataError where
        two on one benchmark were not made alike."""
        found: dict[str, dict[tuple[str, int], Evaluation]] = {}
        for run, one in self._complete:
            if _is_final(run, one):
                found.setdefault(one.folder.name, {})[run.label, int(run.manifest["seed"])] = one
        for of_benchmark in found.values():
            check_alike(list(of_benchmark.values()))
        return found

    @cached_property
    def _complete(self) -> list[tuple[Run, Evaluation]]:
        """Complete evaluations of complete runs. Raises DataError for one of another run."""
        found = []
        for group in self.groups.values():
            for run in group.runs:
                for file in archives.find(run.folder, "*/manifest.json"):
                    one = load_evaluation(file.parent)
                    made_of = one.manifest["checkpoint"].get("run")
                    if made_of != f"{self.folder.name}/{run.folder.name}":
                        raise DataError(
                            f"{file} is an evaluation of {made_of!r}, not of the run whose folder it lies in: move it."
                        )
                    found.append((run, one))
        return found

    @property
    def left_out(self) -> list[str]:
        """Incomplete runs and evaluations, and evaluations that a complete run lacks and another of its label has."""
        folders = list(self.incomplete)
        there = {one.folder for _, one in self._complete}
        for group in self.groups.values():
            runs = [run.folder for run in group.runs]
            names = {folder.name for folder in there if folder.parent in runs}
            for run in runs:
                lacking = {run / name for name in names} - there
                folders += sorted(lacking | set(incomplete_evaluations(run)))
        return [self._place(folder) for folder in folders]

    @property
    def not_final(self) -> list[str]:
        """Evaluations of a run's policy before its last."""
        return [
            f"{self._place(one.folder)} (version {one.manifest['checkpoint']['policy_version']} of "
            f"{run.manifest['policy_version']})"
            for run, one in self._complete
            if not _is_final(run, one)
        ]

    def _place(self, folder: Path) -> str:
        return folder.relative_to(self.folder.parent).as_posix()


def _is_final(run: Run, one: Evaluation) -> bool:
    return bool(one.manifest["checkpoint"]["policy_version"] == run.manifest["policy_version"])


class Records:
    """The complete runs of a profile under results/, read once."""

    def __init__(self, results: Path, profile: str) -> None:
        self.results, self.profile = results, profile
        self._conditions: dict[tuple[str, str], Condition | None] = {}
        self._samples: dict[Any, Any] = {}
        self._estimates: dict[Source, Outcome] = {}

    def has_runs(self, experiments: Sequence[str]) -> bool:
        """Whether there is a complete run of one of the experiments."""
        return any(
            archives.find(self.results, f"{experiment}_{self.profile}_*/*/manifest.json") for experiment in experiments
        )

    def started(self, experiment: str) -> bool:
        return bool(archives.find(self.results, f"{experiment}_{self.profile}_*/*/config.yaml"))

    def condition(self, experiment: str, role: str) -> Condition | None:
        """The runs of an experiment on the task that stands for a role in the paper; None where none was started."""
        key = (experiment, role)
        if key not in self._conditions:
            self._conditions[key] = self._load(*key) if self.started(experiment) else None
        return self._conditions[key]

    def _load(self, experiment: str, role: str) -> Condition:
        task = stand_ins(self.profile)[role]
        name = f"{experiment}_{self.profile}_{task}"
        runs = load_runs(self.results, name)
        for run in runs:
            for key, wanted in (("profile", self.profile), ("task", task)):
                if run.manifest[key] != wanted:
                    raise DataError(
                        f"{run.folder / 'manifest.json'} says {key} {run.manifest[key]!r} and lies in {name!r}, which "
                        f"is for {wanted!r}: run it again with another experiment_name, and delete it here."
                    )
        groups = {group.label: group for group in by_label(runs)}
        return Condition(self.results / name, task, groups, tuple(incomplete_runs(self.results, name)))

    def stand_in(self, source: Source) -> Source:
        """The source with the benchmark that stands for its own with this profile. Raises DataError."""
        if source.experiment is None or not self.started(source.experiment):
            return source
        return _standing_in(source, _stand_in(source, self.profile))

    def cells(self, source: Source) -> Cells | Missing:
        """What a quantity is a ratio of, over the complete runs of its label."""
        condition, group = self._group(source)
        if condition is None or group is None:
            return Missing(NOT_RUN)
        if source.quantity in RUN_QUANTITIES:
            return run_cells(RUN_QUANTITIES[str(source.quantity)], group.runs)
        quantity = QUANTITIES[str(source.quantity)]
        if source.benchmark:
            return self._of_benchmark(condition, source, quantity)
        read = first_paths if source.episodes == "first_paths" else held_out
        runs = [self._read((source.episodes, run.folder), lambda run=run: read(run)) for run in group.runs]
        seeds = seeds_of(group.runs)
        if not any(runs):
            return Missing(NOT_RUN)
        if source.episodes == "first_paths":
            ungraded = sum(len(run) - len(graded(run)) for run in runs)
            chosen = [part(run, source.part, PARTS) if source.part else run for run in runs]
            units = f"{PROMPTS} {condition.task} {source.part or ''}"
            return replace(cells_in_order(quantity, chosen, seeds, units), ungraded=ungraded)
        return cells_of(quantity, runs, seeds, f"{QUESTIONS} {condition.task} held out")

    def _of_benchmark(self, condition: Condition, source: Source, quantity: Quantity) -> Cells | Missing:
        found = condition.evaluations.get(str(source.benchmark), {})
        made = {seed: one for (label, seed), one in found.items() if label == source.label}
        if not made:
            return Missing(NOT_RUN)
        runs = [self._read(one.folder, lambda one=one: one.samples) for one in made.values()]
        chosen = [[one for one in run if _is_of(one, source.where)] for run in runs]
        if not any(chosen):
            wanted = ", ".join(f"{key} {value}" for key, value in source.where.items())
            raise DataError(f"{next(iter(made.values())).folder} has no question of {wanted}: evaluate again.")
        units = " ".join([QUESTIONS, str(source.benchmark), *source.where.values()])
        return cells_of(quantity, chosen, tuple(made), units)

    def _read(self, key: Any, read: Any) -> list[Sample]:
        if key not in self._samples:
            self._samples[key] = read()
        samples: list[Sample] = self._samples[key]
        return samples

    def outcome(self, source: Source) -> Outcome:
        """What a source gives; not for a formula."""
        key = replace(source, where=_Frozen(source.where), benchmark_of=None, not_compared=None, title=None)
        if key not in self._estimates:
            self._estimates[key] = self._outcome(source)
        return self._estimates[key]

    def _outcome(self, source: Source) -> Outcome:
        if source.not_measured:
            return Missing(NOT_MEASURED, source.not_measured)
        if source.evaluate:
            return exact(_evaluation_setting(source.evaluate))
        if source.composed:
            return _composed(source, self.profile)
        if source.setting:
            return self._setting(source)
        cells = self.cells(source)
        if isinstance(cells, Missing):
            return cells
        found = estimate(cells)
        quantity = QUANTITIES.get(source.quantity or "")
        return exact(found.value) if quantity is not None and quantity.certain else found

    def shortfall(self, source: Source) -> str | None:
        """In what the runs of a quantity, or their questions, are not of the experiment's scale; None in nothing."""
        condition, group = self._group(source)
        if source.quantity is None or condition is None or group is None:
            return None
        planned = _planned(str(source.experiment), self.profile, str(source.task))
        for path in SCALE:
            ours, wanted = _walk(group.first.config, path), _walk(planned, path)
            if ours != wanted:
                return f"{path} of {condition.folder.name}/{group.label} is {ours} and the experiment's {wanted}"
        if source.benchmark:
            evaluations = condition.evaluations.get(source.benchmark, {}).values()
            counts = [int(one.manifest["panel"]["questions"]) for one in evaluations]
            whole = _panel_size(source.benchmark)
        elif source.episodes == "held_out" and planned.task.held_out.count is not None:
            runs = [self._read((source.episodes, run.folder), lambda run=run: held_out(run)) for run in group.runs]
            counts = [len({one.unit for one in run}) for run in runs]
            whole = planned.task.held_out.count
        else:
            return None
        short = [count for count in counts if count != whole]
        return f"{short[0]:,} of {whole:,} questions of {source.benchmark or condition.task}" if short else None

    def _setting(self, source: Source) -> Outcome:
        _, group = self._group(source)
        return Missing(NOT_RUN) if group is None else _setting_value(_walk(group.first.config, str(source.setting)))

    def _group(self, source: Source) -> tuple[Condition | None, RunGroup | None]:
        condition = self.condition(str(source.experiment), str(source.task))
        return condition, condition.groups.get(str(source.label)) if condition else None


class _Frozen(dict[str, str]):
    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))


def _is_of(one: Sample, where: Mapping[str, str]) -> bool:
    meta = one.meta or {}
    return all(str(meta.get(key)) == value for key, value in where.items())


@cache
def stand_ins(profile: str) -> Mapping[str, str]:
    """The tasks of a profile by their role in the paper. Raises ConfigError."""
    with initialize_config_dir(str(PROJECT / "configs"), version_base=None):
        return read_launch(compose("train", [f"profile={profile}"])).tasks


@cache
def _benchmarks(experiment: str, profile: str) -> Mapping[str, Sequence[str]]:
    """What an experiment evaluates on, by task."""
    return outline(experiment, [f"profile={profile}"]).launch.benchmarks


@cache
def _panel_size(benchmark: str) -> int:
    """Questions of a whole benchmark: as many as its configuration asks for, or all rows of its set."""
    count = _yaml(f"benchmarks/{benchmark}.yaml")["held_out"].get("count")
    return REGISTRY[benchmark].rows if count is None else int(count)


def _yaml(file: str) -> Any:
    return yaml.load((PROJECT / "configs" / file).read_text(encoding="utf-8"), Loader=SAFE_LOADER)


@cache
def _elements(experiment: str, profile: str, role: str, labels: tuple[str, ...]) -> Mapping[str, Element]:
    task = stand_ins(profile)[role]
    server = SERVER if role == AIRLINE else ()
    chosen = [f"profile={profile}", f"task={task}", "seed=0", f"algorithm={','.join(labels)}", *server]
    return {one.run.label: one for one in load_experiment(experiment, chosen).elements}


@cache
def _planned(experiment: str, profile: str, role: str) -> RunConfig:
    """Of an experiment's runs the first: all have one scale."""
    first = outline(experiment, [f"profile={profile}"]).sweep["algorithm"][0]
    (element,) = _elements(experiment, profile, role, (first,)).values()
    return element.run


def _composed_labels(source: Source) -> tuple[str, ...]:
    """All that the tables ask of one experiment and role, so that it is composed once."""
    plans = load_reproduction().tables.values()
    sources = [cell.source for plan in plans for cell in plan.cells if cell.source.composed]
    same = [one for one in sources if (one.experiment, one.task) == (source.experiment, source.task)]
    return tuple(sorted({str(one.label) for one in same}))


def _composed(source: Source, profile: str) -> Outcome:
    """Of the configuration that the launchers would run."""
    element = _elements(str(source.experiment), profile, str(source.task), _composed_labels(source))[str(source.label)]
    run = element.run
    if isinstance(source.composed, tuple):
        return ", ".join(f"{path.rpartition('.')[2]}={_walk(run, path)}" for path in source.composed)
    if source.composed == "plan":
        return run.descriptor.plan
    if source.composed == "rollouts_per_prompt":
        return exact(run.descriptor.rollouts_per_task(run.algorithm_config, run.task.max_turns))
    return _setting_value(_walk(run, str(source.composed)))


def _setting_value(value: Any) -> Outcome:
    return Missing(NOT_MEASURED, "the setting is off") if value is None else exact(float(value))


def _evaluation_setting(path: str) -> float:
    return float(_walk(_yaml("evaluate.yaml"), path))


def _walk(tree: Any, path: str) -> Any:
    for name in path.split("."):
        tree = tree[name] if isinstance(tree, Mapping) else getattr(tree, name)
    return tree


# cells


@dataclass(frozen=True)
class Made:
    """A cell with what we have for it. not_compared: why not, whether a verdict was due or not."""

    plan: CellPlan
    outcome: Outcome
    verdict: str
    not_compared: str | None = None


@dataclass(frozen=True)
class MadeTable:
    """A table of a profile. key: its files' name. left_out: what is incomplete. launch: the command that makes runs."""

    key: str
    plan: TablePlan
    profile: str
    is_paper: bool
    cells: tuple[Made, ...]
    table: Table

    @property
    def counts(self) -> Mapping[str, int]:
        """Cells that the paper prints, by verdict."""
        return Counter(made.verdict for made in self.cells if made.plan.paper is not None)

    @property
    def has_data(self) -> bool:
        return any(not isinstance(made.outcome, Missing) for made in self.cells)


def make_table(records: Records, plan: TablePlan, reproduction: Reproduction) -> MadeTable:
    """A table from a profile's records; the paper's column is there at the paper's profile alone. Raises DataError."""
    is_paper = records.profile == reproduction.profile
    key = plan.key if is_paper else f"{plan.key}_{records.profile}"
    cells = plan.cells if is_paper else tuple(_stand_ins(plan.cells, records.profile))
    made = [_made(records, cells, cell, is_paper) for cell in cells]
    if not is_paper:
        # lines that stood for several benchmarks have become one
        first: dict[tuple[str, str, str | None], Made] = {}
        for one in made:
            first.setdefault((one.plan.row_title, one.plan.column_title, one.plan.source.label), one)
        made = list(first.values())
    table = _rendered(key, plan, records, reproduction, made, is_paper)
    return MadeTable(key, plan, records.profile, is_paper, tuple(made), table)


def _stand_ins(cells: Sequence[CellPlan], profile: str) -> Iterator[CellPlan]:
    """Cells with the benchmarks that a profile's tasks have. A line that is named after a benchmark is named after the
    one that stands in; parts of a benchmark, which that one does not have, are left out."""
    gone: set[str] = set()
    names: dict[str, str] = {}
    changed: list[CellPlan] = []
    for cell in cells:
        source = cell.source
        if source.composed or source.evaluate:
            continue
        there = _stand_in(source, profile)
        if there == source.benchmark or there is None:
            changed.append(cell)
            continue
        if source.where:
            gone.add(cell.row)
            continue
        if source.benchmark_of == "row":
            names[cell.row] = there
        title = cell.column_title
        if source.benchmark_of == "column":
            title = f"{there} {QUANTITIES[str(_standing_in(source, there).quantity)].title}"
        changed.append(replace(cell, source=_standing_in(source, there), column_title=title))
    for cell in changed:
        if cell.row not in gone:
            yield replace(cell, row_title=names.get(cell.row, cell.row_title))


def _standing_in(source: Source, benchmark: str | None) -> Source:
    """With the benchmark that stands in, and accuracy where a toy one has no scores of short answers."""
    quantity = source.quantity
    if benchmark != source.benchmark and quantity in SHORT_ANSWERS and str(benchmark).startswith("toy_"):
        quantity = "pass_at_1"
    return replace(source, benchmark=benchmark, quantity=quantity)


def _stand_in(source: Source, profile: str) -> str | None:
    if source.benchmark is None:
        return None
    task = stand_ins(profile)[str(source.task)]
    if task == stand_ins(load_reproduction().profile)[str(source.task)]:
        return source.benchmark
    there = _benchmarks(str(source.experiment), profile).get(task, ())
    if source.benchmark in there:
        return source.benchmark
    if len(there) != 1:
        raise DataError(
            f"configs/experiment/{source.experiment}.yaml evaluates {task} on {len(there)} benchmarks "
            f"and none is {source.benchmark}: leave one, which stands in for it, or name it."
        )
    return there[0]


def _made(records: Records, cells: Sequence[CellPlan], cell: CellPlan, is_paper: bool) -> Made:
    by_key = {(one.row, one.column): one for one in cells}
    outcome = _value(records, by_key, cell)
    if not is_paper:
        return Made(replace(cell, paper=None), outcome, "")
    why = cell.source.not_compared
    if why is None and cell.paper is not None and not isinstance(outcome, Missing):
        why = next((why for why in map(records.shortfall, _sources(by_key, cell)) if why is not None), None)
    return Made(cell, outcome, verdict(cell, outcome, why), why)


def _sources(by_key: Mapping[tuple[str, str], CellPlan], cell: CellPlan) -> Iterator[Source]:
    """A cell's, or those of the cells that its formula reads."""
    if cell.source.formula is None:
        yield cell.source
        return
    for name in formulas.names(cell.source.formula):
        row, _, column = name.rpartition(".")
        yield from _sources(by_key, by_key[row or cell.row, column])


def _value(records: Records, by_key: Mapping[tuple[str, str], CellPlan], cell: CellPlan) -> Outcome:
    formula = cell.source.formula
    if formula is None:
        return records.outcome(cell.source)
    parts: dict[str, Outcome] = {}
    for name in formulas.names(formula):
        row, _, column = name.rpartition(".")
        place = (row or cell.row, column)
        if place not in by_key:
            raise DataError(f"The formula {formula!r} reads {name!r}: the table has no such cell.")
        parts[name] = _value(records, by_key, by_key[place])
    missing = [part for part in parts.values() if isinstance(part, Missing)]
    if missing:
        return missing[0]

    def value_of(name: str) -> Estimate:
        found = parts[name]
        assert isinstance(found, Estimate)
        return found

    return evaluate(formula, value_of)


def verdict(cell: CellPlan, outcome: Outcome, not_compared: str | None = None) -> str:
    """By the rule of the module. not_compared: why ours is not of what the paper's is."""
    if isinstance(outcome, Missing):
        return outcome.kind
    if cell.paper is None:
        return NO_VALUE
    if not_compared:
        return NOT_COMPARED
    printed = cell.paper.number
    if isinstance(outcome, str) or printed is None:
        raise DataError(f"{cell.row}, {cell.column} has words: say not_compared.")
    if not isfinite(outcome.value):
        return NO_VALUE
    if outcome.is_exact:
        alike = abs(outcome.value - printed) <= 1e-9 * abs(printed)
        return AGREES if alike else DIFFERS if cell.unit == "setting" else HIGHER if outcome.value > printed else LOWER
    low, high = outcome.interval
    if isnan(low):
        return NO_INTERVAL
    half = 0.0 if cell.unit in COUNTS else 0.5 * 10**-cell.paper.decimals
    if low - half <= printed <= high + half:
        widest = POINTS_WIDTH if cell.unit == "points" else RELATIVE_WIDTH * abs(printed)
        return AGREES if (high - low) / 2 <= widest else UNDECIDED
    return HIGHER if low > printed else LOWER


# text


def _rendered(
    key: str, plan: TablePlan, records: Records, reproduction: Reproduction, made: Sequence[Made], is_paper: bool
) -> Table:
    header = HEADER if is_paper else tuple(name for name in HEADER if name not in ("Paper", "Verdict"))
    rows = [_row(one, is_paper) for one in made]
    caption = f"{plan.gist} Section {plan.section} of the paper. {_profile_sentence(plan, records, is_paper)}"
    return Table(key, header, tuple(rows), caption, tuple(_notes(plan, records, reproduction, made)))


def _row(made: Made, is_paper: bool) -> tuple[str, ...]:
    cell, outcome = made.plan, made.outcome
    shown = _shown(cell, outcome)
    unit = cell.unit.replace("_", " ")
    if not is_paper:
        return (cell.row_title, cell.column_title, unit, *shown)
    printed = NO_VALUE if cell.paper is None else cell.paper.printed
    if cell.unit != TEXT:
        printed = printed.replace("-", MINUS)
    judged = made.verdict
    if isinstance(outcome, Estimate) and judged in (AGREES, UNDECIDED, HIGHER, LOWER):
        judged = said(judged, [outcome.seeds], "seeds")
    return (cell.row_title, cell.column_title, unit, printed, *shown, judged)


def _shown(cell: CellPlan, outcome: Outcome) -> tuple[str, str, str, str]:
    """Ours, its interval, seeds, questions."""
    if isinstance(outcome, Missing):
        return (outcome.kind, NO_VALUE, NO_VALUE, NO_VALUE)
    if isinstance(outcome, str):
        return (outcome, NO_VALUE, NO_VALUE, NO_VALUE)
    sign = cell.unit == "percent" or (cell.paper is not None and cell.paper.printed.startswith(("+", "-")))
    if outcome.is_exact:
        return (_exactly(outcome.value), EXACT, NO_VALUE, NO_VALUE)
    digits = DECIMALS.get(cell.unit, 3 if cell.unit == "ratio" else 1)
    if cell.paper is not None:
        digits = max(cell.paper.decimals, 1 if cell.unit in ONE_DECIMAL else 0)
    low, high = outcome.interval
    alone = ONE_SEED if outcome.seeds == 1 else ""
    interval = NO_INTERVAL if isnan(low) else f"[{_number(low, digits, sign)}, {_number(high, digits, sign)}]{alone}"
    return (_number(outcome.value, digits, sign), interval, str(outcome.seeds), _units(outcome))


def _exactly(value: float) -> str:
    """A setting, in as few digits as it has."""
    return f"{value:,.0f}" if value == int(value) else f"{value:.4g}".replace("e-0", "e−")


def _number(value: float, digits: int, sign: bool) -> str:
    return ("∞" if value > 0 else "−∞") if abs(value) == float("inf") else number(value, digits, sign=sign)


def _units(outcome: Estimate) -> str:
    """How many questions, or else how many of what."""
    counts: Counter[str] = Counter()
    for name, count in outcome.units.items():
        counts[name.partition(" ")[0]] += count
    told = [
        f"{count:,}" if kind == QUESTIONS else f"{count:,} {kind}" for kind, count in counts.items() if kind != "runs"
    ]
    return ", ".join(told) or NO_VALUE


def _profile_sentence(plan: TablePlan, records: Records, is_paper: bool) -> str:
    if is_paper:
        return f"Profile {records.profile}: the paper's models, tasks and budgets."
    roles = dict.fromkeys(cell.source.task for cell in plan.cells if cell.source.task)
    tasks = stand_ins(records.profile)
    told = " and ".join(f"{tasks[role]} stands for {role}" for role in roles if role)
    return f"Profile {records.profile}: {told}. Not the paper's scale, and not to be compared with its numbers."


def _notes(plan: TablePlan, records: Records, reproduction: Reproduction, made: Sequence[Made]) -> Iterator[str]:
    if records.profile == reproduction.profile:
        yield from plan.notes
    if records.profile == TOY:
        yield TOY_RATE
    if any(not one.plan.in_paper for one in made):
        yield "†: not in the paper's table."
    numbers = [one.outcome for one in made if isinstance(one.outcome, Estimate) and not one.outcome.is_exact]
    if numbers:
        yield (
            "Intervals: 95 %, t intervals over seeds, widened by what other questions (prompts, steps) would change "
            "and never narrower than over these alone; Wilson's where all answers are alike, and in a mean or "
            "difference such a share counts as certain."
        )
    runs = [run for one in _conditions(plan, records) for group in one.groups.values() for run in group.runs]
    if records.profile == TOY and runs:
        yield since.note(runs)
    ungraded = sum({id(one): one.ungraded for one in numbers}.values())
    if ungraded:
        yield f"{ungraded:,} samples, counted in each cell, could not be graded and are left out."
    reasons = [one for one in made if isinstance(one.outcome, Missing) and one.outcome.kind == NOT_MEASURED]
    for why in dict.fromkeys(one.outcome.why for one in reasons if isinstance(one.outcome, Missing)):
        yield f"Not measured: {why}."
    if any(one.verdict == NOT_COMPARED for one in made):
        whys = dict.fromkeys(one.not_compared for one in made if one.verdict == NOT_COMPARED)
        yield f"Not compared: {'; '.join(str(why) for why in whys)}."
    if any(isinstance(one.outcome, Missing) and one.outcome.kind == NOT_RUN for one in made):
        yield f"Not run: {reproduction.commands(plan.experiments, records.profile)}"
    conditions = list(_conditions(plan, records))
    if left_out := [folder for condition in conditions for folder in condition.left_out]:
        yield f"Left out, because incomplete: {', '.join(left_out)}."
    if not_final := [folder for condition in conditions for folder in condition.not_final]:
        yield f"Left out, because not of the trained policy: {', '.join(not_final)}."


def _conditions(plan: TablePlan, records: Records) -> Iterator[Condition]:
    """Those that a table asks for and that were started."""
    places = dict.fromkeys(
        (cell.source.experiment, cell.source.task)
        for cell in plan.cells
        if cell.source.experiment and cell.source.task and not cell.source.composed
    )
    for experiment, task in places:
        condition = records.condition(str(experiment), str(task))
        if condition is not None:
            yield condition
