"""Write results/fair/predicted.json: what the study `fair` is expected to find, before the first
run of its test (docs/results/when.md).

    python experiments/maintenance/predict_fair.py

It reads the runs of `rates` and `room`, all on validation questions. The rules:

- walk: the recursion of rtpo/theory/walk.py. On each task it is given the number of rollouts after
  which its exact GRPO has the success that `grpo_exact_room` has there; a prediction is the range
  over a half, once and twice that number.
- walk, forks at the estimated turn: as forks at the turn after the luck; without luck, as uniform
  ones.
- walk, RTPO with exact GRPO's tokens: as RTPO, with as many more rollouts as its are shorter.
- toy knowledge with luck: the share of the room between exact GRPO and state values that the
  recursion gives on `walk_even`, of the room found there.
- RTPO at its best, with exact GRPO's tokens: as with its rollouts, and what the recursion adds for as
  many more.
- contexts (exact GRPO less GRPO): what the studies that ended found, 10 points either way.
- everything else, four mini-batches among it: the difference at the best rates on validation, the
  mean of the three walks, 5 points either way.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from statistics import fmean

from analysis.fair import BEFORE, CEILING, Comparison, by_question
from analysis.load import Frames, load
from analysis.study.plan import Study, named
from rtpo.core.files import write_whole
from rtpo.envs.toy.walk import PLACES, WalkSettings
from rtpo.errors import ConfigError
from rtpo.run.cli import Parser, command
from rtpo.theory.walk import METHODS, Plans, Walk, budget_of, success, told, uniform

STUDY, FILE, MODE = "fair", "predicted.json", "paper"
WALKS = ("walk_early", "walk_even", "walk_late")
NEVER, KNOWLEDGE_LUCK, KNOWLEDGE = ("walk_never",), ("knowledge_luck",), ("knowledge",)
HABITS, OTHERS = (0.3, 0.55), (0.92, 0.08)
"""the chances of the right and of the next person, at places with a wrong habit of the demonstrator's, and elsewhere"""
EXACT, EXACT_4 = "grpo_exact", "grpo_exact_minibatches_4"
BEST, BEST_TOKENS = "rtpo_best", "rtpo_best_tokens"
CONTEXTS = {WALKS: 0.192, KNOWLEDGE: 0.152}
SPREADS = (0.5, 1.0, 2.0)
FORKS, ESTIMATED, TOLD = "anchored_forks", "anchored_forks_estimated", "anchored_forks_told"
RIVALS = ("vineppo", "tree_grpo_exact", "arpo_exact", "gigpo")
FAMILY = (
    (EXACT, "grpo", WALKS),
    ("rtpo", EXACT, WALKS),
    (BEST, EXACT, WALKS),
    ("rtpo_tokens", EXACT, WALKS),
    (BEST_TOKENS, EXACT, WALKS),
    (FORKS, EXACT, WALKS),
    (BEST, EXACT_4, WALKS),
    (FORKS, BEST, WALKS),
    (FORKS, EXACT, NEVER),
    (FORKS, EXACT, KNOWLEDGE_LUCK),
    ("rtpo", EXACT, KNOWLEDGE_LUCK),
    (EXACT, "grpo", KNOWLEDGE),
)
EXPLORATORY = (
    *((label, against, (task,)) for label, against, tasks in FAMILY if tasks == WALKS for task in WALKS),
    *((label, EXACT, WALKS) for label in (ESTIMATED, TOLD)),
    *((label, EXACT, NEVER) for label in ("rtpo", BEST, ESTIMATED, TOLD, *RIVALS)),
    *((label, EXACT, (task,)) for task in ("walk_middle", "walk_no_luck") for label in ("rtpo", FORKS, ESTIMATED)),
    *((label, EXACT, KNOWLEDGE_LUCK) for label in (ESTIMATED, TOLD, "gigpo")),
    *((label, EXACT, WALKS) for label in RIVALS),
    ("grpo_minibatches_4", "grpo", WALKS),
    (EXACT_4, EXACT, WALKS),
)


def walk_of(task: str) -> Walk:
    """The walk as the study's task sets it."""
    decided = {"walk_early": "early", "walk_late": "late"}.get(task, "even")
    weights = WalkSettings(decided=decided).weights  # type: ignore[arg-type]
    return Walk(
        tuple(weight / sum(weights) for weight in weights),
        luck=0.0 if task == "walk_no_luck" else 1.0,
        places=PLACES,
        chances=(HABITS, OTHERS),
        shares=(2 / 7, 5 / 7),
        temperature=0.6,
        faces=10**6 if task == "walk_never" else 2,
        luck_turn=3 if task == "walk_middle" else 0,
    )


class Predictor:
    """The rules, over the study's runs on validation questions."""

    def __init__(self, study: Study, frames: Frames) -> None:
        self._rates = json.loads((study.results / "learning_rates.json").read_bytes())
        self._frames = frames
        plans = [place.configuration for part in study.parts for place, _ in study.planned(part)]
        self._searched = {each.label: each.rate_of for each in plans}
        best = next(each for each in plans if each.label == BEST)
        values = dict(setting.removeprefix("algorithm.").split("=") for setting in best.settings)
        trunks, group_size = int(values.get("trunks", 1)), int(values.get("group_size", 3))
        self._best = Plans(trunks=trunks, group_size=group_size)
        tasks = (*WALKS, *NEVER, "walk_middle", "walk_no_luck")
        self._budgets = {task: budget_of(EXACT, walk_of(task), Plans(), self._success(task, BEFORE)) for task in tasks}

    def predict(self, label: str, against: str, tasks: tuple[str, ...]) -> tuple[float, float]:
        """The range in which the mean difference is expected."""
        if against == "grpo" and label == EXACT:
            known = next(gain for of, gain in CONTEXTS.items() if set(tasks) <= set(of))
            return known - 0.1, known + 0.1
        if tasks == KNOWLEDGE_LUCK:
            room = self._success(*tasks, CEILING) - self._success(*tasks, BEFORE)
            shares = self._gains(label, EXACT, ("walk_even",)), self._gains("grpo_state_values", EXACT, ("walk_even",))
            return _range([room * gain / most for gain, most in zip(*shares, strict=True)])
        beyond = (EXACT_4, BEST, BEST_TOKENS)  # what the recursion has not
        if all(each.startswith(METHODS) and each not in beyond for each in (label, against)):
            return _range(self._gains(label, against, tasks))
        difference = fmean(self._best_success(task, label) - self._best_success(task, against) for task in WALKS)
        added = [0.0]
        if label == BEST_TOKENS:
            gains = self._gains(BEST_TOKENS, EXACT, tasks), self._gains(BEST, EXACT, tasks)
            added = [more - fewer for more, fewer in zip(*gains, strict=True)]
        return difference + min(added) - 0.05, difference + max(added) + 0.05

    def _gains(self, label: str, against: str, tasks: Sequence[str]) -> list[float]:
        """By the recursion, the mean over the tasks at each of SPREADS."""
        return [
            fmean(self._reached(task, label, spread) - self._reached(task, against, spread) for task in tasks)
            for spread in SPREADS
        ]

    def _reached(self, task: str, label: str, spread: float) -> float:
        walk = walk_of(task)
        method, plans = self._method(label, walk)
        budget = spread * self._budgets[task]
        if label.endswith("_tokens"):  # as many more rollouts as RTPO's are shorter, on the walks
            budget *= self._tokens_a_rollout(EXACT) / self._tokens_a_rollout(self._searched[label])
        return success(method, walk, plans, budget)

    def _method(self, label: str, walk: Walk) -> tuple[str, Plans]:
        """The recursion's method and plans of a configuration."""
        plans = Plans()
        if label.startswith("rtpo"):
            return "rtpo", self._best if label.startswith(BEST) else plans
        if label == TOLD or (label == ESTIMATED and walk.luck):
            return FORKS, told(walk, plans, 1 if label == TOLD else walk.luck_turn + 1)
        return (FORKS, uniform(walk, plans)) if label.startswith(FORKS) else (label, plans)

    def _tokens_a_rollout(self, label: str) -> float:
        runs = self._frames.runs
        chosen = runs[runs["label"].str.startswith(f"{label}_lr") & runs["experiment"].str.startswith("rates_walk")]
        return float(chosen["generated_tokens"].sum() / chosen["rollouts"].sum())

    def _best_success(self, task: str, label: str) -> float:
        """On validation questions, at its own rate."""
        searched = self._searched[label]
        return self._success(f"rates_{task}", f"{searched}_lr{self._rates['walks'][searched]:g}")

    def _success(self, task: str, label: str) -> float:
        table = by_question(self._frames, task, label, MODE)
        if table.empty:
            raise ConfigError(f"{label} has no run on {task}: run the parts rates and room first.")
        return float(table.mean(axis="columns").mean())


def _range(gains: Sequence[float]) -> tuple[float, float]:
    return min(gains), max(gains)


def predictions(predict: Callable[[str, str, tuple[str, ...]], tuple[float, float]]) -> list[Comparison]:
    """In the order of the file."""
    compared = []
    for comparisons, in_family in ((FAMILY, True), (EXPLORATORY, False)):
        for label, against, tasks in comparisons:
            low, high = predict(label, against, tasks)
            compared.append(Comparison(label, against, tasks, round(low, 3), round(high, 3), in_family))
    return compared


@command
def main(arguments: list[str] | None = None) -> None:
    Parser(__doc__).parse_args(arguments)
    study = named(STUDY)
    file = study.results / FILE
    if file.exists():
        raise ConfigError(f"{file} exists, and a prediction is not made twice.")
    entries = [asdict(each) for each in predictions(Predictor(study, load(study.results)).predict)]
    write_whole(file, (json.dumps(entries, indent=1) + "\n").encode())


if __name__ == "__main__":
    sys.exit(main())
