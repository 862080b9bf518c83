"""The paper's testable claims, each with what tests it at each scale."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from analysis.claims.evidence import (
    ROLES,
    TASKS,
    Evidence,
    Lead,
    Same,
    at_one,
    below,
    by_tables,
    paper_group,
    printed_leads,
    printed_part,
    printed_statements,
    printed_ties,
    rising,
    study_calls,
    study_group,
    study_pair,
    ties,
)
from analysis.claims.rule import OURS, Part
from analysis.paper.numbers import Paper
from analysis.paper.slips import ARITHMETIC, READING
from analysis.tables import MINUS

PAPER_SCALE, TOY, THEORY, PRINTED = "paper scale", "toy", "tables of theory", "the paper's printed numbers"
Maker = Callable[[Evidence], list[Part]]
Note = str | Callable[[Evidence], str]
MAIN, CREDIT, HITS = "math_knowledge_toolcall_results", "math_results", "on_off_policy_hit"
AIRLINE, GROUPS, CLOCK = "supp_airline_test", "supp_group_sensitivity", "supp_wall_clock"
ALL_EIGHT = (
    *("aime24_acc", "aime25_acc", "amc23_acc", "math500_acc", "gsm8k_acc", "oe_math_acc", "hotpotqa_acc"),
    "two_wiki_acc",
)
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
    return value.printed.replace("-", MINUS)


def _at_paper_scale(
    *parts: Lead | Same, also: Sequence[Maker] = (), note: Note = "", needs: Sequence[str] = ()
) -> Test:
    makers = [partial(by_tables, of=part) for part in parts]
    return Test(PAPER_SCALE, (*makers, *also), (*dict.fromkeys(part.table for part in parts), *needs), note)


def _toy(*makers: Maker, needs: tuple[str, ...], note: Note = "") -> Test:
    return Test(TOY, makers, needs, note)


def _printed(*leads: Lead, also: Sequence[Maker] = (), note: Note = "") -> Test:
    orders: list[Maker] = [partial(printed_leads, leads=leads)] if leads else []
    return Test(PRINTED, (*orders, *also), note=note)


def _stated(*keys: str) -> Maker:
    return partial(printed_statements, keys=keys, kinds={ARITHMETIC: True})


def _theory(*prefixes: str, ours: Sequence[str] = ()) -> Test:
    def parts(evidence: Evidence) -> list[Part]:
        chosen = [one for one in evidence.theory if one.claim.startswith(prefixes)]
        return [Part(one.text, one.evidence, one.verdict, OURS if one.claim in ours else "") for one in chosen]

    return Test(THEORY, (parts,), prefixes)


def _no_op(evidence: Evidence) -> str:
    """What the project's notes say of an agent that does nothing."""
    told = [note for note in evidence.reproduction.tables[AIRLINE].notes if "oing nothing" in note]
    sentences = [sentence for note in told for sentence in note.split(". ") if "oing nothing" in sentence]
    return (
        f"{' '.join(sentences) or 'What doing nothing earns is `unknown`.'} `python "
        "experiments/maintenance/airline_no_op.py FOLDER` counts that in the official task files, which are not in "
        "this repository."
    )


def _number(paper: Paper, key: str) -> float:
    """Of a statement or of table.row.column."""
    parts = key.split(".")
    value = paper.value(*parts) if len(parts) == 3 else paper.statement(key).value
    assert value is not None
    assert value.number is not None
    return value.number


def _negligible(paper: Paper) -> float:
    """Half of the least gain that the paper counts as one."""
    return min(_number(paper, f"{HITS}.{row}.delta") for row in CONTINUED.lines) / 2


def _hle(evidence: Evidence) -> list[Part]:
    value, slack = _number(evidence.paper, f"{HITS}.hle.delta"), _negligible(evidence.paper)
    shown = f"{printed_number(evidence.paper, f'{HITS}.hle.delta')} points, slack {slack:.2f}"
    return [printed_part("HLE about equal", shown, abs(value) <= slack)]


def _near(what: str, table: str, column: str, formula: str, key: str) -> Same:
    """That it is about what the paper prints."""
    return Same(
        *(what, table, column, formula),
        lambda paper: _number(paper, key),
        lambda paper: NEAR * abs(_number(paper, key)),
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
OVER = tuple(
    _near(f"RTPO over {title}, %", MAIN, "overall_acc", f"relative(rtpo, {other})", f"abstract_over_{other}")
    for other, title in (("grpo", "GRPO"), ("seeupo", "SeeUPO"))
)
# what the sentence says, beside how its number comes about
HEADLINE: Maker = partial(
    printed_statements, keys=("abstract_over_grpo", "abstract_over_seeupo"), kinds={ARITHMETIC: False, READING: True}
)


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "ratio_at_one",
        "RTPO's ratio stays at 1",
        "Training gives RTPO's tokens the probability that they were sampled with: the ratio stays at "
        "{ratio_rtpo_math} in math and {ratio_rtpo_knowledge} in knowledge",
        "4.2",
        (
            _at_paper_scale(also=(partial(at_one, groups=paper_group, places=ROLES),), needs=(MAIN,)),
            _toy(partial(at_one, groups=study_group, places=TASKS), needs=("rtpo",)),
        ),
    ),
    Claim(
        "ratio_below",
        "The baselines' ratio lies below 1",
        "GRPO and SeeUPO on the flattened history have a ratio below RTPO's, as far as the training context makes it",
        "4.2",
        (
            _at_paper_scale(also=(below,), needs=(MAIN,)),
            _toy(
                study_pair("rtpo", "grpo", "ratio"),
                study_pair("rtpo", "seeupo_flat", "ratio"),
                needs=("rtpo", "grpo", "seeupo_flat"),
            ),
        ),
    ),
    Claim(
        "ratio_rising",
        "The baselines' ratio drifts slowly towards 1",
        "Their ratio rises over training",
        "4.2 and F.2",
        (
            _at_paper_scale(also=(partial(rising, groups=paper_group, places=ROLES),), needs=(MAIN,)),
            _toy(partial(rising, groups=study_group, places=TASKS), needs=("grpo", "seeupo_flat")),
        ),
    ),
    Claim(
        "accuracy",
        "RTPO is more accurate than GRPO and SeeUPO",
        "Over all benchmarks RTPO is above GRPO and above SeeUPO, both on the flattened history",
        "4.1",
        (
            _at_paper_scale(*OVERALL, *CONTROLS, note="GRPO with exact contexts separates contexts from credit."),
            _toy(
                study_pair("rtpo", "grpo"),
                study_pair("rtpo", "seeupo_flat"),
                study_pair("rtpo", "grpo_exact", ours=True),
                study_pair("rtpo", "seeupo", ours=True),
                needs=("rtpo", "grpo", "seeupo_flat", "grpo_exact", "seeupo"),
            ),
            _printed(*OVERALL),
        ),
    ),
    Claim(
        "best_on_all",
        "RTPO is the best on all {benchmarks} benchmarks",
        "On each of the {benchmarks} benchmarks RTPO is above the best of the untuned model, GRPO and SeeUPO",
        "4.1",
        (_at_paper_scale(BEST), _printed(BEST)),
        every=True,
    ),
    Claim(
        "credit",
        "Turn-level credit",
        "With the full history for every method, RTPO-CA is the best overall",
        "4.3",
        (
            _at_paper_scale(*CREDITED),
            _toy(
                study_pair("rtpo_full", "grpo_full"),
                needs=("rtpo_full", "grpo_full"),
                note="The study has trajectory credit alone to compare with, GRPO's.",
            ),
            _printed(CREDITED[0]),
        ),
    ),
    Claim(
        "continuation",
        "On-policy continuation",
        "Continuations sampled anew beat stale ones on long-horizon search, and are about equal on HLE",
        "4.4 and G.6",
        (
            _at_paper_scale(
                CONTINUED,
                Same("HLE about equal", HITS, "delta", "hle", lambda _: 0.0, _negligible),
                note="The slack on HLE is half of the least gain that the paper counts as one.",
            ),
            _toy(study_pair("rtpo", "rtpo_off"), needs=("rtpo", "rtpo_off"), note="No toy task stands for HLE."),
            _printed(CONTINUED, also=(_hle,)),
        ),
    ),
    Claim(
        "cost",
        "RTPO costs more than GRPO (toy: at equal rollouts)",
        "RTPO takes about {supp_wall_clock.rtpo.cost} times GRPO's GPU-hours at equal trunks (airline)",
        "G.4",
        (
            _at_paper_scale(
                _near("RTPO's wall-clock time over GRPO's", CLOCK, "cost", "rtpo", f"{CLOCK}.rtpo.cost"),
                note="Ours is at equal rollouts: the paper does not say how many a trunk of GRPO has.",
            ),
            _toy(
                study_pair("rtpo", "grpo", "seconds", turned="seconds more than GRPO's, as a share of GRPO's"),
                study_pair("rtpo", "grpo", "tokens", turned="tokens more than GRPO's, as a share of GRPO's"),
                needs=("rtpo", "grpo"),
                note="At equal rollouts, whose siblings do not play the turns before their own again. The paper counts "
                "at equal trunks, so this tests that RTPO is dearer at all, on another count than the paper's.",
            ),
            _printed(also=(_stated("hours_over_grpo"),)),
        ),
    ),
    Claim(
        "tool_use",
        "Tool use follows the task",
        "RTPO makes the fewest calls on hard math and the most on knowledge",
        "F.1",
        (
            _at_paper_scale(FEWER, MORE, note="Calls that a tool ran, in one pass over the questions."),
            _toy(
                study_calls,
                needs=("rtpo", "grpo", "seeupo_flat"),
                note="Toy math is not hard math: each of its problems takes a fixed number of calls.",
            ),
            _printed(FEWER, MORE),
        ),
    ),
    Claim(
        "coefficient",
        "The coefficient of a group",
        "A sibling's advantage is (G−2)/(G−1) of the true one on average",
        "3.2 and G.2",
        (_theory("theorem_2a_factor"),),
    ),
    Claim(
        "group_size",
        "G = 4 against G = 3",
        "From G = 3 to G = 4 the zero-advantage rate falls and Pass@1 rises (by {g4_pass_1} points)",
        "G.2",
        (
            _at_paper_scale(*GROUP),
            _toy(
                study_pair("rtpo_g4", "rtpo", "ties"),
                study_pair("rtpo_g4", "rtpo"),
                needs=("rtpo", "rtpo_g4"),
            ),
            _printed(*GROUP, also=(_stated("g4_pass_1"),)),
        ),
    ),
    Claim(
        "ties",
        "Zero advantage against G",
        "Siblings tie with the chance 1 − 2p(1−p) at G = 3 and 1 − 3p(1−p) at G = 4 (which binary rewards imply)",
        "G.2",
        (
            _at_paper_scale(
                also=(partial(ties, groups=paper_group, place="airline", title="airline"),), needs=(GROUPS,)
            ),
            _toy(
                partial(ties, groups=study_group, place="toy_math", title=TASKS["toy_math"]),
                needs=("rtpo", "rtpo_g4"),
                note="Of the first data step, before which both have the same weights.",
            ),
            _printed(also=(printed_ties,), note="These are rates of two whole trainings, whose policies differ."),
        ),
    ),
    Claim(
        "airline_training",
        "Airline, in training",
        "RTPO has the highest online success from step 20 on",
        "G.1",
        (_at_paper_scale(IN_TRAINING, note=_no_op), _printed(IN_TRAINING, note=_no_op)),
    ),
    Claim(
        "airline_test",
        "Airline, held out",
        "RTPO has the highest Pass@1, Pass@4 and normal termination, and the shortest responses",
        "G.1",
        (_at_paper_scale(*HELD_OUT, note=_no_op), _printed(*HELD_OUT, note=_no_op)),
    ),
    Claim(
        "theorem_1",
        "Theorem 1",
        "Turns trained in reverse order, on fresh continuations, converge to recursive optimality",
        "3.1 and C.2",
        (_theory("theorem_1"),),
    ),
    Claim(
        "theorem_1_neural",
        "Theorem 1, neural extension",
        "The same holds asymptotically with a neural network",
        "C.2",
        untestable="It is a statement about the limit of infinite training under assumptions on the function class "
        "that no finite run can meet or break.",
    ),
    Claim(
        "theorem_2a",
        "Theorem 2a",
        "A sibling's advantage is proportional to the true one, without the value of the state that a trajectory's has",
        "3.2 and C.3",
        (_theory("theorem_2a"),),
    ),
    Claim(
        "theorem_2b",
        "Theorem 2b",
        "Its mean squared error is lower than that of a trajectory's wherever the values of states differ",
        "3.2 and C.3",
        (_theory("theorem_2b", ours=("theorem_2b_general",)),),
    ),
    Claim(
        "theorem_2c",
        "Theorem 2c",
        "Differences of siblings' returns come from turn k alone, and only its tokens are trained",
        "3.2 and C.3",
        untestable="It says how the estimator is built, so no outcome of a run could contradict it; that our code is "
        "built so is tested in tests/test_rtpo.py.",
    ),
    Claim(
        "theorem_3a",
        "Theorem 3a",
        "Continuations sampled anew need no weights and give unbiased returns",
        "3.3 and C.4",
        (_theory("theorem_3a"),),
    ),
    Claim(
        "theorem_3b",
        "Theorem 3b",
        "A return's variance is p(1−p), so it falls as p leaves one half",
        "3.3 and C.4",
        (_theory("theorem_3b"),),
    ),
    Claim(
        "theorem_3_stale",
        "Stale weights",
        "The variance of a stale continuation's product weight grows with the turns left",
        "3.3 and C.4",
        (_theory("theorem_3_"),),
    ),
    Claim(
        "headline",
        "The headline percentages",
        "RTPO improves on GRPO by {abstract_over_grpo} % and on SeeUPO by {abstract_over_seeupo} %",
        "abstract and 4.1",
        (
            _at_paper_scale(*OVER),
            _printed(
                also=(HEADLINE,),
                note="The numbers are differences of two relative gains over the untuned model.",
            ),
        ),
    ),
)
