"""Tables from run records.

    python analysis/make_tables.py                          the paper's tables beside ours; docs/results/tables.md
    python analysis/make_tables.py --table supp_budget      one of them; supp_budget_toy: that of the profile toy
    python analysis/make_tables.py --experiment quickstart  the runs of one experiment, one row a configuration

What the cells of the paper's tables are made of stands in analysis/paper/reproduction.yaml.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from rtpo.run.command import Parser, command, folder

import numpy as np

from analysis import measures
from analysis.intervals import Interval
from analysis.labels import styles
from analysis.paper import table_page
from analysis.records import Run, RunGroup, complete_groups, incomplete_runs
from analysis.tables import (
    FORMATS,
    INTERVALS,
    NOT_RUN,
    Column,
    Specification,
    Table,
    build,
    narrowest,
    number,
    percent,
)

RESULTS, PAGE = Path("results"), Path("docs", "results", "tables.md")


def _title(group: RunGroup) -> str:
    return styles([group.label])[group.label].title


def _contexts(group: RunGroup) -> str:
    manifest = group.first.manifest
    return f"{manifest['rollout_context']} / {manifest['training_context']}"


def _mean(value: Callable[[Run], float], digits: int, scale: float = 1) -> Callable[[RunGroup], str]:
    return lambda group: number(measures.mean_over_runs(group, value), digits, scale)


def _rollouts(group: RunGroup) -> str:
    charged = measures.mean_over_runs(group, lambda run: run.ledger["rollouts"])
    return f"{number(charged, 0)} / {number(group.first.ledger['budget']['rollouts'], 0)}"


def _success(when: str, group: RunGroup) -> str:
    evaluation = measures.held_out(group, when, "sampled")
    return NOT_RUN if evaluation is None else percent(measures.success(evaluation))


def _gain(group: RunGroup) -> str:
    before, after = (measures.held_out(group, when, "sampled") for when in ("before", "after"))
    return NOT_RUN if before is None or after is None else percent(measures.difference(before, after), sign=True)


def _questions(group: RunGroup) -> str:
    evaluation = measures.held_out(group, "after", "sampled")
    return NOT_RUN if evaluation is None else f"{evaluation.success.shape[1]:,} × {evaluation.samples}"


def _greedy(group: RunGroup) -> str:
    evaluations = [measures.held_out(group, when, "greedy") for when in ("before", "after")]
    if all(evaluation is None for evaluation in evaluations):
        return NOT_RUN
    return " → ".join(
        NOT_RUN if evaluation is None else number(measures.mean_success(evaluation), 1, scale=100)
        for evaluation in evaluations
    )


def _kl(group: RunGroup) -> float:
    return measures.mean_over_runs(group, lambda run: measures.mean_over_steps(run, "kl_k1"))


def _runs_caption(groups: Sequence[RunGroup]) -> list[str]:
    experiment = groups[0].first.manifest["experiment"]
    return [
        f"Runs of the experiment {experiment}, by configuration.",
        "Success is the share of held-out samples with reward 1, in percent: sampled at temperature 1, or greedy.",
        *interval_sentences(groups),
        *_without_interval(groups),
        "KL (k1, nats a token, rollout to training) is measured before each update and averaged over steps; ratio "
        "(training over rollout probability, a token) is exp(−KL) of that average; zero adv. is the share of groups "
        "whose advantages are all 0, in percent (groups differ in size between algorithms); seconds are wall-clock, "
        "evaluation apart. Where there are several seeds, these and the counts are means over them, and the ratio is "
        "exp(−KL) of the mean KL.",
        *_ungraded(groups),
        *toy_sentences(groups),
    ]


def interval_sentences(groups: Sequence[RunGroup]) -> list[str]:
    """What the intervals of these configurations cover."""
    counts = sorted({len(group.runs) for group in groups})
    kind = "Brackets: 95 % intervals (Wilson's where all answers are alike)"
    if counts == [1]:
        return [f"{kind} over questions alone; 1 seed, so they say nothing about other seeds."]
    seeds = f"{' or '.join(str(count) for count in counts)} seeds"
    over = "questions and, where there is more than 1 seed, seeds" if counts[0] == 1 else "questions and seeds"
    return [f"{kind} over {over} ({seeds}). {INTERVALS}"]


def _without_interval(groups: Sequence[RunGroup]) -> list[str]:
    """What a value without brackets means, where there is one."""
    values: list[Interval | None] = []
    for group in groups:
        before, after = (measures.held_out(group, when, "sampled") for when in ("before", "after"))
        values += [measures.success(evaluation) for evaluation in (before, after) if evaluation is not None]
        if before is not None and after is not None:
            values.append(measures.difference(before, after))
    if all(value is None or value.low == value.low for value in values):
        return []
    return ["No brackets: the value, or the change, is the same for every question, which gives no interval."]


def toy_sentences(groups: Sequence[RunGroup]) -> list[str]:
    """What must be said of toy runs."""
    if all(group.first.profile != "toy" for group in groups):
        return []
    return ["Profile toy: toy-scale results, not the paper's."]


def _ungraded(groups: Sequence[RunGroup]) -> list[str]:
    evaluations = [
        measures.held_out(group, when, mode)
        for group in groups
        for when in ("before", "after")
        for mode in ("sampled", "greedy")
    ]
    count = sum(evaluation.ungraded for evaluation in evaluations if evaluation is not None)
    return [f"{count:,} samples could not be graded and are left out."] if count else []


RUNS = Specification(
    name="runs",
    columns=(
        Column("Configuration", _title),
        Column("Algorithm", lambda group: str(group.first.manifest["algorithm"])),
        Column("Context, rollout / training", _contexts),
        Column("Profile", lambda group: group.first.profile),
        Column("Seeds", lambda group: str(len(group.runs))),
        Column("Rollouts / budget", _rollouts),
        Column("Optimizer steps", _mean(lambda run: run.ledger["optimizer_steps"], 0)),
        Column("Tokens, k", _mean(lambda run: run.ledger["generated_tokens"], 1, scale=1e-3)),
        Column("Questions × samples", _questions),
        Column("Sampled, before", partial(_success, "before")),
        Column("Sampled, after", partial(_success, "after")),
        Column("Gain", _gain),
        Column("Greedy", _greedy),
        Column("Ratio", lambda group: number(float(np.exp(-_kl(group))), 3)),
        Column("KL", lambda group: number(_kl(group), 4)),
        Column("Zero adv.", _mean(lambda run: measures.mean_over_steps(run, "zero_advantage"), 1, scale=100)),
        Column("Seconds", _mean(measures.training_seconds, 0)),
    ),
    caption=_runs_caption,
)

SPECIFICATIONS = (RUNS,)


def make_tables(results: Path, experiment: str) -> list[Table]:
    """Every table of an experiment. Raises DataError for records that are missing, incomplete or changed."""
    groups = complete_groups(results, experiment)
    excluded = [folder.name for folder in incomplete_runs(results, experiment)]
    return [build(specification, groups, experiment, excluded) for specification in SPECIFICATIONS]


@command
def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = Parser(__doc__)
    parser.add_argument("--results", type=folder, default=str(RESULTS), help="folder of the run records")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--experiment", help="folder under it, for the table of its runs")
    chosen.add_argument("--table", help="one table of the paper, by its name")
    parser.add_argument("--output", type=Path, help="folder of the tables (default: tables/ under --results)")
    parser.add_argument(
        "--page",
        type=Path,
        help="overview of the paper's tables (default: docs/results/tables.md; for other folders beside them)",
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the files would change")
    given = parser.parse_args(arguments)
    output = given.output or given.results / "tables"
    page = given.page or (PAGE if output == RESULTS / "tables" == given.results / "tables" else output / "paper.md")
    if given.experiment is None:
        return _paper(given.results, output / "paper", page, given.table, given.check)
    tables = make_tables(given.results, given.experiment)
    if given.check:
        return check_tables(tables, output, f"python analysis/make_tables.py --experiment {given.experiment}")
    write_tables(tables, output)
    return 0


def _paper(results: Path, output: Path, page: Path, name: str | None, check: bool) -> int:
    if name is not None:
        table = table_page.one_table(results, name)
        if check:
            return check_tables([table], output, f"python analysis/make_tables.py --table {name}")
        write_tables([table], output)
        return 0
    made = table_page.all_tables(results)
    files = _files(made.tables, output) | {page: table_page.text(made, output, page)}
    extra = [path for path in sorted(output.glob("*.*")) if path not in files and path.suffix[1:] in FORMATS]
    if check:
        return _check(files, extra, "python analysis/make_tables.py")
    output.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        path.write_bytes(text.encode())
    for path in extra:
        path.unlink()
        print(f"{path} is deleted: no record gives it any more")
    print(table_page.overview(made, output, page))
    print(f"{len(files)} files: {output} and {page}")
    return 0


def write_tables(tables: Sequence[Table], output: Path) -> None:
    """Write tables in every format, and print them and their files."""
    output.mkdir(parents=True, exist_ok=True)
    files = _files(tables, output)
    for path, text in files.items():
        path.write_bytes(text.encode())
    for table in tables:
        print(narrowest(table))
    for path in files:
        print(path)


def check_tables(tables: Sequence[Table], output: Path, command: str) -> int:
    """The exit status: 1 where a file is not what its table gives, named with the command that writes it."""
    return _check(_files(tables, output), [], command)


def _check(files: Mapping[Path, str], extra: Sequence[Path], command: str) -> int:
    stale = [path for path, text in files.items() if not path.exists() or path.read_bytes() != text.encode()]
    for path in [*stale, *extra]:
        print(f"{path} is not what the records give: {command}", file=sys.stderr)
    return 1 if stale or extra else 0


def _files(tables: Sequence[Table], output: Path) -> dict[Path, str]:
    return {output / f"{table.name}.{suffix}": render(table) for table in tables for suffix, render in FORMATS.items()}


if __name__ == "__main__":
    sys.exit(main())
