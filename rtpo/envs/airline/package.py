"""tau2-bench, as its user installed it: found, told apart from its namesake, and loaded.

It is no dependency of this project: it needs Python 3.12, comes from a commit and not from the package index, and its
data are beside its source.
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
"""of sierra-research/tau2-bench; the adapter was written against it"""
LEAST = 1
"""the major version whose task file is the paper's"""
INSTALL = (
    "with Python 3.12 or 3.13, git clone https://github.com/sierra-research/tau2-bench, check out "
    f"{COMMIT} there and pip install -e that folder (pip install tau2 gets another project)"
)
FILES = ("db.json", "policy.md", "tasks.json", "split_tasks.json")


@dataclass(frozen=True)
class Package:
    """What the adapter uses of tau2-bench. policy: the domain's. agent_prompt: the package's system message for agents,
    policy included. greeting: what the agent has said when an episode begins. stop_words: a message of the user with
    one of them ends it. base: the fresh database, never to be changed. folder: of the domain's data."""

    version: str
    folder: Path
    policy: str
    agent_prompt: str
    greeting: str
    stop_words: tuple[str, ...]
    base: Any
    database_type: Any
    tools_type: Any
    environment_type: Any
    call_type: Any
    task_type: Any
    user_type: Any


def find_package() -> str:
    """The version of the tau2-bench that can be imported here; nothing of it is run. Raises MachineError where there is
    none, another project of that name, or one that is too old."""
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
            f"tau2-bench is on the path but not installed, so that its version is not known: {INSTALL}."
        ) from error
    if int(version.partition(".")[0]) < LEAST:
        raise MachineError(f"tau2-bench {version} is older than {LEAST}.0.0, with other tasks: {INSTALL}.")
    return version


@cache
def load_package() -> Package:
    """tau2-bench, loaded once a process, without its log and without the network. Raises MachineError as `find_package`
    does and for one that lacks something, DataError where its data are missing."""
    version = find_package()
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # or an import asks the network for prices
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
