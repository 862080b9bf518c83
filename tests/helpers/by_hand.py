"""What a page shows, and an interval computed with pandas and scipy alone, to compare the project's with."""

import re
from pathlib import Path

import pandas as pd
from scipy import optimize, stats


def half_width(table: pd.DataFrame, level: float = 0.95) -> float:
    """Half of an interval, 95 % by default: t over runs of one warm start, and what other questions would change beside
    it; of questions alone where no warm start has two runs. table: [(warm start, seed), question]."""
    runs, questions = table.shape
    freedom = runs - table.index.get_level_values(0).nunique()
    of_questions = table.mean(axis=0).var() / questions
    t_runs, t_questions = (stats.t.ppf((1 + level) / 2, max(1, count)) for count in (freedom, questions - 1))
    if not freedom:
        return float(t_questions * of_questions**0.5)
    means = table.mean(axis=1)
    of_runs = ((means - means.groupby(level=0).transform("mean")) ** 2).sum() / (runs * freedom)
    left = table.sub(means, axis=0)
    noise = ((left - left.groupby(level=0).transform("mean")) ** 2).to_numpy().mean() / (freedom * (questions - 1))
    both = t_runs**2 * of_runs + t_questions**2 * max(of_questions - noise, 0)
    return float(max(both**0.5, t_questions * of_questions**0.5))


def p_value(table: pd.DataFrame) -> float:
    """1 minus the level of the interval that ends at 0."""
    mean = abs(table.to_numpy().mean())
    return 1 - float(optimize.brentq(lambda level: half_width(table, level) - mean, 1e-12, 1 - 1e-12))


def holm(p_values: list[float]) -> list[float]:
    adjusted, largest = [0.0] * len(p_values), 0.0
    for before, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - before) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def table_of(page: Path, name: str) -> list[dict[str, str]]:
    """The rows of a generated table of a page, with plain minus signs."""
    block = page.read_text(encoding="utf-8").partition(f"<!-- generated:{name} -->\n")[2].partition("<!-- end -->")[0]
    head, _, *rows = [[text.strip() for text in line.strip("| ").split(" | ")] for line in block.splitlines()]
    assert rows
    return [dict(zip(head, (text.replace("\N{MINUS SIGN}", "-") for text in row), strict=True)) for row in rows]


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"[-+]?\d+(?:\.\d+)?", text)]
