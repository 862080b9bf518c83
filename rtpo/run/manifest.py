"""The types of the fields in manifests of runs, and of evaluations on a benchmark."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, FiniteFloat, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from rtpo.errors import DataError


class _Ledger(TypedDict, total=False):
    budget: dict[str, int]
    rollouts: int
    generated_tokens: int
    optimizer_steps: int
    seconds: dict[str, FiniteFloat]


class _Panel(TypedDict, total=False):
    """The questions of an evaluation."""

    questions: int


class _Checkpoint(TypedDict, total=False):
    policy_version: int | None


class _Manifest(TypedDict, total=False):
    __pydantic_config__ = ConfigDict(strict=True)  # type: ignore[misc]
    experiment: str
    run: str
    label: str
    seed: int
    steps: int
    policy_version: int
    wall_seconds: FiniteFloat
    ledger: _Ledger
    model_sha256: dict[str, str]
    machine: dict[str, Any]
    files: dict[str, str]
    panel: _Panel
    samples: int
    checkpoint: _Checkpoint
    decoding: dict[str, Any]


_READER = TypeAdapter(_Manifest)


def check_fields(manifest: Mapping[str, Any], keys: Collection[str], path: Path) -> None:
    """Raises DataError, naming the first of `keys` that is missing, or the first field of a wrong type."""
    problems = [f"{key}: Field required" for key in keys if key not in manifest]
    try:
        _READER.validate_python(manifest)
    except ValidationError as error:
        problems += [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()]
    if problems:
        raise DataError(f"{path} is damaged or of another version ({problems[0]}): restore it, or run again.")
