"""The tables of a study on its page, by the study's name."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd

from analysis import metrics
from analysis.claims.claims import study_claims, together
from analysis.load import Frames
from analysis.looks import TASKS, title_of
from analysis.run_table import counted, mean, steps, success
from analysis.study.results import DECODINGS, MEASURES, Difference, StudyResults, compare, of_study
from analysis.tables import NO_VALUE, NOT_RUN, Cell, number, percent_cell
from rtpo.errors import DataError

CONTROL = "grpo_exact"
Column = Callable[[Frames], Cell]


def parts(study: str) -> pd.DataFrame:
    """The runs that were planned and finished, by part."""
    results = of_study(study)
    is_finished = results.study.is_finished
    rows = [(part, len(places), sum(map(is_finished, places))) for part, places in results.planned.items()]
    return pd.DataFrame(rows, columns=["Part", "Planned", "Finished"]).astype(str)


def claims(study: str) -> pd.DataFrame:
    """The study's claims: the difference on each task with its finished pairs of those planned, and the verdict; of
    success the verdicts at other decodings, and at one learning rate for all."""
    results = of_study(study)
    own = results.study.decoding
    places = {DECODINGS[mode].capitalize(): (mode, False) for mode in DECODINGS if mode != own}
    places["One rate"] = (own, True)
    rows = []
    for claim in study_claims():
        is_success = claim["measure"] == "success"
        measure = own if is_success else claim["measure"]
        found = _compared(results, claim, measure)
        row = (claim["text"], claim["source"], MEASURES[measure][0], *map(_difference, found), _verdict(found))
        others = (_compared(results, claim, *place) if is_success else [] for place in places.values())
        rows.append((*row, *map(_verdict, others)))
    titles = ["Claim", "Source", "Difference in", *(TASKS[task] for task in results.tasks), "Verdict", *places]
    return pd.DataFrame(rows, columns=titles)


def _compared(
    results: StudyResults, claim: Mapping[str, Any], measure: str, is_common: bool = False
) -> list[Difference | None]:
    first, second = claim["pair"]
    return [compare(results, task, first, second, measure, is_common=is_common) for task in results.tasks]


def _verdict(found: Sequence[Difference | None]) -> str:
    words = [each.verdict for each in found if each is not None]
    return together(words) if words else NO_VALUE


def configurations(study: str, task: str) -> pd.DataFrame:
    """The configurations of a task, each at a learning rate of its own. Raises DataError for a task without runs."""
    results = of_study(study)
    if not results.own.get(task):
        raise DataError(f"the study {study} has no run on {task!r}.")
    own = results.study.decoding
    columns: Mapping[str, Column] = {
        "Configuration": lambda group: title_of(group.label),
        "Runs": lambda group: f"{len(group.runs)} of {len(results.places(task, group.label))}",
        "Rate": lambda group: f"{group.runs['learning_rate'].iloc[0]:g}",
        "Steps / 1k rollouts": mean(lambda group: 1000 * group.runs["optimizer_steps"] / group.runs["rollouts"], 1),
        "Tokens, k": counted("generated_tokens"),
        "Success": success("after", own),
        "By warm start": partial(_by_warm_start, mode=own),
        "Minus exact GRPO": partial(_less_control, results, task),
        **{DECODINGS[mode].capitalize(): success("after", mode) for mode in DECODINGS if mode != own},
        "Entropy, end": mean(metrics.last_entropy, 3),
        "Context ratio": mean(metrics.context_ratio, 3),
        "KL": steps("kl", 4),
        "Zero advantages, %": steps("ties", 1, 100),
    }
    groups = results.own[task].values()
    return pd.DataFrame({title: [str(column(group)) for group in groups] for title, column in columns.items()})


def _difference(found: Difference | None) -> str:
    if found is None or found.interval is None:
        return NO_VALUE if found is None else NOT_RUN
    return f"{percent_cell(found.interval, sign=True)}; {found.pairs} of {found.planned}"


def _by_warm_start(group: Frames, mode: str) -> str:
    evaluation = metrics.held_out(group, "after", mode)
    if evaluation is None:
        return NOT_RUN
    return " / ".join(number(float(value), 1, 100) for value in metrics.by_warm_start(evaluation))


def _less_control(results: StudyResults, task: str, group: Frames) -> Cell:
    found = compare(results, task, group.label, CONTROL, results.study.decoding)
    return percent_cell(None if found is None or group.label == CONTROL else found.interval, sign=True)
