"""Configurations of configs/ composed by Hydra, whose complaints become sentences."""

import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from difflib import get_close_matches
from typing import Any

from rtpo.run.command import Parser

from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rtpo.core.names import nearest
from rtpo.errors import ConfigError
from rtpo.run.config import PROJECT

CONFIGS = PROJECT / "configs"
WHAT = {"train": "a run", "evaluate": "an evaluation"}
"""by the name of a configuration, which is that of its command too"""


def composed(name: str, overrides: Sequence[str], *, with_hydra: bool = False) -> DictConfig:
    """configs/<name>.yaml with these overrides. with_hydra: Hydra's own tree, too. Raises ConfigError."""
    with in_words(name, overrides), configurations():
        return compose(name, list(overrides), return_hydra_config=with_hydra)


def read_options(description: str | None) -> None:
    """Before `hydra.main` reads the command line: help is a command's own, and so is the complaint about an option that
    Hydra has not. Ends the process where one of them is printed."""
    parser = Parser(description, parents=[get_args_parser()], add_help=False)
    given, others = parser.parse_known_args()
    if given.help:
        own = Parser(description, usage="%(prog)s [-m] [--cfg job] [FIELD=VALUE ...]", add_help=False)
        own.print_help()
        sys.exit(0)
    if options := [one for one in others if one.startswith("-")]:
        parser.error(f"unrecognized arguments: {options[0]}")


@contextmanager
def configurations() -> Iterator[None]:
    """`hydra.compose` knows configs/ inside, as it does in a command of `hydra.main`."""
    is_known = GlobalHydra.instance().is_initialized()
    with nullcontext() if is_known else initialize_config_dir(str(CONFIGS), version_base=None):
        yield


@contextmanager
def in_words(name: str, overrides: Sequence[str] | None = None) -> Iterator[None]:
    """Raises what Hydra and OmegaConf raise as ConfigError; `hydra.main`, which would print it, raises it too. name: of
    the configuration. overrides: by default those of the command line."""
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_sentence(error, name, sys.argv[1:] if overrides is None else overrides)) from error
    except ValueError as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        if not frame.f_globals["__name__"].startswith("hydra."):
            raise
        raise ConfigError(f"task, algorithm and the like are chosen by a name: {error}.") from error


def _sentence(error: Exception, name: str, overrides: Sequence[str]) -> str:
    """What Hydra says, in a sentence with the nearest of what there is."""
    text = " ".join(str(error).split())
    if isinstance(error, MissingConfigException) and "/" in (missing := error.missing_cfg_file or ""):
        group, _, option = missing.rpartition("/")
        options = sorted(file.stem for file in (CONFIGS / group).glob("[!_]*.yaml"))
        return f"{group} is {option!r}: no such file in configs/{group}/; {nearest(option, options)}."
    if isinstance(error, OverrideParseException):
        return f"{error.override!r} is no override, such as name=value: {text.partition(' See http')[0]}."
    if unknown := re.match(r"Could not (?:override|delete|delete from config\.) '([^']*)'", text):
        known = _fields(name, [one for one in overrides if "." not in one and not one.startswith(unknown[1])])
        alike = [one for one in known if one.rpartition(".")[2] == unknown[1].rpartition(".")[2]]
        close = get_close_matches(unknown[1], alike, 1, 0) or get_close_matches(unknown[1], known, 1)
        near = f"the nearest is {close[0]}; " if close else ""
        return (
            f"{unknown[1]} is no field of {WHAT[name]}: {near}python experiments/{name}.py --cfg job prints them all."
        )
    return text


def _fields(name: str, choices: Sequence[str]) -> list[str]:
    """What overrides may name: groups, and every field where the groups are chosen so."""
    try:
        with configurations():
            tree = compose(name, list(choices))
    except HydraException:  # something else is wrong, too
        return _fields(name, ()) if choices else []
    defaults = OmegaConf.load(CONFIGS / f"{name}.yaml").defaults
    groups = [str(group) for one in defaults if isinstance(one, DictConfig) for group in one]
    return [*(group for group in groups if " " not in group), *_leaves(OmegaConf.to_container(tree))]


def _leaves(tree: Any, path: str = "") -> Iterator[str]:
    if not isinstance(tree, dict) or not tree:
        yield path
        return
    for key, value in tree.items():
        yield from _leaves(value, f"{path}.{key}".lstrip("."))
