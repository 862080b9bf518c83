"""The environments, by name: every module below rtpo/envs that ends with an `ENVIRONMENT`.

A module's place is its name: rtpo/envs/math.py is `math`, toy/math.py `toy_math`, and airline/env.py `airline`.
"""

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from rtpo.envs.base import Env, Environment, Settings
from rtpo.errors import ConfigError

FOLDER = Path(__file__).parent


def _environments() -> dict[str, Environment]:
    found = {}
    for file in sorted(FOLDER.rglob("*.py")):
        parts = file.relative_to(FOLDER).with_suffix("").parts
        if file != Path(__file__) and file.stem != "__init__":
            environment = getattr(import_module(".".join(["rtpo.envs", *parts])), "ENVIRONMENT", None)
            if environment is not None:
                found["_".join(parts).removesuffix("_env")] = environment
    return dict(sorted(found.items()))


ENVIRONMENTS: dict[str, Environment] = _environments()


def make_env(name: str, settings: Settings, max_turns: int) -> Env:
    """A fresh environment. Raises ConfigError for a name that is not registered."""
    if name not in ENVIRONMENTS:
        raise ConfigError(f"environment {name!r} does not exist: use one of {', '.join(ENVIRONMENTS)}")
    return ENVIRONMENTS[name].make(settings, max_turns)


@cache
def environment_facts(name: str, settings: Settings) -> dict[str, Any]:
    """What the environment's check at the start says; made once a process."""
    return settings.check()
