"""What tests the paper's claims at each scale, for `claim_list`."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from analysis.claims.evidence import (
    PAPER_SCALE,
    PRINTED,
    TASKS,
    THEORY,
    Evidence,
    Lead,
    Same,
    led,
    printed_leads,
    printed_statements,
    same,
)
from analysis.claims.rule import OURS, Part
from analysis.claims.runs import (
    calls_each,
    pairs_differ,
    ratio,
    ratio_below,
    ratio_gained,
    runs_equal,
    runs_positive,
    study_group,
    tied_as_expected,
)
from analysis.claims.toy import CONTRADICTED, SUPPORTED
from analysis.paper.numbers import Paper
from analysis.paper.slips import ARITHMETIC, READING
from analysis.records import RunGroup

Maker = Callable[[Evidence], list[Part]]
Note = str | Callable[[Evidence], str]
MAIN, CREDIT, HITS = "math_knowledge_toolcall_results", "math_results", "on_off_policy_hit"
AIRLINE, GROUPS, CLOCK = "supp_airline_test", "supp_group_sensitivity", "supp_wall_clock"
ALL_EIGHT = (
    *("aime24_acc", "aime25_acc", "amc23_acc", "math500_acc", "gsm8k_acc", "oe_math_acc", "hotpotqa_acc"),
    "two_wiki_acc",
)
RATIO_SLACK = 0.02
"""less than how far the paper's GRPO ends from 1 in math"""
NEAR = 0.1
"""slack of a printed number that the paper calls approximate, as a share of it"""
ONLINE = ("step_20", "step_30", "step_40", "step_50")


@dataclass(frozen=True)
class Test:
    """What tests a claim at a scale. needs: the paper's tables, the toy study's configurations, or the prefixes of the
    theorems' claims."""

    scale: str
    makers: tuple[Maker, ...]
    needs: tuple[str, ...] = ()
    note: Note = ""


@dataclass(frozen=True)
class Claim:
    """A claim in our words; {key} in them stands for a number that the paper states, {table.row.column} for a cell's.
    where: its sections. untestable: why there is no test. every: it says “all”, so that one part can contradict it."""

    key: str
    title: str
    text: str
    where: str
    tests: tuple[Test, ...] = ()
    untestable: str = ""
    every: bool = False

    def filled(self, paper: Paper) -> tuple[str, str]:
        """Title and text."""
        first, second = (
            re.sub(r"\{([\w.]+)\}", lambda match: printed_number(paper, match[1]), text)
            for text in (self.title, self.text)
        )
        return first, second


def printed_number(paper: Paper, key: str) -> str:
    """As printed, of a statement or of table.row.column. Raises DataError for one that there is none of."""
    parts = key.split(".")
    value = paper.value(*parts) if len(parts) == 3 else paper.statement(key).value
    assert value is not None
    return value.printed.replace("-", "−")


def at_paper_scale(*parts: Lead | Same, also: Sequence[Maker] = (), note: Note = "", needs: Sequence[str] = ()) -> Test:
    makers = [partial(by_tables, of=part) for part in parts]
    tables = dict.fromkeys([part.table for part in parts])
    return Test(PAPER_SCALE, (*makers, *also), (*tables, *needs), note)


def by_tables(evidence: Evidence, of: Lead | Same) -> list[Part]:
    return led(evidence, of) if isinstance(of, Lead) else same(evidence, of)


def printed(*leads: Lead, also: Sequence[Maker] = (), note: Note = "") -> Test:
    orders: list[Maker] = [partial(printed_leads, leads=leads)] if leads else []
    return Test(PRINTED, (*orders, *also), note=note)


def theory(*prefixes: str, ours: Sequence[str] = (), note: Note = "") -> Test:
    def parts(evidence: Evidence) -> list[Part]:
        chosen = [one for one in evidence.theory if one.claim.startswith(prefixes)]
        return [Part(one.text, one.evidence, one.verdict, OURS if one.claim in ours else "") for one in chosen]

    return Test(THEORY, (parts,), prefixes, note)


def stated(evidence: Evidence, keys: Sequence[str], counts: bool = True) -> list[Part]:
    return printed_statements(evidence, keys, {ARITHMETIC: counts})


def read(evidence: Evidence, keys: Sequence[str]) -> list[Part]:
    """What a sentence says beside how its number comes about."""
    return printed_statements(evidence, keys, {ARITHMETIC: False, READING: True})


# consistency

ROLES = {"math": "math", "search": "search"}
BASELINES = {"grpo": "GRPO", "seeupo_flat": "SeeUPO, flattened"}
Groups = Callable[[Evidence, str, str], RunGroup | None]


def paper_group(evidence: Evidence, place: str, label: str) -> RunGroup | None:
    return evidence.group(place, label)


def at_one(evidence: Evidence, groups: Groups, places: dict[str, str]) -> list[Part]:
    return [
        runs_equal(f"{title}, RTPO's ratio", groups(evidence, place, "rtpo"), ratio, 1.0, RATIO_SLACK)
        for place, title in places.items()
    ]


def below(evidence: Evidence) -> list[Part]:
    return [
        ratio_below(evidence, role, label, f"{role}, {title}'s ratio below RTPO's")
        for role in ROLES
        for label, title in BASELINES.items()
    ]


def rising(evidence: Evidence, groups: Groups, places: dict[str, str]) -> list[Part]:
    return [
        runs_positive(
            f"{title}, {name}'s ratio, last fifth of the steps less the first",
            groups(evidence, place, label),
            ratio_gained,
        )
        for place, title in places.items()
        for label, name in BASELINES.items()
        if groups is not study_group or evidence.study.places(place, label)
    ]


# tool use and group size


def study_calls(evidence: Evidence) -> list[Part]:
    parts = []
    for task, sign, claim in (("toy_math", -1, "fewer"), ("toy_knowledge", 1, "more")):
        for other in ("grpo", "seeupo_flat"):
            if not evidence.study.places(task, other):
                continue
            groups = (study_group(evidence, task, "rtpo"), study_group(evidence, task, other))
            what = f"{TASKS[task]}, calls an episode, {claim} than {BASELINES[other]}"
            parts.append(pairs_differ(what, groups, lambda a, b, sign=sign: sign * (calls_each(a) - calls_each(b))))  # type: ignore[misc]
    return parts


def ties(evidence: Evidence, groups: Groups, place: str, title: str) -> list[Part]:
    both = groups(evidence, place, "rtpo"), groups(evidence, place, "rtpo_g4")
    return [
        tied_as_expected(
            both, f"{title}, rate at G = 4 less what 1 − 2p(1−p) at G = 3 gives for 1 − 3p(1−p), first step"
        )
    ]


def no_op(evidence: Evidence) -> str:
    """What the project's notes say of an agent that does nothing."""
    told = [note for note in evidence.reproduction.tables[AIRLINE].notes if "oing nothing" in note]
    sentences = [sentence for note in told for sentence in note.split(". ") if "oing nothing" in sentence]
    return (
        f"{' '.join(sentences) or 'What doing nothing earns is `unknown`.'} `python "
        "experiments/maintenance/airline_no_op.py FOLDER` counts that in the official task files, which are not in "
        "this repository."
    )


# on-policy continuation


def negligible(paper: Paper) -> float:
    """Half of the least gain that the paper counts as one."""
    gains = [paper.value(HITS, row, "delta") for row in ("gaia", "webwalker", "xbench")]
    return min(float(gain.number or 0) for gain in gains if gain is not None) / 2


def hle(evidence: Evidence) -> list[Part]:
    value = evidence.paper.value(HITS, "hle", "delta")
    assert value is not None
    assert value.number is not None
    slack = negligible(evidence.paper)
    shown = f"{value.printed} points, slack {slack:.2f}".replace("-", "−")
    return [Part("HLE about equal", shown, SUPPORTED if abs(value.number) <= slack else CONTRADICTED)]


def cost(paper: Paper) -> float:
    value = paper.value(CLOCK, "rtpo", "cost")
    assert value is not None
    assert value.number is not None
    return value.number


def _stated_number(key: str) -> Callable[[Paper], float]:
    def number_of(paper: Paper) -> float:
        found = paper.statement(key).value.number
        assert found is not None
        return found

    return number_of


def near(closed: Callable[[Paper], float]) -> Callable[[Paper], float]:
    return lambda paper: NEAR * abs(closed(paper))


def headline(key: str, other: str) -> Same:
    closed = _stated_number(key)
    return Same(
        f"RTPO over {BASELINES.get(other, 'SeeUPO')}, %",
        MAIN,
        "overall_acc",
        f"relative(rtpo, {other})",
        closed,
        near(closed),
    )


OVERALL = Lead(MAIN, ("overall_acc",), "rtpo", ("grpo",)), Lead(MAIN, ("overall_acc",), "rtpo", ("seeupo",))
CONTROLS = tuple(Lead(MAIN, ("overall_acc",), "rtpo", (one,), ours=True) for one in ("grpo_exact", "seeupo_official"))
BEST = Lead(MAIN, ALL_EIGHT, "rtpo", ("vanilla", "grpo", "seeupo"))
CREDITED = (
    Lead(CREDIT, ("overall_p1", "overall_p4"), "rtpo_ca", ("arpo", "tree_grpo", "seeupo")),
    Lead(CREDIT, ("overall_p1", "overall_p4"), "rtpo_ca", ("grpo",), ours=True),
)
CONTINUED = Lead(HITS, ("gaia", "webwalker", "xbench"), "delta", by_row=False)
FEWER = Lead(MAIN, ("aime24_calls", "aime25_calls", "oe_math_calls"), "rtpo", ("vanilla", "grpo", "seeupo"), lower=True)
MORE = Lead(MAIN, ("hotpotqa_calls", "two_wiki_calls"), "rtpo", ("vanilla", "grpo", "seeupo"))
GROUP = (Lead(GROUPS, ("zero_advantage",), "g3", ("g4",)), Lead(GROUPS, ("pass_at_1",), "g4", ("g3",)))
OTHERS = ("grpo", "seeupo", "tree_grpo", "refuel")
IN_TRAINING = Lead("supp_airline_training", ONLINE, "rtpo", OTHERS)
HELD_OUT = (
    Lead(AIRLINE, ("pass_at_1", "pass_at_4", "normal_termination"), "rtpo", OTHERS),
    Lead(AIRLINE, ("response_tokens",), "rtpo", OTHERS, lower=True),
)
