"""The numbers that committed tables and pages rest on, recomputed from the records and compared as numbers.

tests/golden/ has a CSV for each source of numbers: a line a number, with its key, `mean`, `low`, `high` and `n` (runs,
or pairs of runs; questions in `questions`). Means never change. Where an interval changes on purpose, CHANGELOG.md says
from what to what, and why.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis import metrics
from analysis.load import Frames, experiment, groups
from analysis.stats import Interval
from analysis.theory import comparisons as theorems
from rtpo.run.config import PROJECT

FOLDER = Path(__file__).parents[1] / "golden"
RESULTS = PROJECT / "results"
EXPERIMENTS = ("reference", "main_table_toy_toy_math", "main_table_toy_toy_knowledge")
ORDER = ("success", "optimum", "below", "one_improvement", "share")
TOKENS = ("generated_tokens", "row_tokens", "computed_tokens", "scored_tokens", "prefilled_tokens")
MEASURED = ("mean", "low", "high", "n", "questions", "closed")
"""columns that are compared"""
Row = dict[str, object]


def _interval(value: Interval) -> Row:
    return {"mean": value.mean, "low": value.low, "high": value.high, "n": value.runs, "questions": value.questions}


def _evaluated(group: Frames) -> Iterator[Row]:
    for when in ("before", "after"):
        for mode in ("sampled", "paper", "greedy"):
            evaluation = metrics.held_out(group, when, mode)
            if evaluation is not None:
                yield {"quantity": f"success {when} {mode}", **_interval(metrics.success(evaluation))}
    before, after = (metrics.held_out(group, when, "sampled") for when in ("before", "after"))
    gain = None if before is None or after is None else metrics.difference(before, after)
    if gain is not None:
        yield {"quantity": "gain sampled", **_interval(gain)}


def _trained(group: Frames) -> Iterator[Row]:
    values = {
        **{
            f"steps {key}": metrics.mean_over_steps(group, key)
            for key in ("kl", "kl_context", "entropy", "ties", "residual", "success", "mean_reward")
        },
        "context ratio": metrics.context_ratio(group),
        **{
            key.replace("_", " "): group.runs[key]
            for key in ("rollouts", "budget", "optimizer_steps", "training_seconds", *TOKENS)
        },
    }
    for quantity, of_runs in values.items():
        yield {"quantity": quantity, "mean": of_runs.mean(), "n": len(group.runs)}
    for row in metrics.by_turn(group).itertuples():
        yield {"quantity": f"kl turn {int(row.x)}", "mean": row.mean, "n": len(group.runs)}


def _configurations() -> Iterator[tuple[Row, Frames]]:
    """Every configuration of the committed experiments."""
    for name in EXPERIMENTS:
        for label, group in groups(experiment(RESULTS, name)).items():
            yield {"experiment": name, "label": label}, group


def runs() -> pd.DataFrame:
    """What was measured of them."""
    rows = [key | row for key, group in _configurations() for row in (*_evaluated(group), *_trained(group))]
    return pd.DataFrame(rows)


def _compared(theorem: int, key: str, comparisons: pd.DataFrame) -> Iterator[Row]:
    for comparison in comparisons.to_dict("records"):
        yield {"theorem": theorem, "quantity": key, **{str(name): value for name, value in comparison.items()}}


def theory() -> pd.DataFrame:
    """What the records of each theorem are compared with."""
    folder = RESULTS / "theory"
    rows: list[Row] = []
    for kind in ("sweep", "training"):
        rows += _compared(1, f"optimum {kind}", theorems.optimum(folder, kind))
        for variant in ("forward_fresh", "reverse_stale"):
            rows += _compared(1, f"above {variant} {kind}", theorems.ablation(folder, variant, kind))
        for family in ("lock", "layered"):
            for variant in ("reverse_fresh", "reverse_stale", "forward_fresh"):
                for key in ORDER:
                    name = {"theorem": 1, "quantity": f"{kind} {key}", "what": f"{family} {variant}"}
                    rows.append({**name, **_interval(theorems.over_runs(folder, kind, variant, key, family))})
    rows += _compared(2, "factor", theorems.factors(folder))
    rows += _compared(2, "contamination", theorems.contaminations(folder))
    forms = {"general": theorems.general, "printed": theorems.printed, "zero": theorems.no_difference}
    for closed, form in forms.items():
        rows += _compared(2, f"error {closed}", theorems.differences(folder, form))
    rows += _compared(3, "unit weights", theorems.unit_weights(folder))
    rows += _compared(3, "unbiased", theorems.unbiased(folder))
    rows += _compared(3, "return variance", theorems.return_variances(folder))
    rows += _compared(3, "weight variance", theorems.weight_variances(folder))
    rows += _compared(3, "growth", theorems.growth(folder))
    return pd.DataFrame(rows)


GOLDEN: dict[str, Callable[[], pd.DataFrame]] = {"runs": runs, "theory": theory}


def write(name: str, frame: pd.DataFrame) -> None:
    frame.to_csv(FOLDER / f"{name}.csv", index=False, float_format="%.8g")


@pytest.mark.parametrize("name", GOLDEN)
def test_numbers_are_those_of_the_records(name: str) -> None:
    golden = pd.read_csv(FOLDER / f"{name}.csv", keep_default_na=False, na_values=[""])
    assert len(golden)
    current = GOLDEN[name]().reindex(columns=golden.columns)
    keys = [column for column in golden.columns if column not in MEASURED]
    both = golden.merge(current, on=keys, how="outer", suffixes=("", "_now"), indicator=True, validate="one_to_one")
    missing = both.loc[both["_merge"] != "both", keys]
    assert missing.empty, f"in one of the two alone:\n{missing.to_string()}"
    for column in golden.columns.difference(keys):
        now = both[f"{column}_now"].astype(float)
        same = np.isclose(both[column], now, rtol=1e-6, atol=1e-9, equal_nan=True)
        different = both.loc[~same, [*keys, column, f"{column}_now"]]
        assert different.empty, f"{len(different)} of {len(both)} differ:\n{different.head(20).to_string()}"
