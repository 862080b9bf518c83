"""The Python tool: outcomes, limits, sessions, its pool, and what it does where a machine or an interpreter fails."""

import asyncio
import multiprocessing
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psutil
import pytest
from python_calls import ERROR, OK, SESSION, SETTINGS, TIMEOUT, eventually, interpreters, results, run
from python_calls import no_pools as no_pools
from python_calls import no_pools_after as no_pools_after
from python_calls import quick_starts as quick_starts

from rtpo.errors import InfrastructureError
from rtpo.run.config import PROJECT
from rtpo.tools.base import ToolResult
from rtpo.tools.python import tool as python
from rtpo.tools.python.pool import Zygote
from rtpo.tools.python.tool import PythonTool, close_pools
from rtpo.types import ToolOutcome

pytestmark = [pytest.mark.needs("bwrap"), pytest.mark.usefixtures("no_pools_after")]
MEMORY, REFUSED = ToolOutcome.MEMORY, ToolOutcome.REFUSED
INTERPRETER_ENDED = ToolResult(ToolOutcome.INTERPRETER_ENDED, "the program ended the interpreter")
WAITS_IN_TWO_THREADS = (
    "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\ntime.sleep(600)"
)


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
        "'\ud800'": (OK, "?"),
        "import os\nos.kill(os.getpid(), 15)": (ERROR, "ended by signal 15"),
        "": (REFUSED, "Error: the program is empty."),
        "1" * 100_001: (REFUSED, "Error: the program has 100001 characters, over 100000."),
    }
    answers = results(list(cases))
    assert [(result.outcome, result.output) for result in answers] == list(cases.values())
    random = "import numpy, random\nhash('a'), random.random(), numpy.random.rand(), {'a', 'b', 'c'}"
    assert len({result.output for result in results([random] * 4)}) == 1


def test_limits_end_or_stop_a_program() -> None:
    cases = {
        "print('a')\nwhile True: pass": (TIMEOUT, "a\nTimeoutError: 1 s of CPU time used up"),
        "print('a')\nx = bytearray(1 << 30)": (MEMORY, "a\nMemoryError (line 2)"),
        # memory that a program did without is no outcome
        "try: bytearray(1 << 30)\nexcept MemoryError: print('so')": (OK, "so"),
    }
    assert [(result.outcome, result.output) for result in results(list(cases))] == list(cases.values())
    wall = run("print('a')\nimport time\ntime.sleep(600)", settings=replace(SETTINGS, wall_seconds=2))
    assert wall == ToolResult(TIMEOUT, "a\nTimeoutError: stopped after 2 s")


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


def test_a_session_goes_on_from_the_earlier_calls() -> None:
    earlier = ["import random\nprint('a')\nx = 3", "y = x + 1\ny\n1 / 0", "z = random.random()", "exit()", ""]
    assert run("print(x, y)\nz", *earlier, settings=SESSION).output.startswith("3 4\n0.")
    assert run("z", *earlier, settings=SESSION) == run("z", *earlier, settings=SESSION)
    assert run("x", *earlier) == ToolResult(ERROR, "NameError: name 'x' is not defined (line 1)")


def test_a_call_that_ended_its_process_leaves_nothing_to_its_session() -> None:
    """What is told of the call itself, and found out where it did not end at first."""
    spin, crash, killed = (
        "y = 2\nwhile True: pass",
        "z = 3\nimport os\nos._exit(0)",
        "import os\nos.kill(os.getpid(), 15)",
    )
    ends = [run(code, "x = 1", settings=SESSION) for code in (spin, crash, killed, "1 / 0")]
    assert [result.is_forgotten for result in ends] == [True, True, True, False]
    program = "x, 'y' in globals(), 'z' in globals()"
    assert run(program, "x = 1", crash, killed, "x = 2", settings=SESSION).output == "(2, False, False)"
    assert run(killed, "x = 1", crash, killed, settings=SESSION).output == "ended by signal 15"
    # one that says that more cells are done than were run
    forged = "import os\nos.write(3, b'd' * 9)\nos._exit(0)"
    assert run("x", "x = 1", forged, settings=SESSION) == ToolResult(OK, "1")


def test_each_call_of_a_session_has_its_own_limits() -> None:
    spin = "import time\nbegin = time.process_time()\nwhile time.process_time() - begin < 0.6: pass"
    assert run("time.process_time() > 1.1", spin, spin, settings=SESSION) == ToolResult(OK, "True")
    assert run("while True: pass", spin, settings=SESSION).outcome is TIMEOUT


def test_the_earlier_calls_of_a_session_have_one_limit_of_time_together() -> None:
    settings = replace(SESSION, wall_seconds=1)
    result = run("1", *["import time\ntime.sleep(600)"] * 4, settings=settings)
    assert (result.outcome, result.is_forgotten) == (TIMEOUT, True)
    assert run("1", *["import time\ntime.sleep(0.9)"] * 4, settings=settings).outcome is TIMEOUT
    assert run("x", "x = 1", "import time\ntime.sleep(0.9)", settings=settings) == ToolResult(OK, "1")


@pytest.mark.usefixtures("quick_starts")
@pytest.mark.parametrize(
    ("isolation", "killed"), [("namespaces", "program"), ("namespaces", "init"), ("limits", "program")]
)
@pytest.mark.parametrize(("kills", "result"), [(1, ToolResult(OK, "done")), (3, INTERPRETER_ENDED)])
def test_a_program_that_is_killed_from_outside_is_run_again(
    isolation: str, killed: str, kills: int, result: ToolResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what always ends so is the program's own doing."""
    begin, left = Zygote.begin, [killed] * kills

    def begin_and_kill(zygote: Zygote, cells: list[str]) -> None:
        begin(zygote, [WAITS_IN_TWO_THREADS] if left else cells)
        if left:
            _kill(zygote.process.pid, left.pop())

    monkeypatch.setattr(Zygote, "begin", begin_and_kill)
    assert run("print('done')", settings=replace(SETTINGS, isolation=isolation, workers=1)) == result
    assert not left


def _kill(zygote: int, killed: str) -> None:
    """Kill the program or the init of the running call, once the program runs."""

    def processes() -> list[psutil.Process]:
        below = psutil.Process(zygote).children(recursive=True)
        programs = [process for process in below if process.num_threads() == 2]
        return [process for process in below if process.name() == "cat"] if programs and killed == "init" else programs

    eventually(processes)
    (process,) = processes()
    process.kill()


def test_a_pool_of_two_serves_loops_and_threads_and_no_more_programs_at_once() -> None:
    """And the event loop goes on meanwhile."""
    before = run("1")
    zygotes = python._pool(SETTINGS).pids
    program = "import time\nbegin = time.monotonic()\ntime.sleep(1)\nprint(begin, time.monotonic())"
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
            return await asyncio.gather(*[tool.call({"code": program}, []) for _ in range(4)])
        finally:
            task.cancel()

    spans = [tuple(map(float, result.output.split())) for result in asyncio.run(run_all())]
    assert max(sum(begin <= moment < end for begin, end in spans) for moment, _ in spans) == 2
    assert ticks > 5
    with ThreadPoolExecutor(4) as threads:
        assert [before, run("1"), *threads.map(run, ["1"] * 4)] == [ToolResult(OK, "1")] * 6
    assert {*zygotes} <= {*python._pool(SETTINGS).pids}
    assert len(python._pool(SETTINGS).pids) == 2


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


@pytest.mark.usefixtures("quick_starts")
def test_nothing_runs_after_a_pool_is_closed() -> None:
    async def close() -> list[Any]:
        tool = PythonTool(SETTINGS)
        calls = [asyncio.create_task(tool.call({"code": "import time\ntime.sleep(600)"}, [])) for _ in range(3)]
        async with asyncio.timeout(60):
            while len(interpreters()) < 8:
                await asyncio.sleep(0.01)
        await asyncio.to_thread(close_pools)
        return await asyncio.gather(*calls, return_exceptions=True)

    errors = asyncio.run(close())
    assert [type(error) for error in errors] == [InfrastructureError] * 3
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


def test_a_program_whose_zygote_has_gone_does_not_begin() -> None:
    program = (
        f"import os, sys, time\nsys.path.insert(0, {str(PROJECT / 'rtpo/tools/python')!r})\n"
        "import python_child, python_program\n"
        "settings = python_child.Settings(1, 1.0, 1 << 30, 1, 100, False, None, [])\n"
        "zygote = os.getpid()\n"
        "if os.fork():\n    os._exit(0)\n"
        "while os.getppid() == zygote:\n    time.sleep(0.01)\n"
        "try:\n    python_program.confine(settings, 1, zygote)\n"
        "except ProcessLookupError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "the zygote has ended\n"


def test_a_program_begins_with_no_names_in_its_scratch_folder() -> None:
    said = run("import os\nsorted(set(globals()) - {'os', '__builtins__'}), os.getcwd()").output
    assert said == str((["__doc__", "__loader__", "__name__", "__package__", "__spec__"], "/tmp"))
