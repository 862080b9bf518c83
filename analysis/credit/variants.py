"""RTPO's variants, each beside RTPO and GRPO with exact contexts, from the part `variants` of a study."""

from collections.abc import Sequence

from analysis.looks import title_of
from analysis.study.findings import Site, over_tasks
from analysis.study.records import StudyRecords
from analysis.study.tables import CONTROL, shown
from analysis.tables import INTERVALS, NO_VALUE, Table, percent

PART = "variants"
BASE = "rtpo"


def told(records: StudyRecords) -> str:
    """A sentence a variant, and the table."""
    labels = list(dict.fromkeys(place.configuration.label for place in records.planned[PART]))
    of = [Site(records, task) for task in dict.fromkeys(place.task for place in records.planned[PART])]
    return f"{sentences(of, labels)}\n{shown(_table(of, [BASE, *labels]))}"


def sentences(of: Sequence[Site], labels: Sequence[str]) -> str:
    """One for each of these configurations: whether it ends above RTPO, and above exact GRPO."""
    return "".join(
        f"- {title_of(label)}, above RTPO: **{over_tasks(of, label, BASE)}**; above GRPO with exact contexts: "
        f"**{over_tasks(of, label, CONTROL)}**.\n"
        for label in labels
    )


def _table(of: list[Site], labels: list[str]) -> Table:
    header = ("Task", "Configuration", "Runs", "Success", "Less RTPO", "Less exact GRPO", "Ties, fewer than RTPO's")
    rows = [_row(site, label) for site in of for label in labels]
    caption = (
        "RTPO and what may keep its groups from being ties, all at RTPO's rate: held-out success after training at the "
        "paper's decoding, in percent, and differences in points, paired by warm start, seed and question, of ties by "
        "warm start and seed. Ties: the share of groups whose advantages are all 0; larger groups tie less by their "
        f"size alone. Brackets: 95 % intervals over runs and questions, of ties over runs alone. {INTERVALS} Toy "
        "scale, not the paper's results."
    )
    return Table("credit_variants", header, tuple(rows), caption, (), labels=2)


def _row(site: Site, label: str) -> tuple[str, ...]:
    group, planned = site.group(label), len(site.records.places(site.task, label))
    return (
        site.title,
        title_of(label),
        f"{len(group.runs) if group else 0} of {planned}",
        percent(site.success(label)) if group else site.absence(label),
        *(NO_VALUE if label == other else site.compared(label, other) for other in (BASE, CONTROL)),
        NO_VALUE if label == BASE else site.compared(label, BASE, "ties"),
    )
