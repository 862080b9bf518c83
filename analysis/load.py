"""Runs as pandas frames, from their folders under results/ or from the Parquet files of finished studies.

    frames = load(Path("results", "reference"))     the finished runs of a folder
    for label, group in groups(frames).items():     a configuration: its runs, by experiment and seed

analysis/columns.py lists the columns: `runs` has a row per run, `steps` per update, `answers` per sample of a question,
and `benchmarks` per evaluation on a benchmark. NaN and NA mark missing values.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.columns import COLUMNS
from analysis.looks import by_number, styles
from analysis.run_folder import run_rows
from rtpo.core.files import SUMS, disk_errors, flush, partial_of, sha256, write_whole
from rtpo.core.names import nearest
from rtpo.errors import DataError
from rtpo.run.building import leaves
from rtpo.run.differences import LATER_FIELDS, OWN_SETTINGS, is_same
from rtpo.run.kept import check_columns, check_kept, is_kept, new_sums, parquet_of
from rtpo.run.naming import setting, settings_in

QUESTION = ["run", "when", "mode", "step", "split", "question"]


class Frames:
    """Runs, their steps, answers and evaluations on benchmarks. Do not change a frame in place."""

    runs: pd.DataFrame
    steps: pd.DataFrame
    answers: pd.DataFrame
    benchmarks: pd.DataFrame

    def __init__(self, frames: Mapping[str, pd.DataFrame]) -> None:
        self.__dict__ |= frames
        self.names: list[str] = list(self.runs["run"])
        self._whole, self._by_run = self, {name: frame.groupby("run") for name, frame in frames.items()}

    def select(self, runs: Iterable[str]) -> "Frames":
        """These runs, in this order. Raises KeyError for an unknown run."""
        names = list(runs)
        if names == self.names:
            return self
        if unknown := set(names) - set(self.names):
            raise KeyError(f"no run {min(unknown)}")
        part = object.__new__(Frames)
        part._whole, part._by_run, part.names = self._whole, self._by_run, names
        return part

    def __getattr__(self, name: str) -> Any:
        # a selection takes a frame's rows when that frame is first read
        if name not in COLUMNS:
            raise AttributeError(name)
        self.__dict__[name] = self._rows(name)
        return self.__dict__[name]

    def _rows(self, name: str) -> pd.DataFrame:
        by_run, no_rows = self._by_run[name], np.empty(0, np.int64)
        return by_run.obj.iloc[np.concatenate([no_rows, *(by_run.indices.get(run, no_rows) for run in self.names)])]

    def where(self, **values: object) -> "Frames":
        """The runs with these values: `frames.where(experiment="reference", label="rtpo")`."""
        return self.select(self.runs["run"][(self.runs[list(values)] == pd.Series(values)).all(axis=1)])

    @property
    def label(self) -> str:
        """The label of a configuration's runs."""
        return str(self.runs["label"].iloc[0])

    @property
    def config(self) -> dict[str, Any]:
        """The configuration of the first run, to read fields that all runs share."""
        config: dict[str, Any] = json.loads(self.runs["config"].iloc[0])
        return config

    @property
    def questions(self) -> pd.DataFrame:
        """The runs' own evaluations by question, indexed by QUESTION. `samples` and `graded` are numbers of samples.
        `success`, the share with reward 1, and `reward`, the mean, are over graded samples."""
        return self.derived(_questions)

    def derived(self, make: "Callable[[Frames], pd.DataFrame]") -> pd.DataFrame:
        """The rows of these runs in `make(frames)`, which must have `run` in its index. The result is cached: `make` is
        called once, with the frames from which these runs were selected."""
        if make.__name__ not in self._by_run:
            self._by_run[make.__name__] = make(self._whole).groupby("run")
        return self._rows(make.__name__)


def _questions(frames: Frames) -> pd.DataFrame:
    own = frames.answers[frames.answers["benchmark"].isna()]
    solved = (own["reward"] == 1).astype(float).where(own["reward"].notna())
    by = [own[key].astype(object) for key in QUESTION]
    grouped = solved.groupby(by)
    means = {"success": grouped.mean(), "reward": own["reward"].groupby(by).mean()}
    return pd.DataFrame({"samples": grouped.size(), "graded": grouped.count(), **means})


def load(*folders: Path) -> Frames:
    """Every finished run in run folders at most two levels below these folders, and in Parquet files at any depth.
    Raises DataError for damaged or changed records, and for folders without a run."""
    loaded = [frames for folder in folders for frames in _below(folder)]
    if not loaded:
        raise DataError(f"{' and '.join(map(str, folders))}: no finished run. Give a folder of run records.")
    return concat(loaded)


def _below(folder: Path) -> list[Frames]:
    places = {file.parent for pattern in (SUMS, "*.parquet") for file in folder.rglob(pattern)}
    kept = [read_parquet(place) for place in sorted(places) if is_kept(place)]
    known = {name for frames in kept for name in frames.names}
    depths = ("manifest.json", "*/manifest.json", "*/*/manifest.json")
    runs = [file.parent for depth in depths for file in find(folder, depth)]
    runs = [run for run in runs if not (run / "samples.jsonl").exists()]
    return kept + [load_run(run) for run in runs if f"{run.parent.name}/{run.name}" not in known]


def find(folder: Path, pattern: str) -> list[Path]:
    """The files below a folder that match a pattern, as absolute paths."""
    return sorted(folder.absolute().glob(pattern))


def load_run(folder: Path, finished: bool = True) -> Frames:
    """The frames of one run. finished=False also reads a run that has not ended. Raises DataError for a folder without
    a run, and for damaged or changed records."""
    rows = run_rows(folder, finished)
    columns = {name: dict.fromkeys(chain(known, *rows[name])) for name, known in COLUMNS.items()}
    return Frames({name: pd.DataFrame(rows[name], columns=list(columns[name])) for name in COLUMNS})


def concat(parts: Sequence[Frames]) -> Frames:
    """All runs of several frames; a run in several of them is taken once, from the first. Raises DataError for two runs
    of one name."""
    if len(parts) == 1:
        return parts[0]
    runs = pd.concat([part.runs.reindex(columns=["run", "started"]) for part in parts]).drop_duplicates()
    if len(twins := runs[runs["run"].duplicated(keep=False)]):
        name = twins["run"].iloc[0]
        began = " and at ".join(map(str, twins.loc[twins["run"] == name, "started"]))
        raise DataError(f"{name} is two runs, begun at {began}: give one of them, or move it to another experiment.")
    # by place, since one part may be there twice
    first = {name: place for place, part in reversed([*enumerate(parts)]) for name in part.names}
    new = [part.select(name for name in part.names if first[name] == place) for place, part in enumerate(parts)]
    return Frames({name: _joined([getattr(part, name) for part in new]) for name in COLUMNS})


def _joined(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    return pd.concat([frame for frame in frames if len(frame)] or frames[:1], ignore_index=True)


def experiment(results: Path, name: str) -> Frames:
    """The finished runs of results/<name>/. Without any it raises DataError, which names the nearest experiment."""
    folder = results / name
    if loaded := _below(folder):
        return concat(loaded)
    others = sorted(each.name for each in find(results, "*") if has_runs(each))
    begun = ", ".join(path.name for path in unfinished(folder))
    why = f" (not finished: {begun})" if begun else ""
    raise DataError(f"{folder} holds no finished run{why}: {nearest(name, others)}.")


def has_runs(folder: Path) -> bool:
    """Whether an experiment's folder holds a finished run."""
    return is_kept(folder) or bool(find(folder, "*/manifest.json"))


def unfinished(folder: Path) -> list[Path]:
    """The folders of an experiment's runs that began and have no manifest."""
    return [file.parent for file in find(folder, "*/config.yaml") if not file.with_name("manifest.json").exists()]


# Parquet


def read_parquet(folder: Path) -> Frames:
    """Frames that `keep` wrote. Raises DataError for a file that is missing or was changed."""
    return _read_parquet(folder, check_kept(folder))


@lru_cache(maxsize=8)
def _read_parquet(folder: Path, _sums: str) -> Frames:
    frames = {name: pd.read_parquet(folder / f"{name}.parquet") for name in COLUMNS}
    for name, frame in frames.items():
        check_columns(folder / f"{name}.parquet", frame.columns, COLUMNS[name])
    # texts as plain objects save a fifth of the time of grouping and selecting
    return Frames(
        {name: each.astype(dict.fromkeys(each.select_dtypes("str"), object)) for name, each in frames.items()}
    )


def keep(frames: Frames, folder: Path) -> Frames:
    """Add runs to the Parquet files of a folder; runs already in it stay unchanged. Returns all runs. Raises
    DataError as `concat`, and MachineError if the disk fails; the earlier files are then unchanged."""
    # an interrupted replacement is completed first; then all new files are written before any replaces an old file
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _replace(folder)
        if is_kept(folder):
            frames = concat([read_parquet(folder), frames])
        sums = ""
        try:
            for file in parquet_of(folder):
                ordered = getattr(frames, file.stem).sort_values("run", kind="stable", ignore_index=True)
                if "folder" in ordered:  # a path on the machine that ran them
                    ordered = ordered.assign(folder="")
                new_file = partial_of(file)
                ordered.to_parquet(new_file, index=False, compression="zstd", compression_level=19)
                flush(new_file)
                sums += f"{sha256(new_file)}  {file.name}\n"
            write_whole(new_sums(folder), sums.encode())
        except BaseException:
            # first the new sums, by which the next call would complete the replacement
            new_sums(folder).unlink(missing_ok=True)
            for file in parquet_of(folder):
                partial_of(file).unlink(missing_ok=True)
            raise
        _replace(folder)
    return frames


def _replace(folder: Path) -> None:
    """Replace the files of a folder by the complete new ones, if there are any."""
    if new_sums(folder).exists():
        for file in parquet_of(folder):
            if partial_of(file).exists():
                partial_of(file).replace(file)
        new_sums(folder).replace(folder / SUMS)
        flush(folder)


# configurations


def groups(frames: Frames) -> dict[str, Frames]:
    """Runs by label. Methods are in the order of `analysis.looks`, labels of a method in that of their fields' values.

    The runs of a label are in order of experiment and seed. Their configurations are the same but for OWN_SETTINGS.
    Raises DataError if they differ otherwise or in the model's weights, and if two of an experiment share a seed.
    """
    runs = frames.runs.sort_values(["experiment", "seed"])
    by_label = {label: runs[runs["label"] == label] for label in styles(runs["label"].unique())}
    for each in by_label.values():
        _check_alike(each)
    return {label: frames.select(by_label[label]["run"]) for label in _by_value(by_label)}


def _by_value(runs: Mapping[str, pd.DataFrame]) -> list[str]:
    """The labels in order of their methods; those of a method by the values of the fields that labels set."""
    methods = list(dict.fromkeys(label.partition(",")[0] for label in runs))
    if not (names := sorted({name for label in runs for name in settings_in(label)})):
        return list(runs)

    def key(label: str) -> tuple[int, list[list[str | float]]]:
        config, own = json.loads(runs[label]["config"].iloc[0]), settings_in(label)
        values = [own.get(name) or setting(config, name) or "" for name in names]
        return methods.index(label.partition(",")[0]), list(map(by_number, values))

    return sorted(runs, key=key)


def _check_alike(runs: pd.DataFrame) -> None:
    twins = runs[runs.duplicated(["experiment", "seed"], keep=False)]
    if len(twins):
        raise DataError(f"{' and '.join(twins['run'])} have the same label and seed: {_apart(twins)}")
    ignored = tuple(f"{field}." for field in OWN_SETTINGS)
    first, *others = [{**_flat(row.config), "model_sha256": row.model_sha256} for row in runs.itertuples()]
    for name, other in zip(runs["run"].iloc[1:], others, strict=True):
        compared = (key for key in sorted(first.keys() | other.keys()) if not f"{key}.".startswith(ignored))
        if different := [key for key in compared if not is_same(first.get(key), other.get(key))]:
            what = "; ".join(f"{key}, {first.get(key)!r} and {other.get(key)!r}" for key in different)
            raise DataError(f"{runs['run'].iloc[0]} and {name} have one label and differ in {what}: {_apart(runs)}")


def _apart(runs: pd.DataFrame) -> str:
    """What to do with finished runs that no table can hold together."""
    where = " and ".join(dict.fromkeys(runs["experiment"]))
    return (
        f"no table can hold both. Move the folder of one out of {where}, and train it again with algorithm.label=NAME "
        "or experiment_name=NAME."
    )


@lru_cache(maxsize=2048)
def _flat(config: str) -> dict[str, Any]:
    """A run's configuration by field path."""
    return LATER_FIELDS | dict(leaves(json.loads(config)))
