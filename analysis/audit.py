"""The supplement's audits over any run: how trunks end, what they cost, which tools they call
(docs/run/runs.md).

    python analysis/audit.py tools RUN/BENCHMARK --first 100   tool calls of an evaluation
    python analysis/audit.py trunks RUN --points 5             how first paths ended, what they cost
    python analysis/audit.py airline RUN --tasks FOLDER        held-out airline episodes

RUN is a finished run's folder. First paths are those that began at a task: RTPO's trunks, other methods' chains. They
are taken in the order of training and split into --points equal parts. --format gives Markdown, CSV or LaTeX.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from rtpo.run.command import Parser, command, whole

from analysis.evaluation import Sample, graded, graded_first_paths, held_out, load_evaluation, part
from analysis.paper.quantities import EARLY_TURNS, ratio
from analysis.records import Run, load_run, read_lines
from analysis.tables import FORMATS, Table, number
from rtpo.envs.airline.tasks import read_wanted
from rtpo.errors import DataError
from rtpo.run import archives

TRUNKS: tuple[tuple[str, str, int | None], ...] = (
    ("Success, %", "success", None),
    ("Ended normally and failed, %", "ended_failed", None),
    ("No terminal signal, %", "no_signal", None),
    *((f"Failed within {'turn 1' if k == 1 else f'{k} turns'}, %", f"failed_{k}", None) for k in EARLY_TURNS),
    ("Length on average, turns", "turns", 2),
    ("Turns of a success on average", "success_turns", 2),
    ("Turns of a failure on average", "failed_turns", 2),
    ("Calls a path", "calls_each", 2),
    ("Calls executed well, %", "execution", None),
    ("Tokens a path", "tokens_each", 1),
)
AIRLINE: tuple[tuple[str, str, int | None], ...] = (
    ("Pass@1, %", "pass_at_1", None),
    ("Pass@4, %", "pass_at_4", None),
    ("Pass^4, %", "pass_all_4", None),
    ("Normal termination, %", "ended", None),
    ("Generation truncation, %", "cut", None),
    ("Response tokens on average", "tokens_each", 1),
    ("Execution success, %", "execution", None),
    ("Response tokens a success", "tokens_per_success", 1),
    ("Writes attempted an episode", "writes_each", 2),
)
"""title, quantity, and digits of a mean; a share is in percent"""


def _value(samples: Sequence[Sample], quantity: str, digits: int | None) -> str:
    found = ratio(quantity, samples)
    return _percent(found) if digits is None else number(found, digits)


def _run(folder: Path) -> Run:
    """Raises DataError as `load_run` does, and for a run that is not finished."""
    _check_finished(folder, "run")
    return load_run(folder)


def _check_finished(folder: Path, what: str) -> None:
    if not archives.exists(folder / "config.yaml"):
        raise DataError(archives.no_run(folder))
    if not archives.exists(folder / "manifest.json"):
        raise DataError(f"{folder} has no manifest.json: give the folder of a finished {what}.")
    if what == "run" and archives.exists(folder / "samples.jsonl"):
        raise DataError(f"{folder} is an evaluation: give its run, {folder.parent}.")
    if what == "evaluation" and archives.exists(folder / "steps.jsonl"):
        raise DataError(f"{folder} is a run: give one of its evaluations, RUN/BENCHMARK.")


def trunk_table(folder: Path, points: int) -> Table:
    """Raises DataError for more parts than paths."""
    found = graded_first_paths(_run(folder))
    if not 1 <= points <= len(found):
        raise DataError(f"--points is {points} and there are {len(found)} graded first paths: use 1 to {len(found)}.")
    columns = {"All": found} | {f"{place}/{points}": part(found, place, points) for place in range(1, points + 1)}
    rows = [
        ("Paths", *(number(len(column), 0) for column in columns.values())),
        *((title, *(_value(one, quantity, digits) for one in columns.values())) for title, quantity, digits in TRUNKS),
    ]
    caption = f"How the first paths of {folder.name} ended and what they cost, in all and over training."
    return _table("trunks", ("", *columns), rows, caption)


def tool_table(folder: Path, first: int) -> Table:
    """Of the first sample of each of the `first` questions. Raises DataError for an evaluation of fewer, and for one
    whose version kept no audit."""
    samples = _first_samples(folder)
    if not 1 <= first <= len(samples):
        raise DataError(f"{folder} has {len(samples)} questions and --first is {first}: use 1 to {len(samples)}.")
    samples = samples[:first]
    using = [one for one in samples if one.attempted]
    audits = [one.audit for one in using if one.audit is not None]
    if len(audits) < len(using):
        raise DataError(f"{folder} was made before evaluations kept an audit: evaluate again.")
    attempted, there = [one.attempted for one in samples], graded(using)
    programs, valid = (sum(audit[key] for audit in audits) for key in ("programs", "valid_programs"))
    rows = [
        ("Trajectories audited", number(len(samples), 0)),
        ("With a call, %", _percent(len(using) / len(samples))),
        ("Calls a trajectory on average", number(sum(attempted) / len(samples), 2)),
        ("Without a call", number(attempted.count(0), 0)),
        ("With one call", number(attempted.count(1), 0)),
        ("With two or more calls", number(sum(count > 1 for count in attempted), 0)),
        ("Python programs that parse", _of(valid, programs)),
        ("Calls executed well", _of(sum(one.ok for one in samples), sum(attempted))),
        ("Right, of those with a call", _of(sum(bool(one.success) for one in there), len(there))),
        ("Answer written before the first call", _of(sum(audit["answer_first"] for audit in audits), len(using))),
        ("With a repeated call", number(sum(audit["repeated"] > 0 for audit in audits), 0)),
    ]
    caption = f"Tool calls in the first {len(samples)} questions of {folder.parent.name}/{folder.name}, one each."
    return _table("tools", ("Audit", "Result"), rows, caption)


def _first_samples(folder: Path) -> list[Sample]:
    """The first of each question, in the order of the panel."""
    _check_finished(folder, "evaluation")
    evaluation = load_evaluation(folder)
    lines = read_lines(folder / "samples.jsonl", evaluation.manifest["files"], ("position", "sample"))
    firsts = [
        (int(line["position"]), one) for line, one in zip(lines, evaluation.samples, strict=True) if line["sample"] == 0
    ]
    return [one for _, one in sorted(firsts, key=lambda found: found[0])]


def airline_table(folder: Path, tasks: Path) -> Table:
    """The held-out episodes after training, beside an agent that does nothing."""
    found = graded(held_out(_run(folder)))
    wanted = read_wanted(tasks / "tasks.json")
    ids = {one.unit: one.unit.rpartition("/")[2] for one in found}
    unknown = [task for task, one in ids.items() if one not in wanted]
    if not found or unknown:
        raise DataError(
            f"{folder} has no held-out episode of the airline." * (not found)
            or f"{unknown[0]} of {folder} is no task of {tasks}: give the folder of the tasks that it was evaluated on."
        )
    no_op = {task for task, one in ids.items() if wanted[one].no_op_scores}
    writing = [one for one in found if wanted[ids[one.unit]].needs_write]
    wins = [one for one in found if one.success]
    rows = [
        *((title, _value(found, quantity, digits)) for title, quantity, digits in AIRLINE),
        ("Attempted calls", number(sum(one.attempted for one in found), 0)),
        ("Executed calls", number(sum(one.ok for one in found), 0)),
        ("Calls with an error", number(sum(one.attempted - one.ok for one in found), 0)),
        ("Pass@1 of doing nothing, %", _percent(len(no_op) / len(ids))),
        ("Pass@1 on tasks that need a write, %", _value(writing, "success", None)),
        (
            "Successes on tasks where doing nothing scores, %",
            _percent(sum(one.unit in no_op for one in wins) / len(wins) if wins else float("nan")),
        ),
    ]
    return _table("airline", ("Held-out", "Result"), rows, f"The held-out airline episodes of {folder.name}.")


def _table(name: str, header: tuple[str, ...], rows: Sequence[tuple[str, ...]], caption: str) -> Table:
    return Table(f"audit_{name}", header, tuple(rows), caption, ())


def _percent(share: float) -> str:
    return number(share, 2, scale=100)


def _of(count: int, total: int) -> str:
    return f"{count:,}/{total:,}"


@command
def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = Parser(__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    for kind in ("tools", "trunks", "airline"):
        command = kinds.add_parser(kind, description=__doc__)
        # a record knows the folders it lies in by name, which a relative path may lack
        command.add_argument("folder", type=lambda given: Path(given).absolute())
        command.add_argument("--format", choices=sorted(FORMATS), default="md")
        match kind:
            case "tools":
                command.add_argument("--first", type=whole(0), default=100)
            case "trunks":
                command.add_argument("--points", type=whole(1), default=5)
            case "airline":
                command.add_argument("--tasks", type=Path, required=True)
    given = parser.parse_args(arguments)
    match given.kind:
        case "tools":
            table = tool_table(given.folder, given.first)
        case "trunks":
            table = trunk_table(given.folder, given.points)
        case _:
            table = airline_table(given.folder, given.tasks)
    print(FORMATS[given.format](table), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
