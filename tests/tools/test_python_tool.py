"""The Python tool: outcomes, limits, sessions, its pool, and what it does where a machine or an interpreter fails."""

import asyncio
import json
import multiprocessing
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import pytest
from ordinary_user import as_ordinary_user

from rtpo.errors import InfrastructureError, MachineError
from rtpo.run.cli import composed
from rtpo.run.config import PROJECT
from rtpo.tools.base import Tool, ToolResult
from rtpo.tools.python import pool as python_pool
from rtpo.tools.python import python_seccomp
from rtpo.tools.python import sandbox as python_sandbox
from rtpo.tools.python import tool as python
from rtpo.tools.python.tool import PythonSettings, PythonTool, close_pools
from rtpo.types import ToolOutcome

pytestmark = pytest.mark.needs("bwrap")
OK, ERROR, TIMEOUT = ToolOutcome.OK, ToolOutcome.PROGRAM_ERROR, ToolOutcome.TIMEOUT
MEMORY, REFUSED = ToolOutcome.MEMORY, ToolOutcome.REFUSED
SETTINGS = PythonSettings(cpu_seconds=1, wall_seconds=60, memory_bytes=256 << 20, output_characters=200, workers=2)
SESSION = replace(SETTINGS, session=True)


@pytest.fixture(scope="module", autouse=True)
def _no_pools_after() -> Iterator[None]:
    yield
    close_pools()


@pytest.fixture
def no_pools() -> Iterator[None]:
    """For tests of how interpreters start."""
    close_pools()
    yield
    close_pools()


def run(program: str, *earlier: str, settings: PythonSettings = SETTINGS) -> ToolResult:
    return asyncio.run(PythonTool(settings).call({"code": program}, [{"code": code} for code in earlier]))


def results(programs: list[str], settings: PythonSettings = SETTINGS) -> list[ToolResult]:
    async def run_all() -> list[ToolResult]:
        tool = PythonTool(settings)
        return await asyncio.gather(*[tool.call({"code": program}, []) for program in programs])

    return asyncio.run(run_all())


def interpreters() -> list[psutil.Process]:
    """Bubblewrap's processes, and the keepers, zygotes and programs in its namespaces."""

    def is_ours(process: psutil.Process) -> bool:
        try:
            return any("python_child.py" in part for part in process.cmdline())
        except psutil.NoSuchProcess:
            return False

    return [child for child in psutil.Process().children(recursive=True) if is_ours(child)]


def eventually(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# a call


def test_outputs_and_last_expressions_are_given_and_errors_named() -> None:
    cases = {
        "1 + 1": (OK, "2"),
        "print('a')\nx = 3\nx * 2": (OK, "a\n6"),
        "x = 3": (OK, ""),
        "None": (OK, ""),
        "# nothing": (OK, ""),
        "import sys\nprint('é', file=sys.stderr)": (OK, "é"),
        "exit()": (OK, ""),
        "import os\nos._exit(0)": (OK, ""),
        "import threading\nthreading.Timer(0.1, print, ('late',)).start()\nprint('main')": (OK, "main\nlate"),
        "import sympy\nx = sympy.Symbol('x')\nsympy.integrate(x**2)": (OK, "x**3/3"),
        "import numpy\nnumpy.arange(3)": (OK, "[0 1 2]"),
        "import dataclasses\n@dataclasses.dataclass\nclass A:\n  a: int\nA(1)": (OK, "A(a=1)"),
        "def f():\n    return g()\n\n1 / 0": (ERROR, "ZeroDivisionError: division by zero (line 4)"),
        "def f():\n    return 1 / 0\n\nf()": (ERROR, "ZeroDivisionError: division by zero (line 2)"),
        "print('a')\ndef f(:": (ERROR, "SyntaxError: invalid syntax (line 2)"),
        "exit('no')": (ERROR, "SystemExit: no"),
        "import os\nos._exit(3)": (ERROR, "ended with status 3"),
        "a\0b": (ERROR, "SyntaxError: source code string cannot contain null bytes"),
        "'\ud800'": (OK, "?"),
        "import os\nos.kill(os.getpid(), 9)": (ERROR, "ended by signal 9"),
        "": (REFUSED, "Error: the program is empty."),
        " \n\t": (REFUSED, "Error: the program is empty."),
        "1" * 100_001: (REFUSED, "Error: the program has 100001 characters, over 100000."),
    }
    found = results(list(cases))
    assert [(result.outcome, result.output) for result in found] == list(cases.values())


ORDINARY = {
    "import asyncio\nasync def f(): return await asyncio.to_thread(abs, -5)\nasyncio.run(f())": "5",
    """
import asyncio, socket
async def talk():
    (_, writer), (reader, _) = [await asyncio.open_connection(sock=end) for end in socket.socketpair()]
    writer.write(b"hello\\n")
    return await reader.readline()
asyncio.run(talk())""": "b'hello\\n'",
    "from multiprocessing import Pipe\na, b = Pipe()\na.send([1])\nb.recv()": "[1]",
    "import mmap\nm = mmap.mmap(-1, 4096)\nm[:2] = b'ab'\nm[:2]": "b'ab'",
    "import selectors, socket\na, b = socket.socketpair()\ns = selectors.DefaultSelector()\ns.register(a, 1)\n"
    "b.send(b'x')\nlen(s.select(1))": "1",
    "from concurrent.futures import ThreadPoolExecutor as E\nwith E(4) as e: print(*e.map(abs, [-1, 2]))": "1 2",
    "import sqlite3\nsqlite3.connect(':memory:').execute('select 1').fetchall()": "[(1,)]",
    "import shutil, sys\nsys.stdout.isatty(), shutil.get_terminal_size().columns": "(False, 80)",
    "import numpy\nnumpy.linalg.solve(numpy.eye(9), numpy.ones(9)).sum()": "9.0",
}
"""programs that need what the filter looks at, and what they print"""
ORDINARY_IN_NAMESPACES = {
    "import contextlib, os\nwith open(os.devnull, 'w') as f, contextlib.redirect_stdout(f): print('no')\n1": "1",
    "import os, shutil\nopen('a', 'w').write('x')\nos.mkdir('d')\nshutil.copy('a', 'd')\nos.rename('a', 'b')\n"
    "sorted(os.listdir())": "['b', 'd']",
    "import tempfile\nwith tempfile.TemporaryFile() as f: print(f.write(b'xy'))": "2",
}
ORDINARY_WITH_PROCESSES = {
    "import multiprocessing as m\ndef f(x): return x * x\n"
    "with m.get_context('fork').Pool(2) as p: print(p.map(f, [2, 3]))": "[4, 9]",
    "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'print(7)'], capture_output=True).stdout": "b'7\\n'",
    "import asyncio, sys\nasync def f():\n  p = await asyncio.create_subprocess_exec(sys.executable, '-c', "
    "'print(input())', stdin=-1, stdout=-1)\n  return await p.communicate(b'9')\nasyncio.run(f())": "(b'9\\n', None)",
}


@pytest.mark.parametrize(
    ("settings", "programs"),
    [
        (replace(SETTINGS, cpu_seconds=5), ORDINARY | ORDINARY_IN_NAMESPACES),
        (replace(SETTINGS, cpu_seconds=5, processes=8), ORDINARY_WITH_PROCESSES),
    ],
)
def test_ordinary_programs_meet_no_refusal(settings: PythonSettings, programs: dict[str, str]) -> None:
    found = results(list(programs), settings)
    assert [(result.outcome, result.output) for result in found] == [(OK, said) for said in programs.values()]


def test_a_program_prints_the_same_each_time() -> None:
    program = "import numpy, random\nhash('a'), random.random(), numpy.random.rand(), {'a', 'b', 'c'}"
    assert len({result.output for result in results([program] * 4)}) == 1


def test_a_call_sees_nothing_of_the_machine_and_of_earlier_calls() -> None:
    program = (
        "import os\nsorted(os.environ), os.listdir(), sorted(set(globals()) - {'os', '__builtins__'}), os.getcwd()"
    )
    settings = replace(SETTINGS, workers=1, output_characters=1000)
    first = run(f"left = 1\nopen('left', 'w')\n{program}", settings=settings)
    second = run(program, settings=settings)
    assert "'left'" in first.output
    variables = sorted([*python_sandbox.ENVIRONMENT, "PYTHONPATH", "PWD"])
    names = ["__doc__", "__loader__", "__name__", "__package__", "__spec__"]
    assert second.output == str((variables, [], names, "/tmp"))


def test_limits_end_or_stop_a_program() -> None:
    cpu, ignored, memory, array, wall = (
        run(program, settings=settings)
        for program, settings in [
            ("print('a')\nwhile True: pass", SETTINGS),
            ("import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass", SETTINGS),
            ("print('a')\nx = bytearray(1 << 30)", SETTINGS),
            ("import numpy\nnumpy.ones(1 << 28)", SETTINGS),
            ("print('a')\nimport time\ntime.sleep(600)", replace(SETTINGS, wall_seconds=3)),
        ]
    )
    assert cpu == ToolResult(TIMEOUT, "a\nTimeoutError: 1 s of CPU time used up")
    assert ignored == ToolResult(TIMEOUT, "TimeoutError: 1 s of CPU time used up")
    assert memory == ToolResult(MEMORY, "a\nMemoryError (line 2)")
    assert array.outcome is MEMORY
    assert array.output.endswith("data type float64 (line 2)")
    assert wall == ToolResult(TIMEOUT, "a\nTimeoutError: stopped after 3 s")


def test_memory_that_a_program_did_without_is_no_outcome() -> None:
    assert run("try: bytearray(1 << 30)\nexcept MemoryError: print('so')") == ToolResult(OK, "so")


def test_output_over_the_limit_is_cut_before_its_end() -> None:
    """The end says what went wrong."""
    cut = "\n... (cut) ...\n"
    long, exact, wide, ended = results(
        [
            "for number in range(100_000): print(number)",
            "print('é' * 199)\n1",
            "print('é' * 1_000_000)",
            "print('x' * 1000)\n1 / 0",
        ]
    )
    head, tail = long.output.split(cut)
    assert (len(head), len(tail)) == (150, 50)
    assert head.startswith("0\n1\n2\n")
    assert tail.endswith("\n99998\n99999")
    assert exact.output == "é" * 150 + cut + "é" * 48 + "\n1"
    assert wide.output == "é" * 150 + cut + "é" * 50
    last = "\nZeroDivisionError: division by zero (line 2)"
    assert ended == ToolResult(ERROR, "x" * 150 + cut + "x" * (50 - len(last)) + last)


@pytest.mark.needs("nothing")
def test_the_schema_tells_the_limits() -> None:
    tool: Tool = PythonTool(replace(SETTINGS, wall_seconds=2.5))
    function = tool.schema["function"]
    assert function["name"] == "python"
    assert function["parameters"]["required"] == ["code"]
    for part in ("1 s of CPU time", "2.5 s in all", "256 MiB", "200 characters", "Nothing is kept", "No network"):
        assert part in function["description"]
    assert "Names of earlier calls are kept" in PythonTool(SESSION).schema["function"]["description"]
    json.dumps(tool.schema)


@pytest.mark.needs("nothing")
def test_settings_that_cannot_be_are_named() -> None:
    assert PythonSettings().problems("task.settings.python") == []
    wrong = PythonSettings(0, 0.0, 1000, 0, 10, 0)
    assert [line.split(" is ")[0] for line in wrong.problems("python")] == [
        *("python.cpu_seconds", "python.memory_bytes", "python.processes", "python.output_characters"),
        *("python.workers", "python.wall_seconds"),
    ]
    (line,) = PythonSettings(isolation="limits", processes=2).problems("p")
    assert line.startswith("p.processes is 2 and p.isolation limits: ")


# sessions


def test_a_session_goes_on_from_the_earlier_calls() -> None:
    earlier = ["import random\nprint('a')\nx = 3", "y = x + 1\ny\n1 / 0", "z = random.random()", "exit()", ""]
    assert run("print(x, y)\nz", *earlier, settings=SESSION).output.startswith("3 4\n0.")
    assert run("z", *earlier, settings=SESSION) == run("z", *earlier, settings=SESSION)
    assert run("x", *earlier) == ToolResult(ERROR, "NameError: name 'x' is not defined (line 1)")


def test_a_call_that_ended_its_process_leaves_nothing_to_its_session() -> None:
    """Known from the call itself, and found out where it is not: after a crash of the run, say."""
    spin, crash = "y = 2\nwhile True: pass", "z = 3\nimport os\nos._exit(0)"
    assert run(spin, "x = 1", settings=SESSION).outcome is TIMEOUT
    program = "x, 'y' in globals(), 'z' in globals()"
    assert run(program, "x = 1", spin, crash, settings=SESSION).output == "(1, False, False)"
    python._ended.clear()
    begin = time.monotonic()
    assert run(program, "x = 1", crash, spin, settings=SESSION).output == "(1, False, False)"
    assert run(program, "x = 1", crash, spin, "x = 2", settings=SESSION).output == "(2, False, False)"
    assert run(spin, "x = 1", crash, spin, settings=SESSION).outcome is TIMEOUT
    assert time.monotonic() - begin > 1


def test_a_call_that_says_more_cells_are_done_than_were_run_is_left_out_of_its_session() -> None:
    forged = "import os\nos.write(3, b'd' * 9)\nos._exit(0)"
    assert run("x", "x = 1", forged, settings=SESSION) == ToolResult(OK, "1")


def test_each_call_of_a_session_has_its_own_limits() -> None:
    spin = "import time\nwhile time.process_time() - {0} < 0.6: pass\nbegin = time.process_time()"
    cells = [spin.format(0), spin.format("begin"), spin.format("begin")]
    assert run("time.process_time() > 1.7", *cells, settings=SESSION) == ToolResult(OK, "True")
    assert run("while True: pass", *cells, settings=SESSION).outcome is TIMEOUT


# the pool


def test_no_more_programs_run_at_once_than_there_are_workers() -> None:
    """And the event loop goes on meanwhile."""
    program = "import time\nbegin = time.monotonic()\ntime.sleep(0.2)\nprint(begin, time.monotonic())"
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    async def run_all() -> list[ToolResult]:
        task = asyncio.create_task(tick())
        tool = PythonTool(SETTINGS)
        try:
            return await asyncio.gather(*[tool.call({"code": program}, []) for _ in range(6)])
        finally:
            task.cancel()

    spans = [tuple(map(float, result.output.split())) for result in asyncio.run(run_all())]
    at_once = [sum(begin <= moment < end for begin, end in spans) for moment, _ in spans]
    assert max(at_once) == 2
    assert ticks > 5


def test_a_pool_serves_loops_and_threads_one_after_another() -> None:
    before = run("1")
    zygotes = python._pool(SETTINGS).pids
    found: list[ToolResult] = []
    threads = [threading.Thread(target=lambda: found.append(run("1"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [before, run("1"), *found] == [ToolResult(OK, "1")] * 6
    assert {*zygotes} <= {*python._pool(SETTINGS).pids}
    assert len(python._pool(SETTINGS).pids) <= 2


def _run_in_child(results: Any) -> None:
    results.put([run("2"), len(interpreters())])
    close_pools()


def test_a_forked_process_has_a_pool_of_its_own() -> None:
    run("1")
    zygotes = python._pool(SETTINGS).pids
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=_run_in_child, args=(queue,))
    process.start()
    assert queue.get(timeout=60) == [ToolResult(OK, "2"), 3]
    process.join(60)
    assert process.exitcode == 0
    assert run("1") == ToolResult(OK, "1")
    assert python._pool(SETTINGS).pids == zygotes


def test_a_cancelled_call_ends_its_program_and_the_pool_goes_on() -> None:
    settings = replace(SETTINGS, workers=1)

    async def cancel() -> None:
        tool = PythonTool(settings)
        await tool.call({"code": "1"}, [])
        idle = len(interpreters())
        call = asyncio.create_task(tool.call({"code": "import time\ntime.sleep(600)"}, []))
        queued = asyncio.create_task(tool.call({"code": "2"}, []))
        while len(interpreters()) == idle:
            await asyncio.sleep(0.01)
        queued.cancel()
        call.cancel()
        for task in (call, queued):
            with pytest.raises(asyncio.CancelledError):
                await task
        while len(interpreters()) > idle:
            await asyncio.sleep(0.01)
        assert await tool.call({"code": "3"}, []) == ToolResult(OK, "3")

    run("1", settings=settings)
    zygotes = python._pool(settings).pids
    asyncio.run(asyncio.wait_for(cancel(), 60))
    assert python._pool(settings).pids == zygotes


@pytest.mark.usefixtures("no_pools")
def test_nothing_runs_after_a_pool_is_closed() -> None:
    async def close() -> list[Any]:
        tool = PythonTool(SETTINGS)
        calls = [asyncio.create_task(tool.call({"code": "import time\ntime.sleep(600)"}, [])) for _ in range(3)]
        async with asyncio.timeout(60):
            while len(interpreters()) < 8:
                await asyncio.sleep(0.01)
        await asyncio.to_thread(close_pools)
        return await asyncio.gather(*calls, return_exceptions=True)

    found = asyncio.run(close())
    assert [type(error) for error in found] == [InfrastructureError] * 3
    assert interpreters() == []
    assert run("1") == ToolResult(OK, "1")


@pytest.mark.parametrize(
    ("settings", "code", "processes"),
    [
        ("processes=4", "import os, time\nos.fork()\ntime.sleep(600)", 6),
        pytest.param("isolation='limits'", "import time\ntime.sleep(600)", 3, marks=pytest.mark.needs("nothing")),
    ],
)
def test_nothing_runs_after_its_process_was_killed(settings: str, code: str, processes: int) -> None:
    program = (
        "import asyncio, sys\n"
        "from rtpo.tools.python.tool import PythonSettings, PythonTool\n"
        f"tool = PythonTool(PythonSettings(workers=1, {settings}))\n"
        f"asyncio.run(tool.call({{'code': {code!r}}}, []))\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=PROJECT) as process:
        parent = psutil.Process(process.pid)
        eventually(lambda: len(parent.children(recursive=True)) == processes)
        children = parent.children(recursive=True)
        process.kill()
    eventually(lambda: not any(child.is_running() for child in children))


# packages


ENVIRONMENT_SCRIPT = """
import asyncio, json
from rtpo.tools.python.tool import PythonSettings, PythonTool, close_pools
settings = PythonSettings(processes=2, workers=1)
facts = settings.check()
def run(code):
    return asyncio.run(PythonTool(settings).call({"code": code}, [])).output
child = "import subprocess, sys\\nprint(subprocess.run([sys.executable, '-c', {!r}], stdout=-1).stdout.decode())"
sympy, other = "import sympy; print(sympy.__version__)", "import only_here; print(only_here.VALUE)"
print(json.dumps([run(code) for code in (sympy, other, child.format(sympy), child.format(other))]))
close_pools()
"""


@pytest.mark.usefixtures("no_pools")
def test_programs_import_the_packages_of_the_tools_own_environment(tmp_path: Path) -> None:
    """Of one whose sympy is another than its base interpreter's, below the folder that a call's own /tmp hides; also in
    interpreters that programs start."""
    folder = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in ("sympy", "mpmath", "numpy", "numpy.libs"):
        for there in (Path(path) / name for path in python_sandbox.site_folders()):
            if there.is_dir():
                shutil.copytree(there, packages / name, ignore=shutil.ignore_patterns("tests"))
    (packages / "sympy" / "release.py").write_text('__version__ = "0.1.2"\n')
    for name, number in (("sympy", "0.1.2"), ("numpy", version("numpy"))):
        (packages / f"{name}-{number}.dist-info").mkdir()
        (packages / f"{name}-{number}.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {number}\n")
    (packages / "only_here.py").write_text("VALUE = 7\n")
    done = subprocess.run(
        [folder / "bin" / "python", "-c", ENVIRONMENT_SCRIPT],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["0.1.2", "7", "0.1.2", "7"]


def test_packages_that_are_not_this_processs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python, "version", lambda name: "0.1.2" if name == "sympy" else version(name))
    with pytest.raises(MachineError, match=rf"numpy as {version('sympy')} .*this process as 0\.1\.2"):
        SETTINGS.check()


@pytest.mark.needs("nothing")
@pytest.mark.parametrize(
    "words", [["task=math"], ["task=math_paper"], ["task=search", "+task.settings.python.processes=1"]]
)
def test_the_remedy_is_accepted_as_it_is_spelled(words: list[str]) -> None:
    """Where an error names it, and where the docs do."""
    texts = [python_sandbox.LESS, (PROJECT / "docs" / "run" / "tools.md").read_text(encoding="utf-8")]
    spelled = [re.findall(r"[+\w.]*isolation=limits", text) for text in texts]
    assert all(spelled)
    for remedy in {*spelled[0], *spelled[1]}:
        tree = composed("train", [*words, "data=x.jsonl", remedy])
        assert tree.task.settings.python.isolation == "limits"


# failures


def test_an_interpreter_that_is_lost_is_replaced_and_the_call_run_again() -> None:
    settings = replace(SETTINGS, workers=1)
    run("1", settings=settings)
    (lost,) = python._pool(settings).pids

    async def lose_one() -> ToolResult:
        call = asyncio.create_task(PythonTool(settings).call({"code": "import time\ntime.sleep(1)\n5"}, []))
        await asyncio.sleep(0.3)
        os.kill(lost, signal.SIGKILL)
        return await call

    assert asyncio.run(lose_one()) == ToolResult(OK, "5")
    (new,) = python._pool(settings).pids
    assert new != lost
    os.kill(new, signal.SIGKILL)
    assert run("6", settings=settings) == ToolResult(OK, "6")


@pytest.mark.usefixtures("no_pools")
def test_an_interpreter_that_cannot_start_is_not_the_policys_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "python_child.py"
    broken.write_text("raise SystemExit('broken at its start')")
    with monkeypatch.context() as patch:
        patch.setattr(python_sandbox, "CHILD", broken)
        with pytest.raises(InfrastructureError, match=r"ended: broken at its start \(attempt 3 of 3\)"):
            run("1")
    with monkeypatch.context() as patch:
        patch.setattr(python_sandbox, "CHILD", tmp_path / "missing.py")
        with pytest.raises(InfrastructureError, match=r"could not be started: .*missing\.py"):
            run("1")
    broken = tmp_path / "python_program.py"
    whole = python_sandbox.PROGRAM.read_text()
    broken.write_text(whole.replace("def confine(", "def confine(*_):\n    1 / 0\ndef old("))
    with monkeypatch.context() as patch:
        patch.setattr(python_sandbox, "PROGRAM", broken)
        with pytest.raises(InfrastructureError, match="did not run a program: ZeroDivisionError"):
            run("1")
    assert run("1") == ToolResult(OK, "1")


ENDS_KEEPER = "os._exit(3)"
ENDS_ZYGOTE = "os.kill(os.getpid() + 1, signal.SIGKILL)"
"""in the namespace in which the keeper is process 1"""


@pytest.mark.usefixtures("no_pools")
@pytest.mark.parametrize("end", [ENDS_KEEPER, ENDS_ZYGOTE])
def test_a_program_that_ends_its_interpreter_is_told_from_an_interpreter_that_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, end: str
) -> None:
    """By output that a keeper with a flaw does not survive, or its zygote."""

    def flawed(condition: str) -> None:
        close_pools()
        head = "def add(self, part: bytes) -> None:\n"
        flawed = tmp_path / "python_child.py"
        flawed.write_text(whole.replace(head, f"{head}        if {condition}: {end}\n"))
        monkeypatch.setattr(python_sandbox, "CHILD", flawed)

    whole = python_sandbox.CHILD.read_text()
    ended = ToolResult(ToolOutcome.INTERPRETER_ENDED, "the program ended the interpreter")
    breaks = "print('break')\nimport time\ntime.sleep(1)"
    flawed("b'break' in part")
    assert [run("1"), run(breaks), run("2")] == [ToolResult(OK, "1"), ended, ToolResult(OK, "2")]
    assert run(breaks, "x = 1", settings=SESSION) == ended
    assert run("x, 'time' in globals()", "x = 1", breaks, settings=SESSION) == ToolResult(OK, "(1, False)")
    flawed("part")
    with pytest.raises(InfrastructureError, match=r"\(attempt 3 of 3\)"):
        run("print(1)\nimport time\ntime.sleep(1)")


@pytest.mark.usefixtures("no_pools")
def test_an_interpreter_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    silent = tmp_path / "python_child.py"
    silent.write_text("import time\ntime.sleep(600)")
    monkeypatch.setattr(python_sandbox, "CHILD", silent)
    monkeypatch.setattr(python_pool, "START_SECONDS", 0.2)
    monkeypatch.setattr(python_pool, "CLOSE_SECONDS", 0.1)
    with pytest.raises(InfrastructureError, match=r"said nothing for 0\.2 s"):
        run("1")
    eventually(lambda: interpreters() == [])


# the machine


def test_the_self_test_gives_facts() -> None:
    facts = SETTINGS.check()
    assert facts["isolation"] == "namespaces"
    assert facts["user"] == ("own" if os.getuid() else "reserved")
    assert facts["bubblewrap"][0].isdigit()
    replace(SETTINGS, processes=3).check()


@pytest.mark.usefixtures("no_pools")
def test_the_self_test_finds_a_sandbox_that_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = python_sandbox._system_folders()
    with monkeypatch.context() as patch:
        patch.setattr(python_sandbox, "_system_folders", lambda: [*folders, Path("/etc/passwd")])
        with pytest.raises(MachineError, match="does not hold a program on this machine: it sees /etc/passwd"):
            SETTINGS.check()
    close_pools()
    with monkeypatch.context() as patch:
        patch.setitem(python_sandbox.ENVIRONMENT, "SECRET", "x")
        patch.setattr(python, "ENVIRONMENT", {})
        with pytest.raises(MachineError, match=r"it has the variables HOME, .*SECRET"):
            SETTINGS.check()


@pytest.mark.usefixtures("no_pools")
@pytest.mark.needs("nothing")
def test_a_machine_without_namespaces_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(python_sandbox, "BUBBLEWRAP", "no-such-bwrap")
        for attempt in (SETTINGS.check, lambda: run("1")):
            with pytest.raises(MachineError, match=r"apt-get install -y bubblewrap.*python\.isolation=limits"):
                attempt()
    close_pools()
    refusing = tmp_path / "bwrap"
    refusing.write_text("#!/bin/sh\n[ $1 = --version ] && echo b 9.9 || { echo no namespaces for you >&2; exit 1; }")
    refusing.chmod(0o755)
    monkeypatch.setattr(python_sandbox, "BUBBLEWRAP", str(refusing))
    with pytest.raises(MachineError, match=r"no namespaces for you.*max_user_namespaces.*python\.isolation=limits"):
        SETTINGS.check()


WEAKER = replace(SETTINGS, isolation="limits", output_characters=1000)


@pytest.mark.needs("ordinary user")
def test_less_isolation_is_used_where_it_is_asked_for() -> None:
    """By an ordinary user, who can read the interpreter. Threads may be refused to one who runs more (the tests). What
    programs are denied there is in `hostile_leftovers.MESSAGES`."""
    ordinary = {code: said for code, said in ORDINARY.items() if os.getuid() == 0 or "thread" not in code.lower()}
    script = (
        "import json, sys\n"
        f"sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parents[1] / 'helpers')]!r}\n"
        "from test_python_tool import WEAKER, run\n"
        "from rtpo.tools.python.tool import close_pools\n"
        "from rtpo.tools.python.sandbox import ENVIRONMENT, site_folders\n"
        "facts, variables = WEAKER.check(), sorted([*ENVIRONMENT, 'PYTHONPATH'])\n"
        "names = f'import os\\nsorted(os.environ) == {variables}'\n"
        "packages = f'import sys\\n[path for path in sys.path if path.endswith(\"-packages\")] == {site_folders()}'\n"
        f"codes = [names, packages, '1 + 1', 'while True: pass', 'bytearray(1 << 30)', *{list(ordinary)}]\n"
        "print(json.dumps([facts, [run(code, settings=WEAKER).output for code in codes]]))\n"
        "close_pools()\n"
    )
    done = subprocess.run(
        as_ordinary_user([sys.executable, "-c", script]),
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(PROJECT), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout, done.stderr
    said, answer = done.stdout.splitlines()
    assert "isolation=limits. Open to programs: reading files" in said
    facts, found = json.loads(answer)
    assert facts["isolation"] == "limits"
    assert "through /proc" in facts["open"]
    limits = ["TimeoutError: 1 s of CPU time used up", "MemoryError (line 1)"]
    assert found == ["True", "True", "2", *limits, *ordinary.values()]


@pytest.mark.needs("nothing")
def test_less_isolation_needs_an_interpreter_that_its_user_can_read() -> None:
    """Root's programs become another user, who cannot look into root's folders."""
    above = [Path(sys.base_prefix), *Path(sys.base_prefix).parents]
    can_read = os.getuid() or all(folder.stat().st_mode & stat.S_IXOTH for folder in above)
    if can_read:
        assert WEAKER.check()["isolation"] == "limits"
    else:
        with pytest.raises(MachineError, match=f"must be able to read the interpreter at {sys.base_prefix}"):
            WEAKER.check()


# the system call filter


def verdict(steps: list[python_seccomp.Step], number: int, arguments: list[int], machine: int) -> int:
    """What the kernel makes of a filter."""
    data = {0: number, 4: machine} | {16 + 8 * place: value for place, value in enumerate(arguments)}
    place = loaded = 0
    while True:
        code, yes, no, value = steps[place]
        place += 1
        if code == 0x20:
            loaded = data[value]
        elif code == 0x06:
            return value
        else:
            holds = {0x15: loaded == value, 0x35: loaded >= value, 0x45: bool(loaded & value)}[code]
            place += yes if holds else no


@pytest.mark.needs("nothing")
@pytest.mark.parametrize("machine", python_seccomp.MACHINES)
@pytest.mark.parametrize("may_fork", [False, True])
@pytest.mark.parametrize("may_change", [False, True])
def test_the_filter_denies_what_is_listed_and_allows_the_rest(machine: str, may_fork: bool, may_change: bool) -> None:
    name, column = python_seccomp.MACHINES[machine]
    steps = python_seccomp.steps(machine, 77, may_fork, may_change)
    allow, deny, unknown = 0x7FFF0000, 0x00050001, 0x00050026

    def asked(number: int | None, *arguments: int, machine: int = name) -> int:
        assert number is not None
        return verdict(steps, number, [*arguments, 0, 0, 0, 0, 0, 0][:6], machine)

    listed = {numbers[column] for numbers in python_seccomp.NUMBERS.values()} - {None}
    assert {asked(number) for number in listed} == {deny}
    changes = {numbers[column] for numbers in python_seccomp.CHANGES.values()} - {None}
    assert {asked(number) for number in changes} == {allow if may_change else deny}
    conditional = {
        numbers[column] for table in (python_seccomp.FORKS, python_seccomp.SIGNALS) for numbers in table.values()
    }
    conditional |= {python_seccomp.CLONE[column], python_seccomp.CLONE3[column]}
    prctl, fcntl, ioctl, socketpair, prlimit, openat, openat2 = {
        "x86_64": (157, 72, 16, 53, 302, 257, 437),
        "aarch64": (167, 25, 29, 199, 261, 56, 437),
    }[machine]
    others = {*range(449)} - listed - changes - conditional - {fcntl, ioctl, socketpair, openat2}
    assert {asked(number) for number in others} == {allow}
    assert {asked(number) for number in (449, 452, 463, 468, 0x40000000, 0x40000001)} == {unknown}
    assert asked(openat2) == (allow if may_change else unknown)
    reading, changing = (0, os.O_CLOEXEC, os.O_DIRECTORY), (1, 2, os.O_CREAT, os.O_TRUNC, os.O_TMPFILE)
    assert {asked(openat, 0, 0, flags) for flags in reading} == {allow}
    assert {asked(openat, 0, 0, flags) for flags in changing} == {allow if may_change else deny}
    clone, thread, namespace = python_seccomp.CLONE[column], 0x10F00, 0x10000000
    assert asked(python_seccomp.CLONE3[column]) == unknown
    flags = (thread, 17, namespace | thread, 0x8000 | 17, 0x8000 | thread)
    assert [asked(clone, flag) for flag in flags] == [allow, [deny, allow][may_fork], deny, deny, deny]
    for numbers in python_seccomp.SIGNALS.values():
        own, other = asked(numbers[column], 77), asked(numbers[column], 78)
        assert (own, other) == (allow, [deny, allow][may_fork])
    for numbers in python_seccomp.FORKS.values():
        if numbers[column] is not None:
            assert asked(numbers[column]) == [deny, allow][may_fork]
    assert [asked(prlimit, pid) for pid in (0, 77, 1)] == [allow, allow, deny]
    assert [asked(prlimit, 0, resource) for resource in (3, 4)] == [allow, deny]
    assert [asked(prctl, option) for option in (1, 4)] == [deny, allow]
    assert {asked(fcntl, 0, command) for command in (0, 3, 4, 1030)} == {allow}
    assert {asked(fcntl, 0, command) for command in (5, 6, 7, 8, 10, 15, 36, 37, 38, 1024, 1031, 1036)} == {deny}
    assert [asked(ioctl, 0, request) for request in (0x5412, 0x8901, 0x40086602, 0x5401)] == [*3 * [deny], allow]
    pairs = [(1, 1), (1, 0x80801), (2, 1), (1, 2), (1, 5)]
    assert [asked(socketpair, family, kind) for family, kind in pairs] == [allow, allow, deny, deny, deny]
    assert asked(0, machine=1) == 0x80000000


def test_a_program_holds_no_descriptor_of_its_interpreter(no_pools: None) -> None:
    """However many the tool's own process has when the interpreter starts."""
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(300)]
    try:
        program = (
            "import os\nfound = []\nfor number in range(4096):\n    try:\n        os.fstat(number)\n"
            "    except OSError:\n        continue\n    found.append(number)\nfound"
        )
        assert run(program) == ToolResult(OK, "[0, 1, 2, 3]")
    finally:
        for descriptor in held:
            os.close(descriptor)
