"""What stands beside the sentences: how far a task lets exact GRPO come, and where another decoding says otherwise."""

from collections.abc import Sequence
from itertools import chain

from analysis import measures
from analysis.looks import title_of
from analysis.study.findings import DECODING, Finding, Site
from analysis.study.tables import DECODINGS
from analysis.tables import NO_VALUE, Table, number, percent
from analysis.when.ladder import AFFORDABLE, AT_TOKENS, RUNGS

OTHERS = tuple(mode for mode in DECODINGS if mode != DECODING)
COMPARED = (
    *(("b", "a"), ("c", "b"), ("d", "c"), ("e", "d"), ("f", "b"), (AT_TOKENS, "b"), ("f", "a")),
    *chain.from_iterable(((label, "b"), (label, "f")) for label in AFFORDABLE),
)
"""what the sentences compare, by rung or label"""


def room_table(of: Sequence[Site]) -> Table:
    """A row a task that has runs."""
    exact, ceiling = RUNGS["b"], RUNGS["c"]
    rows = [
        (
            site.title,
            "yes" if group.first.config["task"]["settings"].get("luck") else "none",
            _by_warm_start(site, exact, "before"),
            _by_warm_start(site, exact, "after"),
            _by_warm_start(site, ceiling, "after"),
        )
        for site in of
        if (group := site.group(exact)) is not None
    ]
    caption = (
        "Success on held-out questions at the paper's decoding, in percent, by warm start: of exact GRPO before and "
        "after training, and after training with state values that cost nothing. Luck: whether a coin that the policy "
        f"does not see adds to the return. “{NO_VALUE}”: no such evaluation. Toy scale, not the paper's results."
    )
    header = ("Task", "Luck", "Exact GRPO, before", "after", "With state values")
    return Table("when_room", header, tuple(rows), caption, ())


def _by_warm_start(site: Site, label: str, when: str) -> str:
    group = site.records.group(site.task, label)
    evaluation = None if group is None else measures.held_out(group, when, DECODING)
    if evaluation is None:
        return NO_VALUE
    return " / ".join(number(mean, 1, scale=100) for mean in measures.by_warm_start(evaluation))


def decodings_table(of: Sequence[Site]) -> Table:
    """A row for each comparison of the sentences, and task, that another decoding decides otherwise."""
    rows = [
        (f"{title_of(first)} less {title_of(second)}", site.title, *map(_cell, found))
        for (first, second), site, found in _by_decoding(of)
        if len({one.outcome for one in found if one is not None}) > 1
    ]
    caption = (
        "Verdicts of the sentences that are others at temperature 1 or greedily, with the differences in points, "
        "paired by warm start, seed and question; the brackets are those of the other tables."
    )
    header = ("Difference", "Task", *(DECODINGS[mode].title for mode in (DECODING, *OTHERS)))
    return Table("when_decodings", header, tuple(rows), caption, (), labels=2)


def otherwise(of: Sequence[Site]) -> str:
    """How many verdicts another decoding changes, and how many of these from one side of 0 to the other."""
    found = [outcomes for _, _, outcomes in _by_decoding(of)]
    told = []
    for place, mode in enumerate(OTHERS, 1):
        both = [(one[0], one[place]) for one in found]
        pairs = [(first.outcome, other.outcome) for first, other in both if first is not None and other is not None]
        changed = [pair for pair in pairs if pair[0] != pair[1]]
        turned = sum("undecided" not in pair for pair in changed)
        told.append(f"{len(changed)} of {len(pairs)} verdicts are others {DECODINGS[mode].said}, {turned} turned round")
    return f"{', and '.join(told)}."


def _by_decoding(of: Sequence[Site]) -> list[tuple[tuple[str, str], Site, list[Finding | None]]]:
    pairs = [tuple(RUNGS.get(name, name) for name in pair) for pair in COMPARED]
    return [
        ((first, second), site, [site.finding(first, second, mode) for mode in (DECODING, *OTHERS)])
        for first, second in pairs
        for site in of
        if site.finding(first, second) is not None
    ]


def _cell(found: Finding | None) -> str:
    return NO_VALUE if found is None else f"{found.outcome}, {percent(found.difference, sign=True)}"
