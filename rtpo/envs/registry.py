"""The environments, by name: every module below rtpo/envs that ends with an `ENVIRONMENT`.

A module's place is its name: rtpo/envs/math.py is `math`, toy/math.py `toy_math`, and airline/env.py `airline`.
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
    """By name; the module of one is imported when it is asked for."""

    def __getitem__(self, name: str) -> Environment:
        known: Any = self.data[name]
        if isinstance(known, str):
            known = self.data[name] = import_module(known).ENVIRONMENT
        assert isinstance(known, Environment)
        return known


def _modules() -> dict[str, Any]:
    """Name to module. The files are read, none of them is imported."""
    modules = {}
    for file in FOLDER.rglob("*.py"):
        parts = file.relative_to(FOLDER).with_suffix("").parts
        if "\nENVIRONMENT = " in file.read_text(encoding="utf-8"):
            modules["_".join(parts).removesuffix("_env")] = ".".join(["rtpo.envs", *parts])
    return dict(sorted(modules.items()))


ENVIRONMENTS = Environments(_modules())


def make_env(name: str, settings: Settings, max_turns: int) -> Env:
    """A fresh environment. Raises ConfigError for a name that is not registered."""
    if name not in ENVIRONMENTS:
        raise ConfigError(f"environment {name!r} does not exist: use one of {', '.join(ENVIRONMENTS)}")
    return ENVIRONMENTS[name].make(settings, max_turns)


@cache
def environment_facts(name: str, settings: Settings) -> dict[str, Any]:
    """What the environment's check at the start says; made once a process."""
    return settings.check()
