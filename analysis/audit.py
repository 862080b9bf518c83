"""The supplement's audits over any run: how trunks end, what they cost, which tools they call.

    python analysis/audit.py tools RUN/BENCHMARK [--first 100]   tool calls of an evaluation (tab:supp_gsm8k_audit)
    python analysis/audit.py trunks RUN                          how its first paths ended (tab:supp_trunk_distribution)
    python analysis/audit.py failures RUN [--points 5]           the same over training (tab:supp_failure_dynamics)
    python analysis/audit.py budget RUN [--points 5]             calls and tokens over training (tab:supp_budget)
    python analysis/audit.py airline RUN --tasks FOLDER          held-out airline episodes, and what doing nothing earns

RUN is a finished run's folder. First paths are those that began at a task: RTPO's trunks, other methods' chains. They
are taken in the order of training and split into --points equal parts. --format gives Markdown, CSV or LaTeX.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rtpo.run.command import Parser, command, whole

from analysis.evaluation import Sample, graded, graded_first_paths, held_out, load_evaluation, part
from analysis.paper.quantities import EARLY_TURNS, ratio
from analysis.records import Run, load_run, read_lines
from analysis.tables import FORMATS, Table, number
from rtpo.envs.airline.tasks import read_wanted
from rtpo.errors import DataError
from rtpo.run import archives

FAILED = tuple((f"Failed within {'turn 1' if k == 1 else f'{k} turns'}, %", f"failed_{k}") for k in EARLY_TURNS)
"""title and quantity"""


def _parts(folder: Path, points: int) -> list[Sequence[Sample]]:
    """A run's first paths in `points` parts as equal as can be. Raises DataError for more parts than paths."""
    found = graded_first_paths(_run(folder))
    if not 1 <= points <= len(found):
        raise DataError(f"--points is {points} and there are {len(found)} graded first paths: use 1 to {len(found)}.")
    return [part(found, place, points) for place in range(1, points + 1)]


def _value(samples: Sequence[Sample], quantity: str, digits: int | None) -> str:
    """A share in percent; a mean with so many digits."""
    found = ratio(quantity, samples)
    return _percent(found) if digits is None else number(found, digits)


def _run(folder: Path) -> Run:
    """Raises DataError as `load_run` does, and for a run that is not finished."""
    _check_finished(folder, "run")
    return load_run(folder)


def _check_finished(folder: Path, what: str) -> None:
    if not archives.exists(folder / "manifest.json"):
        raise DataError(f"{folder} has no manifest.json: give the folder of a finished {what}.")
    if what == "run" and archives.exists(folder / "samples.jsonl"):
        raise DataError(f"{folder} is an evaluation: give its run, {folder.parent}.")
    if what == "evaluation" and archives.exists(folder / "steps.jsonl"):
        raise DataError(f"{folder} is a run: give one of its evaluations, RUN/BENCHMARK.")


def trunk_table(folder: Path) -> Table:
    found = graded_first_paths(_run(folder))
    shown = (
        ("Task success, %", "success", None),
        *((title, quantity, None) for title, quantity in FAILED),
        ("No terminal signal, %", "no_signal", None),
        ("Length on average, turns", "turns", 2),
    )
    rows = [
        ("Paths", number(len(found), 0)),
        *((title, _value(found, quantity, digits)) for title, quantity, digits in shown),
    ]
    return _table("trunks", ("Of all first paths", "Result"), rows, f"How the first paths of {folder.name} ended.")


def failure_table(folder: Path, points: int) -> Table:
    columns = _parts(folder, points)
    shown = (
        ("Success, %", "success", None),
        ("Ended normally and failed, %", "ended_failed", None),
        ("No terminal signal, %", "no_signal", None),
        *((title, quantity, None) for title, quantity in FAILED),
        ("Turns of a success on average", "success_turns", 2),
        ("Turns of a failure on average", "failed_turns", 2),
    )
    rows = [
        ("Paths", *(number(len(column), 0) for column in columns)),
        *((title, *(_value(column, quantity, digits) for column in columns)) for title, quantity, digits in shown),
    ]
    caption = f"How the first paths of {folder.name} ended, over training."
    return _table("failures", ("", *_places(points)), rows, caption)


def budget_table(folder: Path, points: int) -> Table:
    shown = (("success", None), ("calls_each", 2), ("execution", None), ("tokens_each", 1))
    rows = [
        (place, *(_value(found, quantity, digits) for quantity, digits in shown))
        for place, found in zip(_places(points), _parts(folder, points), strict=True)
    ]
    header = ("Training", "Success, %", "Calls a path", "Calls executed well, %", "Tokens a path")
    return _table("budget", header, rows, f"Success, tool use and tokens of the first paths of {folder.name}.")


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
    attempted, executed = (sum(getattr(one, key) for one in found) for key in ("attempted", "ok"))
    rows = [
        ("Pass@1, %", _value(found, "pass_at_1", None)),
        ("Pass@1 of doing nothing, %", _percent(len(no_op) / len(ids))),
        ("Pass@1 on tasks that need a write, %", _value(writing, "success", None)),
        ("Pass@4, %", _value(found, "pass_at_4", None)),
        ("Pass^4, %", _value(found, "pass_all_4", None)),
        ("Normal termination, %", _value(found, "ended", None)),
        ("Generation truncation, %", _value(found, "cut", None)),
        ("Response tokens on average", _value(found, "tokens_each", 1)),
        ("Attempted calls", number(attempted, 0)),
        ("Executed calls", number(executed, 0)),
        ("Calls with an error", number(attempted - executed, 0)),
        ("Execution success, %", _value(found, "execution", None)),
        ("Response tokens a success", _value(found, "tokens_per_success", 1)),
        ("Writes attempted an episode", _value(found, "writes_each", 2)),
        (
            "Successes on tasks where doing nothing scores, %",
            _percent(sum(one.unit in no_op for one in wins) / len(wins) if wins else float("nan")),
        ),
    ]
    return _table("airline", ("Held-out", "Result"), rows, f"The held-out airline episodes of {folder.name}.")


def _table(name: str, header: tuple[str, ...], rows: Sequence[tuple[str, ...]], caption: str) -> Table:
    return Table(f"audit_{name}", header, tuple(rows), caption, ())


def _places(points: int) -> tuple[str, ...]:
    return tuple(f"{place}/{points}" for place in range(1, points + 1))


def _percent(share: float) -> str:
    return number(share, 2, scale=100)


def _of(count: int, total: int) -> str:
    return f"{count:,}/{total:,}"


@command
def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = Parser(__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    audits: dict[str, Callable[[argparse.Namespace], Table]] = {
        "tools": lambda given: tool_table(given.folder, given.first),
        "trunks": lambda given: trunk_table(given.folder),
        "failures": lambda given: failure_table(given.folder, given.points),
        "budget": lambda given: budget_table(given.folder, given.points),
        "airline": lambda given: airline_table(given.folder, given.tasks),
    }
    for kind in audits:
        command = kinds.add_parser(kind)
        # a record knows the folders it lies in by name, which a relative path may lack
        command.add_argument("folder", type=lambda given: Path(given).absolute())
        command.add_argument("--format", choices=sorted(FORMATS), default="md")
        if kind == "tools":
            command.add_argument("--first", type=whole(0), default=100)
        if kind in ("failures", "budget"):
            command.add_argument("--points", type=whole(1), default=5)
        if kind == "airline":
            command.add_argument("--tasks", type=Path, required=True)
    given = parser.parse_args(arguments)
    print(FORMATS[given.format](audits[given.kind](given)), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
