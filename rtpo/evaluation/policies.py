"""The policies that can be evaluated: a run's last save, a Hugging Face model folder, a server.

torch and transformers take seconds to import. They are imported where they are used, so that invalid settings are
reported at once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from huggingface_hub.errors import StrictDataclassError
from omegaconf import OmegaConf

from rtpo.core.names import first_words
from rtpo.engines.base import Engine
from rtpo.engines.endpoint import EndpointEngine
from rtpo.errors import ConfigError, DataError
from rtpo.evaluation.panel import EvaluateConfig
from rtpo.run.cli import composed
from rtpo.run.config import RunConfig, TaskConfig, compose_run
from rtpo.run.lines import model_sha256, tokenizer_sha256
from rtpo.run.model_folder import check_model, check_run_model, load_tokenizer, positions_of
from rtpo.run.reading import why_no_run
from rtpo.run.records import RunFolder
from rtpo.types import RolloutContext

CACHE_TOKENS = 65_536
"""size of the embedded decoder's cache, in which later turns find their earlier context"""
DELAY = 0.05
"""seconds that the embedded decoder waits for more questions, to batch their turns"""

Opened = tuple[Engine, int]
"""an engine, and the version of its weights"""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A policy to evaluate."""

    label: str  # names the folder of its records
    identity: dict[str, Any]  # what the manifest says about it
    tokenizer: Any
    open: Callable[[], Opened]  # starts its engine, which may take minutes
    rollout_context: RolloutContext | None = None  # that it was trained in; None: unknown
    positions: int | None = None  # the longest context; None: unknown


def find_checkpoint(config: EvaluateConfig) -> Checkpoint:
    """Find the checkpoint that the configuration names. Raises ConfigError, DataError or MachineError."""
    is_served = config.checkpoint.startswith(("http://", "https://"))
    path = Path(config.checkpoint)
    is_run = not is_served and (path / "config.yaml").exists()
    if config.machine is not None and (is_served or is_run):
        raise ConfigError(
            f"machine is {config.machine} and checkpoint {'a server' if is_served else 'a run, which has its own'}: a "
            "machine is for a model folder; use null."
        )
    if is_served:
        return _server_checkpoint(config)
    if is_run:
        return _run_checkpoint(path, config.benchmarks)
    if (path / "config.json").exists():
        return _model_checkpoint(path, config)
    other_kinds = (
        "a Hugging Face model folder (config.json), or a server's address that begins with http:// or https://"
    )
    raise DataError(f"checkpoint: {why_no_run(path)} It may also be {other_kinds}.")


def _server_checkpoint(config: EvaluateConfig) -> Checkpoint:
    settings, url = config.endpoint, config.checkpoint
    problems = settings.problems(url, config.sampling)
    if problems:
        raise ConfigError("\n".join(problems))
    folder = Path(str(settings.tokenizer))
    tokenizer = load_tokenizer(folder)
    engine = EndpointEngine(url, settings, tokenizer)
    identity = {
        "kind": "endpoint",
        "url": url,
        "model": settings.model,
        "model_sha256": "unknown",
        "tokenizer_sha256": tokenizer_sha256(folder),
        "dialect": settings.dialect,
        "ids": engine.check(),
    }
    model = str(settings.model).rstrip("/").rpartition("/")[2]
    return Checkpoint(model or urlsplit(url).netloc, identity, tokenizer, lambda: (engine, 0))


def _model_checkpoint(path: Path, config: EvaluateConfig) -> Checkpoint:
    run = None
    if config.machine is not None:  # verl serves runs: compose one from this model
        tree = composed("train", ["task=math_paper", f"profile={config.machine}"])
        tree.model = {"name": path.resolve().name, "path": str(path)}
        run = compose_run(tree)
    check_model(path, embedded=run is None or run.is_embedded)
    tokenizer = load_tokenizer(path)

    def open_engine() -> Opened:
        if run is None:
            from rtpo.toy.warm_start import local_engine

            return local_engine(_weights(path), int(tokenizer.eos_token_id), CACHE_TOKENS, DELAY), 0
        return _open_with_verl(run, None, config.benchmarks)

    engine = "embedded decoder" if config.machine is None else f"verl, profile {config.machine}"
    identity = {
        "kind": "model",
        "name": path.resolve().name,
        "engine": engine,
        "model_sha256": model_sha256(str(path)),
        "tokenizer_sha256": tokenizer_sha256(path),
    }
    positions = positions_of(path)
    return Checkpoint(path.resolve().name, identity, tokenizer, open_engine, positions=positions)


def _weights(path: Path) -> Any:
    """Load a checked model with transformers. Raises DataError."""
    import torch
    from transformers import AutoModelForCausalLM

    try:
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    except (RuntimeError, ValueError, StrictDataclassError) as error:
        raise DataError(f"the weights in {path} cannot be loaded ({first_words(error)}).") from error


def _run_checkpoint(path: Path, benchmarks: Mapping[str, TaskConfig]) -> Checkpoint:
    folder = RunFolder(path)
    save, run = folder.required_save(), compose_run(OmegaConf.create(folder.config))
    check_run_model(run)
    version = int(save.state["harness"]["policy_version"])
    identity = {
        "kind": "run",
        "run": f"{run.experiment_name}/{path.resolve().name}",
        "save": save.state["name"],
        "policy_version": version,
        "engine": f"verl, profile {run.profile.name}",
        "model_sha256": {
            file: digest for file, digest in save.weights_sha256.items() if Path(file).name.startswith("model")
        },
        "initial_model": run.model.name,
        "tokenizer_sha256": tokenizer_sha256(Path(run.model.path)),
    }

    def open_engine() -> Opened:
        with folder.held():  # a run in progress may delete its save
            return _open_with_verl(run, (save.folder, version), benchmarks)

    return Checkpoint(
        path.resolve().name,
        identity,
        load_tokenizer(Path(run.model.path)),
        open_engine,
        run.algorithm_config.rollout_context,
        positions_of(Path(run.model.path)),
    )


def _open_with_verl(run: RunConfig, save: tuple[Path, int] | None, benchmarks: Mapping[str, TaskConfig]) -> Opened:
    """Open the engine that training uses, with context limits that fit the benchmarks.

    save: folder and version of the weights; None: the run's initial weights.
    """
    from rtpo.verl_harness.session import closed_on_failure, open_backend

    if not run.is_embedded:  # the embedded decoder has no such settings
        verl = OmegaConf.create(run.verl)
        verl.actor_rollout_ref.rollout.update(
            prompt_length=max(task.max_prompt_tokens for task in benchmarks.values()),
            response_length=max(task.max_turn_tokens for task in benchmarks.values()),
            max_model_len=max(task.max_context_tokens for task in benchmarks.values()),
        )
        run = replace(run, verl=cast(dict[str, Any], OmegaConf.to_container(verl)))
    with closed_on_failure():
        backend = open_backend(run)
        version = 0
        if save is not None:
            folder, version = save
            backend.load(folder)
        backend.push(version)
    return backend.engine, version
