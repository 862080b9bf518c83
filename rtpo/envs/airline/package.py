"""Finds and loads the tau2-bench that the user installed, and rejects any other package named tau2.

It is not a dependency of this project: it needs Python 3.12 and is installed from a commit, not from the package index.
Its data lie beside its source.
"""

import os
from dataclasses import dataclass
from functools import cache
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rtpo.errors import DataError, MachineError

COMMIT = "a2c024725189473d2d7cea3a5cfdbcc67478e41f"
"""commit of sierra-research/tau2-bench that the adapter was written for"""
OLDEST_MAJOR = 1
"""oldest major version with the paper's task file"""
INSTALL = (
    "with Python 3.12 or 3.13, git clone https://github.com/sierra-research/tau2-bench, check out "
    f"{COMMIT} there and pip install -e that folder (pip install tau2 gets another project)"
)
FILES = ("db.json", "policy.md", "tasks.json", "split_tasks.json")


@dataclass(frozen=True)
class Package:
    """The parts of tau2-bench that the adapter uses."""

    version: str
    folder: Path  # of the domain's data
    policy: str  # the airline's rules
    agent_prompt: str  # the package's system message for agents, policy included
    greeting: str  # the agent's first message, already in the dialogue
    stop_words: tuple[str, ...]  # a user's message with one of them ends the episode
    base: Any  # the fresh database; never change it
    database_type: Any
    tools_type: Any
    environment_type: Any
    call_type: Any
    task_type: Any
    user_type: Any


def installed_version() -> str:
    """The version of the installed tau2-bench, without importing it. Raises MachineError if it is missing, too old, or
    another project with that name."""
    spec = find_spec("tau2")
    if spec is None:
        raise MachineError(f"The airline task needs tau2-bench, which is not installed: {INSTALL}.")
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    if not any((folder / "domains" / "airline" / "environment.py").is_file() for folder in folders):
        raise MachineError(
            f"The tau2 that is installed ({spec.origin or folders}) is not tau2-bench: it has no "
            f"tau2.domains.airline. It may be the chemistry package of that name: pip uninstall tau2, then {INSTALL}."
        )
    try:
        version = metadata.version("tau2")
    except metadata.PackageNotFoundError as error:
        raise MachineError(
            f"tau2-bench is on the path but not installed, so its version is unknown: {INSTALL}."
        ) from error
    if int(version.partition(".")[0]) < OLDEST_MAJOR:
        raise MachineError(f"tau2-bench {version} is older than {OLDEST_MAJOR}.0.0 and has other tasks: {INSTALL}.")
    return version


@cache
def load_package() -> Package:
    """Load tau2-bench once per process, without its log and the network. Raises MachineError as `installed_version`
    does, or if the package lacks a name that the adapter uses, and DataError if its data are missing."""
    version = installed_version()
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # otherwise an import downloads prices
    try:
        import_module("loguru").logger.disable("tau2")
        folder = Path(_get("domains.airline.utils", "AIRLINE_DATA_DIR"))
        if missing := [name for name in FILES if not (folder / name).is_file()]:
            raise DataError(
                f"tau2-bench's {missing[0]} is not in {folder}: install it from its source folder ({INSTALL}), or set "
                "TAU2_DATA_DIR to that folder's data."
            )
        policy = (folder / "policy.md").read_text(encoding="utf-8")
        database_type = _get("domains.airline.data_model", "FlightDB")
        return Package(
            version=version,
            folder=folder,
            policy=policy,
            agent_prompt=_get("agent.llm_agent", "LLMAgent")([], policy, "none").system_prompt,
            greeting=_get("orchestrator.orchestrator", "DEFAULT_FIRST_AGENT_MESSAGE").content,
            stop_words=tuple(_get("user.user_simulator_base", name) for name in ("STOP", "TRANSFER", "OUT_OF_SCOPE")),
            base=database_type.load(str(folder / "db.json")),
            database_type=database_type,
            tools_type=_get("domains.airline.tools", "AirlineTools"),
            environment_type=_get("environment.environment", "Environment"),
            call_type=_get("data_model.message", "ToolCall"),
            task_type=_get("data_model.tasks", "Task"),
            user_type=_get("user.user_simulator", "UserSimulator"),
        )
    except (ImportError, AttributeError) as error:
        raise MachineError(f"tau2-bench {version} cannot be used ({error}): {INSTALL}.") from error


def _get(module: str, name: str) -> Any:
    return getattr(import_module(f"tau2.{module}"), name)
