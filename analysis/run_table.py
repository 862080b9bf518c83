"""A table of runs: one row per configuration, with a choice of columns (docs/run/runs.md)."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan, nan
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis import metrics, tables
from analysis.load import Frames, concat, experiment, groups, has_runs, load, load_run, unfinished
from analysis.looks import NOTES, base_of, styles, title_of
from analysis.stats import interval
from analysis.tables import NO_VALUE, NOT_RUN, UNKNOWN, Cell, Number, Table, percent_cell
from rtpo.core.names import counted, nearest
from rtpo.errors import ConfigError, DataError
from rtpo.run.experiments import shared_runs
from rtpo.run.naming import setting, settings_in

SHORT = ("method", "seeds", "rollouts", "before", "after", "greedy_before", "greedy", "ratio", "seconds")
"""columns in a terminal; `seeds` goes to the caption if all rows have the same number"""
BEST = ("after", "greedy", "paper", "gain")
"""columns whose best mean is bold, if its interval lies above the others"""
ABLATIONS, BASES = "ablations_", ("main_table_", "drift_")
"""beginnings of experiments' names; <profile>_<task> follows. ABLATIONS: of experiments that change configurations.
BASES: of those that have the configurations unchanged"""
CONTEXTS = ["rollout_context", "training_context"]
CAPTION = "Success in percent; brackets: 95 % intervals (docs/results/metrics.md)."
TOY = "; toy scale, not the paper's results"


@dataclass(frozen=True)
class Column:
    title: str
    cell: Callable[[Frames], Cell]


def mean(values: "pd.Series[Any]", digits: int, scale: float = 1.0) -> Cell:
    """The mean of one number per run; NO_VALUE without records."""
    value = float(values.astype(float).mean())
    return NO_VALUE if isnan(value) else Number(value, digits=digits, scale=scale)


def token_sum(group: Frames, *names: str) -> Cell:
    """The sum of these token counts of the ledger, in thousands, as a mean over runs."""
    counts = group.runs.reindex(columns=list(names)).sum(axis=1, skipna=False)
    return UNKNOWN if counts.isna().any() else Number(float(counts.mean()), scale=1e-3)


def success(group: Frames, when: str = "after", mode: str = "sampled") -> Cell:
    """Success in an evaluation, with its interval where answers are sampled."""
    evaluation = metrics.held_out(group, when, mode)
    if evaluation is None:
        return NOT_RUN
    share = metrics.success(evaluation)
    return percent_cell(replace(share, low=nan, high=nan) if share and mode == "greedy" else share)


def mean_over_steps(group: Frames, key: str, digits: int, scale: float = 1.0) -> Cell:
    """The mean over steps and runs of a column of `metrics.training_curve`."""
    return mean(metrics.mean_over_steps(group, key), digits, scale)


def _gain(group: Frames) -> Cell:
    before, after = (metrics.held_out(group, when, "sampled") for when in ("before", "after"))
    return NOT_RUN if before is None or after is None else percent_cell(metrics.difference(before, after), sign=True)


def _questions(group: Frames) -> Cell:
    evaluation = metrics.held_out(group, "after", "sampled")
    samples = group.questions["samples"].groupby(["when", "mode"]).first()
    return NOT_RUN if evaluation is None else f"{evaluation.shape[1]:,} × {samples['after', 'sampled']}"


def _ratio(group: Frames) -> Cell:
    return mean(pd.Series(np.exp(-metrics.mean_over_steps(group, "kl").mean())), 3)


def _ledger(name: str, digits: int = 0, scale: float = 1.0) -> Callable[[Frames], Cell]:
    return lambda group: mean(group.runs.get(name, pd.Series(0.0)), digits, scale)


def _text(name: str) -> Callable[[Frames], Cell]:
    return lambda group: ", ".join(group.runs[name].unique())


COLUMNS: dict[str, Column] = {
    "method": Column("Configuration", lambda group: title_of(group.label)),
    "algorithm": Column("Algorithm", _text("algorithm")),
    "contexts": Column("Context, rollout / training", lambda group: " / ".join(group.runs[CONTEXTS].iloc[0])),
    "profile": Column("Profile", _text("profile")),
    "experiment": Column("Experiment", _text("experiment")),
    "seeds": Column("Seeds", lambda group: Number(len(group.runs), digits=0)),
    "rollouts": Column("Rollouts", _ledger("rollouts")),
    "budget": Column("Budget", _ledger("budget")),
    "free": Column("Rollouts outside the budget", _ledger("free_rollouts")),
    "steps": Column("Optimizer steps", _ledger("optimizer_steps")),
    "tokens": Column("Tokens, k", _ledger("generated_tokens", 1, 1e-3)),
    "row_tokens": Column("In rows, k", lambda group: token_sum(group, "row_tokens")),
    "trainer_tokens": Column("Trainer, k", lambda group: token_sum(group, "computed_tokens", "scored_tokens")),
    "engine_tokens": Column("Engine, k", lambda group: token_sum(group, "prefilled_tokens", "generated_tokens")),
    "questions": Column("Questions × samples", _questions),
    "before": Column("Before", lambda group: success(group, "before")),
    "after": Column("After", success),
    "gain": Column("Gain", _gain),
    "paper": Column("After, paper's decoding", lambda group: success(group, mode="paper")),
    "greedy_before": Column("Greedy, before", lambda group: success(group, "before", "greedy")),
    "greedy": Column("Greedy, after", lambda group: success(group, mode="greedy")),
    "ratio": Column("Ratio", _ratio),
    "kl": Column("KL", lambda group: mean_over_steps(group, "kl", 4)),
    "ties": Column("Zero advantages, %", lambda group: mean_over_steps(group, "ties", 1, 100)),
    "seconds": Column("Seconds", _ledger("training_seconds")),
}
"""by the name that --columns takes; docs/results/metrics.md says what each is"""


SEEDS = COLUMNS["seeds"].title
PARENTHESES = re.compile(r" \([^()]*\)")


def run_table(results: Path, name: str, columns: Sequence[str] = ()) -> Table:
    """The runs of the experiment `name` and those that it takes from other experiments. A table of ablations begins
    with the configurations that they change. columns: keys of COLUMNS; default: all with a value. Raises DataError for
    missing or damaged records, and ConfigError for an unknown column."""
    rows, notes = groups(experiment(results, name)), []
    owners = shared_runs(name)
    read = {owner: groups(experiment(results, owner)) for owner in {*owners.values()} if has_runs(results / owner)}
    if shared := {label: read[owner][label] for label, owner in owners.items() if label in read.get(owner, ())}:
        rows = {label: (rows | shared)[label] for label in styles([*rows, *shared])}
    if lacking := [title_of(label) for label in owners if label not in rows]:
        notes.append(f"No finished run of {'; '.join(lacking)}.")
    if name.startswith(ABLATIONS):
        names = [base + name.removeprefix(ABLATIONS) for base in reversed(BASES)]
        parts = [groups(experiment(results, base)) for base in names if (results / base).exists()]
        bases = {label: group for part in parts for label, group in part.items()}
        changed = dict.fromkeys(base for label in rows if (base := base_of(label)) is not None)
        rows = {label: bases[label] for label in changed if label in bases} | rows
        if lacking := [title_of(label) for label in changed if label not in bases]:
            notes.append(f"No finished run of {'; '.join(lacking)}.")
    if left_out := [folder.name for folder in unfinished(results / name)]:
        notes.append(f"Left out, because not finished: {', '.join(left_out)}.")
    return _table(f"{name}_runs", f"Runs of {name}", list(rows.values()), columns, notes)


def folder_table(folders: Sequence[Path], columns: Sequence[str] = ()) -> Table:
    """The runs in folders of runs or of experiments, in this order. Raises as `run_table` does."""
    parts, left_out = [], []
    for folder in (folder.absolute() for folder in folders):
        if (folder / "manifest.json").exists():
            parts.append(load_run(folder))
        elif (folder / "config.yaml").exists():
            left_out.append(folder)
        else:
            left_out += (unfinished_here := unfinished(folder))
            if not unfinished_here or any(folder.rglob("manifest.json")):
                parts.append(load(folder))
    if not parts:
        raise DataError(f"{', '.join(map(str, folders))}: no finished run; finish {', '.join(map(str, left_out))}.")
    frames = concat(parts)
    names = list(frames.runs["experiment"].unique())
    rows = [group for name in names for group in groups(frames.where(experiment=name)).values()]
    notes = [f"Left out, because not finished: {', '.join(folder.name for folder in left_out)}."] if left_out else []
    return _table("runs", f"Runs of {', '.join(names)}", rows, columns, notes)


def _table(
    name: str, title_of_table: str, rows: Sequence[Frames], columns: Sequence[str], notes: Sequence[str]
) -> Table:
    """A table with `columns` beside those that identify its rows. Without `columns`: all columns with a value, the
    benchmarks, and the numbers that algorithms logged."""
    if unknown := [key for key in columns if key not in COLUMNS]:
        raise ConfigError(f"--columns: {unknown[0]!r} is not a column; {nearest(unknown[0], COLUMNS)}.")
    experiments = list(dict.fromkeys(each for group in rows for each in group.runs["experiment"]))
    counts = [len(group.runs) for group in rows]
    keys = list(columns) or [key for key in COLUMNS if key != "experiment"]
    cells = {COLUMNS[key].title: [COLUMNS[key].cell(group) for group in rows] for key in keys}
    if not columns:
        logged = sorted({key for group in rows for key in metrics.logged(group)})
        cells = {title: column for title, column in cells.items() if not _is_empty(title, column)}
        cells |= _benchmarks(rows) | {key: [mean_over_steps(group, key, 4) for group in rows] for key in logged}
    frame = pd.DataFrame(cells, dtype=object)
    label_columns = _labels(rows) if "method" in keys else {}
    needed = {"experiment": len(experiments) > 1, "seeds": len(set(counts)) > 1}
    added = [key for key, is_needed in needed.items() if is_needed and key not in keys]
    label_columns |= {COLUMNS[key].title: [COLUMNS[key].cell(group) for group in rows] for key in added}
    for place, (title, values) in enumerate(label_columns.items()):
        frame = frame.drop(columns=title, errors="ignore")
        frame.insert(place, title, values)
    if "method" in keys and frame.iloc[:, : len(label_columns)].astype(str).duplicated().any():
        frame.insert(1, "Label", [f"`{group.label}`" for group in rows])
        label_columns["Label"] = []
    # an interval of one seed says nothing about other seeds
    best = [COLUMNS[key].title for key in BEST if COLUMNS[key].title in frame and min(counts) > 1]
    frame = tables.bold_best(frame, best)
    seeds = f", {counted(counts[0], 'seed')} each" if len(set(counts)) == 1 else ""
    toy = TOY if all(group.runs["profile"].iloc[0] == "toy" for group in rows) else ""
    all_notes = (*_about_cells(frame, rows, counts, not columns), *notes)
    caption = f"{title_of_table}{seeds}{toy}. {CAPTION}"
    return Table(name, frame, caption, all_notes, max(1, len(label_columns)))


def _labels(rows: Sequence[Frames]) -> dict[str, list[Cell]]:
    """The columns that identify configurations: their names, and the fields that labels set, if their values differ."""
    named = [(group, settings_in(group.label)) for group in rows]
    titles: list[Cell] = [title_of(group.label, [f"{key}={own[key]}" for key in own]) for group, own in named]
    columns = {COLUMNS["method"].title: titles}
    for key in dict.fromkeys(key for _, own in named for key in own):
        values: list[Cell] = [own.get(key) or setting(group.config, key) or NO_VALUE for group, own in named]
        if len(set(values)) > 1:
            is_title = key in (column.title.lower() for column in COLUMNS.values())
            columns[f"{key}, as set" if is_title else key] = values
    return columns


def _about_cells(
    frame: pd.DataFrame, rows: Sequence[Frames], counts: Sequence[int], has_benchmarks: bool
) -> Iterator[str]:
    """Notes on models and tasks, on methods, on intervals of one seed, and on answers that are left out because they
    could not be graded."""
    models = dict.fromkeys(model for group in rows for model in group.runs["model"])
    tasks = dict.fromkeys(_task_name(group.config["task"]) for group in rows)
    yield f"Trained: {', '.join(models)}, on {', '.join(tasks)}."
    yield from (
        NOTES[label] for label in dict.fromkeys(group.label.partition(",")[0] for group in rows) if label in NOTES
    )
    has_intervals = any(isinstance(cell, Number) and not isnan(cell.low) for cell in frame.to_numpy().flat)
    if has_intervals and min(counts) == 1:
        yield "Intervals of 1 seed are over questions alone and say nothing about other seeds."
    for group in rows:
        for (when, mode), part in group.questions.groupby(["when", "mode"], sort=False):
            asked, graded = int(part["samples"].sum()), int(part["graded"].sum())
            if graded < asked:
                what = f"{asked - graded:,} of {counted(asked, 'answer')} {when} training ({mode})"
                yield f"Ungradable, and left out: {what} of {title_of(group.label)}."
        for evaluations, _, played in _evaluated(group) if has_benchmarks else ():
            if len(evaluations) < len(group.names):
                only = f"{len(evaluations)} of {counted(len(group.names), 'run')}"
                yield f"{evaluations['benchmark'].iloc[0]} has {only} of {title_of(group.label)}."
            if ungraded := int(played["reward"].isna().sum()):
                what = f"{ungraded:,} of {counted(len(played), 'answer')} on {evaluations['benchmark'].iloc[0]}"
                yield f"Ungradable, and left out: {what} of {title_of(group.label)}."


def _task_name(task: Mapping[str, Any]) -> str:
    """`math (mine.jsonl)` for tasks from a file, or `toy_math` for generated ones."""
    file = task["train"]["file"]
    return f"{task['name']} ({Path(file).name})" if file else str(task["name"])


def _is_empty(title: str, cells: Iterable[Cell]) -> bool:
    """Whether no row has a value. For the column of rollouts outside the budget, 0 is no value."""
    nothing = "0" if title == COLUMNS["free"].title else NO_VALUE
    return {*map(str, cells)} <= {NOT_RUN, NO_VALUE, nothing}


def _benchmarks(rows: Sequence[Frames]) -> dict[str, list[Cell]]:
    """A column for each benchmark and decoding of final policies: pass@1 over the questions graded in all runs."""
    columns: dict[str, list[Cell]] = {}
    for place, group in enumerate(rows):
        for evaluations, runs, answers in _evaluated(group):
            benchmark, decoding = evaluations.iloc[0][["benchmark", "decoding"]]
            graded = answers[answers["reward"].notna()]
            shares = (graded["reward"] == 1).groupby([graded["run"], graded["question"]]).mean().unstack()
            shares = shares.loc[runs.names].dropna(axis="columns").astype(float)
            strata = list(runs.runs["experiment"])
            share = interval(shares.to_numpy(), strata=strata, share=True) if shares.size else None
            size = f"{evaluations['questions'].iloc[0]:,} × {evaluations['samples'].iloc[0]}"
            title = f"{benchmark} pass@1, {decoding_text(json.loads(str(decoding)))}, {size}"
            columns.setdefault(title, [NOT_RUN] * len(rows))[place] = percent_cell(share)
    return columns


def _evaluated(group: Frames) -> Iterator[tuple[pd.DataFrame, Frames, pd.DataFrame]]:
    """By benchmark and decoding, the evaluations of final policies: rows of `benchmarks`, runs and answers."""
    final = group.benchmarks.merge(group.runs[["run", "policy_version"]], on=["run", "policy_version"])
    for (benchmark, _), evaluations in final.groupby(["benchmark", "decoding"]):
        if evaluations["alike"].nunique() > 1:
            raise DataError(f"{', '.join(evaluations['run'])} were evaluated differently on {benchmark}.")
        runs = group.select(evaluations["run"])
        yield evaluations, runs, runs.answers[runs.answers["benchmark"] == benchmark]


def decoding_text(decoding: Mapping[str, float]) -> str:
    """A decoding in words, such as "temperature 0.6, top-p 0.95"."""
    words = f"temperature {decoding['temperature']:g}"
    words += f", top-p {decoding['top_p']:g}" if decoding["top_p"] < 1 else ""
    return words + (f", top-k {decoding['top_k']}" if decoding["top_k"] > 0 else "")


def short(table: Table) -> Table:
    """The table for a terminal: the columns of SHORT, without intervals before training. Names lose their parentheses
    if they stay distinct."""
    method, *others = (COLUMNS[key].title for key in SHORT)
    labels = table.header[: table.label_columns]
    titles = [*labels, *(title for title in others if title not in labels)]
    frame = table.frame[[title for title in titles if title in table.frame]].copy()
    if table.header[0] == method:
        short_names = [PARENTHESES.sub("", text) for text in frame[method]]
        names = frame.iloc[:, : table.label_columns].assign(**{method: short_names})
        if not names.astype(str).duplicated().any():
            frame[method] = names[method]
    if SEEDS in frame and len({*map(str, frame[SEEDS])}) == 1:
        frame = frame.drop(columns=SEEDS)
    if (before := COLUMNS["before"].title) in frame:
        frame[before] = frame[before].map(lambda cell: replace(cell, low=nan) if isinstance(cell, Number) else cell)
    return replace(table, frame=frame)


def files_of(table: Table, output: Path, whole: bool = False) -> dict[Path, str]:
    """A table in every format. LaTeX must fit a page, so it has the columns of `short`, unless `whole`."""
    narrow = tables.files_of([table if whole else short(table)], output)
    return tables.files_of([table], output) | {path: text for path, text in narrow.items() if path.suffix == ".tex"}


def show(table: Table, output: Path) -> None:
    """Write a table in every format, and print its short form."""
    files = files_of(table, output)
    tables.write(files)
    print(tables.markdown(short(table)), *files, sep="\n")
