"""Every element of every experiment on GPUs: composed, and taken as verl's workers and vLLM's server would take it."""

import tempfile
from collections.abc import Callable, Iterator
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
        takers = Takers(Path(folder), engine_config)
        lines = [line(name, f"profile={one}", takers) for one in PROFILES for name in experiments()]
    return Rehearsed(lines, ["what vLLM finds out of a GPU's memory and kernels when its engine starts."])


class Takers:
    """verl's workers and, where `engine` makes its configuration, vLLM. Models' folders are made in `folder`."""

    def __init__(self, folder: Path, engine: Callable[[Any], Any] | None = None) -> None:
        self._folder, self._engine = folder, engine
        self._models: dict[str, Path] = {}
        self._known: dict[str, tuple[str, ...]] = {}

    def refusals(self, run: RunConfig) -> tuple[str, ...]:
        """Why a run's settings are not taken; those of equal settings before are not asked again."""
        name, roles = run.model.name, run.verl["actor_rollout_ref"]
        key = repr((name, run.profile.platform, run.profile.processes, run.profile.nodes, roles))
        if name not in self._models:
            self._models[name] = shaped(name, self._folder)
        if key not in self._known:
            self._known[key] = tuple(self._asked(run))
        return self._known[key]

    @property
    def asked(self) -> int:
        """Different settings so far."""
        return len(self._known)

    def _asked(self, run: RunConfig) -> Iterator[str]:
        from rtpo.verl_harness.session import settings_of

        try:
            settings = settings_of(run)
            from rtpo.verl_harness.rehearsal.composition import worker_configs

            settings.actor_rollout_ref.model.path = str(self._models[run.model.name])
            worker_configs(settings)
            if self._engine is not None:
                self._engine(settings)
        except RTPOError as error:
            yield str(error)


def line(name: str, profile: str, takers: Takers) -> Line:
    """An experiment's elements, all seeds."""
    before = takers.asked
    try:
        runs = [one.run for one in load_experiment(name, [profile, *(SERVER if "airline" in name else ())]).elements]
    except RTPOError as error:
        return Line(f"{name}, {profile}", {"Elements": 0, "Settings not met above": 0}, (str(error),))
    failed = dict.fromkeys(f"{run.label}, {run.task.name}: {why}" for run in runs for why in takers.refusals(run))
    figures = {"Elements": len(runs), "Settings not met above": takers.asked - before}
    return Line(f"{name}, {profile}", figures, tuple(failed))
