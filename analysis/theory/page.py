"""Verdicts on the paper's theorems, and the blocks of docs/results/theory.md, which stand between
`<!-- theory:NAME -->` and `<!-- theory end -->`."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from analysis import tables
from analysis.pages import markdown
from analysis.tables import CONTRADICTED, NOT_RUN, SUPPORTED, Table, number
from analysis.theory import claims
from analysis.theory.claims import order_table, over_runs
from analysis.theory.figures import FIGURES
from analysis.theory.records import (
    COMMAND,
    RULE,
    THEOREMS,
    Comparison,
    Missing,
    Part,
    compare,
    equal,
    larger,
    load,
    reached,
)

RESULTS, PAGE = Path("results", "theory"), Path("docs", "results", "theory.md")
CONSISTENT = {SUPPORTED: "consistent with", CONTRADICTED: "not consistent with"}
"""Theorem 1 is about tabular Q-learning, not clipped policy gradients: no run of these can support or contradict it"""
VARIANTS = {
    "reverse_fresh": "RTPO: reverse order, fresh continuations",
    "reverse_stale": "reverse order, stale continuations",
    "forward_fresh": "forward order, fresh continuations",
}
FAMILIES = {"lock": "locks", "layered": "layers"}


class Verdict(NamedTuple):
    """What the records say of a claim. `command` makes the records."""

    claim: str
    text: str
    verdict: str
    evidence: str
    command: str


class _Claim(NamedTuple):
    claim: str
    theorem: int
    text: str
    judged: Callable[[Part], tuple[str, str]]
    """verdict and evidence"""


def verdicts(results: Path) -> list[Verdict]:
    """Every claim with its verdict, from the records in the folder `results`. A claim whose records are missing or
    unfinished is not run. Raises DataError for damaged records."""
    parts: dict[int, Part | Missing] = {}
    for theorem in THEOREMS:
        try:
            parts[theorem] = load(results, theorem)
        except Missing as missing:
            parts[theorem] = missing
    found = []
    for claim in CLAIMS:
        part = parts[claim.theorem]
        command = f"{COMMAND} {claim.theorem}"
        if isinstance(part, Missing):
            verdict, evidence = NOT_RUN, f"There are no finished records: {command} makes them."
        else:
            verdict, evidence = claim.judged(part)
        found.append(Verdict(claim.claim, claim.text, verdict, evidence, command))
    return found


def _optimum(part: Part) -> tuple[str, str]:
    (below,) = found = claims.to_optimum(part)
    verdict = equal(found)
    share = over_runs(order_table(part, "sweep", "reverse_fresh", "agreeing_share"))
    (trained,) = claims.to_optimum(part, "training")
    return CONSISTENT.get(verdict, verdict), (
        f"A sweep ends {_points(below)} points of success below the optimum of backward induction, where "
        f"{number(claims.SLACK, 0, scale=100)} are allowed, over {_runs(part)}; "
        f"{number(share.mean, 1, scale=100)} % of its decisions are the optimal ones. Training in small steps ends "
        f"{_points(trained)} points below."
    )


def _ablation(variant: str) -> Callable[[Part], tuple[str, str]]:
    def judged(part: Part) -> tuple[str, str]:
        (sweep,) = found = claims.ablation(part, variant)
        (training,) = claims.ablation(part, variant, "training")
        verdict = larger(found)
        return CONSISTENT.get(verdict, verdict), (
            f"In a sweep RTPO ends {_points(sweep)} points of success above {VARIANTS[variant]}, over {_runs(part)}. "
            f"In training in small steps the difference is {_points(training)}."
        )

    return judged


def _factor(part: Part) -> tuple[str, str]:
    factors, cells = claims.factors(part), claims.factor_cells(part)
    found = compare([*factors, *cells])
    measured = ", ".join(f"{e.mean:.3f} for {e.closed:.3f}" for e in factors)
    return equal(found), (
        f"Measured for exact, {factors[0].what} to {factors[-1].what.removeprefix('G = ')}: {measured}. With the means "
        f"by state and action, {reached(found)}."
    )


def _contamination(part: Part) -> tuple[str, str]:
    slopes = claims.contamination(part)
    found = compare([*slopes, *claims.contamination_cells(part)])
    measured = ", ".join(f"{e.mean:.3f} for {e.closed:.3f} ({e.what})" for e in slopes)
    return equal(found), f"Slope on V(S) − mean R: {measured}. With the means by state, {reached(found)}."


def _differences(closed: str, judge: Callable[[Sequence[Comparison]], str]) -> Callable[[Part], tuple[str, str]]:
    def judged(part: Part) -> tuple[str, str]:
        found = compare(claims.differences(part, closed))
        if judge is larger:
            below = [c for c in found if c.high < 0]
            named = "; ".join(f"{c.what}: {_interval(c)}" for c in below)
            same = [c for c, x in zip(found, part.of("error"), strict=True) if x["siblings"] == x["chains"]]
            return judge(found), (
                f"The difference is above 0 at {sum(c.low > 0 for c in found)} of {len(found)} points, below it at "
                f"{len(below)}{f' ({named})' if below else ''}. At equal sizes it is above 0 at "
                f"{sum(c.low > 0 for c in same)} of {len(same)}."
            )
        off = [c for c in found if not c.reaches]
        sizes = dict.fromkeys(c.what.partition(", σ")[0] for c in off)
        where = f"; the others are at sizes {'; '.join(sizes)}" if off else ""
        return judge(found), f"At {len(found)} points, {reached(found)}{where}."

    return judged


def _unit_weights(part: Part) -> tuple[str, str]:
    newest, farthest = found = claims.unit_weights(part)
    turns = sum(x["turns"] for x in part.of("weights", variant="fresh"))
    stale = part.of("weights", variant="stale")
    return equal(found), (
        f"{number(newest.mean, 2, scale=100)} % of {turns:,} later turns were sampled by the newest weights, and no "
        f"recomputed weight is farther than {farthest.mean - 1:.2g} from 1. Without a synchronisation the farthest is "
        f"{max(x['farthest'] for x in stale):.1f} from 1."
    )


def _unbiased(part: Part) -> tuple[str, str]:
    found = compare(claims.unbiased(part))
    return equal(found), f"Mean return less exact action value, by its value in {len(found)} bins: {reached(found)}."


def _variance(part: Part) -> tuple[str, str]:
    found = compare(claims.return_variances(part))
    return equal(found), f"Mean squared distance of a return from p, in {len(found)} bins of p: {reached(found)}."


def _weight_variance(part: Part) -> tuple[str, str]:
    found = compare(claims.weight_variances(part))
    return equal(found), f"For {found[0].what} to {found[-1].what} later turns {reached(found)}."


def _growth(part: Part) -> tuple[str, str]:
    found, by_turns = claims.growth(part), claims.weight_variances(part)
    first, last = by_turns[0], by_turns[-1]
    return larger(found), (
        f"Variance {first.mean:.3f} (exact {first.closed:.3f}) with {first.what} later turn, {last.mean:.3f} (exact "
        f"{last.closed:.3f}) with {last.what}."
    )


CLAIMS = (
    _Claim(
        "theorem_1",
        1,
        "Theorem 1: turns trained in reverse order, on fresh continuations, reach the optimum of backward induction",
        _optimum,
    ),
    _Claim("theorem_1_order", 1, "Theorem 1: without reverse order success is lower", _ablation("forward_fresh")),
    _Claim("theorem_1_fresh", 1, "Theorem 1: without fresh continuations success is lower", _ablation("reverse_stale")),
    _Claim("theorem_2a_factor", 2, "Theorem 2a: E[A | S, u] is (G−2)/(G−1) of the true advantage", _factor),
    _Claim(
        "theorem_2a_contamination",
        2,
        "Theorem 2a: a trajectory's advantage has the value of its state in it, (N−1)/N (V(S) − mean R)",
        _contamination,
    ),
    _Claim(
        "theorem_2b_general",
        2,
        "Theorem 2b, worked out for any group sizes n and N: (N−1)/N σ_V² + (1/N − 1/n)(σ_A² − σ_ξ²) is the difference "
        "of the mean squared errors",
        _differences("general", equal),
    ),
    _Claim(
        "theorem_2b_printed",
        2,
        "Theorem 2b as printed, its leading term taken alone: (N−1)/N σ_V² is the difference",
        _differences("printed", equal),
    ),
    _Claim(
        "theorem_2b_lower",
        2,
        "Theorem 2b as printed: the sibling estimator's mean squared error is lower wherever σ_V > 0",
        _differences("zero", larger),
    ),
    _Claim("theorem_3a_weights", 3, "Theorem 3a: the weights of continuations sampled anew are 1", _unit_weights),
    _Claim(
        "theorem_3a_unbiased",
        3,
        "Theorem 3a: a sibling's return is on average the present policy's action value",
        _unbiased,
    ),
    _Claim("theorem_3b_variance", 3, "Theorem 3b: its variance is p(1−p)", _variance),
    _Claim(
        "theorem_3_stale_variance",
        3,
        "Theorem 3, comparison: the variance of a stale weight is the product of its turns' second moments, less 1",
        _weight_variance,
    ),
    _Claim("theorem_3_growth", 3, "Theorem 3, comparison: that variance grows with the later turns", _growth),
)


# docs/results/theory.md


def _shown(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], *notes: str) -> str:
    return tables.markdown(Table("", tuple(header), tuple(tuple(row) for row in rows), title, notes))


def verdicts_block(results: Path) -> str:
    """The claims, and the rule."""
    found = verdicts(results)
    rows = [(v.text, f"**{v.verdict}**", v.evidence, f"`{v.command}`") for v in found]
    return _shown(RULE, ("Claim", "Verdict", "Evidence", "Records made by"), rows)


def runs_block(results: Path) -> str:
    """How the records were made."""
    rows, settings = [], []
    for theorem in THEOREMS:
        manifest = load(results, theorem).manifest
        rows.append(
            (
                f"{theorem}",
                str(manifest["started"]),
                f"{manifest['commit'][:12]}{' (changed)' if manifest['dirty'] else ''}",
                number(manifest["cpu_seconds"], 0),
                number(manifest["wall_seconds"], 0),
                f"{manifest['lines']:,}",
            )
        )
        settings += [(f"{theorem}", f"`{name}`", f"`{value}`") for name, value in manifest["settings"].items()]
    total = sum(load(results, theorem).manifest["cpu_seconds"] for theorem in THEOREMS)
    runs = _shown(
        f"The records of the tables above. All three took {number(total, 0)} s of one processor.",
        ("Theorem", "Started", "Commit", "Processor seconds", "Wall-clock seconds", "Lines"),
        rows,
    )
    return f"{runs}\n{_shown('Their settings.', ('Theorem', 'Setting', 'Value'), settings)}"


def order_block(results: Path) -> str:
    """Theorem 1."""
    part = load(results, 1)
    rows = []
    for kind, steps in (("sweep", "a sweep"), ("training", "training")):
        for family, name in FAMILIES.items():
            for variant, title in VARIANTS.items():
                numbers = {
                    key: over_runs(order_table(part, kind, variant, key, family))
                    for key in ("success", "optimum", "below", "agreeing_share", "one_improvement")
                }
                success, below = numbers["success"], numbers["below"]
                rows.append(
                    (
                        *(steps, name, title),
                        number(success.mean, 1, scale=100),
                        number(numbers["optimum"].mean, 1, scale=100),
                        f"{_percent(below.mean)} [{_percent(max(0.0, below.low))}, {_percent(below.high)}]",
                        number(numbers["agreeing_share"].mean, 1, scale=100),
                        number(numbers["one_improvement"].mean, 1, scale=100),
                    )
                )
    title = (
        f"Success of learned policies, in %: exact values, means over {_runs(part)}. Brackets: 95 % "
        "intervals over seeds and MDPs. “Optimal decisions”: the share of the stages and states the uniform policy can "
        "be in whose best action is that of backward induction. “One improvement”: the policy that is greedy on the "
        "exact action values of the uniform one, to which a sweep in forward order tends."
    )
    header = (
        *("Setting", "MDPs", "What is trained", "Success", "Optimum", "Below it", "Optimal decisions, %"),
        "One improvement",
    )
    return _shown(title, header, rows)


def credit_block(results: Path) -> str:
    """Theorem 2."""
    part = load(results, 2)
    factors, slopes = claims.factors(part), claims.contamination(part)
    cells, states = claims.factor_cells(part), claims.contamination_cells(part)
    # the intervals are those of the verdicts, which hold together with the means of cells and states
    shown = compare([*factors, *cells])
    by_size = [
        (c.what, f"{c.closed:.3f}", _interval(c), _yes(c), _reached_of(shown[len(factors) :], f"{c.what},"))
        for c in shown[: len(factors)]
    ]
    first = _shown(
        "The sibling estimator: E[A | S, u] over the true advantage, over MDPs by precision, and how many means by "
        "state and action reach the factor times the true advantage.",
        ("Group", "(G−2)/(G−1)", "Measured", "Reached", "Means that reach it"),
        by_size,
    )
    shown = compare([*slopes, *states])
    by_chains = [
        (
            *(c.what, f"{x['variance'] ** 0.5:.3f}", f"{c.closed:.3f}", _interval(c), _yes(c)),
            *(f"{c.closed**2 * x['variance']:.4f}", f"{c.mean**2 * x['variance']:.4f}"),
            _reached_of(shown[len(slopes) :], f"{c.what},"),
        )
        for c, x in zip(shown[: len(slopes)], part.of("contamination"), strict=True)
    ]
    second = _shown(
        "The trajectory estimator: the slope of a chain's estimate on V(S) − mean R, the variance that this gives the "
        "estimate, ((N−1)/N)² σ_V², and how many means by state reach their closed form. The sibling estimator's slope "
        "is 0 by construction: the advantages of a group sum to 0.",
        ("Group", "σ_V", "(N−1)/N", "Measured", "Reached", "Variance", "Measured", "Means that reach it"),
        by_chains,
    )
    general, printed = (compare(claims.differences(part, closed)) for closed in ("general", "printed"))
    by_point = [
        (
            *(f"{x['siblings']}", f"{x['chains']}", f"{x['sigma_v']:.2g}", f"{x['sigma_a']:.2g}"),
            *(f"{x['sigma_xi']:.2g}", _interval(g), _signed(g.closed), _yes(g), _signed(p.closed), _yes(p)),
        )
        for x, g, p in zip(part.of("error"), general, printed, strict=True)
    ]
    third = _shown(
        "Mean squared error of the trajectory estimator (N chains) less that of the sibling estimator (n siblings). "
        "General: (N−1)/N σ_V² + (1/N − 1/n)(σ_A² − σ_ξ²). Printed: (N−1)/N σ_V², the same where n = N. Below 0 the "
        "trajectory estimator has the lower error.",
        ("n", "N", "σ_V", "σ_A", "σ_ξ", "Measured", "General", "Reached", "Printed", "Reached"),
        by_point,
    )
    return f"{first}\n{second}\n{third}"


def continuation_block(results: Path) -> str:
    """Theorem 3."""
    part = load(results, 3)
    names = {"fresh": "a synchronisation before every turn", "stale": "none within the step"}
    rows = []
    for variant, name in names.items():
        lines = part.of("weights", variant=variant)
        turns, newest = (sum(x[key] for x in lines) for key in ("turns", "newest"))
        siblings = sum(x["n"] for x in lines)
        farthest = max(x["farthest"] for x in lines)
        rows.append((name, f"{siblings:,}", f"{turns:,}", _percent(newest / turns), f"{farthest:.2g}"))
    first = _shown(
        "What RTPO trained on: the turns after the trained one, the share of them that the newest weights sampled, and "
        "the weight farthest from 1 that RTPO's own code gives a continuation, unclamped.",
        ("Synchronisation", "Siblings", "Later turns", "Of the newest weights, %", "Farthest from 1"),
        rows,
    )
    means, variances = compare(claims.unbiased(part)), compare(claims.return_variances(part))
    bins = [
        (
            *(f"{x['exact']:.3f}", f"{x['n']:,.0f}", _interval(m), _yes(m)),
            *(f"{v.closed:.4f}", _interval(v, 4), _yes(v)),
        )
        for x, m, v in zip(claims.return_bins(part), means, variances, strict=True)
    ]
    second = _shown(
        "Returns of siblings sampled anew, by the exact action value p of the present policy: mean return less p, and "
        "mean squared distance from p beside the mean of p(1−p).",
        ("p", "Returns", "Return − p", "Reaches 0", "p(1−p)", "Measured", "Reached"),
        bins,
    )
    weights = compare(claims.weight_variances(part))
    seeds = len(part.manifest["settings"]["stale_seeds"])
    by_turns = [
        (c.what, f"{c.closed:.3f}", _interval(c), _yes(c), f"{(1 + c.closed) ** (1 / int(c.what)):.3f}")
        for c in weights
    ]
    third = _shown(
        f"Variance of the weight of a stale continuation, unclamped, by the turns after the trained one: exact and "
        f"measured, means over {seeds} seeds. “A turn”: the factor by which the exact second moment grows with a turn, "
        "in the geometric mean.",
        ("Later turns", "Exact", "Measured", "Reached", "A turn"),
        by_turns,
    )
    return f"{first}\n{second}\n{third}"


def _figure_block(theorem: int) -> Callable[[Path], str]:
    def block(results: Path) -> str:
        load(results, theorem)
        figure = FIGURES[theorem]
        return f"![{figure.summary}](theory_{theorem}.png)\n\n{figure.caption}\n"

    return block


BLOCKS: dict[str, Callable[[Path], str]] = {
    "verdicts": verdicts_block,
    "runs": runs_block,
    "order": order_block,
    "credit": credit_block,
    "continuation": continuation_block,
    **{f"figure_{theorem}": _figure_block(theorem) for theorem in THEOREMS},
}
"""name to text, given the folder of the records"""


def filled(project: Path) -> str:
    """The page's text with every block as the records have it. Raises DataError for a block that is unknown or open,
    and as `load` does."""
    results = project / RESULTS
    return markdown.filled(
        project / PAGE, {name: partial(block, results) for name, block in BLOCKS.items()}, ("theory", "theory end")
    )


def _percent(value: float) -> str:
    return number(value, 1, scale=100)


def _points(comparison: Comparison) -> str:
    return f"{_percent(comparison.mean)} [{_percent(comparison.low)}, {_percent(comparison.high)}]"


def _signed(value: float) -> str:
    return number(value, 3)


def _interval(comparison: Comparison, digits: int = 3) -> str:
    mean, low, high = (number(value, digits) for value in (comparison.mean, comparison.low, comparison.high))
    return f"{mean} [{low}, {high}]"


def _yes(comparison: Comparison) -> str:
    return "yes" if comparison.reaches else "**no**"


def _reached_of(comparisons: Sequence[Comparison], prefix: str) -> str:
    """How many of those whose name begins so reach their closed form."""
    found = [c for c in comparisons if c.what.startswith(prefix)]
    return f"{sum(c.reaches for c in found)} of {len(found)}"


def _runs(part: Part) -> str:
    settings = part.manifest["settings"]
    return f"{len(FAMILIES) * settings['mdps']} MDPs × {len(settings['seeds'])} seeds"
