"""Tables about the project itself: its methods, experiments, models and curves."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import pandas as pd
from omegaconf import OmegaConf
from scipy.stats import bootstrap

from analysis import metrics
from analysis.load import Frames, groups, load
from analysis.looks import title_of
from analysis.paper.records import config_file
from analysis.run_folder import load_samples
from analysis.run_table import run_table
from analysis.stats import Interval
from analysis.tables import NO_VALUE, NOT_RUN, cell, number, percent
from rtpo.algorithms import algorithms, load_algorithm
from rtpo.errors import DataError
from rtpo.planning.plan import plan
from rtpo.run.config import PROJECT
from rtpo.run.experiments import experiments as names_of_experiments
from rtpo.theory.noise import noise_ratio
from rtpo.toy.record import TurnRecord, read_record
from rtpo.warm_starts.recipes import SHIPPED, read_adapter, read_noise, read_turns

WARM_STARTS = {
    "Toy math": "warm_start_math",
    "Toy knowledge": "warm_start_knowledge",
    "Toy knowledge, of habit": "warm_start_knowledge_habits",
    "Toy walk": "warm_start_walk",
    "Toy keys": "warm_start_keys",
}
REFERENCE = (
    *("method", "seeds", "questions", "rollouts", "steps", "tokens", "before", "after", "gain"),
    *("greedy_before", "greedy", "ratio", "kl", "ties", "seconds"),
)
"""columns of the table of reference runs"""


def methods(kind: str = "methods") -> pd.DataFrame:
    """The descriptors of the methods, or of the rungs of the ladder where kind is `rungs`."""
    rows = []
    for name in algorithms():
        method = load_algorithm(name)
        if method.is_rung == (kind == "rungs"):
            page = PROJECT / "docs" / "method" / f"{name}.md"
            shown = f"[`{name}`]({name}.md)" if page.exists() else f"`{name}`"
            texts = (method.plan, method.credit, method.schedule, method.contexts, method.loss, method.trained)
            rows.append((shown, *texts))
    titles = ("Algorithm", "Rollout plan", "Credit", "Update schedule", "Training contexts", "Loss", "What is trained")
    return pd.DataFrame(rows, columns=titles)


def experiments(kind: str = "paper") -> pd.DataFrame:
    """The experiments of configs/experiment/: the paper's where kind is `paper`, otherwise the others."""
    rows = []
    for name in names_of_experiments():
        file: Any = OmegaConf.to_container(config_file("experiment", name))
        launch, label = file["launch"], file.get("algorithm", {}).get("label", "${algorithm.name}")
        sweep = {key: str(values).split(",") for key, values in file["hydra"]["sweeper"]["params"].items()}
        if ("paper" in launch) == (kind == "paper"):
            labels = {method: label.replace("${algorithm.name}", method) for method in sweep["algorithm"]}
            added = launch.get("not_in_paper", [])
            tasks = ", ".join(task.removeprefix("${launch.tasks.").removesuffix("}") for task in sweep["task"])
            names = ", ".join(f"`{method}`{'*' if label in added else ''}" for method, label in labels.items())
            paper = ", ".join(f"`{label}`" for label in launch.get("paper", [])) or NO_VALUE
            rows.append((f"`{name}`", launch["about"], paper, tasks, names, str(prod(map(len, sweep.values())))))
    return pd.DataFrame(rows, columns=["Experiment", "What", "Paper", "Tasks", "Algorithms", "Elements"])


def spared() -> pd.DataFrame:
    """GPU-hours of training that experiments save by reading runs of other experiments, on the paper's machine."""
    names = [name for name in names_of_experiments() if "shared" in config_file("experiment", name).launch]
    plans = [plan(name, ["profile=a100x8"]) for name in names]
    hours = [planned.node.gpus * planned.sum(lambda row: row.spared) for planned in plans if planned.node]
    rows = zip([*names, "All"], [*hours, sum(hours)], strict=True)
    return pd.DataFrame([(name, f"{spent:,.0f}") for name, spent in rows], columns=["Experiment", "GPU-hours"])


def runs(experiment: str, *columns: str) -> pd.DataFrame:
    """The runs under results/<experiment>/, in columns of `analysis.run_table.COLUMNS`; default: all columns."""
    return run_table(PROJECT / "results", experiment, columns).frame


def reference() -> pd.DataFrame:
    """The reference runs."""
    return runs("reference", *REFERENCE)


def warm_starts() -> pd.DataFrame:
    """How the shipped toy models were made, and their success before training, with one column per model."""
    columns = {title: _warm_start(PROJECT / "rtpo" / "toy" / folder) for title, folder in WARM_STARTS.items()}
    return pd.DataFrame(columns).rename_axis("What").reset_index()


def _warm_start(folder: Path) -> dict[str, str]:
    record = read_record(folder)
    settings, held_out = record.settings, record.held_out
    paper = held_out.paper_decoding_success
    return {
        "Parameters": f"{record.parameters:,}",
        "Fine-tuning, cycles × steps": f"{settings.cycles} × {settings.steps:,}",
        "Episodes with past thinking kept, %": f"{100 * settings.full_history:g}",
        "Fine-tuning, CPU seconds": f"{record.training_cpu_seconds:,.0f}",
        "Demonstrator's success, %": f"{100 * record.demonstrator_success:.1f}",
        "Held-out problems": f"{held_out.problems:,}",
        "Held-out success sampled at temperature 1, %": f"{100 * held_out.sampled_success:.1f}",
        "Held-out success at temperature 0.6 and top-p 0.95, %": NOT_RUN if paper is None else f"{100 * paper:.1f}",
        "Held-out success greedy, %": f"{100 * held_out.greedy_success:.1f}",
        "Turns an episode": f"{held_out.turns_per_episode:.2f}",
        "Tokens a turn": f"{held_out.tokens_per_turn:.1f}",
        "Ratio, flattened over recorded contexts (geometric mean a token)": f"{held_out.flattened_ratio:.3f}",
    }


def language_model() -> pd.DataFrame:
    """The kept runs of a language model, one a row. "Before" is the model that a run began with, on the games that the
    run played after training. It pools the first evaluation before training of a run from this model, if there is one,
    and those of `evaluations`."""
    runs, rows = _language_model_runs(), []
    starts: dict[tuple[str, str], list[pd.DataFrame]] = {}
    for run in runs:
        own = run.answers[(run.answers["when"] == "before") & (run.answers["mode"] == "sampled")]
        if len(own):
            starts.setdefault((run.runs["model_sha256"].item(), run.runs["task"].item()), [own])
    for run in runs:
        facts, after = run.runs.iloc[0], metrics.held_out(run, "after", "sampled")
        assert after is not None
        start = facts["model_sha256"], facts["task"]
        evaluated = [load_samples(folder) for folder in evaluations(json.loads(start[0])) if folder.name == start[1]]
        before = _pooled([*evaluated, *starts.get(start, [])], after)
        turns, tied = (int(run.steps[name].sum()) for name in ("rows", "tied_rows"))
        rows.append(
            {
                "Rollouts": f"{facts['rollouts']:,}",
                "Optimizer steps": str(facts["optimizer_steps"]),
                "Turns in updates": f"{turns:,}",
                "of these, with unequal rewards": f"{turns - tied:,}",
                "these in a step": f"{(turns - tied) / facts['optimizer_steps']:.1f}",
                "Before, %": percent(metrics.success(before)),
                "After, %": percent(metrics.success(after)),
                "Gain": percent(metrics.difference(before, after), sign=True),
            }
        )
    return _with_names(runs, rows)


def language_model_training() -> pd.DataFrame:
    """What the kept runs of a language model show of their training, one a row. The halves are of the data steps."""
    runs, rows = _language_model_runs(), []
    for run in runs:
        facts, steps = run.runs.iloc[0], run.steps
        data_steps = steps.drop_duplicates("step")
        half = data_steps["step"] <= data_steps["step"].max() / 2
        halves = [number(metrics.mean_success(part), 1, 100) for part in (data_steps[half], data_steps[~half])]
        ends = (steps[steps["step"] == step] for step in (1, steps["step"].max()))
        entropy = [np.average(each["entropy"], weights=each["trained_tokens"]) for each in ends]
        rows.append(
            {
                "Success in training, first half; second half, %": "; ".join(halves),
                "Entropy a token, first step; last, nats": "; ".join(f"{nats:.2f}" for nats in entropy),
                "Clipped tokens, most in an update, %": f"{100 * steps['clip_fraction'].max():.1f}",
                "Tokens a turn": f"{facts['generated_tokens'] / facts['turn_generations']:.1f}",
            }
        )
    return _with_names(runs, rows)


def engine_difference(study: str) -> pd.DataFrame:
    """How engine and trainer differ on the tokens that a study's kept runs sampled, before they trained them."""
    frames = load(PROJECT / "results" / study)
    steps = frames.steps[frames.steps["measured_tokens"] > 0]
    row = {
        "Runs": str(steps["run"].nunique()),
        "Updates": f"{len(steps):,}",
        "Tokens compared, k": number(steps["measured_tokens"].sum(), 0, 1e-3),
        "Mean of k3, nats a token": number(np.average(steps["engine_k3"], weights=steps["measured_tokens"]), 4),
        "99.9 % quantile in an update, nats: median; highest": "; ".join(
            number(value, 2) for value in (steps["engine_quantile_999"].median(), steps["engine_quantile_999"].max())
        ),
        "Largest difference, nats": number(steps["engine_largest"].max(), 2),
    }
    return pd.DataFrame([row])


def language_model_curve() -> pd.DataFrame:
    """The evaluations of the kept runs of a language model that were also evaluated during training, one a row."""
    rows, shown = [], []
    for run in _language_model_runs():
        costs, success = metrics.costs_and_success(run, "sampled")
        if len(costs) < 3:
            continue
        places = run.runs.set_index(metrics.PAIRING).index
        tables = [pd.DataFrame([shares], places) for _, shares in success.iterrows()]
        gains = [percent(metrics.difference(tables[0], table), sign=True) for table in tables[1:]]
        steps = run.steps.drop_duplicates("step")
        parts = [steps[steps["step"].between(*ends, "right")] for ends in pairwise(success.index)]
        trained = [number(metrics.mean_success(part), 1, 100) for part in parts]
        for rollouts, table, gain, share in zip(
            costs["rollouts"], tables, [NO_VALUE, *gains], [NO_VALUE, *trained], strict=True
        ):
            won = percent(metrics.success(table))
            row = {"Rollouts": f"{rollouts:,.0f}", "Held-out games won, %": won, "Gain over the first": gain}
            rows.append(row | {"Success in training since the row above, %": share})
            shown.append(run)
    return _with_names(shown, rows)


def _language_model_runs() -> list[Frames]:
    kept = load(PROJECT / "results" / "language_model")
    return [kept.select([run]) for group in groups(kept).values() for run in group.names]


def _with_names(runs: Sequence[Frames], rows: Sequence[dict[str, str]]) -> pd.DataFrame:
    """The rows of these runs, with what tells them apart, in its order."""
    names = ["Model", "Rate", "Configuration"]
    facts = [run.runs.iloc[0] for run in runs]
    title = [title_of(each["label"].partition(",")[0]) for each in facts]
    model, rate = [each["model"] for each in facts], [f"{each['learning_rate']:g}" for each in facts]
    table = pd.DataFrame({"Configuration": title, "Model": model, "Rate": rate})
    return pd.concat([table, pd.DataFrame(rows)], axis=1).sort_values(names, ignore_index=True)


def _pooled(samples: Sequence[pd.DataFrame], like: pd.DataFrame) -> pd.DataFrame:
    """The success of one model's samples on the questions of another evaluation, in its place, [1, questions]."""
    rewards = pd.concat([each[["question", "reward"]] for each in samples]).groupby("question")["reward"].mean()
    return pd.DataFrame([rewards[like.columns.get_level_values("question")].to_numpy()], like.index, like.columns)


def evaluations(model_sha256: Mapping[str, str] | None = None) -> list[Path]:
    """The folders of kept evaluations of language models; only those of the model with these checksums, if given.
    Raises DataError if there is none at all, and for an evaluation that was not sampled as in training."""
    place = PROJECT / "results" / "lm_evaluation"
    records = {file.parent: OmegaConf.load(file) for file in sorted(place.glob("*/*/config.yaml"))}
    if not records:
        raise DataError(f"{place} holds no evaluation: restore it.")
    for folder, record in records.items():
        if record.decoding != {"temperature": 1.0, "top_p": 1.0, "top_k": -1}:
            raise DataError(f"{folder} was not sampled at temperature 1 from all tokens: keep another evaluation.")
    return [folder for folder, each in records.items() if model_sha256 in (None, each.checkpoint.model_sha256)]


def adapters() -> pd.DataFrame:
    """How the shipped adapters of language models were made and what was measured, with one column per adapter."""
    columns = {f"`{folder.name}`": _adapter(folder) for folder in sorted(SHIPPED.iterdir())}
    return pd.DataFrame(columns).rename_axis("What").reset_index()


def _adapter(folder: Path) -> dict[str, str]:
    record = read_adapter(folder)
    settings, measured = record.settings, record.measured
    return {
        "Demonstrated games × passes": f"{settings.games} × {settings.passes}",
        "Held-out games, one episode each": str(measured.held_out_games),
        "Held-out games won at temperature 1, %": f"{100 * measured.sampled_success:.1f}",
        "Held-out games won by greedy decoding, %": f"{100 * measured.greedy_success:.1f}",
        "Training games, eight episodes each": str(measured.groups),
        "Training episodes won at temperature 1, %": f"{100 * measured.training_success:.1f}",
        "Training games with wins and losses, %": f"{100 * measured.mixed_groups:.0f}",
        "Entropy a token, nats": f"{measured.entropy:.2f}",
        "Precision of training": record.precision,
        "Seconds of training": f"{record.training_seconds:,.0f}",
    }


def adapter_evaluations() -> pd.DataFrame:
    """Held-out success of models with a shipped adapter, from the records in results/lm_evaluation."""
    rows = []
    for folder in evaluations():
        figures = json.loads((folder / "summary.json").read_bytes())
        games, samples = figures["questions"], figures["samples"] // figures["questions"]
        low, high = figures["pass@1_interval"]
        mixed = figures["pass@k"][str(samples)] - figures["pass^k"][str(samples)]
        rows.append(
            {
                "Model": f"`{folder.parent.name}`",
                "Games × episodes": f"{games} × {samples}",
                "Won at temperature 1, %": percent(Interval(figures["pass@1"], low, high, 1, games)),
                "Games with wins and losses, %": f"{100 * mixed:.0f}",
            }
        )
    return pd.DataFrame(rows)


def walk_turns() -> pd.DataFrame:
    """What the turns of the toy walk decide before training: the share f of the return's variance that is still open
    at each turn, by setting."""
    record = read_record(PROJECT / "rtpo" / "toy" / "warm_start_walk")
    rows = []
    for name, setting in (record.decided or {}).items():
        left = {f"f, turn {k}": f"{share:.2f}" for k, share in enumerate(setting.left)}
        row = {"Setting": name, "n": f"{setting.problems} × {setting.paths}"}
        row["Standard deviation of the return"] = f"{setting.deviation:.3f}"
        rows.append(row | left | {"1 − mean f": f"{1 - fmean(setting.left):.2f}"})
    return pd.DataFrame(rows)


def key_turns() -> pd.DataFrame:
    """What turns of the toy keys decide before training: means of `rtpo.toy.variance.TurnMeasures` over warm starts."""
    records = [read_record(folder) for folder in sorted((PROJECT / "rtpo" / "toy").glob("warm_start_keys*"))]
    return _by_turn([record.decided["keys"] for record in records if record.decided])


def adapter_turns(adapter: str) -> pd.DataFrame:
    """What turns decide in the training games of a shipped adapter, before training; and by the formula of
    `rtpo.theory.noise`, the noise of RTPO's gradient (G = 3) over that of exact GRPO's at equal rollouts."""
    measured, group_size = read_turns(SHIPPED / adapter).measured, 3
    f = np.array(measured.left)
    noise = noise_ratio(f, group_size, chains=1 + len(f) * (group_size - 1))
    row = {"": "Noise of RTPO over exact GRPO"} | {f"Turn {k}": f"{value:.1f}" for k, value in enumerate(noise)}
    table = pd.concat([_by_turn([measured]), pd.DataFrame([row])], ignore_index=True)
    means = {"f": f"{f.mean():.2f}", row[""]: f"{noise.mean():.1f}"}
    return table.assign(Mean=[means.get(name, NO_VALUE) for name in table[""]])


def adapter_noise(adapter: str) -> pd.DataFrame:
    """The noise of RTPO's gradient (G = 3) over that of exact GRPO's at equal rollouts, measured on training games of a
    shipped adapter, before training. Noise is the variance of a game's gradient: its squared norm minus that of its
    mean, which the inner product of both methods' gradients estimates. The interval is the bootstrap's over games. `by
    the formula`: RTPO's squared norm, over the sum of each turn's divided by its `noise_ratio`."""
    record, turns = read_noise(SHIPPED / adapter), read_turns(SHIPPED / adapter).measured
    measured, group_size = record.measured, 3
    norms, games = np.array([measured.grpo, measured.rtpo]), len(measured.grpo)
    noise = norms - measured.inner
    low, high = bootstrap(
        (noise[1], noise[0]),
        lambda rtpo, grpo, axis: rtpo.mean(axis) / grpo.mean(axis),
        paired=True,
        method="percentile",
        n_resamples=10_000,
        rng=0,
    ).confidence_interval
    ratio = Interval(noise[1].mean() / noise[0].mean(), low, high, 1, games)
    of_turns = np.mean(measured.rtpo_turns, axis=0)
    by_formula = of_turns.sum() / (of_turns / noise_ratio(np.array(turns.left), group_size, record.chains)).sum()
    row = {
        "Games": str(games),
        "Rollouts a game, at most": str(record.chains),
        "Games with a gradient: exact GRPO; RTPO": "; ".join(str(int((each > 0).sum())) for each in norms),
        "Noise of RTPO over exact GRPO": str(cell(ratio)),
        "by the formula": number(by_formula, 1),
        "Share of RTPO's noise in one game, most, %": number(noise[1].max() / noise[1].sum(), 0, 100),
    }
    return pd.DataFrame([row])


def _by_turn(measured: Sequence[TurnRecord]) -> pd.DataFrame:
    titles = {"left": "f", "reached": "Paths that reach it, %", "ties": "Ties, %", "recurring": "Recurring, %"}
    rows = []
    for key, title in titles.items():
        means = [fmean(values) for values in zip(*(getattr(each, key) for each in measured), strict=True)]
        texts = [f"{mean:.2f}" if key == "left" else f"{100 * mean:.0f}" for mean in means]
        rows.append({"": title} | {f"Turn {k}": text for k, text in enumerate(texts)})
    return pd.DataFrame(rows)


def bench(name: str) -> pd.DataFrame:
    """The medians of a record of experiments/bench.py in results/reference_bench, `ms a token` as tokens a second."""
    record = json.loads((PROJECT / "results" / "reference_bench" / f"{name}.json").read_bytes())
    rows = []
    for case in record["cases"]:
        names, medians = list(case["timings"]), [median(values) for values in case["timings"].values()]
        is_time = case["unit"].startswith("ms a ")
        unit = f"{case['unit'].removeprefix('ms a ')}s a second" if is_time else case["unit"]
        values = [1e3 / each for each in medians] if is_time else medians
        sides = [f"{side} {value:.3g}" for side, value in zip(names, values, strict=True)]
        rows.append((case["case"], unit, *sides, f"{values[0] / values[1]:.2f}"))
    return pd.DataFrame(rows, columns=["Case", "Unit", "Ours", "Alternative", "Ours / alternative"])
