"""Our numbers for the cells of the paper's tables, from the complete runs of a profile with their evaluations, and from
the configurations of the launchers."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property, lru_cache, reduce
from operator import getitem
from pathlib import Path
from typing import Any, cast

import pandas as pd
from omegaconf import DictConfig, OmegaConf

from analysis.load import Frames, groups, has_runs, load, unfinished
from analysis.paper import formulas
from analysis.paper.cells import formula_inputs
from analysis.paper.estimates import RUNS, Estimate, ratio
from analysis.paper.metrics import METRICS, RUN_METRICS, episodes, estimate
from analysis.run_folder import load_paths
from analysis.run_table import decoding_text
from analysis.tables import NOT_RUN
from rtpo.algorithms import load_algorithm
from rtpo.core.names import counted
from rtpo.data.registry import REGISTRY
from rtpo.engines.base import PAPER_DECODING
from rtpo.errors import DataError
from rtpo.run.building import build
from rtpo.run.cli import composed
from rtpo.run.config import PROJECT

TRAINING_PARTS = 5
NOT_MEASURED = "not measured"
SCALE = ("budget.rollouts", "budget.seconds", "budget.steps", "model.name")
"""settings that a run must share with its experiment's configuration to have its scale"""
Cell = Any
"""a row of the frame of `analysis.paper.cells`"""


@dataclass(frozen=True)
class Missing:
    """Why a cell has no number."""

    kind: str  # NOT_RUN or NOT_MEASURED
    why: str = ""  # the reason of NOT_MEASURED


Outcome = Estimate | Missing


@dataclass(frozen=True, eq=False)
class Condition:
    """The runs of an experiment on a task, with their evaluations on benchmarks."""

    folder: Path  # results/<experiment>_<profile>_<task>
    task: str
    groups: Mapping[str, Frames]  # runs by label
    evaluations: pd.DataFrame  # `benchmarks` with the run's label, and is_final: whether of the final policy

    def final(self, benchmark: str) -> pd.DataFrame:
        """The evaluations of final policies on a benchmark."""
        return self.evaluations[self.evaluations["is_final"] & (self.evaluations["benchmark"] == benchmark)]

    @cached_property
    def left_out(self) -> list[str]:
        """Names of what no cell includes: unfinished runs and evaluations, missing evaluations that other runs of the
        label have, and evaluations of a policy before the end of training."""
        names, done = [f"{self.folder.name}/{path.name}" for path in unfinished(self.folder)], self.evaluations
        for label, run in ((label, run) for label, group in self.groups.items() for run in group.names):
            lacking = {*done.loc[done["label"] == label, "benchmark"]} - {*done.loc[done["run"] == run, "benchmark"]}
            begun = {path.name for path in unfinished(self.folder.parent / run)}
            names += [f"{run}/{name}" for name in sorted(lacking | begun)]
        early = done[~done["is_final"].astype(bool)]
        return names + [f"{row.run}/{row.benchmark} (not of the trained policy)" for row in early.itertuples()]


class Records:
    """The complete runs of a profile under results/."""

    def __init__(self, results: Path, profile: str) -> None:
        self.results, self.profile = results, profile
        self.condition = cache(self._condition)

    def has_runs(self, experiments: Iterable[str]) -> bool:
        """Whether a run of one of the experiments is finished."""
        folders = (path for name in experiments for path in self.results.glob(f"{name}_{self.profile}_*"))
        return any(map(has_runs, folders))

    def _condition(self, experiment: str, role: str) -> Condition:
        """The runs of an experiment on the profile's task for a role. Raises DataError for runs of another profile or
        task, for evaluations of another run, and for evaluations that differ in their settings."""
        task = tasks(self.profile)[role]
        folder = self.results / f"{experiment}_{self.profile}_{task}"
        if not has_runs(folder):
            return Condition(folder, task, {}, pd.DataFrame(columns=["run", "label", "benchmark", "is_final"]))
        frames = load(folder)
        for key, expected in (("profile", self.profile), ("task", task)):
            for run in frames.runs[frames.runs[key] != expected].to_dict("records"):
                where = f"lies in {folder.name!r}, which is for {expected!r}"
                raise DataError(f"{run['run']} says {key} {run[key]!r} and {where}: run it elsewhere.")
        runs = frames.runs[["run", "label", "policy_version"]]
        evaluations = frames.benchmarks.merge(runs, on="run", suffixes=("", "_run"))
        evaluations["is_final"] = evaluations["policy_version"] == evaluations["policy_version_run"]
        for row in evaluations[evaluations["of_run"] != evaluations["run"]].itertuples():
            raise DataError(f"{row.run}/{row.benchmark} is an evaluation of {row.of_run!r}: move it to that run.")
        for benchmark, part in evaluations[evaluations["is_final"]].groupby("benchmark"):
            if part["alike"].nunique() > 1:
                names = " and ".join(part.drop_duplicates("alike")["run"])
                raise DataError(f"{names} were evaluated differently on {benchmark}: evaluate them with one setting.")
        return Condition(folder, task, groups(frames), evaluations)

    def own_models(self, experiment: str, role: str) -> list[str]:
        """The models that runs began from, without that of the experiment's configuration."""
        names = [name for group in self.condition(experiment, role).groups.values() for name in group.runs["model"]]
        return [name for name in dict.fromkeys(names) if name != _composed(experiment, self.profile, role).model.name]

    def outcomes(self, cells: Mapping[str, Cell]) -> Mapping[str, Outcome]:
        """The number of each cell of a table, or why it is missing, by place."""

        @cache
        def outcome(place: str) -> Outcome:
            cell = cells[place]
            if cell.not_measured:
                return Missing(NOT_MEASURED, cell.not_measured)
            if cell.setting:
                return _setting(cell, self.profile)
            if cell.metric:
                return self._measured(cell)
            parts = {name: outcome(read) for name, read in formula_inputs(cell).items()}
            missing = next((part for part in parts.values() if isinstance(part, Missing)), None)
            return missing or formulas.evaluate(cell.formula, parts.__getitem__)

        return {place: outcome(place) for place in cells}

    def _measured(self, cell: Cell) -> Outcome:
        """A metric over the complete runs of a label."""
        condition = self.condition(cell.experiment, cell.task)
        group = condition.groups.get(cell.label)
        if group is not None and cell.metric in RUN_METRICS:
            return run_estimate(cell.metric, group)
        if group is None or (frame := _episodes(condition, cell.label, cell.benchmark, cell.episodes)).empty:
            return Missing(NOT_RUN)
        where = dict(cell.where or {})
        units, decodings = f"questions {condition.task} held out", ["temperature 1"]
        if cell.benchmark:
            units = " ".join(["questions", cell.benchmark, *where.values()])
            final = condition.final(cell.benchmark)
            decodings = [decoding_text(json.loads(text)) for text in final["decoding"].unique()]
        elif cell.episodes == "held_out_paper":
            decodings = [decoding_text(asdict(PAPER_DECODING))]
        elif cell.episodes == "first_paths":
            units = f"prompts {condition.task} {cell.part}"
            decodings = [f"{decoding_text(group.config['sampling'])}, in training"]
        chosen = pd.concat([_chosen(part, where, cell) for _, part in frame.groupby("seed", sort=False)])
        if chosen.empty:
            raise DataError(f"{condition.folder} has no question of {cell.benchmark} of {where}: evaluate again.")
        number = estimate(cell.metric, chosen, units)
        if METRICS[cell.metric].is_certain:
            return Estimate(number.value)
        ungraded = int((frame if cell.part else chosen)["success"].isna().sum())
        return replace(number, decoding=tuple(decodings), ungraded=ungraded)

    def shortfall(self, cells: Mapping[str, Cell], place: str) -> str:
        """Why the runs behind a cell are smaller than their experiment, such as "100 of 500 questions of gaia"; "" if
        they are not. A formula has the reason of its first input that has one."""
        cell = cells[place]
        if not cell.metric:
            return next(filter(None, (self.shortfall(cells, read) for read in formula_inputs(cell).values())), "")
        condition = self.condition(cell.experiment, cell.task)
        config, planned = condition.groups[cell.label].config, _composed(cell.experiment, self.profile, cell.task)
        for path in SCALE:
            # older records lack newer limits
            ours, expected = (OmegaConf.select(OmegaConf.create(tree), path) for tree in (config, planned))
            if ours != expected:
                return f"{path} of {condition.folder.name}/{cell.label} is {ours} and the experiment's {expected}"
        whole = panel_size(cell.benchmark) if cell.benchmark else planned.task.held_out.count
        if whole is None or not (cell.benchmark or cell.episodes.startswith("held_out")):
            return ""
        counts = _episodes(condition, cell.label, cell.benchmark, cell.episodes).groupby("seed")["unit"].nunique()
        short = counts[counts != whole]
        return (
            f"{short.iloc[0]:,} of {counted(whole, 'question')} of {cell.benchmark or condition.task}"
            if len(short)
            else ""
        )


@lru_cache(maxsize=256)
def _episodes(condition: Condition, label: str, benchmark: str, kind: str) -> pd.DataFrame:
    """The episodes of a label with their seeds: of a benchmark, the runs' own evaluation, or training paths from a
    task."""
    group = condition.groups[label]
    answers = group.answers
    if kind == "first_paths":
        answers = pd.concat([load_paths(condition.folder.parent / name) for name in group.names])
        answers = answers[answers["parent"].isna()]
    elif benchmark:
        answers = answers[(answers["benchmark"] == benchmark) & answers["run"].isin(condition.final(benchmark)["run"])]
    else:
        mode = "paper" if kind == "held_out_paper" else "sampled"
        answers = answers[(answers["when"] == "after") & (answers["mode"] == mode)]
    return episodes(answers).assign(seed=answers["run"].map(group.runs.set_index("run")["seed"]).to_numpy())


def _chosen(frame: pd.DataFrame, where: Mapping[str, str], cell: Cell) -> pd.DataFrame:
    """A seed's episodes for a cell: those with the values `where` in their `meta`; or, of the graded ones, the fifth
    that `cell.part` names."""
    for key, value in where.items():
        frame = frame[[str(json.loads(meta).get(key)) == value for meta in frame["meta"]]]
    if cell.part:
        graded, part = frame[frame["success"].notna()], int(cell.part)
        frame = graded[round(len(graded) * (part - 1) / TRAINING_PARTS) : round(len(graded) * part / TRAINING_PARTS)]
    if cell.episodes == "first_paths":
        # runs train on different prompts, so the n-th prompts of two runs are paired
        frame = frame.assign(unit=pd.factorize(frame["unit"])[0].astype(str))
    return frame


def run_estimate(name: str, group: Frames) -> Estimate:
    """One of RUN_METRICS over runs. The zero-advantage rate weights an update's share of tied groups by its rows, since
    frames do not count groups; its units are steps. Other metrics have one number per run, so only seeds vary."""
    runs = group.runs.set_index("seed")
    if name == "zero_advantage":
        trained = group.steps[group.steps["rows"] > 0].merge(group.runs[["run", "seed"]], on="run")
        trained = trained.assign(rows=trained["rows"].astype(float), tied=trained["rows"] * trained["ties"])
        sums = trained.groupby(["seed", "step"])[["tied", "rows"]].sum().unstack().reindex(runs.index).fillna(0.0)
        return ratio(pd.DataFrame(sums["tied"]), pd.DataFrame(sums["rows"]), "steps", 100.0)
    hours = runs["training_seconds"].astype(float) / 3600
    profile = group.config["profile"]
    gpus = profile["processes"] * profile["nodes"] if profile["platform"] == "cuda" else float("nan")
    values = {"training_tokens": runs["generated_tokens"].astype(float), "hours": hours, "gpu_hours": hours * gpus}
    above = values[name].to_frame()
    return ratio(above.fillna(0.0), above.notna().astype(float), RUNS)


# the launchers' configurations


def tasks(profile: str) -> Mapping[str, str]:
    """A profile's tasks, by their role in the paper."""
    return {str(role): str(task) for role, task in config_file("profile", profile).launch.tasks.items()}


def panel_size(benchmark: str) -> int:
    """The number of questions of a full benchmark: the configured count, or all rows of its data set."""
    count = config_file("benchmarks", benchmark).held_out.get("count")
    return REGISTRY[benchmark].rows if count is None else int(count)


@cache
def config_file(group: str, name: str) -> Any:
    """configs/<group>/<name>.yaml merged over the files in its `defaults`."""
    own: Any = OmegaConf.load(PROJECT / "configs" / group / f"{name}.yaml")
    bases = [base.partition("@")[0] for base in own.pop("defaults", ()) if isinstance(base, str) and base != "_self_"]
    return OmegaConf.merge(*(config_file(group, base) for base in bases), own)


@cache
def _composed(experiment: str, profile: str, role: str) -> DictConfig:
    """The configuration of an experiment's run. `algorithm` has only what the experiment, profile and task set."""
    task = tasks(profile)[role]
    return composed("train", [f"experiment={experiment}", f"profile={profile}", f"task={task}", "~algorithm", "seed=0"])


@cache
def _planned(experiment: str, profile: str, role: str, label: str) -> DictConfig:
    """The configuration of an experiment's run."""
    # merged here, since Hydra would take a third of a second for each algorithm
    run = _composed(experiment, profile, role).copy()
    run.algorithm = OmegaConf.merge(config_file("algorithm", label), run.algorithm)
    return run


def _setting(cell: Cell, profile: str) -> Outcome:
    if cell.setting.startswith("evaluate."):
        return Estimate(float(_walk(config_file(".", "evaluate"), cell.setting.removeprefix("evaluate."))))
    run = _planned(cell.experiment, profile, cell.task, cell.label)
    if cell.setting == "rollouts_per_prompt":
        algorithm, fields = load_algorithm(run.algorithm.name), cast(dict[str, Any], OmegaConf.to_object(run.algorithm))
        config = build(algorithm.config, fields, "algorithm")
        return Estimate(float(algorithm.rollouts_per_task(config, run.task.max_turns)))
    value = _walk(run, cell.setting)
    return Missing(NOT_MEASURED, "the setting is off") if value is None else Estimate(float(value))


def _walk(tree: Any, path: str) -> Any:
    return reduce(getitem, path.split("."), tree)
