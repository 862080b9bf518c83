"""Every element of every experiment on GPUs: composed, and taken as verl's workers and vLLM's server would take it."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from experiments.rehearsal.models import shaped
from experiments.rehearsal.shared import Line, Rehearsed
from rtpo.errors import RTPOError
from rtpo.run.config import RunConfig
from rtpo.run.experiments import experiments, load_experiment

PROFILES = ("a100x8", "a100x1", "h100x8", "h100x1", "h200x8", "h200x1")
SERVER = ("task.settings.server.base_url=http://127.0.0.1:1/v1", "task.settings.server.model=user")
"""of the airline's user, which each site names for itself"""


def rehearse() -> Rehearsed:
    from rtpo.verl_harness.rehearsal.engine_config import engine_config

    with tempfile.TemporaryDirectory() as folder:
        models = Models(Path(folder))
        return Rehearsed(
            [line(name, [f"profile={one}"], models, engine_config) for one in PROFILES for name in experiments()]
        )


class Models:
    """Folders of the models that runs name, each made once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, Path] = {}

    def of(self, run: RunConfig) -> Path:
        if run.model.name not in self._made:
            self._made[run.model.name] = shaped(run.model.name, self._folder)
        return self._made[run.model.name]


def line(name: str, overrides: Sequence[str], models: Models, engine: Callable[[Any], Any] | None) -> Line:
    """An experiment's elements. engine: makes vLLM's configuration, where vLLM is."""
    server = SERVER if "airline" in name else ()
    try:
        elements = load_experiment(name, [*overrides, *server]).elements
    except RTPOError as error:
        return Line(f"{name}, {' '.join(overrides)}", {"Elements": 0, "Different settings": 0}, (str(error),))
    different = {repr(element.run.verl): element.run for element in elements}
    failed = [
        f"{run.label}, {run.task.name}: {why}" for run in different.values() for why in _refused(run, models, engine)
    ]
    figures = {"Elements": len(elements), "Different settings": len(different)}
    return Line(f"{name}, {' '.join(overrides)}", figures, tuple(failed))


def _refused(run: RunConfig, models: Models, engine: Callable[[Any], Any] | None) -> Iterator[str]:
    """Why verl or vLLM does not take a run's settings."""
    from rtpo.verl_harness.session import settings_of

    try:
        settings = settings_of(run)
        settings.actor_rollout_ref.model.path = str(models.of(run))
        from rtpo.verl_harness.rehearsal.composition import worker_configs

        worker_configs(settings)
        if engine is not None:
            engine(settings)
    except RTPOError as error:
        yield str(error)
