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

from analysis import evaluations
from analysis.evaluations import Sample, graded, load_evaluation
from analysis.paper.quantities import part
from analysis.records import Run, load_run, read_lines
from analysis.tables import FORMATS, NO_VALUE, Table, number
from rtpo.envs.airline.statistics import Episode, held_out, tool_use, trunks, writing
from rtpo.envs.airline.tasks import read_wanted
from rtpo.errors import DataError
from rtpo.run import archives

PATHS = "paths.jsonl"


def first_paths(run: Run) -> list[Sample]:
    """The graded ones: what could not be graded is no failure. Raises DataError for a run without them, and for one
    whose version kept none."""
    if PATHS not in run.manifest["files"]:
        raise DataError(f"{run.folder} has no {PATHS}: it was made before runs kept it. Run it again.")
    found = graded(evaluations.first_paths(run))
    if not found:
        raise DataError(f"{run.folder} has no graded path that began at a task: nothing was trained.")
    return found


def parts(found: Sequence[Sample], points: int) -> list[list[Episode]]:
    """`points` parts as equal as can be, in order. Raises DataError for more parts than paths."""
    if not 1 <= points <= len(found):
        raise DataError(f"--points is {points} and there are {len(found)} graded first paths: use 1 to {len(found)}.")
    return [[_episode(one) for one in part(found, place, points)] for place in range(1, points + 1)]


def _episode(one: Sample) -> Episode:
    """Of a graded sample."""
    return Episode(
        task=one.unit,
        success=bool(one.success),
        turns=one.turns,
        ended=one.ended,
        cut=one.cut,
        tokens=one.tokens,
        executed=one.ok,
        failed=one.attempted - one.ok,
        writes=one.writes,
    )


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
    outcome = trunks([_episode(one) for one in first_paths(_run(folder))])
    rows = [
        ("Paths", number(outcome.episodes, 0)),
        ("Task success, %", _percent(outcome.success)),
        *((f"Failed within {_turns(k)}, %", _percent(share)) for k, share in outcome.failed_within.items()),
        ("No terminal signal, %", _percent(outcome.no_signal)),
        ("Length on average, turns", number(outcome.turns, 2)),
    ]
    return _table("trunks", ("Of all first paths", "Result"), rows, f"How the first paths of {folder.name} ended.")


def failure_table(folder: Path, points: int) -> Table:
    columns = [trunks(episodes) for episodes in parts(first_paths(_run(folder)), points)]
    within = [
        (f"Failed within {_turns(k)}, %", [_percent(column.failed_within[k]) for column in columns])
        for k in columns[0].failed_within
    ]
    rows = [
        ("Paths", [number(column.episodes, 0) for column in columns]),
        ("Success, %", [_percent(column.success) for column in columns]),
        ("Ended normally and failed, %", [_percent(column.ended_failure) for column in columns]),
        ("No terminal signal, %", [_percent(column.no_signal) for column in columns]),
        *within,
        ("Turns of a success on average", [_number(column.success_turns, 2) for column in columns]),
        ("Turns of a failure on average", [_number(column.failure_turns, 2) for column in columns]),
    ]
    caption = f"How the first paths of {folder.name} ended, over training."
    return _table("failures", ("", *_places(points)), [(title, *cells) for title, cells in rows], caption)


def budget_table(folder: Path, points: int) -> Table:
    rows = []
    for place, episodes in zip(_places(points), parts(first_paths(_run(folder)), points), strict=True):
        use = tool_use(episodes)
        rows.append(
            (
                place,
                _percent(sum(episode.success for episode in episodes) / len(episodes)),
                number(use.calls_per_episode, 2),
                _percent(use.execution),
                number(sum(episode.tokens for episode in episodes) / len(episodes), 1),
            )
        )
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
    found = [_episode(one) for one in graded(evaluations.held_out(_run(folder)))]
    wanted = read_wanted(tasks / "tasks.json")
    ids = {episode.task: episode.task.rpartition("/")[2] for episode in found}
    unknown = [task for task, one in ids.items() if one not in wanted]
    if not found or unknown:
        raise DataError(
            f"{folder} has no held-out episode of the airline." * (not found)
            or f"{unknown[0]} of {folder} is no task of {tasks}: give the folder of the tasks that it was evaluated on."
        )
    needs_write = frozenset(task for task, one in ids.items() if wanted[one].needs_write)
    no_op = frozenset(task for task, one in ids.items() if wanted[one].no_op_scores)
    score, use, shown = held_out(found), tool_use(found), writing(found, needs_write, no_op)
    rows = [
        ("Pass@1, %", _percent(score.pass_at_1)),
        ("Pass@1 of doing nothing, %", _percent(shown.no_op)),
        ("Pass@1 on tasks that need a write, %", _percent(shown.write_required)),
        ("Pass@4, %", _percent(score.pass_at_k)),
        ("Pass^4, %", _percent(score.pass_hat_k)),
        ("Normal termination, %", _percent(score.ended)),
        ("Generation truncation, %", _percent(score.cut)),
        ("Response tokens on average", number(score.tokens, 1)),
        ("Attempted calls", number(use.attempted, 0)),
        ("Executed calls", number(use.executed, 0)),
        ("Calls with an error", number(use.failed, 0)),
        ("Execution success, %", _percent(use.execution)),
        ("Response tokens a success", _number(use.tokens_per_success, 1)),
        ("Writes attempted an episode", number(shown.writes_per_episode, 2)),
        ("Successes on tasks where doing nothing scores, %", _percent(shown.successes_by_no_op)),
    ]
    return _table("airline", ("Held-out", "Result"), rows, f"The held-out airline episodes of {folder.name}.")


def _table(name: str, header: tuple[str, ...], rows: Sequence[tuple[str, ...]], caption: str) -> Table:
    return Table(f"audit_{name}", header, tuple(rows), caption, ())


def _places(points: int) -> tuple[str, ...]:
    return tuple(f"{place}/{points}" for place in range(1, points + 1))


def _turns(k: int) -> str:
    return "turn 1" if k == 1 else f"{k} turns"


def _percent(share: float | None) -> str:
    return NO_VALUE if share is None else number(share, 2, scale=100)


def _number(value: float | None, digits: int) -> str:
    return NO_VALUE if value is None else number(value, digits)


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
