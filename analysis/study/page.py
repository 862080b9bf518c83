"""The tables of a study on its page, by the study's name."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pandas as pd

from analysis import metrics
from analysis.claims.claims import study_claims, together
from analysis.load import Frames
from analysis.looks import TASKS, title_of
from analysis.run_table import mean, mean_over_steps, success, token_sum
from analysis.study.plan import load_study
from analysis.study.results import DECODINGS, MEASURES, Difference, compare, of_study
from analysis.tables import NO_VALUE, NOT_RUN, Cell, number, percent_cell
from rtpo.errors import DataError

CONTROL = "grpo_exact"
Column = Callable[[Frames], Cell]


def parts(study: str) -> pd.DataFrame:
    """Planned and finished runs of each part."""
    plan = load_study(study)
    finished = {part: [plan.is_finished(place) for place, _ in plan.planned(part)] for part in plan.parts}
    rows = [(part, str(len(runs)), str(sum(runs))) for part, runs in finished.items()]
    return pd.DataFrame(rows, columns=["Part", "Planned", "Finished"])


def claims(study: str) -> pd.DataFrame:
    """The study's claims: on each task the difference with finished and planned pairs, then the verdicts of
    `StudyResults.measures`."""
    results = of_study(study)
    rows = []
    for claim in study_claims():
        measures = results.measures(claim.measure)
        compared = {
            title: [compare(results, task, *claim.pair, measure, is_common=is_common) for task in results.tasks]
            for title, (measure, is_common) in measures.items()
        }
        row = {"Claim": claim.text, "Source": claim.source}
        row["Difference in"] = MEASURES[measures["Verdict"][0]][0]
        row |= {TASKS[task]: _difference(each) for task, each in zip(results.tasks, compared["Verdict"], strict=True)}
        rows.append(row | {title: _verdict(each) for title, each in compared.items()})
    return pd.DataFrame(rows).fillna(NO_VALUE)


def configurations(study: str, task: str) -> pd.DataFrame:
    """The configurations of a task, each at its own learning rate. Raises DataError for a task without runs."""
    results = of_study(study)
    groups = [group for (of, _, is_common), group in results.groups.items() if of == task and not is_common]
    if not groups:
        raise DataError(f"the study {study} has no run on {task!r}.")
    own = results.study.decoding

    def less_control(group: Frames) -> Cell:
        difference = compare(results, task, group.label, CONTROL, own)
        return percent_cell(None if difference is None or group.label == CONTROL else difference.interval, sign=True)

    columns: Mapping[str, Column] = {
        "Configuration": lambda group: title_of(group.label),
        "Runs": lambda group: f"{len(group.runs)} of {len(results.planned[task, group.label, False])}",
        "Rate": lambda group: f"{group.runs['learning_rate'].iloc[0]:g}",
        "Steps / 1k rollouts": lambda group: mean(1000 * group.runs["optimizer_steps"] / group.runs["rollouts"], 1),
        "Tokens, k": lambda group: token_sum(group, "generated_tokens"),
        "Success": partial(success, mode=own),
        "By warm start": partial(_by_warm_start, mode=own),
        "Minus exact GRPO": less_control,
        **{DECODINGS[mode].capitalize(): partial(success, mode=mode) for mode in DECODINGS if mode != own},
        "Entropy, end": lambda group: mean(metrics.last_entropy(group), 3),
        "Context ratio": lambda group: mean(metrics.context_ratio(group), 3),
        "KL": lambda group: mean_over_steps(group, "kl", 4),
        "Zero advantages, %": lambda group: mean_over_steps(group, "ties", 1, 100),
    }
    return pd.DataFrame({title: [str(column(group)) for group in groups] for title, column in columns.items()})


def _verdict(compared: Sequence[Difference | None]) -> str:
    words = [each.verdict for each in compared if each is not None]
    return together(words) if words else NO_VALUE


def _difference(difference: Difference | None) -> str:
    if difference is None or difference.interval is None:
        return NO_VALUE if difference is None else NOT_RUN
    return f"{percent_cell(difference.interval, sign=True)}; {difference.pairs} of {difference.planned}"


def _by_warm_start(group: Frames, mode: str) -> str:
    evaluation = metrics.held_out(group, "after", mode)
    if evaluation is None:
        return NOT_RUN
    return " / ".join(number(float(value), 1, 100) for value in metrics.by_warm_start(evaluation))
