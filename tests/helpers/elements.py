"""Elements of experiments, composed once for all tests of a process; to compose one takes a fifth of a second."""

from functools import cache

from rtpo.run.experiments import Experiment, load_experiment, sweep

SERVER = ("task.settings.server.base_url=http://127.0.0.1:1/v1", "task.settings.server.model=user")
"""the airline's user"""


@cache
def loaded(name: str, profile: str) -> Experiment:
    """With the first seed alone; with all algorithms on the paper's profile only."""
    server = SERVER if "airline" in name and profile != "toy" else ()
    first = [] if profile == "a100x8" else [f"algorithm={sweep(name, [f'profile={profile}'])['algorithm'][0]}"]
    return load_experiment(name, [f"profile={profile}", "seed=0", *first, *server])
