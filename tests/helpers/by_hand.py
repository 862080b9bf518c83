"""What a page shows, and an interval computed with pandas and scipy alone, to compare the project's with."""

import re
from pathlib import Path

import pandas as pd
from scipy import stats


def half_width(table: pd.DataFrame) -> float:
    """Half of a 95 % interval: t over runs of one warm start, and what other questions would change beside it; of
    questions alone where no warm start has two runs. table: [(warm start, seed), question]."""
    runs, questions = table.shape
    freedom = runs - table.index.get_level_values(0).nunique()
    of_questions = table.mean(axis=0).var() / questions
    t_questions = stats.t.ppf(0.975, questions - 1)
    if not freedom:
        return float(t_questions * of_questions**0.5)
    means = table.mean(axis=1)
    of_runs = ((means - means.groupby(level=0).transform("mean")) ** 2).sum() / (runs * freedom)
    left = table.sub(means, axis=0)
    noise = ((left - left.groupby(level=0).transform("mean")) ** 2).to_numpy().mean() / (freedom * (questions - 1))
    both = stats.t.ppf(0.975, freedom) ** 2 * of_runs + t_questions**2 * max(of_questions - noise, 0)
    return float(max(both**0.5, t_questions * of_questions**0.5))


def table_of(page: Path, name: str) -> list[dict[str, str]]:
    """The rows of a generated table of a page, with plain minus signs."""
    block = page.read_text(encoding="utf-8").partition(f"<!-- generated:{name} -->\n")[2].partition("<!-- end -->")[0]
    head, _, *rows = [[text.strip() for text in line.strip("| ").split(" | ")] for line in block.splitlines()]
    assert rows
    return [dict(zip(head, (text.replace("\N{MINUS SIGN}", "-") for text in row), strict=True)) for row in rows]


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"[-+]?\d+(?:\.\d+)?", text)]
