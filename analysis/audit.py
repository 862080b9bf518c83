"""The audits of the paper's supplement, for any finished run (docs/run/runs.md).

    python analysis/audit.py tools RUN/BENCHMARK --first 100   tool calls of an evaluation
    python analysis/audit.py trunks RUN --points 5             how training paths from a task ended and what they cost
    python analysis/audit.py airline RUN --tasks FOLDER        held-out airline episodes

RUN is the folder of the run. A path from a task is a trunk of RTPO or a chain of another method. `trunks` splits these
paths, in the order of training, into --points equal parts.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from analysis.load import load_run
from analysis.paper.metrics import METRICS, episodes, value_of
from analysis.run_folder import load_paths, load_samples
from analysis.tables import FORMATS, Table, number, of_rows
from rtpo.core.names import counted
from rtpo.envs.airline.tasks import read_criteria
from rtpo.errors import DataError
from rtpo.run.cli import Parser, command, whole_number
from rtpo.run.reading import SAFE_LOADER, why_no_run

ROWS = yaml.load(Path(__file__).with_suffix(".yaml").read_bytes(), SAFE_LOADER)
FIRST = "audit the first N questions; default: %(default)s"
POINTS = "split the paths into N equal parts; default: %(default)s"
TASKS = "folder of the airline tasks that the run was evaluated on"
FOLDER = "folder of a finished run; for `tools`, of one of its evaluations"


def _rows(kind: str, *frames: pd.DataFrame) -> list[tuple[str, ...]]:
    """The rows of audit.yaml, with one column for each frame of episodes."""
    return [
        (title, *(number(value_of(name, frame), digits, METRICS[name].scale) for frame in frames))
        for name, digits, title in ROWS[kind]
    ]


def _check_finished(folder: Path, what: str) -> None:
    if not (folder / "config.yaml").exists():
        raise DataError(why_no_run(folder))
    if not (folder / "manifest.json").exists():
        raise DataError(f"{folder} has no manifest.json: give the folder of a finished {what}.")
    if what == "run" and (folder / "samples.jsonl").exists():
        raise DataError(f"{folder} is an evaluation: give its run, {folder.parent}.")
    if what == "evaluation" and (folder / "steps.jsonl").exists():
        raise DataError(f"{folder} is a run: give one of its evaluations, RUN/BENCHMARK.")


def trunk_table(folder: Path, points: int) -> Table:
    """How the training paths that began at a task ended: all, and `points` parts in the order of training. Only graded
    paths count. Raises DataError for a run with fewer paths than parts."""
    _check_finished(folder, "run")
    paths = load_paths(folder)
    paths = paths[paths["parent"].isna() & paths["reward"].notna()] if len(paths) else paths
    count = len(paths)
    if not count:
        raise DataError(f"{folder} has no graded path that began at a task: nothing was trained.")
    if not 1 <= points <= count:
        raise DataError(f"--points is {points} and there are {count} graded first paths: use 1 to {count}.")
    frame = episodes(paths)
    ends = [round(count * place / points) for place in range(points + 1)]
    parts = {f"{place + 1}/{points}": frame.iloc[ends[place] : ends[place + 1]] for place in range(points)}
    columns = {"All": frame, **parts}
    rows = [("Paths", *(number(len(column), 0) for column in columns.values())), *_rows("trunks", *columns.values())]
    caption = f"How the first paths of {folder.name} ended and what they cost, in all and over training."
    return of_rows("audit_trunks", ("", *columns), rows, caption)


def tool_table(folder: Path, first: int) -> Table:
    """The tool calls in sample 0 of each of the first questions; `first` is their number. Raises DataError for an
    evaluation with fewer questions, and for one made before evaluations kept an audit."""
    _check_finished(folder, "evaluation")
    samples = load_samples(folder)
    samples = samples[samples["sample"] == 0]
    if not 1 <= first <= len(samples):
        raise DataError(
            f"{folder} has {counted(len(samples), 'question')} and --first is {first}: use 1 to {len(samples)}."
        )
    frame = episodes(samples.iloc[:first])
    with_calls = frame[frame["attempted"] > 0]
    if with_calls["programs"].isna().any():
        raise DataError(f"{folder} was made before evaluations kept an audit: evaluate again.")
    audited = frame.assign(success=frame["success"].fillna(0.0))  # an ungradable answer counts as wrong
    answer_first = with_calls["answer_first"].sum() if "answer_first" in with_calls else 0
    shares = {
        "Python programs that parse": (with_calls["valid_programs"].sum(), with_calls["programs"].sum()),
        "Calls executed well": (frame["ok"].sum(), frame["attempted"].sum()),
        "Right, of those with a call": (with_calls["success"].sum(), with_calls["success"].count()),
        "Answer written before the first call": (answer_first, len(with_calls)),
    }
    rows = [
        *_rows("tools", audited),
        *((title, f"{count:,.0f}/{total:,.0f}") for title, (count, total) in shares.items()),
        *_rows("tools_repeated", audited),
    ]
    caption = (
        f"Tool calls in the first {counted(len(frame), 'question')} of {folder.parent.name}/{folder.name}, one each."
    )
    return of_rows("audit_tools", ("Audit", "Result"), rows, caption)


def airline_table(folder: Path, tasks: Path) -> Table:
    """The held-out episodes after training, compared with an agent that does nothing. Raises DataError for a run
    without such episodes, and for a run evaluated on other tasks."""
    _check_finished(folder, "run")
    answers, criteria = load_run(folder).answers, read_criteria(tasks / "tasks.json")
    answers = answers[(answers["when"] == "after") & (answers["mode"] == "sampled") & answers["reward"].notna()]
    if answers.empty:
        raise DataError(f"{folder} has no held-out episode of the airline.")
    frame = episodes(answers)
    names = frame["unit"].str.rpartition("/")[2]
    if len(unknown := frame.loc[~names.isin(list(criteria)), "unit"]):
        raise DataError(f"{unknown.iloc[0]} of {folder} is not a task of {tasks}: give the tasks of its evaluation.")
    no_op_scores = names.map(lambda name: float(criteria[name].no_op_scores))
    needs_write = names.map(lambda name: bool(criteria[name].needs_write))
    rows = [
        *_rows("airline", frame),
        ("Pass@1 of doing nothing, %", number(float(no_op_scores.groupby(names).first().mean()), 2, 100)),
        *_rows("airline_writes", frame[needs_write]),
        (
            "Successes on tasks where doing nothing scores, %",
            number(float(no_op_scores[frame["success"] == 1].mean()), 2, 100),
        ),
    ]
    return of_rows("audit_airline", ("Held-out", "Result"), rows, f"The held-out airline episodes of {folder.name}.")


# each audit: its function, and the name and settings of its option
AUDITS: Mapping[str, tuple[Callable[[Path, Any], Table], str, Mapping[str, Any]]] = {
    "tools": (tool_table, "--first", {"type": whole_number(0), "default": 100, "metavar": "N", "help": FIRST}),
    "trunks": (trunk_table, "--points", {"type": whole_number(1), "default": 5, "metavar": "N", "help": POINTS}),
    "airline": (airline_table, "--tasks", {"type": Path, "required": True, "metavar": "FOLDER", "help": TASKS}),
}


@command
def main(arguments: list[str] | None = None) -> int:
    parser = Parser(__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    for kind, (_, option, settings) in AUDITS.items():
        command = kinds.add_parser(kind, description=__doc__)
        # the checks of a run read the names of its parent folders, which a relative path may lack
        command.add_argument("folder", type=lambda folder: Path(folder).absolute(), metavar="RUN", help=FOLDER)
        command.add_argument("--format", choices=sorted(FORMATS), default="md", help="default: %(default)s, Markdown")
        command.add_argument(option, dest="option", **settings)
    options = parser.parse_args(arguments)
    print(FORMATS[options.format](AUDITS[options.kind][0](options.folder, options.option)), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
