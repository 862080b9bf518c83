"""Evaluate a checkpoint on benchmarks, each in its own folder; a stopped evaluation resumes."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tqdm import tqdm

from rtpo.core.chat import ChatFormat
from rtpo.core.contexts import check_context
from rtpo.core.files import disk_errors
from rtpo.core.names import counted
from rtpo.errors import ConfigError
from rtpo.evaluation.folder import EvaluationFolder
from rtpo.evaluation.panel import (
    EvaluateConfig,
    Line,
    Panel,
    identity,
    load_panel,
    manifest,
    name_in_errors,
    play,
)
from rtpo.evaluation.policies import Opened, find_checkpoint
from rtpo.harness.episodes import EpisodeWorld
from rtpo.run.config import FOLDER_NAME, FOLDER_RULE
from rtpo.run.model_folder import check_positions

Summary = dict[str, Any]
Summarise = Callable[[Sequence[Line], Sequence[int]], Summary]
"""makes a benchmark's summary from its lines and the values of k for pass@k"""


def evaluate(config: EvaluateConfig, summarise: Summarise) -> dict[str, Summary]:
    """Play the questions that are not recorded yet, and return each benchmark's summary. Benchmarks, folders and
    environments are all checked before the first question. Raises RTPOError."""
    checkpoint = find_checkpoint(config)
    for name, task in config.benchmarks.items():
        check_positions(f"benchmarks.{name}", task.max_context_tokens, checkpoint.positions)
    if checkpoint.rollout_context not in (None, config.rollout_context):
        print(f"trained with rollout_context {checkpoint.rollout_context}, evaluated with {config.rollout_context}")
    chat = ChatFormat(checkpoint.tokenizer)
    check_context(config.rollout_context, chat.tags)
    label = config.label or checkpoint.label
    if not FOLDER_NAME.fullmatch(label):
        raise ConfigError(f"label is {label!r}: {FOLDER_RULE}.")
    panels = [load_panel(name, task, chat, config.limit) for name, task in config.benchmarks.items()]
    label_folder = Path(config.results) / config.experiment_name / label
    folders = [EvaluationFolder(label_folder / panel.name) for panel in panels]
    with ExitStack() as stack:
        for panel, folder in zip(panels, folders, strict=True):
            with disk_errors(folder.path):
                folder.path.mkdir(parents=True, exist_ok=True)
            stack.enter_context(folder.held())
            folder.open(identity(config, panel, checkpoint.identity))
        for folder in folders:
            if folder.is_finished:
                folder.check_finished()
        opened = None if all(folder.is_finished for folder in folders) else checkpoint.open()
        summaries = {}
        for panel, folder in zip(panels, folders, strict=True):
            lines = folder.read_whole_questions(config.samples)
            if not folder.is_finished and opened is not None:
                _play(config, opened, chat, panel, folder, lines)
                record = manifest(config, panel, label, checkpoint.identity)
                folder.finish_evaluation(record, summarise(lines, config.ks))
            summaries[panel.name] = summarise(lines, config.ks)
        return summaries


def _play(
    config: EvaluateConfig, opened: Opened, chat: ChatFormat, panel: Panel, folder: EvaluationFolder, lines: list[Line]
) -> None:
    """Play the questions that have no line in `lines` yet. Their lines go to `lines` and to the folder."""
    engine, version = opened
    world = EpisodeWorld(engine, chat, panel.task.make_env, panel.task.limits, config.rollout_context, config.seed)
    done = {line["position"] for line in lines}
    with (
        name_in_errors(panel.name),
        tqdm(total=len(panel.tasks), initial=len(done), unit="question", desc=panel.name, disable=None) as bar,
    ):

        def write(question_lines: list[Line]) -> None:
            folder.append_durably(question_lines)
            lines.extend(question_lines)
            bar.update()

        play(world, panel, config, version, done, write)
        if bar.disable:
            print(f"{panel.name}: {counted(len(panel.tasks), 'question')} played", flush=True)
