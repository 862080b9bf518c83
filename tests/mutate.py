"""How many small faults the tests catch, module by module:

    python tests/mutate.py                     every module of TESTS, a row each; takes hours
    python tests/mutate.py rtpo/credit.py      one of them
    python tests/mutate.py --count 5 --show    fewer faults, and those that no test caught

A fault changes one operator, constant, comparison, branch or index, in a copy of the working tree. It is caught where
the module's tests fail, or run longer than ten times what they take without it. The faults of a module are drawn from
its own name, so that two runs try the same.
"""

import argparse
import ast
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
TESTS: dict[str, tuple[str, ...]] = {
    "rtpo/rtpo.py": ("test_rtpo.py", "test_baselines.py"),
    "rtpo/credit.py": ("test_credit.py", "test_baselines.py"),
    "rtpo/rows.py": ("test_rows.py",),
    "rtpo/core/losses.py": ("test_losses.py",),
    "rtpo/core/contexts.py": ("test_contexts.py",),
    "rtpo/core/packing.py": ("test_packing.py",),
    "rtpo/core/trees.py": ("test_trees.py",),
    "rtpo/harness/budget.py": ("test_budget.py",),
    "rtpo/harness/durable.py": ("test_durable.py",),
    "rtpo/harness/episodes.py": ("test_episodes.py", "test_harness.py"),
    "rtpo/run/records.py": ("test_records.py", "test_saves.py"),
    "rtpo/tools/python/pool.py": ("test_python_tool.py", "test_python_machine.py"),
    "rtpo/tools/python/python_seccomp.py": ("test_python_machine.py", "test_hostile_programs.py"),
    "rtpo/rewards/grading.py": ("test_grading.py",),
    "analysis/stats.py": ("test_intervals.py", "test_estimates.py"),
    "baselines/grpo.py": ("test_grpo.py", "test_baselines.py"),
    "baselines/seeupo.py": ("test_seeupo.py", "test_baselines.py"),
    "baselines/arpo.py": ("test_arpo.py", "test_baselines.py"),
    "baselines/tree_grpo.py": ("test_tree_grpo.py", "test_baselines.py"),
    "baselines/refuel.py": ("test_refuel.py", "test_baselines.py"),
    "baselines/gigpo.py": ("test_baselines.py",),
    "baselines/anchored.py": ("test_baselines.py", "test_baseline_bias.py"),
}
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult},
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
}


def faults(source: str) -> Iterator[tuple[str, str]]:
    """The changed source, and what was changed, of every single fault."""
    count = sum(1 for _ in ast.walk(ast.parse(source)))
    for place in range(count):
        tree = ast.parse(source)
        node = next(node for number, node in enumerate(ast.walk(tree)) if number == place)
        if changed := _change(node):
            yield ast.unparse(tree), f"line {getattr(node, 'lineno', '?')}: {changed}"


def _change(node: ast.AST) -> str | None:
    """Put one fault into a node, in place; what it is, or None where the node has nothing to change."""
    for field in ("op", "ops"):
        operator = getattr(node, field, None)
        operator = operator[0] if isinstance(operator, list) else operator
        if type(operator) in SWAPS:
            swapped = SWAPS[type(operator)]()
            setattr(node, field, [swapped, *node.ops[1:]] if field == "ops" else swapped)  # type: ignore[attr-defined]
            return f"{type(operator).__name__} for {type(swapped).__name__}"
    if isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
        before, node.value = node.value, not node.value if isinstance(node.value, bool) else node.value + 1
        return f"{before} for {node.value}"
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        node.test = ast.UnaryOp(ast.Not(), node.test)
        return "the branch turned round"
    return None


def caught(copy: Path, module: str, source: str, limit: float) -> bool:
    """Whether the module's tests fail with this source in the copy, or take longer than `limit` seconds."""
    file = copy / module
    whole = file.read_text()
    file.write_text(source)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-qx",
        "-p",
        "no:cacheprovider",
        *(str(path) for name in TESTS[module] for path in (copy / "tests").rglob(name)),
    ]
    try:
        ended = subprocess.run(command, cwd=copy, capture_output=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return True
    finally:
        file.write_text(whole)
    return ended.returncode != 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", choices=[[], *TESTS], help="default: all")
    parser.add_argument("--count", type=int, default=20, help="faults of a module")
    parser.add_argument("--show", action="store_true", help="list the faults that no test caught")
    options = parser.parse_args()
    print("| Module | Faults | Caught | % |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        tracked = subprocess.run(["git", "ls-files"], cwd=PROJECT, capture_output=True, text=True, check=True)
        for name in tracked.stdout.splitlines():
            if (PROJECT / name).exists():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(PROJECT / name, copy / name)
        for module in options.modules or TESTS:
            source = (copy / module).read_text()
            begun = time.monotonic()
            if caught(copy, module, source, 3600):
                sys.exit(f"the tests of {module} fail without a fault")
            limit = 10 * (time.monotonic() - begun) + 10
            drawn = list(faults(source))
            drawn = random.Random(module).sample(drawn, min(options.count, len(drawn)))
            missed = [what for changed, what in drawn if not caught(copy, module, changed, limit)]
            share = 100 * (1 - len(missed) / len(drawn))
            print(f"| {module} | {len(drawn)} | {len(drawn) - len(missed)} | {share:.0f} |", flush=True)
            if options.show:
                print(*(f"  missed: {what}" for what in missed), sep="\n", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
