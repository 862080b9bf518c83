"""Verdicts on the paper's theorems, and the blocks and figures of docs/results/theory.md."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from analysis.claims.rule import CONSISTENT, Comparison, compare, equal, larger, reached
from analysis.claims.rule import Part as Judgement
from analysis.intervals import Interval
from analysis.pages import markdown
from analysis.pages.own_page import Drawn, OwnPage, from_records
from analysis.tables import NOT_RUN, number
from analysis.theory import claims
from analysis.theory.claims import order_table, over_runs
from analysis.theory.figures import FIGURES
from analysis.theory.records import COMMAND, RULE, THEOREMS, Missing, Part, checksum, load

RESULTS = Path("results", "theory")
VARIANTS = {
    "reverse_fresh": "RTPO: reverse order, fresh continuations",
    "reverse_stale": "reverse order, stale continuations",
    "forward_fresh": "forward order, fresh continuations",
}
FAMILIES = {"lock": "locks", "layered": "layers"}


class Verdict(NamedTuple):
    """What the records say of a claim, and the command that makes them."""

    part: Judgement
    command: str


class _Claim(NamedTuple):
    theorem: int
    text: str
    judged: Callable[[Part], tuple[str, str]]
    """verdict and evidence"""


def verdicts(results: Path) -> dict[str, Verdict]:
    """Every claim with its verdict, by key, from the records in the folder `results`. A claim whose records are missing
    or unfinished is not run. Raises DataError for damaged records."""
    found = {}
    for key, claim in CLAIMS.items():
        command = f"{COMMAND} {claim.theorem}"
        try:
            verdict, evidence = claim.judged(load(results, claim.theorem))
        except Missing:
            verdict, evidence = NOT_RUN, f"There are no finished records: {command} makes them."
        found[key] = Verdict(Judgement(claim.text, evidence, verdict), command)
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


CLAIMS = {
    "theorem_1": _Claim(
        1,
        "Theorem 1: turns trained in reverse order, on fresh continuations, reach the optimum of backward induction",
        _optimum,
    ),
    "theorem_1_order": _Claim(1, "Theorem 1: without reverse order success is lower", _ablation("forward_fresh")),
    "theorem_1_fresh": _Claim(1, "Theorem 1: without fresh continuations success is lower", _ablation("reverse_stale")),
    "theorem_2a_factor": _Claim(2, "Theorem 2a: E[A | S, u] is (G−2)/(G−1) of the true advantage", _factor),
    "theorem_2a_contamination": _Claim(
        2,
        "Theorem 2a: a trajectory's advantage has the value of its state in it, (N−1)/N (V(S) − mean R)",
        _contamination,
    ),
    "theorem_2b_general": _Claim(
        2,
        "Theorem 2b, worked out for any group sizes n and N: (N−1)/N σ_V² + (1/N − 1/n)(σ_A² − σ_ξ²) is the difference "
        "of the mean squared errors",
        _differences("general", equal),
    ),
    "theorem_2b_printed": _Claim(
        2,
        "Theorem 2b as printed, its leading term taken alone: (N−1)/N σ_V² is the difference",
        _differences("printed", equal),
    ),
    "theorem_2b_lower": _Claim(
        2,
        "Theorem 2b as printed: the sibling estimator's mean squared error is lower wherever σ_V > 0",
        _differences("zero", larger),
    ),
    "theorem_3a_weights": _Claim(3, "Theorem 3a: the weights of continuations sampled anew are 1", _unit_weights),
    "theorem_3a_unbiased": _Claim(
        3,
        "Theorem 3a: a sibling's return is on average the present policy's action value",
        _unbiased,
    ),
    "theorem_3b_variance": _Claim(3, "Theorem 3b: its variance is p(1−p)", _variance),
    "theorem_3_stale_variance": _Claim(
        3,
        "Theorem 3, comparison: the variance of a stale weight is the product of its turns' second moments, less 1",
        _weight_variance,
    ),
    "theorem_3_growth": _Claim(3, "Theorem 3, comparison: that variance grows with the later turns", _growth),
}


# docs/results/theory.md


Column = tuple[str, Callable[[Any], str]]
"""its title, and what it shows of a row"""


def _table(columns: Sequence[Column], of: Iterable[Any], caption: str = "") -> str:
    """A table with a row for each of these. The page itself has the caption that needs no records."""
    table = markdown.ruled([title for title, _ in columns], [[cell(one) for _, cell in columns] for one in of], True)
    return f"{caption}\n\n{table}" if caption else table


def verdicts_block(results: Path) -> str:
    """The claims, and the rule."""
    columns: list[Column] = [
        ("Claim", lambda one: one.part.what),
        ("Verdict", lambda one: f"**{one.part.outcome}**"),
        ("Evidence", lambda one: one.part.shown),
        ("Records made by", lambda one: f"`{one.command}`"),
    ]
    return _table(columns, verdicts(results).values(), RULE)


def runs_block(results: Path) -> str:
    """How the records were made."""
    manifests = {theorem: load(results, theorem).manifest for theorem in THEOREMS}
    columns: list[Column] = [
        ("Theorem", lambda one: f"{one['theorem']}"),
        ("Started", lambda one: f"{one['started']}"),
        ("Commit", lambda one: f"{one['commit'][:12]}{' (changed)' if one['dirty'] else ''}"),
        ("Processor seconds", lambda one: number(one["cpu_seconds"], 0)),
        ("Wall-clock seconds", lambda one: number(one["wall_seconds"], 0)),
        ("Lines", lambda one: f"{one['lines']:,}"),
    ]
    total = sum(one["cpu_seconds"] for one in manifests.values())
    title = f"The records of the tables above. All three took {number(total, 0)} s of one processor."
    settings = [(theorem, *item) for theorem, one in manifests.items() for item in one["settings"].items()]
    of_settings: list[Column] = [
        ("Theorem", lambda row: f"{row[0]}"),
        ("Setting", lambda row: f"`{row[1]}`"),
        ("Value", lambda row: f"`{row[2]}`"),
    ]
    return f"{_table(columns, manifests.values(), title)}\n{_table(of_settings, settings, 'Their settings.')}"


def order_block(results: Path) -> str:
    """Theorem 1."""
    part = load(results, 1)
    places = [(kind, family, variant) for kind in ("sweep", "training") for family in FAMILIES for variant in VARIANTS]

    def of(place: tuple[str, str, str], key: str) -> Interval:
        kind, family, variant = place
        return over_runs(order_table(part, kind, variant, key, family))

    def below(place: tuple[str, str, str]) -> str:
        found = of(place, "below")
        return f"{_percent(found.mean)} [{_percent(max(0.0, found.low))}, {_percent(found.high)}]"

    title = (
        f"Success of learned policies, in %: exact values, means over {_runs(part)}. Brackets: 95 % "
        "intervals over seeds and MDPs. “Optimal decisions”: the share of the stages and states the uniform policy can "
        "be in whose best action is that of backward induction. “One improvement”: the policy that is greedy on the "
        "exact action values of the uniform one, to which a sweep in forward order tends."
    )
    columns: list[Column] = [
        ("Setting", lambda place: "a sweep" if place[0] == "sweep" else place[0]),
        ("MDPs", lambda place: FAMILIES[place[1]]),
        ("What is trained", lambda place: VARIANTS[place[2]]),
        ("Success", lambda place: _percent(of(place, "success").mean)),
        ("Optimum", lambda place: _percent(of(place, "optimum").mean)),
        ("Below it", below),
        ("Optimal decisions, %", lambda place: _percent(of(place, "agreeing_share").mean)),
        ("One improvement", lambda place: _percent(of(place, "one_improvement").mean)),
    ]
    return _table(columns, places, title)


def factor_block(results: Path) -> str:
    """Theorem 2a, the sibling estimator."""
    part = load(results, 2)
    factors, cells = claims.factors(part), claims.factor_cells(part)
    # the intervals are those of the verdicts, which hold together with the means of cells
    found = compare([*factors, *cells])
    columns: list[Column] = [
        ("Group", lambda c: c.what),
        ("(G−2)/(G−1)", lambda c: f"{c.closed:.3f}"),
        ("Measured", _interval),
        ("Reached", _yes),
        ("Means that reach it", lambda c: _reached_of(found[len(factors) :], f"{c.what},")),
    ]
    return _table(columns, found[: len(factors)])


def contamination_block(results: Path) -> str:
    """Theorem 2a, the trajectory estimator."""
    part = load(results, 2)
    slopes, states = claims.contamination(part), claims.contamination_cells(part)
    found = compare([*slopes, *states])
    rows = [(c, x["variance"]) for c, x in zip(found[: len(slopes)], part.of("contamination"), strict=True)]
    columns: list[Column] = [
        ("Group", lambda row: row[0].what),
        ("σ_V", lambda row: f"{row[1] ** 0.5:.3f}"),
        ("(N−1)/N", lambda row: f"{row[0].closed:.3f}"),
        ("Measured", lambda row: _interval(row[0])),
        ("Reached", lambda row: _yes(row[0])),
        ("Variance", lambda row: f"{row[0].closed ** 2 * row[1]:.4f}"),
        ("Measured", lambda row: f"{row[0].mean ** 2 * row[1]:.4f}"),
        ("Means that reach it", lambda row: _reached_of(found[len(slopes) :], f"{row[0].what},")),
    ]
    return _table(columns, rows)


def error_block(results: Path) -> str:
    """Theorem 2b."""
    part = load(results, 2)
    general, printed = (compare(claims.differences(part, closed)) for closed in ("general", "printed"))
    columns: list[Column] = [
        ("n", lambda row: f"{row[0]['siblings']}"),
        ("N", lambda row: f"{row[0]['chains']}"),
        ("σ_V", lambda row: f"{row[0]['sigma_v']:.2g}"),
        ("σ_A", lambda row: f"{row[0]['sigma_a']:.2g}"),
        ("σ_ξ", lambda row: f"{row[0]['sigma_xi']:.2g}"),
        ("Measured", lambda row: _interval(row[1])),
        ("General", lambda row: number(row[1].closed, 3)),
        ("Reached", lambda row: _yes(row[1])),
        ("Printed", lambda row: number(row[2].closed, 3)),
        ("Reached", lambda row: _yes(row[2])),
    ]
    return _table(columns, zip(part.of("error"), general, printed, strict=True))


def weights_block(results: Path) -> str:
    """Theorem 3a, what RTPO trained on."""
    part = load(results, 3)
    names = {"fresh": "a synchronisation before every turn", "stale": "none within the step"}

    def total(variant: str, key: str) -> int:
        return sum(x[key] for x in part.of("weights", variant=variant))

    columns: list[Column] = [
        ("Synchronisation", names.__getitem__),
        ("Siblings", lambda variant: f"{total(variant, 'n'):,}"),
        ("Later turns", lambda variant: f"{total(variant, 'turns'):,}"),
        ("Of the newest weights, %", lambda variant: _percent(total(variant, "newest") / total(variant, "turns"))),
        ("Farthest from 1", lambda one: f"{max(x['farthest'] for x in part.of('weights', variant=one)):.2g}"),
    ]
    return _table(columns, names)


def returns_block(results: Path) -> str:
    """Theorems 3a and 3b, returns of siblings."""
    part = load(results, 3)
    means, variances = compare(claims.unbiased(part)), compare(claims.return_variances(part))
    columns: list[Column] = [
        ("p", lambda row: f"{row[0]['exact']:.3f}"),
        ("Returns", lambda row: f"{row[0]['n']:,.0f}"),
        ("Return − p", lambda row: _interval(row[1])),
        ("Reaches 0", lambda row: _yes(row[1])),
        ("p(1−p)", lambda row: f"{row[2].closed:.4f}"),
        ("Measured", lambda row: _interval(row[2], 4)),
        ("Reached", lambda row: _yes(row[2])),
    ]
    return _table(columns, zip(claims.return_bins(part), means, variances, strict=True))


def stale_block(results: Path) -> str:
    """Theorem 3, weights of stale continuations."""
    part = load(results, 3)
    title = (
        f"Variance of the weight of a stale continuation, unclamped, by the turns after the trained one: exact and "
        f"measured, means over {len(part.manifest['settings']['stale_seeds'])} seeds. “A turn”: the factor by which "
        "the exact second moment grows with a turn, in the geometric mean."
    )
    columns: list[Column] = [
        ("Later turns", lambda c: c.what),
        ("Exact", lambda c: f"{c.closed:.3f}"),
        ("Measured", _interval),
        ("Reached", _yes),
        ("A turn", lambda c: f"{(1 + c.closed) ** (1 / int(c.what)):.3f}"),
    ]
    return _table(columns, compare(claims.weight_variances(part)), title)


BLOCKS: dict[str, Callable[[Path], str]] = {
    "verdicts": verdicts_block,
    "order": order_block,
    "factor": factor_block,
    "contamination": contamination_block,
    "error": error_block,
    "weights": weights_block,
    "returns": returns_block,
    "stale": stale_block,
    "runs": runs_block,
}
"""name to text, given the folder of the records"""


def own_page(project: Path) -> OwnPage:
    """What the page is made of. Its parts raise as `load` does."""
    return from_records(lambda: project / RESULTS, BLOCKS, _figures)


def _figures(results: Path) -> list[Drawn]:
    def figure(theorem: int) -> Figure:
        return FIGURES[theorem](load(results, theorem))

    return [Drawn(f"theory_{theorem}", partial(figure, theorem), checksum(results)) for theorem in THEOREMS]


def _percent(value: float) -> str:
    return number(value, 1, scale=100)


def _points(comparison: Comparison) -> str:
    return f"{_percent(comparison.mean)} [{_percent(comparison.low)}, {_percent(comparison.high)}]"


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
