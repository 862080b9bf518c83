"""The environments, by name."""

from collections.abc import Callable

from rtpo.envs.base import Env
from rtpo.envs.toy_math import ToyMathEnv
from rtpo.errors import ConfigError

ENVIRONMENTS: dict[str, Callable[[], Env]] = {
    "toy_math": ToyMathEnv,
}


def make_env(name: str) -> Env:
    """A fresh environment. Raises ConfigError for a name that is not registered."""
    if name not in ENVIRONMENTS:
        raise ConfigError(f"environment {name!r} does not exist: use one of {', '.join(sorted(ENVIRONMENTS))}")
    return ENVIRONMENTS[name]()
