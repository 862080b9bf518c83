"""The paper's testable claims, each with what tests it at each scale."""

from functools import partial

from analysis.claims.evidence import TASKS, TOY, Same, printed_ties
from analysis.claims.runs import study_group, study_pair
from analysis.claims.tests import (
    BEST,
    CLOCK,
    CONTINUED,
    CONTROLS,
    CREDITED,
    FEWER,
    GROUP,
    GROUPS,
    HELD_OUT,
    HITS,
    IN_TRAINING,
    MAIN,
    MORE,
    OVERALL,
    ROLES,
    Claim,
    Maker,
    Note,
    Test,
    at_one,
    at_paper_scale,
    below,
    cost,
    headline,
    hle,
    near,
    negligible,
    no_op,
    paper_group,
    printed,
    read,
    rising,
    stated,
    study_calls,
    theory,
    ties,
)


def _toy(*makers: Maker, needs: tuple[str, ...], note: Note = "") -> Test:
    return Test(TOY, makers, needs, note)


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "ratio_at_one",
        "RTPO's ratio stays at 1",
        "Training gives RTPO's tokens the probability that they were sampled with: the ratio stays at "
        "{ratio_rtpo_math} in math and {ratio_rtpo_knowledge} in knowledge",
        "4.2",
        (
            at_paper_scale(also=(partial(at_one, groups=paper_group, places=ROLES),), needs=(MAIN,)),
            _toy(partial(at_one, groups=study_group, places=TASKS), needs=("rtpo",)),
        ),
    ),
    Claim(
        "ratio_below",
        "The baselines' ratio lies below 1",
        "GRPO and SeeUPO on the flattened history have a ratio below RTPO's, as far as the training context makes it",
        "4.2",
        (
            at_paper_scale(also=(below,), needs=(MAIN,)),
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
            at_paper_scale(also=(partial(rising, groups=paper_group, places=ROLES),), needs=(MAIN,)),
            _toy(partial(rising, groups=study_group, places=TASKS), needs=("grpo", "seeupo_flat")),
        ),
    ),
    Claim(
        "accuracy",
        "RTPO is more accurate than GRPO and SeeUPO",
        "Over all benchmarks RTPO is above GRPO and above SeeUPO, both on the flattened history",
        "4.1",
        (
            at_paper_scale(*OVERALL, *CONTROLS, note="GRPO with exact contexts separates contexts from credit."),
            _toy(
                study_pair("rtpo", "grpo"),
                study_pair("rtpo", "seeupo_flat"),
                study_pair("rtpo", "grpo_exact", ours=True),
                study_pair("rtpo", "seeupo", ours=True),
                needs=("rtpo", "grpo", "seeupo_flat", "grpo_exact", "seeupo"),
            ),
            printed(*OVERALL),
        ),
    ),
    Claim(
        "best_on_all",
        "RTPO is the best on all {benchmarks} benchmarks",
        "On each of the {benchmarks} benchmarks RTPO is above the best of the untuned model, GRPO and SeeUPO",
        "4.1",
        (at_paper_scale(BEST), printed(BEST)),
        every=True,
    ),
    Claim(
        "credit",
        "Turn-level credit",
        "With the full history for every method, RTPO-CA is the best overall",
        "4.3",
        (
            at_paper_scale(*CREDITED),
            _toy(
                study_pair("rtpo_full", "grpo_full"),
                needs=("rtpo_full", "grpo_full"),
                note="The study has trajectory credit alone to compare with, GRPO's.",
            ),
            printed(CREDITED[0]),
        ),
    ),
    Claim(
        "continuation",
        "On-policy continuation",
        "Continuations sampled anew beat stale ones on long-horizon search, and are about equal on HLE",
        "4.4 and G.6",
        (
            at_paper_scale(
                CONTINUED,
                Same("HLE about equal", HITS, "delta", "hle", lambda _: 0.0, negligible),
                note="The slack on HLE is half of the least gain that the paper counts as one.",
            ),
            _toy(study_pair("rtpo", "rtpo_off"), needs=("rtpo", "rtpo_off"), note="No toy task stands for HLE."),
            printed(CONTINUED, also=(hle,)),
        ),
    ),
    Claim(
        "cost",
        "RTPO costs more than GRPO (toy: at equal rollouts)",
        "RTPO takes about {supp_wall_clock.rtpo.cost} times GRPO's GPU-hours at equal trunks (airline)",
        "G.4",
        (
            at_paper_scale(
                Same("RTPO's wall-clock time over GRPO's", CLOCK, "cost", "rtpo", cost, near(cost)),
                note="Ours is at equal rollouts: the paper does not say how many a trunk of GRPO has.",
            ),
            _toy(
                study_pair("rtpo", "grpo", "seconds", turned="seconds more than GRPO's, as a share of GRPO's"),
                study_pair("rtpo", "grpo", "tokens", turned="tokens more than GRPO's, as a share of GRPO's"),
                needs=("rtpo", "grpo"),
                note="At equal rollouts, whose siblings do not play the turns before their own again. The paper counts "
                "at equal trunks, so this tests that RTPO is dearer at all, on another count than the paper's.",
            ),
            printed(also=(partial(stated, keys=("hours_over_grpo",)),)),
        ),
    ),
    Claim(
        "tool_use",
        "Tool use follows the task",
        "RTPO makes the fewest calls on hard math and the most on knowledge",
        "F.1",
        (
            at_paper_scale(FEWER, MORE, note="Calls that a tool ran, in one pass over the questions."),
            _toy(
                study_calls,
                needs=("rtpo", "grpo", "seeupo_flat"),
                note="Toy math is not hard math: each of its problems takes a fixed number of calls.",
            ),
            printed(FEWER, MORE),
        ),
    ),
    Claim(
        "coefficient",
        "The coefficient of a group",
        "A sibling's advantage is (G−2)/(G−1) of the true one on average",
        "3.2 and G.2",
        (theory("theorem_2a_factor"),),
    ),
    Claim(
        "group_size",
        "G = 4 against G = 3",
        "From G = 3 to G = 4 the zero-advantage rate falls and Pass@1 rises (by {g4_pass_1} points)",
        "G.2",
        (
            at_paper_scale(*GROUP),
            _toy(
                study_pair("rtpo_g4", "rtpo", "ties"),
                study_pair("rtpo_g4", "rtpo"),
                needs=("rtpo", "rtpo_g4"),
            ),
            printed(*GROUP, also=(partial(stated, keys=("g4_pass_1",)),)),
        ),
    ),
    Claim(
        "ties",
        "Zero advantage against G",
        "Siblings tie with the chance 1 − 2p(1−p) at G = 3 and 1 − 3p(1−p) at G = 4 (which binary rewards imply)",
        "G.2",
        (
            at_paper_scale(
                also=(partial(ties, groups=paper_group, place="airline", title="airline"),), needs=(GROUPS,)
            ),
            _toy(
                partial(ties, groups=study_group, place="toy_math", title=TASKS["toy_math"]),
                needs=("rtpo", "rtpo_g4"),
                note="Of the first data step, before which both have the same weights.",
            ),
            printed(also=(printed_ties,), note="These are rates of two whole trainings, whose policies differ."),
        ),
    ),
    Claim(
        "airline_training",
        "Airline, in training",
        "RTPO has the highest online success from step 20 on",
        "G.1",
        (at_paper_scale(IN_TRAINING, note=no_op), printed(IN_TRAINING, note=no_op)),
    ),
    Claim(
        "airline_test",
        "Airline, held out",
        "RTPO has the highest Pass@1, Pass@4 and normal termination, and the shortest responses",
        "G.1",
        (at_paper_scale(*HELD_OUT, note=no_op), printed(*HELD_OUT, note=no_op)),
    ),
    Claim(
        "theorem_1",
        "Theorem 1",
        "Turns trained in reverse order, on fresh continuations, converge to recursive optimality",
        "3.1 and C.2",
        (theory("theorem_1"),),
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
        (theory("theorem_2a"),),
    ),
    Claim(
        "theorem_2b",
        "Theorem 2b",
        "Its mean squared error is lower than that of a trajectory's wherever the values of states differ",
        "3.2 and C.3",
        (theory("theorem_2b", ours=("theorem_2b_general",)),),
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
        (theory("theorem_3a"),),
    ),
    Claim(
        "theorem_3b",
        "Theorem 3b",
        "A return's variance is p(1−p), so it falls as p leaves one half",
        "3.3 and C.4",
        (theory("theorem_3b"),),
    ),
    Claim(
        "theorem_3_stale",
        "Stale weights",
        "The variance of a stale continuation's product weight grows with the turns left",
        "3.3 and C.4",
        (theory("theorem_3_"),),
    ),
    Claim(
        "headline",
        "The headline percentages",
        "RTPO improves on GRPO by {abstract_over_grpo} % and on SeeUPO by {abstract_over_seeupo} %",
        "abstract and 4.1",
        (
            at_paper_scale(headline("abstract_over_grpo", "grpo"), headline("abstract_over_seeupo", "seeupo")),
            printed(
                also=(partial(read, keys=("abstract_over_grpo", "abstract_over_seeupo")),),
                note="The numbers are differences of two relative gains over the untuned model.",
            ),
        ),
    ),
)
