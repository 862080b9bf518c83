"""Checks of a run's folder under results/, and of the runs beside it, before the run starts."""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from rtpo.core.names import some
from rtpo.errors import DataError
from rtpo.run.config import RunConfig
from rtpo.run.differences import differences
from rtpo.run.kept import COMPARED_KEYS, REMEDY, RecordedEvaluation, compared_digest, frame_folders, kept_run, kept_runs
from rtpo.run.lines import model_sha256
from rtpo.run.model_folder import check_same_model
from rtpo.run.reading import read_manifest
from rtpo.run.records import SCHEMA, RunFolder


def check_place(run: RunConfig) -> None:
    """Raise DataError if the run's folder or kept record has another configuration, or if its folder has a finished run
    of another model. Raise DataError too if another seed of the same experiment and label has other settings."""
    folder = RunFolder(run.folder)
    if (run.folder / "config.yaml").exists() and folder.has_trained:
        folder.check(run.as_dict())
        if Path(run.model.path).is_dir() and folder.is_finished:
            check_same_model(run, folder.manifest["model_sha256"], _weights_sha256(run.model.path))
    elif (kept := kept_run(run.folder)) is not None:
        kept.check(run.as_dict())
    for name, config in _beside(run).items():
        if different := differences(config, run.as_dict()):
            raise DataError(
                f"{name} in {run.results} has the same label and experiment, and tables would mix the two; "
                f"different: {some(different, '; ')}. {REMEDY}"
            )


def _beside(run: RunConfig) -> dict[str, Mapping[str, Any]]:
    """The configurations, by run, of other seeds of the same experiment and label. Kept runs are included."""
    configs = {kept.name: kept.config for frames in frame_folders(run.folder) for kept in kept_runs(frames).values()}
    for file in sorted(run.folder.parent.glob(f"{run.label}-seed*/config.yaml")):
        if RunFolder(file.parent).has_trained:
            configs[f"{file.parent.parent.name}/{file.parent.name}"] = RunFolder(file.parent).config
    label = f"{run.folder.parent.name}/{run.label}"
    own = f"{run.folder.parent.name}/{run.folder.name}"
    return {name: config for name, config in configs.items() if name.rpartition("-seed")[0] == label and name != own}


def check_evaluation(folder: Path, planned: Mapping[str, Any]) -> None:
    """Raise DataError if a trained policy of the experiment was evaluated on the same benchmark with other settings.

    folder: the experiment's. planned: the planned evaluation's manifest, of which `benchmark` and COMPARED_KEYS are
    read.
    """
    for evaluation in _evaluations(folder):
        if evaluation.benchmark == planned["benchmark"] and evaluation.digest != compared_digest(planned):
            different = some(evaluation.differences(planned), "; ") or "its questions, limits or tools"
            raise DataError(
                f"{evaluation.run} in {folder.parent} was evaluated differently on {evaluation.benchmark}, and tables "
                f"would mix the two; different: {different}. {REMEDY}"
            )


def _evaluations(folder: Path) -> Iterator[RecordedEvaluation]:
    """The recorded evaluations of an experiment's final policies, from its frames and from its runs' folders."""
    for frames in frame_folders(folder / "run"):
        for kept in kept_runs(frames).values():
            if kept.name.startswith(f"{folder.name}/"):
                yield from kept.evaluations
    for file in sorted(folder.glob("*/*/manifest.json")):
        run = RunFolder(file.parents[1])
        if run.is_finished:
            evaluation = read_manifest(file, SCHEMA, ("benchmark", "checkpoint", *COMPARED_KEYS))
            if evaluation["checkpoint"].get("policy_version") == run.manifest.get("policy_version"):
                yield RecordedEvaluation(
                    run=f"{folder.name}/{run.path.name}",
                    questions=evaluation["panel"]["questions"],
                    digest=compared_digest(evaluation),
                    **{key: evaluation[key] for key in ("benchmark", "samples", "decoding", "limits", "settings")},
                )


@cache
def _weights_sha256(folder: str) -> dict[str, str]:
    return model_sha256(folder)
