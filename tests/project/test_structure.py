"""Where things may be: verl in one package, algorithms out of the harness."""

import ast
import re
import subprocess
import sys
from collections.abc import Collection, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rtpo.algorithms import algorithms
from rtpo.core.names import counted
from rtpo.run.config import PROJECT
from rtpo.tools.python.sandbox import PROGRAM

PACKAGES = ("rtpo", "baselines", "analysis", "experiments")
SOURCES = sorted(path for package in PACKAGES for path in (PROJECT / package).rglob("*.py"))
MODULES = algorithms()
VERL = PROJECT / "rtpo" / "verl_harness"
HEAVY = {"verl", "vllm", "ray"}
ALGORITHMS = tuple((PROJECT / Path(*module.split("."))).with_suffix(".py") for module in MODULES.values())
APART = {"theory", "algorithms.py"}
"""parts of rtpo/ that may name algorithms: their experiments on tables, and the registry"""
HARNESS = [
    path
    for path in sorted((PROJECT / "rtpo").rglob("*.py"))
    if path not in ALGORITHMS and path.relative_to(PROJECT).parts[1] not in APART
]
VOCABULARY = {"rtpo.credit", "rtpo.rows", "rtpo.types", "rtpo.verbs"}
"""what an algorithm may import of the project, beside another algorithm"""
ROOMS = (PROJECT / "docs" / "extend" / "harness.md").read_text(encoding="utf-8")
USES = {
    room: set(re.findall(r"`(\w+)`", used))
    for room, used in re.findall(r"^\| \[`rtpo/(\w+)`\].*\| ([^|]*) \|$", ROOMS, re.MULTILINE)
}
"""each room of rtpo/, in the page's order, with the rooms that it names"""


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PROJECT).with_suffix("").parts).removesuffix(".__init__")


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported(path: Path) -> set[str]:
    return set(imports(ast.parse(path.read_text(encoding="utf-8"))))


def project_imports(path: Path, known: Collection[str]) -> set[str]:
    """The modules of the project that one imports, in functions too, but for what types alone need."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
    used = set()
    for name in imports(tree):
        while name and name not in known:
            name = name.rpartition(".")[0]
        used.add(name)
    return used - {"", module_name(path)}


def compared_strings(tree: ast.AST) -> set[str]:
    """Strings that a program may branch on: compared, matched, or keys."""
    parts: list[ast.expr | None] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            parts += [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            parts.append(node.value)
        elif isinstance(node, ast.Dict):
            parts += node.keys
        elif isinstance(node, ast.Subscript):
            parts.append(node.slice)
    inner = [node for part in parts if part is not None for node in ast.walk(part)]
    return {node.value for node in inner if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_all_but_the_verl_package_imports_without_verl_ray_and_vllm() -> None:
    # its folder is no package where it runs
    modules = [module_name(path) for path in SOURCES if VERL not in path.parents and path != PROGRAM]
    assert {"rtpo.run.run", "rtpo.rtpo", "baselines.grpo", "experiments.train"} <= set(modules)
    imports_all = f"import importlib, sys\nfor name in {modules}: importlib.import_module(name)\n"
    command = [sys.executable, "-c", f"{imports_all}sys.exit(bool(sys.modules.keys() & {HEAVY}))"]
    subprocess.run(command, cwd=PROJECT, check=True)


def test_verl_ray_and_vllm_are_imported_in_one_package() -> None:
    """Imports inside functions included."""
    importing = [path for path in SOURCES if HEAVY & {name.split(".")[0] for name in imported(path)}]
    assert importing
    assert [path for path in importing if VERL not in path.parents] == []


def test_the_harness_imports_no_algorithm_and_branches_on_none() -> None:
    assert {"rtpo.harness.harness", "rtpo.run.config", "rtpo.verl_harness.backend"} <= set(map(module_name, HARNESS))
    assert compared_strings(ast.parse("name == 'rtpo'")) == {"rtpo"}
    for path in HARNESS:
        tree = ast.parse(path.read_text())
        assert [name for name in imports(tree) if name.startswith(("baselines", *MODULES.values()))] == [], path
        assert MODULES.keys().isdisjoint(compared_strings(tree)), path


def test_algorithms_do_not_import_the_harness() -> None:
    """They are written against the verbs alone."""
    for path in ALGORITHMS:
        used = [name for name in imported(path) if name.split(".")[0] in PACKAGES]
        assert used
        modules = {name if name in MODULES.values() else name.rpartition(".")[0] for name in used}
        assert modules <= {*VOCABULARY, *MODULES.values()}


def test_the_road_to_the_first_step_is_short() -> None:
    """Each file of the drawn road is imported by one before it; algorithms are loaded by their name."""
    (drawn,) = re.findall(r"```\n(experiments/train\.py.*?)```", ROOMS, re.DOTALL)
    road = [PROJECT / name for name in re.findall(r"\S+\.py", drawn)]
    assert len(set(road)) == len(road) <= 20
    known = {module_name(path) for path in SOURCES}
    reached = set().union(*(project_imports(path, known) for path in road))
    assert {module_name(path) for path in road[1:]} - reached == {"rtpo.rtpo"}


def test_no_modules_import_each_other_in_a_circle() -> None:
    paths = {module_name(path): path for path in SOURCES}
    graph = {name: project_imports(path, paths) for name, path in paths.items()}
    tuple(TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle


def room_of(name: str) -> str | None:
    """That an import of rtpo reaches into; None for the root's modules, and for what is not of rtpo."""
    parts = name.split(".")
    return parts[1] if parts[0] == "rtpo" and len(parts) > 1 and (PROJECT / "rtpo" / parts[1]).is_dir() else None


@pytest.mark.parametrize("room", sorted({room for path in SOURCES if (room := room_of(module_name(path)))}))
def test_a_room_uses_what_the_map_says_and_nothing_above_it(room: str) -> None:
    names = {name for path in (PROJECT / "rtpo" / room).rglob("*.py") for name in imported(path)}
    assert {room_of(name) for name in names} - {None, room} == USES[room]
    assert USES[room] <= set(list(USES)[: list(USES).index(room)])
    assert not {name.split(".")[0] for name in names} & {"analysis", "experiments"}
    if room == "core":
        root = {name for name in names if name.startswith("rtpo.") and room_of(name) is None}
        assert {".".join(name.split(".")[:2]) for name in root} == {"rtpo.errors", "rtpo.types", "rtpo.verbs"}


def test_no_file_outside_the_records_is_large() -> None:
    """A clone carries every version of a file for ever; adapters of warm starts are shipped, so they may be larger."""
    folders = (*PACKAGES, "configs", "docs", "requirements", "slurm", "tests")
    files = [file for folder in folders for file in (PROJECT / folder).rglob("*") if file.is_file()]
    most = {file: 6_000_000 if "adapters" in file.parts else 2_000_000 for file in files}
    assert PROJECT / "rtpo" / "rtpo.py" in files
    assert [str(file) for file in files if file.stat().st_size > most[file]] == []


def test_each_fault_of_meaning_stands_once_in_its_module() -> None:
    """What tests/mutate.py --semantic changes follows the code."""
    faults = yaml.safe_load((PROJECT / "tests" / "fixtures" / "faults.yaml").read_text())
    places = {fault["fault"]: (PROJECT / fault["module"]).read_text().count(fault["before"]) for fault in faults}
    assert places == dict.fromkeys(places, 1)
    assert len(places) == len(faults) > 40


@given(st.integers(-5, 2000), st.sampled_from(("run", "process", "reply", "training process")))
def test_a_noun_is_singular_after_one_alone(number: int, noun: str) -> None:
    plural = {"run": "runs", "process": "processes", "reply": "replies"}[noun.split()[-1]]
    assert counted(number, noun) == f"{number:,} {noun if number == 1 else noun.replace(noun.split()[-1], plural)}"
