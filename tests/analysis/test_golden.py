"""The numbers of the committed runs, recomputed from their records and compared as numbers.

tests/golden/ has a CSV for each source of numbers: a line a number, with its key, `mean`, `low`, `high` and `n` (runs,
or pairs of runs; questions in `questions`). Means never change. Where an interval changes on purpose, CHANGELOG.md says
from what to what, and why. Differences, claims, theorems and the map are checked as their pages and pictures show them.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis import metrics
from analysis.load import Frames, experiment, groups
from analysis.run_table import COLUMNS
from analysis.stats import Interval
from analysis.study.results import of_study
from rtpo.run.config import PROJECT

FOLDER = Path(__file__).parents[1] / "golden"
RESULTS = PROJECT / "results"
EXPERIMENTS = ("reference", "main_table_toy_toy_math", "main_table_toy_toy_knowledge")
COMPARED = ("mean", "low", "high", "n", "questions", "shown")
"""columns that are no keys"""
Row = dict[str, object]


def _interval(found: Interval) -> Row:
    return {"mean": found.mean, "low": found.low, "high": found.high, "n": found.runs, "questions": found.questions}


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
            for key in ("rollouts", "generated_tokens", "optimizer_steps", "training_seconds")
        },
    }
    for quantity, of_runs in values.items():
        yield {"quantity": quantity, "mean": of_runs.mean(), "n": len(group.runs)}
    for row in metrics.by_turn(group).itertuples():
        yield {"quantity": f"kl turn {int(row.x)}", "mean": row.mean, "n": len(group.runs)}


def _configurations() -> Iterator[tuple[Row, Frames]]:
    """Every configuration of the experiments that are committed beside the toy study."""
    for name in EXPERIMENTS:
        for label, group in groups(experiment(RESULTS, name)).items():
            yield {"experiment": name, "label": label}, group


def runs() -> pd.DataFrame:
    """What was measured of them."""
    rows = [key | row for key, group in _configurations() for row in (*_evaluated(group), *_trained(group))]
    return pd.DataFrame(rows)


def run_tables() -> pd.DataFrame:
    """What the run tables show of them, as text."""
    rows = [
        key | {"quantity": name, "shown": str(column.cell(group))}
        for key, group in _configurations()
        for name, column in COLUMNS.items()
        if name != "method"
    ]
    return pd.DataFrame(rows)


def toy_study() -> pd.DataFrame:
    """Every configuration of the toy study by task, at its own rate and at the common one."""
    rows = [
        {"task": task, "rate": "common" if is_common else "own", "label": label, **row}
        for (task, label, is_common), group in of_study("toy").groups.items()
        for row in (*_evaluated(group), *_trained(group))
    ]
    return pd.DataFrame(rows)


GOLDEN: dict[str, Callable[[], pd.DataFrame]] = {"runs": runs, "run_tables": run_tables, "toy_study": toy_study}


def write(name: str, frame: pd.DataFrame) -> None:
    frame.to_csv(FOLDER / f"{name}.csv", index=False, float_format="%.8g")


@pytest.mark.parametrize("name", GOLDEN)
def test_numbers_are_those_of_the_records(name: str) -> None:
    golden = pd.read_csv(FOLDER / f"{name}.csv", dtype={"shown": str}, keep_default_na=False, na_values=[""])
    keys = list(golden.columns.difference(COMPARED, sort=False))
    assert len(golden)
    assert not golden.duplicated(keys).any()
    both = golden.merge(GOLDEN[name](), on=keys, how="left", suffixes=("", "_now"), indicator=True, validate="1:1")
    missing = both.loc[both["_merge"] != "both", keys]
    assert missing.empty, f"not computed any more:\n{missing.to_string()}"
    for column in golden.columns.difference(keys):
        now = both[f"{column}_now"]
        if column == "shown":
            same = both[column].fillna("") == now.fillna("")
        else:
            same = np.isclose(both[column], now.astype(float), rtol=1e-6, atol=1e-9, equal_nan=True)
        different = both.loc[~same, [*keys, column, f"{column}_now"]]
        assert different.empty, f"{len(different)} of {len(both)} differ:\n{different.head(20).to_string()}"
