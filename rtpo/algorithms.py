"""The algorithms by name: every module of PACKAGES that ends with an `ALGORITHM`, by its file's name.

What a field's value is stands in configs/algorithm/<name>.yaml alone.
"""

from contextlib import nullcontext
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rtpo.core.names import nearest
from rtpo.errors import ConfigError
from rtpo.verbs import Algorithm

PROJECT = Path(__file__).resolve().parents[1]
PACKAGES = ("rtpo", "baselines", "baselines.ladder")


def algorithms() -> dict[str, str]:
    """Name to module. The files are read, none of them is imported."""
    return {
        file.stem: f"{package}.{file.stem}"
        for package in PACKAGES
        for file in sorted(PROJECT.joinpath(*package.split(".")).glob("*.py"))
        if "\nALGORITHM = " in file.read_text(encoding="utf-8")
    }


def load_algorithm(name: str) -> Algorithm:
    """The descriptor of an algorithm. Raises ConfigError for a name that does not exist."""
    known = algorithms()
    if name not in known:
        raise ConfigError(f"algorithm.name is {name!r}: no such algorithm; {nearest(name, known)}.")
    algorithm = import_module(known[name]).ALGORITHM
    assert isinstance(algorithm, Algorithm)
    return algorithm


def configured(name: str, **fields: Any) -> Any:
    """The algorithm's configuration as configs/algorithm/<name>.yaml composes it, but for these fields."""
    values = _composed(name) | fields
    return load_algorithm(str(values["name"])).config(**values)


@cache
def _composed(name: str) -> dict[str, Any]:
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    is_known = GlobalHydra.instance().is_initialized()
    with nullcontext() if is_known else initialize_config_dir(str(PROJECT / "configs"), version_base=None):
        tree = compose(f"algorithm/{name}")
    tree = OmegaConf.create(
        {"launch": OmegaConf.load(PROJECT / "configs" / "train.yaml").launch, "algorithm": tree.algorithm}
    )
    values: Any = OmegaConf.to_container(tree.algorithm, resolve=True)
    return dict(values)
