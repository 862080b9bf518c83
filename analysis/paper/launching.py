"""The commands that make an experiment's runs and their evaluations, as the figures and the tables name them."""

from collections.abc import Iterable, Mapping


def commands(experiments: Iterable[str], profile: str, launchers: Mapping[str, str], default: str) -> str:
    """With SLURM or without, in Markdown. launchers: of slurm/, by experiment; another is submitted by itself. default:
    the launchers' profile."""
    names = list(dict.fromkeys(experiments))
    chosen = "" if profile == default else f"PROFILE={profile} "
    submitted = dict.fromkeys(
        f"`{chosen}sbatch slurm/{launchers[name]}.sh`"
        if name in launchers
        else f"`python experiments/launch.py submit {name} profile={profile}`"
        for name in names
    )
    here = (f"`python experiments/launch.py run {name} profile={profile}`" for name in names)
    return f"{' and '.join(submitted)}, or without SLURM {' and '.join(here)}."
