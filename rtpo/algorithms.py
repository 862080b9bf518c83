"""The registry of algorithms: every module of PACKAGES with an `ALGORITHM`, under its file's name.

The values of an algorithm's fields stand in configs/algorithm/<name>.yaml. A task's file may replace `kl` and `trunks`.
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
    """Each algorithm's module, by name. Reads the files without importing them."""
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
    """The configuration in configs/algorithm/<name>.yaml with these fields replaced: configured("rtpo", trunks=2)."""
    values = _composed(name) | fields
    return load_algorithm(str(values["name"])).config(**values)


@cache
def _composed(name: str) -> dict[str, Any]:
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    is_initialized = GlobalHydra.instance().is_initialized()
    with nullcontext() if is_initialized else initialize_config_dir(str(PROJECT / "configs"), version_base=None):
        tree = compose(f"algorithm/{name}")
    # an algorithm's file may refer to fields of `launch`
    tree = OmegaConf.create(
        {"launch": OmegaConf.load(PROJECT / "configs" / "train.yaml").launch, "algorithm": tree.algorithm}
    )
    values: Any = OmegaConf.to_container(tree.algorithm, resolve=True)
    return dict(values)
