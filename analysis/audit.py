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
import gzip
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.tables import FORMATS, NO_VALUE, Table, number
from rtpo.airline.statistics import TOO_MANY_ERRORS, Episode, held_out, tool_use, trunks, writing
from rtpo.airline.tasks import WRITES, read_wanted
from rtpo.errors import DataError, RTPOError
from rtpo.types import Termination

Line = Mapping[str, Any]


def episodes(lines: Iterable[Line]) -> list[Episode]:
    """The graded ones of `paths.jsonl` or of `evaluations.jsonl`. What could not be graded is no failure."""
    return [_episode(line) for line in lines if line["reward"] is not None]


def _episode(line: Line) -> Episode:
    calls: Mapping[str, Mapping[str, int]] = line["calls"]
    ran = sum(counts["ok"] for counts in calls.values())
    answered = line["termination"] == Termination.ANSWERED.value
    return Episode(
        task=str(line["task"]),
        success=line["reward"] == 1,
        turns=int(line["turns"]),
        ended=answered and line["detail"] != TOO_MANY_ERRORS,
        cut=line["cut_turns"] > 0 or line["termination"] == Termination.CONTEXT_LIMIT.value,
        tokens=int(line["generated_tokens"]),
        executed=ran,
        failed=sum(counts["attempted"] for counts in calls.values()) - ran,
        writes=sum(counts["attempted"] for tool, counts in calls.items() if tool in WRITES),
    )


def first_paths(run: Path) -> list[Episode]:
    """Raises DataError for a run without them."""
    found = episodes(line for line in lines_of(run, "paths.jsonl") if line["parent"] is None)
    if not found:
        raise DataError(f"{run} has no graded path that began at a task: nothing was trained.")
    return found


def lines_of(run: Path, file: str) -> list[Line]:
    """Raises DataError for a run that is not finished, and for one whose version kept no such lines."""
    manifest = run / "manifest.json"
    if not manifest.exists():
        raise DataError(f"{run} has no manifest.json: give the folder of a finished run.")
    if file not in json.loads(manifest.read_text())["files"]:
        raise DataError(f"{run} has no {file}: it was made before runs kept it. Run it again.")
    return read_lines(run / file)


def read_lines(path: Path) -> list[Line]:
    """The lines of a file, packed or not. Raises DataError naming the first damaged one and counting all."""
    packed = path.with_name(path.name + ".gz")
    try:
        data = path.read_bytes() if path.exists() else gzip.decompress(packed.read_bytes())
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}): restore it, or run again.") from error
    lines: list[Line] = []
    damaged = []
    for place, text in enumerate(data.splitlines(), start=1):
        try:
            lines.append(json.loads(text))
        except ValueError:
            damaged.append(place)
    if damaged:
        raise DataError(f"{path} line {damaged[0]} is not JSON ({len(damaged)} damaged in all): restore it.")
    return lines


def parts(found: Sequence[Episode], points: int) -> list[Sequence[Episode]]:
    """`points` parts as equal as can be, in order. Raises DataError for more parts than episodes."""
    if not 1 <= points <= len(found):
        raise DataError(f"--points is {points} and there are {len(found)} paths: use 1 to {len(found)}.")
    ends = [round(len(found) * place / points) for place in range(points + 1)]
    return [found[start:end] for start, end in itertools.pairwise(ends)]


def trunk_table(run: Path) -> Table:
    outcome = trunks(first_paths(run))
    rows = [
        ("Paths", number(outcome.episodes, 0)),
        ("Task success, %", _percent(outcome.success)),
        *((f"Failed within {_turns(k)}, %", _percent(share)) for k, share in outcome.failed_within.items()),
        ("No terminal signal, %", _percent(outcome.no_signal)),
        ("Length on average, turns", number(outcome.turns, 2)),
    ]
    return _table("trunks", ("Of all first paths", "Result"), rows, f"How the first paths of {run.name} ended.")


def failure_table(run: Path, points: int) -> Table:
    columns = [trunks(part) for part in parts(first_paths(run), points)]
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
    caption = f"How the first paths of {run.name} ended, over training."
    return _table("failures", ("", *_places(points)), [(title, *cells) for title, cells in rows], caption)


def budget_table(run: Path, points: int) -> Table:
    rows = []
    for place, part in zip(_places(points), parts(first_paths(run), points), strict=True):
        use = tool_use(part)
        rows.append(
            (
                place,
                _percent(sum(episode.success for episode in part) / len(part)),
                number(use.calls_per_episode, 2),
                _percent(use.execution),
                number(sum(episode.tokens for episode in part) / len(part), 1),
            )
        )
    header = ("Training", "Success, %", "Calls a path", "Calls executed well, %", "Tokens a path")
    return _table("budget", header, rows, f"Success, tool use and tokens of the first paths of {run.name}.")


def tool_table(evaluation: Path, first: int) -> Table:
    """Of the first sample of each of the `first` questions. Raises DataError for an evaluation of fewer, and for one
    whose version kept no audit."""
    lines = [line for line in read_lines(evaluation / "samples.jsonl") if line["sample"] == 0]
    lines = sorted(lines, key=lambda line: int(line["position"]))[:first]
    if len(lines) < first:
        raise DataError(f"{evaluation} has {len(lines)} questions and --first is {first}: use that or fewer.")
    if any("audit" not in line for line in lines):
        raise DataError(f"{evaluation} was made before evaluations kept an audit: evaluate again.")
    attempted = [sum(counts["attempted"] for counts in line["calls"].values()) for line in lines]
    using = [line for line, calls in zip(lines, attempted, strict=True) if calls]
    calls, ran = sum(attempted), sum(counts["ok"] for line in lines for counts in line["calls"].values())
    programs, valid = (sum(line["audit"][key] for line in using) for key in ("programs", "valid_programs"))
    rows = [
        ("Trajectories audited", number(len(lines), 0)),
        ("With a call, %", _percent(len(using) / len(lines))),
        ("Calls a trajectory on average", number(calls / len(lines), 2)),
        ("Without a call", number(attempted.count(0), 0)),
        ("With one call", number(attempted.count(1), 0)),
        ("With two or more calls", number(sum(count > 1 for count in attempted), 0)),
        ("Python programs that parse", _of(valid, programs)),
        ("Calls executed well", _of(ran, calls)),
        ("Right, of those with a call", _of(sum(line["reward"] == 1 for line in using), len(using))),
        ("Answer written before the first call", _of(sum(line["audit"]["answer_first"] for line in using), len(using))),
        ("With a repeated call", number(sum(line["audit"]["repeated"] > 0 for line in using), 0)),
    ]
    caption = f"Tool calls in the first {len(lines)} questions of {evaluation.parent.name}/{evaluation.name}, one each."
    return _table("tools", ("Audit", "Result"), rows, caption)


def airline_table(run: Path, tasks: Path) -> Table:
    """The held-out episodes after training, beside an agent that does nothing."""
    lines = [
        line for line in lines_of(run, "evaluations.jsonl") if (line["when"], line["mode"]) == ("after", "sampled")
    ]
    if lines and "calls" not in lines[0]:
        raise DataError(f"{run} was made before evaluations kept their calls by tool: run it again.")
    found, wanted = episodes(lines), read_wanted(tasks / "tasks.json")
    ids = {episode.task: episode.task.rpartition("/")[2] for episode in found}
    unknown = [task for task, one in ids.items() if one not in wanted]
    if not found or unknown:
        raise DataError(
            f"{run} has no held-out episode of the airline." * (not found)
            or f"{unknown[0]} of {run} is no task of {tasks}: give the folder of the tasks that it was evaluated on."
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
    return _table("airline", ("Held-out", "Result"), rows, f"The held-out airline episodes of {run.name}.")


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


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    audits: dict[str, Callable[[argparse.Namespace], Table]] = {
        "tools": lambda given: tool_table(given.folder, given.first),
        "trunks": lambda given: trunk_table(given.folder),
        "failures": lambda given: failure_table(given.folder, given.points),
        "budget": lambda given: budget_table(given.folder, given.points),
        "airline": lambda given: airline_table(given.folder, given.tasks),
    }
    for kind in audits:
        part = kinds.add_parser(kind)
        part.add_argument("folder", type=Path)
        part.add_argument("--format", choices=sorted(FORMATS), default="md")
        if kind == "tools":
            part.add_argument("--first", type=int, default=100)
        if kind in ("failures", "budget"):
            part.add_argument("--points", type=int, default=5)
        if kind == "airline":
            part.add_argument("--tasks", type=Path, required=True)
    given = parser.parse_args(arguments)
    try:
        print(FORMATS[given.format](audits[given.kind](given)), end="")
    except RTPOError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
