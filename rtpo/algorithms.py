"""The algorithms by name."""

from importlib import import_module

from rtpo.errors import ConfigError
from rtpo.verbs import Algorithm

MODULES = {
    "rtpo": "rtpo.rtpo",
    "rtpo_tree": "rtpo.rtpo_tree",
    "vanilla": "baselines.vanilla",
    "grpo": "baselines.grpo",
    "seeupo": "baselines.seeupo",
    "arpo": "baselines.arpo",
    "tree_grpo": "baselines.tree_grpo",
    "refuel": "baselines.refuel",
    "gspo": "baselines.gspo",
}


def load_algorithm(name: str) -> Algorithm:
    """The descriptor of an algorithm. Raises ConfigError for a name that does not exist."""
    if name not in MODULES:
        raise ConfigError(f"algorithm.name is {name!r}: no such algorithm; there are {', '.join(MODULES)}.")
    algorithm = import_module(MODULES[name]).ALGORITHM
    assert isinstance(algorithm, Algorithm)
    return algorithm
