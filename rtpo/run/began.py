"""What a run began from besides its configuration. It may resume only from the same inputs."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rtpo.core.files import sha256
from rtpo.core.names import some
from rtpo.errors import DataError
from rtpo.run.config import RunConfig
from rtpo.run.lines import model_sha256, tokenizer_sha256
from rtpo.run.model_folder import check_same_model
from rtpo.types import Task


def inputs_sha256(config: RunConfig, train: Sequence[Task], held_out: Sequence[Task]) -> dict[str, str]:
    """Checksums of what a run reads besides the model's weights: the model's other files, and the tasks."""
    folder = Path(config.model.path)
    files = tokenizer_sha256(folder) | {"config.json": sha256(folder / "config.json")}
    return files | {"training tasks": _tasks_sha256(train), "held-out tasks": _tasks_sha256(held_out)}


def _tasks_sha256(tasks: Sequence[Task]) -> str:
    text = "\n".join(repr((task.uid, task.question, task.answer, _without_paths(task.meta))) for task in tasks)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _without_paths(meta: Mapping[str, Any]) -> dict[str, Any]:
    """A task's meta without absolute paths, which differ between machines."""
    return {key: value for key, value in meta.items() if not (isinstance(value, str) and Path(value).is_absolute())}


def check_began_with(config: RunConfig, state: dict[str, Any], inputs: dict[str, str]) -> None:
    """Raises DataError if a save is of a run that began from another model or other `inputs` (`inputs_sha256`). Saves
    of earlier versions do not say what their runs began from."""
    progress = state["progress"]
    if progress.model_sha256 is not None:
        check_same_model(config, progress.model_sha256, model_sha256(config.model.path))
    began = progress.inputs_sha256 or {}
    if different := [name for name, digest in began.items() if inputs.get(name) != digest]:
        raise DataError(
            f"{config.folder} began with other inputs; different: {some(different)}. Put those back to resume it, or "
            "choose another experiment_name=<name>."
        )
