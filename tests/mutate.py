"""How many small faults the tests catch, module by module:

    python tests/mutate.py                     every module of TESTS, a row each; takes hours
    python tests/mutate.py rtpo/credit.py      one of them
    python tests/mutate.py --semantic          faults of meaning: those of tests/fixtures/faults.yaml
    python tests/mutate.py --at 8f2e586        of an earlier commit, by that commit's tests

A fault changes one operator, constant, comparison, branch or index, in a copy of the commit. Where a module has fewer
than 20 places for that, further faults put None for a named argument, a returned value or an assigned one. `strict=` of
zip, `frozen=` and `slots=` of a dataclass are left alone, for they guard against other faults; so are sizes of arrays
that are made to be written to, since a larger one changes nothing. A fault is caught where the module's tests fail, or
take 20 s more than three times their usual time. Faults are drawn from the module's name: two runs try the same.
"""

import argparse
import ast
import copy
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import yaml

PROJECT = Path(__file__).resolve().parents[1]
MEANT = PROJECT / "tests" / "fixtures" / "faults.yaml"
TESTS: dict[str, tuple[str, ...]] = {
    "rtpo/rtpo.py": ("test_rtpo", "test_baselines"),
    "rtpo/credit.py": ("test_credit", "test_baselines"),
    "rtpo/rows.py": ("test_rows",),
    "rtpo/core/losses.py": ("test_losses",),
    "rtpo/core/contexts.py": ("test_contexts",),
    "rtpo/core/packing.py": ("test_packing", "test_harness"),
    "rtpo/core/output_layer.py": ("test_output_layer",),
    "rtpo/core/trees.py": ("test_trees",),
    "rtpo/harness/budget.py": ("test_budget", "test_harness"),
    "rtpo/harness/durable.py": ("test_durable", "test_crashes"),
    "rtpo/harness/episodes.py": ("test_episodes", "test_harness"),
    "rtpo/harness/harness.py": ("test_harness", "test_asked", "test_ladder"),
    "rtpo/harness/step_log.py": ("test_harness", "test_asked"),
    "rtpo/run/config.py": ("test_asked", "test_config"),
    "rtpo/run/records.py": ("test_records", "test_saves"),
    "rtpo/run/run.py": ("test_asked",),
    "rtpo/run/tasks.py": ("test_tasks",),
    "rtpo/evaluation/folder.py": ("test_evaluation",),
    "rtpo/evaluation/panel.py": ("test_evaluation", "test_episode_facts"),
    "rtpo/tools/python/pool.py": ("test_python_machine", "test_python_tool"),
    "rtpo/tools/python/python_seccomp.py": ("test_python_machine", "test_python_tool", "test_hostile_programs"),
    "rtpo/rewards/grading.py": ("test_grading",),
    "rtpo/rewards/notation.py": ("test_notation",),
    "rtpo/rewards/math_verify_mends.py": ("test_grading", "test_notation"),
    "rtpo/rewards/times.py": ("test_grading", "test_notation"),
    "rtpo/rewards/units.py": ("test_notation",),
    "analysis/stats.py": ("test_intervals", "test_estimates", "test_golden"),
    "baselines/grpo.py": ("test_grpo", "test_baselines"),
    "baselines/seeupo.py": ("test_seeupo", "test_baselines"),
    "baselines/arpo.py": ("test_arpo", "test_baselines"),
    "baselines/tree_grpo.py": ("test_tree_grpo", "test_baselines"),
    "baselines/refuel.py": ("test_refuel", "test_baselines"),
    "baselines/gigpo.py": ("test_same_state", "test_baselines"),
    "baselines/anchored.py": ("test_same_state", "test_baselines", "test_baseline_bias"),
}
GUARDS = ("strict", "frozen", "slots")  # arguments that are left alone
MADE = ("empty", "zeros")  # functions of numpy whose first argument is left alone
FAULTS = 20  # of a module
Change = Callable[[ast.AST], str | None]
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult},
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
}


def draw(source: str, rng: Random) -> list[tuple[str, str]]:
    """At most FAULTS sources with a fault each, and what was changed."""
    faults: list[tuple[str, str]] = []
    for change in (_change, _lose):
        fitting = places(source, change)
        for place in rng.sample(fitting, min(FAULTS - len(faults), len(fitting))):
            tree = ast.parse(source)
            node = list(ast.walk(tree))[place]
            changed = change(node)
            faults.append((ast.unparse(tree), f"line {getattr(node, 'lineno', '?')}: {changed}"))
    return faults


def meant(module: str, source: str) -> list[tuple[str, str]]:
    """The sources with a fault of meaning each, and what was changed."""
    rows = [row for row in yaml.safe_load(MEANT.read_text()) if row["module"] == module]
    for row in rows:
        if source.count(row["before"]) != 1:
            sys.exit(f"{module} has not once what {MEANT.name} changes: {row['fault']}")
    return [(source.replace(row["before"], row["after"]), row["fault"]) for row in rows]


def places(source: str, change: Change) -> list[int]:
    """The nodes that a fault can be put into, by their numbers in `ast.walk`."""
    nodes = list(ast.walk(ast.parse(source)))
    alone: list[ast.AST] = [node for node in nodes if isinstance(node, ast.keyword) and node.arg in GUARDS]
    alone += [node.args[0] for node in nodes if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in MADE]
    guards = {id(part) for node in alone for part in ast.walk(node)}
    return [place for place, node in enumerate(nodes) if id(node) not in guards and change(copy.deepcopy(node))]


def _change(node: ast.AST) -> str | None:
    """Put one fault into a node, in place; what it is, or None where the node has nothing to change."""
    for field in ("op", "ops"):
        operator = getattr(node, field, None)
        operator = operator[0] if isinstance(operator, list) else operator
        if type(operator) in SWAPS:
            swapped = SWAPS[type(operator)]()
            setattr(node, field, [swapped, *node.ops[1:]] if field == "ops" else swapped)  # type: ignore[attr-defined]
            return f"{type(operator).__name__} is now {type(swapped).__name__}"
    if isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
        before, node.value = node.value, not node.value if isinstance(node.value, bool) else node.value + 1
        return f"{before} is now {node.value}"
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        node.test = ast.UnaryOp(ast.Not(), node.test)
        return "the branch is turned round"
    return None


def _lose(node: ast.AST) -> str | None:
    """Put None for a named argument, a returned value or an assigned one, as `_change` does."""
    if isinstance(node, ast.Assign | ast.Return | ast.keyword) and not isinstance(node.value, ast.Constant | None):
        value, node.value = node.value, ast.Constant(None)
        return f"{ast.unparse(value)} is now None"
    return None


def caught(clone: Path, module: str, source: str, limit: float) -> bool:
    """Whether the module's tests fail with this source in the clone, or take longer than `limit` seconds."""
    file = clone / module
    whole = file.read_text()
    tests = [str(path) for name in TESTS[module] for path in (clone / "tests").rglob(f"{name}.py")]
    if not tests:
        sys.exit(f"the commit has no tests of {module}")
    command = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONPATH": str(clone)}  # processes that a test starts have the fault, too
    file.write_text(source)
    run = subprocess.Popen(command, cwd=clone, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        return run.wait(limit) != 0
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGKILL)
        return run.wait() != 0
    finally:
        file.write_text(whole)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", choices=[[], *TESTS], help="default: all")
    parser.add_argument("--at", metavar="COMMIT", default="HEAD", help="default: the last one")
    parser.add_argument("--semantic", action="store_true", help="the faults of meaning in place of small ones")
    options = parser.parse_args()
    print("| Module | Faults | Caught | % |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "clone"
        subprocess.run(["git", "clone", "--quiet", "--no-checkout", str(PROJECT), str(clone)], check=True)
        subprocess.run(["git", "checkout", "--quiet", options.at], cwd=clone, check=True)
        for module in options.modules or TESTS:
            source = (clone / module).read_text()
            faults = meant(module, source) if options.semantic else draw(source, Random(module))
            if not faults:
                continue
            begun = time.monotonic()
            if caught(clone, module, source, 3600):
                sys.exit(f"the tests of {module} fail without a fault")
            limit = 3 * (time.monotonic() - begun) + 20
            missed = [what for changed, what in faults if not caught(clone, module, changed, limit)]
            share = 100 * (1 - len(missed) / len(faults))
            print(f"| {module} | {len(faults)} | {len(faults) - len(missed)} | {share:.0f} |", flush=True)
            for what in missed:
                print(f"  missed: {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
