"""What runs in the child process of `rtpo.tools.python`: `python python_child.py LIMITS`, the program on stdin.

It limits itself, says that the program begins (a NUL byte), runs it, and echoes its last expression. Exit status 1: the
program failed, and the last line says how. Standard library only: this file is run by its path.
"""

import ast
import json
import os
import resource
import sys
import traceback


def limit_self(limits: dict[str, int]) -> None:
    """Hard limits, which a process without privileges cannot raise again. Of CPU time a second is left after SIGXCPU,
    which tells this limit from other ends."""
    for name, value in (
        (resource.RLIMIT_CPU, limits["cpu_seconds"] + 1),
        (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_NPROC, limits["processes"]),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(name)
        least = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(name, (least, least))
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (min(limits["cpu_seconds"], hard), hard))


def run(program: str) -> None:
    """Run a program, the value of a last expression printed unless it is None."""
    tree = ast.parse(program, "<program>")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    names = {"__name__": "__main__"}
    exec(compile(tree, "<program>", "exec"), names)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), "<program>", "eval"), names)
        if value is not None:
            print(value)


def complaint(error: BaseException) -> str:
    """The error in one line, with the program's line where it has one."""
    what = traceback.format_exception_only(error)[-1].strip()
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<program>"]
    if isinstance(error, SyntaxError) and error.filename == "<program>":
        lines.append(error.lineno)
    return f"{what} (line {lines[-1]})" if lines and lines[-1] else what


def main() -> int:
    program = sys.stdin.buffer.read().decode("utf-8")
    limit_self(json.loads(sys.argv[1]))
    os.write(1, b"\0")
    try:
        run(program)
        sys.stdout.flush()
    except SystemExit as end:
        if end.code not in (None, 0):
            print(f"SystemExit: {end.code}")
            return 1
    except BaseException as error:
        print(complaint(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
