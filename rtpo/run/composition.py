"""Configurations of configs/ composed by Hydra, whose complaints become sentences."""

import os
import re
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from rtpo.errors import ConfigError
from rtpo.run.config import PROJECT


def composed(name: str, overrides: Sequence[str]) -> DictConfig:
    """configs/<name>.yaml with these overrides. Raises ConfigError."""
    with configurations():
        return compose(name, list(overrides))


@contextmanager
def configurations() -> Iterator[None]:
    """`hydra.compose` knows configs/ inside, as it does in a command of `hydra.main`. Raises ConfigError."""
    is_known = GlobalHydra.instance().is_initialized()
    with in_words(), nullcontext() if is_known else initialize_config_dir(str(PROJECT / "configs"), version_base=None):
        yield


@contextmanager
def in_words() -> Iterator[None]:
    """Raises what Hydra and OmegaConf raise as ConfigError; `hydra.main`, which would print it, raises it too."""
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_sentence(error)) from error
    except ValueError as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        if not frame.f_globals["__name__"].startswith("hydra."):
            raise
        raise ConfigError(f"task, algorithm and the like are chosen by a name: {error}.") from error


def _sentence(error: Exception) -> str:
    """What Hydra says, in a sentence that names what there is."""
    text = " ".join(str(error).split())
    if isinstance(error, MissingConfigException) and "/" in (missing := error.missing_cfg_file or ""):
        group, _, name = missing.rpartition("/")
        there = ", ".join(option for option in error.options or () if not option.startswith("_"))
        return f"{group} is {name!r}: no such {group}; there are {there}."
    if isinstance(error, OverrideParseException):
        return f"{error.override!r} is no override, such as name=value: {text.partition(' See http')[0]}."
    if unknown := re.match(r"Could not override '([^']*)'", text):
        return f"{unknown[1]} is no field of a run: python experiments/train.py --cfg job prints them all."
    return text
