"""The generated blocks of README.md and docs/, and the figures that stand in them, from records."""

import json
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

from hydra import compose, initialize_config_dir
from matplotlib.figure import Figure
from omegaconf import OmegaConf

from analysis import since
from analysis.credit import page as credit
from analysis.experiment import run_table
from analysis.figures.runs import training_figure
from analysis.looks import TASKS
from analysis.map import page as map_page
from analysis.pages import markdown, rehearsal, settings
from analysis.pages.markdown import ruled
from analysis.pages.own_page import Drawn, OwnPage
from analysis.plots import records_checksum
from analysis.records import Run, complete_groups, load_runs
from analysis.study.plan import TOY_RESULTS, TOY_STUDY
from analysis.study.records import StudyRecords, load_study
from analysis.study.tables import settings as settings_of_study
from analysis.tables import NOT_RUN, narrowest, number
from analysis.theory import page as theory
from analysis.toy_study import collapse
from analysis.toy_study import page as toy_study
from analysis.when import page as when
from rtpo.algorithms import algorithms, load_algorithm
from rtpo.data.registry import REGISTRY
from rtpo.errors import DataError
from rtpo.harness.curves import CURVES
from rtpo.planning.data import GIB
from rtpo.planning.memory import cache_a_path, gpu_memory
from rtpo.planning.plan import plan
from rtpo.planning.prompts import QUANTILES, prompt_lengths
from rtpo.planning.text import render
from rtpo.run import archives
from rtpo.run.config import PROJECT
from rtpo.run.experiments import load_experiment
from rtpo.run.records import PACKAGES

EXPERIMENT = "reference"
FIGURE = Path("docs", "results", "reference.png")
BENCH = Path("results", "reference_bench")
TOY_TASKS = ("toy_math", "toy_knowledge", "toy_walk")
WARM_STARTS = {
    "Toy math": "warm_start_math",
    "Toy knowledge": "warm_start_knowledge",
    "Toy knowledge, of habit": "warm_start_knowledge_habits",
    "Toy walk": "warm_start_walk",
}
STUDY, STUDY_RESULTS = (path.relative_to(PROJECT) for path in (TOY_STUDY, TOY_RESULTS))
SHARES = (0.6, 0.7, 0.8, 0.9)
"""of a GPU, for vLLM"""
FRONT = (
    *("Configuration", "Rollouts / budget", "Optimizer steps", "Tokens, k", "Sampled, before", "Sampled, after"),
    *("Greedy", "Ratio", "Seconds"),
)
PAPER = {
    "task.max_turns": "3",
    "task.max_prompt_tokens": "8192",
    "task.max_turn_tokens": "4096",
    "task.max_context_tokens": "32,768 (the model's)",
    "task.train.count": "5,000",
    "task.held_out.count": "benchmarks",
    "budget.rollouts": "80,000",
    "budget.tasks_per_step": "64",
    "sampling.temperature": "0.9",
    "optimizer.lr": "0.000001",
    "optimizer.weight_decay": "0.01",
    "optimizer.clip_grad": "not stated",
    "algorithm.kl": "0.02",
    "evaluation.samples": "not applicable",
}
"""what the paper states for math, beside the toy tasks' settings"""


def quickstart(project: Path, page: Path) -> str:
    """How the committed reference runs were made, and their tables."""
    if not _manifests(project):
        return f"{NOT_RUN}\n"
    results = project / "results"
    return f"{_how_made(load_runs(results, EXPERIMENT))}\n{narrowest(run_table(results, EXPERIMENT))}"


def front(project: Path, page: Path) -> str:
    """The reference runs, in the columns that tell most."""
    if not _manifests(project):
        return f"{NOT_RUN}\n"
    runs = load_runs(project / "results", EXPERIMENT)
    table = run_table(project / "results", EXPERIMENT)
    columns = [table.header.index(title) for title in FRONT]
    seeds = sorted({run.manifest["seed"] for run in runs})
    budgets = sorted({number(run.ledger["budget"]["rollouts"], 0) for run in runs})
    questions = sorted({row[table.header.index("Questions × samples")] for row in table.rows})
    return ruled(FRONT, [[row[column] for column in columns] for row in table.rows]) + (
        f"\nToy scale, not the paper's results. {len(runs)} runs, seeds {', '.join(map(str, seeds))}; budget "
        f"{' or '.join(budgets)} rollouts a run, of which the last fraction of a step is left; at a learning rate that "
        "was chosen for RTPO alone. Success on held-out problems in percent, questions × samples "
        f"{' or '.join(questions)}: sampled at temperature 1, or greedy. Brackets: 95 % intervals over questions "
        "and seeds. Ratio: training over rollout probability, a token. Tokens, seconds: of training.\n"
    )


def _how_made(runs: Sequence[Run]) -> str:
    seeds, budgets, cpus = (
        ", ".join(str(value) for value in sorted(set(values)))
        for values in (
            (run.manifest["seed"] for run in runs),
            (number(run.ledger["budget"]["rollouts"], 0) for run in runs),
            (run.manifest["machine"]["logical_cpus"] for run in runs),
        )
    )
    seconds = median(float(run.manifest["wall_seconds"]) for run in runs)
    return (
        f"`python experiments/quickstart.py experiment_name={EXPERIMENT} seed=<seed>` for the seeds {seeds}: "
        f"{len(runs)} runs, budget {budgets} rollouts a run. Training and evaluation took "
        f"{number(seconds, 0)} s a run (median, start-up apart; logical CPUs: {cpus}). {since.note(runs)}\n"
    )


def figure(project: Path, page: Path) -> str:
    """The figure of the reference runs."""
    if not _manifests(project):
        return f"{NOT_RUN}\n"
    return (
        f"![Reference runs: success, ratio and KL against training rollouts. Toy scale, not the paper's results.]"
        f"({_link(project / FIGURE, page)})\n"
    )


def bench(project: Path, page: Path) -> str:
    """The committed benchmark records beside their limits."""
    records = [_read_json(path) for path in sorted((project / BENCH).glob("*.json"))]
    if not records:
        return f"{NOT_RUN}\n"
    records.sort(key=lambda record: str(record["cases"][0]["part"]))
    rows = [
        (
            case["part"],
            case["name"],
            NOT_RUN if case["value"] is None else f"{case['value']:.3g} {case['unit']}",
            *_verdict(case),
            f"{case['load_before']:.1f}",
            f"{record['machine']['processor']}, {record['machine']['logical_cpus']} logical CPUs",
        )
        for record in records
        for case in record["cases"]
    ]
    return ruled(("Part", "What", "Measured", "Limit", "Verdict", "Load average", "Machine"), rows) + "".join(
        f"\nPart {', '.join(sorted({case['part'] for case in record['cases']}))}: medians of at most "
        f"{record['repeats']} timings; started {record['started']}, at commit {record['commit'][:12]}"
        f"{' (changed)' if record['dirty'] else ''}.\n"
        for record in records
    )


def trees(project: Path, page: Path) -> str:
    """What a data step's training costs, by how its rows are computed."""
    runs = {
        (case["records"]["task"], case["records"]["method"]): case["records"]["seconds"]
        for path in sorted((project / BENCH).glob("*.json"))
        for case in _read_json(path)["cases"]
        if case["part"] == "d"
    }
    if not runs:
        return f"{NOT_RUN}\n"
    return ruled(
        ("What", "Method", "Flattened rows, s", "Exact rows, s", "Exact trees, s", "Trees / rows", "Trees / flattened"),
        [
            (
                what,
                f"`{method}`",
                *(f"{median(seconds[way]):.3g}" if way in seconds else "—" for way in ("flattened", "rows", "trees")),
                *(
                    f"{median(seconds['trees']) / median(seconds[way]):.2f}" if way in seconds else "—"
                    for way in ("rows", "flattened")
                ),
            )
            for (what, method), seconds in runs.items()
        ],
    )


def _verdict(case: Mapping[str, Any]) -> tuple[str, str]:
    """A case's limit, and whether it is within."""
    if case["limit"] is None:
        return "—", "—"
    limit = f"{'≥' if case['more_is_better'] else '≤'} {case['limit']:g} {case['unit']}"
    return limit, {None: "—", True: "within", False: "not within"}[case["within"]]


def warm_start(project: Path, page: Path) -> str:
    """What the shipped toy models are and how well they do before training."""
    columns = [_warm_start(project / "rtpo" / "toy" / folder) for folder in WARM_STARTS.values()]
    return ruled(("What", *WARM_STARTS), [(what, *(column[what] for column in columns)) for what in columns[0]])


def _warm_start(folder: Path) -> dict[str, str]:
    record, model = (_read_json(folder / name) for name in ("warm_start.json", "config.json"))
    settings, held_out = record["settings"], record["held_out"]
    paper = held_out.get("paper_decoding_success")
    return {
        "Parameters": f"{record['parameters']:,}",
        "Vocabulary, tokens": f"{model['vocab_size']:,}",
        "Layers × hidden size": f"{model['num_hidden_layers']} × {model['hidden_size']}",
        "Fine-tuning, cycles × steps": f"{settings['cycles']} × {settings['steps']:,}",
        "Turns a step": f"{settings['batch_size']}",
        "Seed": f"{settings['seed']}",
        "Episodes with past thinking kept, %": f"{100 * settings['full_history']:g}",
        "Fine-tuning, CPU seconds": f"{record['training_cpu_seconds']:,.0f}",
        "Demonstrator's success, %": f"{100 * record['demonstrator_success']:.1f}",
        "Held-out problems": f"{held_out['problems']:,}",
        "Held-out success sampled at temperature 1, %": f"{100 * held_out['sampled_success']:.1f}",
        "Held-out success at temperature 0.6 and top-p 0.95, %": "not run" if paper is None else f"{100 * paper:.1f}",
        "Held-out success greedy, %": f"{100 * held_out['greedy_success']:.1f}",
        "Turns an episode": f"{held_out['turns_per_episode']:.2f}",
        "Tokens a turn": f"{held_out['tokens_per_turn']:.1f}",
        "Ratio, flattened over recorded contexts (geometric mean a token)": f"{held_out['flattened_ratio']:.3f}",
    }


def decided(project: Path, page: Path) -> str:
    """Where the return of the toy walk is decided, by its settings, before training."""
    record = _read_json(project / "rtpo" / "toy" / "warm_start_walk" / "warm_start.json")["decided"]
    turns = range(len(next(iter(record.values()))["left"]))
    return ruled(
        ("Setting", "n", "Deviation of the return", *(f"f, turn {k}" for k in turns), "Explained, mean of turns"),
        [
            (
                name,
                f"{found['problems']} × {found['paths']}",
                f"{found['deviation']:.3f}",
                *(f"{share:.2f}" for share in found["left"]),
                f"{1 - fmean(found['left']):.2f}",
            )
            for name, found in record.items()
        ],
    )


def toy_settings(project: Path, page: Path) -> str:
    """What a run with the defaults uses on each toy task, beside what the paper states for math."""
    with initialize_config_dir(str(project / "configs"), version_base=None):
        runs = [compose("train", [f"task={task}"]) for task in TOY_TASKS]
    return ruled(
        ("Field", *(TASKS[task] for task in TOY_TASKS), "Paper (math)"),
        [(f"`{path}`", *(f"`{OmegaConf.select(run, path)}`" for run in runs), paper) for path, paper in PAPER.items()],
    )


def versions(project: Path, page: Path) -> str:
    """The two package sets."""
    sets = [_pins(project / "requirements" / f"{name}.txt") for name in ("cpu", "gpu")]
    python = [_found(project, "pyproject.toml", r'requires-python = "(.*)"')]
    python.append(_found(project, "environment.yml", r"- python=(\S+)"))
    rows = [("Python", *python), *((name, *(pins.get(name, "not listed") for pins in sets)) for name in PACKAGES)]
    return ruled(("Package", "CPU (`requirements/cpu.txt`)", "GPU (`requirements/gpu.txt`)"), rows)


def prompts(project: Path, page: Path) -> str:
    """Lengths of the real prompts."""
    header = ("Set", "Task", "Prompts", "Mean", *(f"{q} %" for q in QUANTILES), "Longest", "Limit", "Longer")
    rows = []
    for name, one in prompt_lengths().items():
        numbers = (one.count, one.mean, *(one.quantiles[str(q)] for q in QUANTILES), one.longest, one.limit, one.over)
        rows.append((name, f"`{one.task}`", *(number(value, 0) for value in numbers)))
    missing = [one for name, one in REGISTRY.items() if name not in prompt_lengths()]
    absent, packaged = (", ".join(one.name for one in missing if (one.parse is None) is made) for made in (False, True))
    said = f"Not measured, since they were not here: {absent}; since a package makes its prompts: {packaged}."
    return ruled(header, rows) + f"\n{said}\n"


def methods(project: Path, page: Path) -> str:
    """What the descriptor says of every method but the ladder's; on the ladder's page, of those."""
    rows = []
    for name in algorithms():
        method = load_algorithm(name)
        if method.is_rung != (page.stem == "ladder"):
            continue
        shown = f"[`{name}`]({name}.md)" if page.with_name(f"{name}.md").exists() else f"`{name}`"
        texts = (method.plan, method.credit, method.schedule, method.contexts, method.loss, method.trained)
        rows.append((shown, *texts))
    header = ("Algorithm", "Rollout plan", "Credit", "Update schedule", "Training contexts", "Loss", "What is trained")
    return ruled(header, rows)


def curves(project: Path, page: Path) -> str:
    """Every key that is tracked of a step."""
    lines = [(f"`{one.key}`", one.unit, one.meaning, one.weighed_by or "-") for one in CURVES]
    return ruled(("Key", "Unit", "Meaning", "Weighed by"), lines)


def _study(project: Path) -> StudyRecords:
    return load_study(project / STUDY_RESULTS, project / STUDY)


def study(project: Path, page: Path) -> str:
    """The toy study: verdicts, tables, figures and what is missing."""
    return toy_study.page(_study(project))


def study_verdicts(project: Path, page: Path) -> str:
    """By which code the toy study was made, what has changed since, and its claims by verdict."""
    records = _study(project)
    made = since.note(records.every_run)
    return "\n".join([*([f"{made}\n"] if made else []), toy_study.verdicts(records)])


def paper_settings(project: Path, page: Path) -> str:
    """Every setting with its source."""
    tables = [
        settings.tasks_table(project),
        settings.methods_settings(project),
        settings.profiles_settings(project),
        settings.evaluation_settings(project),
    ]
    return "\n".join(_with_header(table) for table in tables)


def machines(project: Path, page: Path) -> str:
    """What GRPO on math needs on the GPU profiles, and what shares of a GPU leave vLLM for keys and values."""
    header = ("Profile", "Model", "GPU, GiB: update", "generation", "has", "Host, GiB", "asked for", "Paths an engine")
    rows: list[tuple[str, ...]] = [(*header, *(f"KV tokens a path at {share:.0%}" for share in SHARES))]
    for profile in settings.GPU_PROFILES:
        chosen = [f"profile={profile}", "seed=0", "task=math_paper", "algorithm=grpo"]
        made = plan("main_table", chosen)
        (row,), node = made.rows, made.hardware
        assert node is not None
        at_once = row.counts.at_once or 0
        share = "verl.actor_rollout_ref.rollout.gpu_memory_utilization"
        shared = [load_experiment("main_table", [*chosen, f"{share}={one}"]).elements[0].run for one in SHARES]
        memory = gpu_memory(load_experiment("main_table", chosen).elements[0].run, node)
        sizes = (memory.update_bytes / GIB, memory.generation_bytes / GIB, node.memory_gib, (row.host or 0) / GIB)
        paths = (at_once / node.gpus, *(cache_a_path(run, node, at_once) for run in shared))
        numbers = (*sizes, made.memory_gb, *paths)
        rows.append((f"`{profile}`", row.model, *(f"{one:,.0f}" for one in numbers)))
    return _with_header(rows)


BLOCKS: dict[str, Callable[[Path, Path], str]] = {
    "quickstart": quickstart,
    "front": front,
    "figure": figure,
    "bench": bench,
    "trees": trees,
    "decided": decided,
    "warm_start": warm_start,
    "toy_settings": toy_settings,
    "versions": versions,
    "prompts": prompts,
    "methods": methods,
    "curves": curves,
    "fields": lambda project, page: _with_header(settings.fields_table(project, page.stem)),
    "rungs": lambda project, page: _with_header(settings.rungs_table(project)),
    "toy_study": study,
    "toy_study_verdicts": study_verdicts,
    "toy_study_settings": lambda project, page: settings_of_study(project / STUDY),
    "collapse": lambda project, page: collapse.page(project),
    "experiments": lambda project, page: _with_header(settings.experiments_table()),
    "ablations": lambda project, page: _with_header(settings.ablations_table()),
    "profiles": lambda project, page: _with_header(settings.profiles_table()),
    "paper_settings": paper_settings,
    "machines": machines,
    "rehearsal": lambda project, page: rehearsal.page(project),
    "plan": lambda project, page: render(plan("main_table", ["profile=a100x8", "seed=0"])),
}
"""name to text, given the project's folder and the page"""


OWN_PAGES: dict[str, Callable[[Path], OwnPage]] = {
    "when": when.own_page,
    "map": map_page.own_page,
    "credit": credit.credit_page,
    "anchors": credit.anchors_page,
    "theory": theory.own_page,
}
"""name of a page of docs/results/ to what it is made of, given the project's folder"""


def own_pages(project: Path) -> dict[str, OwnPage]:
    """Of the pages that there are. Raises ValueError for a page's own block with a name of BLOCKS or of another page,
    which would be filled when that is asked for."""
    pages = project / "docs" / "results"
    own = {name: own_page(project) for name, own_page in OWN_PAGES.items() if (pages / f"{name}.md").exists()}
    for name, own_page in own.items():
        if shared := own_page.blocks.keys() & ({*BLOCKS, *OWN_PAGES} - {name}):
            raise ValueError(f"blocks of {name}.md are called as others are: {', '.join(sorted(shared))}")
    return own


def filled(project: Path, page: Path, own: Mapping[str, OwnPage], only: Collection[str] = ()) -> str:
    """A page's text with every block as the records have it, or `only` those of some names or pages. Raises DataError
    for a block that is unknown or open."""
    blocks: dict[str, Callable[[], str]] = {name: partial(block, project, page) for name, block in BLOCKS.items()}
    if page.stem in own:
        blocks |= own[page.stem].blocks
        only = {*only, *own[page.stem].blocks} if page.stem in only else only
    return markdown.filled(page, blocks, only)


def figures(project: Path, own: Mapping[str, OwnPage], only: Collection[str] = ()) -> list[Drawn]:
    """Those of the pages, or `only` of some."""
    found = [one for name, own_page in own.items() if not only or name in only for one in own_page.figures()]
    return found if only else [_reference(project), *found]


def _reference(project: Path) -> Drawn:
    def draw() -> Figure:
        return training_figure(complete_groups(project / "results", EXPERIMENT))

    return Drawn(FIGURE.stem, draw, records_checksum(_manifests(project)))


def pages(project: Path) -> list[Path]:
    """The pages that may have blocks. Raises DataError for a folder that is no project."""
    found = [path for path in (project / "README.md", *sorted((project / "docs").rglob("*.md"))) if path.exists()]
    if not found:
        raise DataError(f"{project} has no README.md and no docs/: --project takes the project's folder.")
    return found


def _link(path: Path, page: Path) -> str:
    return Path(os.path.relpath(path, page.parent)).as_posix()


def _manifests(project: Path) -> list[Path]:
    return archives.find(project / "results" / EXPERIMENT, "*/manifest.json")


def _with_header(lines: Sequence[Sequence[str]]) -> str:
    return ruled(lines[0], lines[1:])


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error}): restore it.") from error


def _pins(path: Path) -> dict[str, str]:
    """Package to version; `not pinned` where a line names none."""
    lines = [line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    pairs = [line.partition("==") for line in lines if line]
    return {name: version or "not pinned" for name, _, version in pairs}


def _found(project: Path, file: str, pattern: str) -> str:
    match = re.search(pattern, (project / file).read_text(encoding="utf-8"))
    if match is None:
        raise DataError(f"{project / file} names no Python version: write it as {pattern}.")
    return match[1]
