"""The environments by name: each module below rtpo/envs that defines `ENVIRONMENT`.

A module's path gives the name: rtpo/envs/math.py is `math`, toy/math.py `toy_math`, and airline/env.py `airline`.
"""

from collections import UserDict
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from rtpo.envs.base import Env, Environment, Settings
from rtpo.errors import ConfigError

FOLDER = Path(__file__).parent


class Environments(UserDict[str, Environment]):
    """Environments by name. Looking up a name imports its module."""

    def __getitem__(self, name: str) -> Environment:
        entry: Any = self.data[name]
        if isinstance(entry, str):
            entry = self.data[name] = import_module(entry).ENVIRONMENT
        assert isinstance(entry, Environment)
        return entry


def _modules() -> dict[str, Any]:
    """Each environment's module by name, found by reading the files without importing them."""
    modules = {}
    for file in FOLDER.rglob("*.py"):
        parts = file.relative_to(FOLDER).with_suffix("").parts
        if "\nENVIRONMENT = " in file.read_text(encoding="utf-8"):
            modules["_".join(parts).removesuffix("_env")] = ".".join(["rtpo.envs", *parts])
    return dict(sorted(modules.items()))


ENVIRONMENTS = Environments(_modules())


def make_env(name: str, settings: Settings, max_turns: int) -> Env:
    """A new environment. Raises ConfigError for an unknown name."""
    if name not in ENVIRONMENTS:
        raise ConfigError(f"environment {name!r} does not exist: use one of {', '.join(ENVIRONMENTS)}")
    return ENVIRONMENTS[name].make(settings, max_turns)


@cache
def environment_facts(name: str, settings: Settings) -> dict[str, Any]:
    """Check an environment's settings, once per process; returns facts for the manifest (`Settings.check`)."""
    return settings.check()
