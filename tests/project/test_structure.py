"""Where things may be: verl in one package, algorithms out of the harness."""

import ast
import re
import subprocess
import sys
from collections.abc import Collection, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from rtpo.algorithms import algorithms
from rtpo.run.config import PROJECT
from rtpo.tools.python.sandbox import PROGRAM

PACKAGES = ("rtpo", "baselines", "analysis", "experiments")
MODULES = algorithms()
VERL = PROJECT / "rtpo" / "verl_harness"
HEAVY = {"verl", "vllm", "ray"}
ALGORITHMS = tuple((PROJECT / Path(*module.split("."))).with_suffix(".py") for module in MODULES.values())
REGISTRY = PROJECT / "rtpo" / "algorithms.py"
APART = {"theory"}
"""rooms of rtpo/ that may import algorithms: their experiments on tables"""
HARNESS = tuple(
    path
    for path in sorted((PROJECT / "rtpo").rglob("*.py"))
    if path not in (*ALGORITHMS, REGISTRY) and path.relative_to(PROJECT).parts[1] not in APART
)
VOCABULARY = {"rtpo.credit", "rtpo.rows", "rtpo.types", "rtpo.verbs"}
"""what an algorithm may import of the project, beside another algorithm"""


def sources() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (PROJECT / package).rglob("*.py"))


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
    found = set()
    for name in imports(tree):
        while name and name not in known:
            name = name.rpartition(".")[0]
        found.add(name)
    return found - {"", module_name(path)}


def is_command(path: Path) -> bool:
    """Whether it is one that a user runs; the sandbox's programs are none."""
    return path.relative_to(PROJECT).parts[0] in ("analysis", "experiments") and "if __name__ ==" in path.read_text()


def algorithm_imports(tree: ast.AST) -> list[str]:
    modules = tuple(MODULES.values())
    return [name for name in imports(tree) if name.startswith(("baselines", *modules))]


def compared_strings(tree: ast.AST) -> Iterator[str]:
    """Strings that a program may branch on: compared, matched, or keys."""
    for node in ast.walk(tree):
        parts: list[ast.expr | None] = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        elif isinstance(node, ast.Dict):
            parts = list(node.keys)
        elif isinstance(node, ast.Subscript):
            parts = [node.slice]
        for part in parts:
            if part is not None:
                yield from (n.value for n in ast.walk(part) if isinstance(n, ast.Constant) and isinstance(n.value, str))


def test_all_but_the_verl_package_imports_without_verl_ray_and_vllm() -> None:
    # its folder is no package where it runs
    modules = [module_name(path) for path in sources() if VERL not in path.parents and path != PROGRAM]
    assert {"rtpo.run.run", "rtpo.rtpo", "baselines.grpo", "experiments.train"} <= set(modules)
    program = (
        "import importlib, sys\n"
        f"for name in {modules}: importlib.import_module(name)\n"
        f"print(sorted(sys.modules.keys() & {HEAVY}))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_verl_ray_and_vllm_are_imported_in_one_package() -> None:
    """Imports inside functions included."""
    importing = [path for path in sources() if HEAVY & {name.split(".")[0] for name in imported(path)}]
    assert importing
    assert [path for path in importing if VERL not in path.parents] == []


def test_the_harness_imports_no_algorithm_and_branches_on_none() -> None:
    assert {"rtpo.harness.harness", "rtpo.run.config", "rtpo.verl_harness.backend"} <= set(map(module_name, HARNESS))
    for path in HARNESS:
        tree = ast.parse(path.read_text())
        assert algorithm_imports(tree) == [], path
        assert MODULES.keys().isdisjoint(compared_strings(tree)), path


def test_a_branch_on_an_algorithm_and_its_import_would_be_found() -> None:
    for line in ("if config.name == 'rtpo': pass", "match name:\n    case 'rtpo': pass", "losses = {'rtpo': 1}[name]"):
        assert not MODULES.keys().isdisjoint(compared_strings(ast.parse(line)))
    for line in ("from rtpo.rtpo import step", "from rtpo import rtpo", "from baselines import grpo"):
        assert algorithm_imports(ast.parse(line)) != []


def test_algorithms_do_not_import_the_harness() -> None:
    """They are written against the verbs alone."""
    for path in ALGORITHMS:
        found = [name for name in imports(ast.parse(path.read_text())) if name.split(".")[0] in PACKAGES]
        assert found
        assert {name if name in MODULES.values() else name.rpartition(".")[0] for name in found} <= {
            *VOCABULARY,
            *MODULES.values(),
        }


def test_the_road_to_the_first_step_is_short() -> None:
    """Each file of the drawn road is imported by one before it; algorithms are loaded by their name."""
    page = (PROJECT / "docs" / "extend" / "harness.md").read_text(encoding="utf-8")
    (drawn,) = re.findall(r"```\n(experiments/train\.py.*?)```", page, re.DOTALL)
    road = [PROJECT / name for name in re.findall(r"\S+\.py", drawn)]
    assert len(set(road)) == len(road) <= 20
    known = {module_name(path) for path in sources()}
    reached = set().union(*(project_imports(path, known) for path in road))
    assert {module_name(path) for path in road[1:]} - reached == {"rtpo.rtpo"}


def test_no_modules_import_each_other_in_a_circle() -> None:
    paths = {module_name(path): path for path in sources()}
    graph = {name: project_imports(path, paths) for name, path in paths.items()}
    tuple(TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle


def test_nothing_else_imports_experiments() -> None:
    others = [path for path in sources() if path.relative_to(PROJECT).parts[0] != "experiments"]
    assert [path for path in others if any(name.startswith("experiments") for name in imported(path))] == []


def test_commands_are_no_libraries() -> None:
    paths = {module_name(path): path for path in sources()}
    commands = {name for name, path in paths.items() if is_command(path)}
    assert {"experiments.train", "analysis.make_tables", "analysis.pages.__main__"} <= commands
    assert {name: used for name, path in paths.items() if (used := project_imports(path, paths) & commands)} == {}


# docs/extend/harness.md

ROOMS = (PROJECT / "docs" / "extend" / "harness.md").read_text(encoding="utf-8")
USES = {
    room: set(re.findall(r"`(\w+)`", used))
    for room, used in re.findall(r"^\| \[`rtpo/(\w+)`\].*\| ([^|]*) \|$", ROOMS, re.MULTILINE)
}
"""each room of rtpo/, in the page's order, with the rooms that it names"""


def room_of(name: str) -> str | None:
    """That an import of rtpo reaches into; None for the root's modules, and for what is not of rtpo."""
    parts = name.split(".")
    return parts[1] if parts[0] == "rtpo" and len(parts) > 1 and (PROJECT / "rtpo" / parts[1]).is_dir() else None


@pytest.mark.parametrize("room", USES)
def test_a_room_uses_what_the_map_says_and_nothing_above_it(room: str) -> None:
    names = {name for path in (PROJECT / "rtpo" / room).rglob("*.py") for name in imported(path)}
    assert {room_of(name) for name in names} - {None, room} == USES[room]
    assert USES[room] <= set(list(USES)[: list(USES).index(room)])
    assert not {name.split(".")[0] for name in names} & {"analysis", "experiments"}
    if room == "core":
        root = {name for name in names if name.startswith("rtpo.") and room_of(name) is None}
        assert {".".join(name.split(".")[:2]) for name in root} == {"rtpo.errors", "rtpo.types", "rtpo.verbs"}


def test_every_folder_is_on_the_map() -> None:
    there = {
        f"{top}/{folder.name}"
        for top in ("rtpo", "analysis", "experiments", "docs")
        for folder in (PROJECT / top).iterdir()
        if any(folder.glob("*.py")) or any(folder.glob("*.md"))
    }
    assert set(re.findall(r"^\| \[`(\S+?)`\]", ROOMS, re.MULTILINE)) == there


def test_composition_alone_imports_few_modules() -> None:
    """What a reader passes from the command line to a checked configuration; no torch, and no other environment."""
    code = (
        "import sys; from rtpo.run.cli import composed; from rtpo.run.config import compose_run; "
        "compose_run(composed('train', ())); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True)
    modules = done.stdout.split()
    assert not {"torch", "ray", "verl", "transformers"} & set(modules)
    packages = {".".join(path.relative_to(PROJECT).parent.parts) for path in PROJECT.glob("rtpo/**/__init__.py")}
    assert len([name for name in modules if name.startswith("rtpo.") and name not in packages]) <= 32
