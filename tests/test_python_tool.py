"""The Python tool: outcomes, limits, and what is left behind."""

import asyncio
import itertools
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from rtpo.errors import InfrastructureError
from rtpo.tools import python
from rtpo.tools.python import PythonLimits, PythonOutcome, PythonResult, run_python

OK, ERROR, TIMEOUT = PythonOutcome.OK, PythonOutcome.ERROR, PythonOutcome.TIMEOUT
LIMITS = PythonLimits(wall_seconds=60)
WALL_SECONDS = 10
"""for programs that meet it: enough for a slow machine to begin them"""


def run(program: str, limits: PythonLimits = LIMITS) -> PythonResult:
    return asyncio.run(run_python(program, limits))


def outcomes(programs: list[str], limits: PythonLimits = LIMITS) -> list[PythonResult]:
    async def run_all() -> list[PythonResult]:
        return await asyncio.gather(*[run_python(program, limits) for program in programs])

    return asyncio.run(run_all())


def is_running(pid: int) -> bool:
    """Not counting an ended process whose parent has not asked for it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_outputs_and_last_expressions_are_given_and_errors_named() -> None:
    cases = {
        "1 + 1": (OK, "2"),
        "print('a')\nx = 3\nx * 2": (OK, "a\n6"),
        "x = 3": (OK, ""),
        "": (OK, ""),
        "None": (OK, ""),
        "import sys\nprint('é', file=sys.stderr)": (OK, "é"),
        "exit()": (OK, ""),
        "def f():\n    return g()\n\n1 / 0": (ERROR, "ZeroDivisionError: division by zero (line 4)"),
        "print('a')\ndef f(:": (ERROR, "SyntaxError: invalid syntax (line 2)"),
        "exit('no')": (ERROR, "SystemExit: no"),
        "a\0b": (ERROR, "SyntaxError: source code string cannot contain null bytes"),
        "'\ud800'": (OK, "?"),
        "import os\nos.kill(os.getpid(), 9)": (ERROR, "ended by signal 9"),
    }
    found = outcomes(list(cases))
    assert [(result.outcome, result.output) for result in found] == list(cases.values())


def test_a_call_sees_no_environment_no_files_and_no_earlier_call() -> None:
    program = "import os\nsorted(os.environ), os.listdir('.'), sorted(set(globals()) - {'os', '__builtins__'})"
    first, second = outcomes([f"left = 1\nopen('left', 'w')\n{program}", program])
    assert second.output == "(['LC_CTYPE', 'OMP_NUM_THREADS', 'PYTHONHASHSEED'], [], ['__name__'])"
    assert "left" in first.output
    assert run("hash('a')").output == run("hash('a')").output


def test_limits_end_or_stop_a_program() -> None:
    limits = replace(LIMITS, cpu_seconds=1, memory_bytes=256 << 20, output_bytes=100)
    cpu, memory, files, output = outcomes(
        [
            "while True: pass",
            "x = bytearray(1 << 30)",
            "with open('file', 'w') as file: file.write('x' * 100)",
            "print('é' * 10_000_000)\n1",
        ],
        limits,
    )
    assert cpu == PythonResult(ERROR, "1 s of CPU time used up")
    assert memory == PythonResult(ERROR, "MemoryError (line 1)")
    assert files == PythonResult(ERROR, "OSError: [Errno 27] File too large (line 1)")
    assert output == PythonResult(OK, "é" * 50 + " ... (cut)")


def test_a_program_and_what_it_started_are_ended_at_the_wall_clock_limit_or_with_it() -> None:
    """With what it printed until then. The processes it started hold the output's pipe, and do not hold up the
    result."""
    program = "import subprocess\nprint(subprocess.Popen(['sleep', '600']).pid, flush=True)"
    ended = run(program)
    assert ended.outcome is OK
    stopped = run(f"{program}\nimport time\ntime.sleep(600)", replace(LIMITS, wall_seconds=WALL_SECONDS))
    assert stopped.outcome is TIMEOUT
    assert stopped.output.endswith(f"\nTimeoutError: stopped after {WALL_SECONDS} s")
    for result in (ended, stopped):
        deadline = time.monotonic() + 60
        while is_running(int(result.output.split()[0])):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_cancelled_call_ends_its_process(tmp_path: Path) -> None:
    async def cancel() -> int:
        program = f"import os, time\nos.rename({str(tmp_path / 'a')!r}, {str(tmp_path)!r} + f'/{{os.getpid()}}')\n"
        (tmp_path / "a").touch()
        call = asyncio.create_task(run_python(program + "time.sleep(600)", LIMITS))
        while (tmp_path / "a").exists():
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        return int(next(tmp_path.iterdir()).name)

    assert not is_running(asyncio.run(cancel()))


def test_no_more_programs_run_at_once_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python, "CHILDREN_AT_ONCE", 1)
    spans = [
        result.output.split() for result in outcomes(["import time\nt = time.monotonic()\nt, time.monotonic()"] * 4)
    ]
    times = sorted(tuple(float(part.strip("(),")) for part in span) for span in spans)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(times))


def test_a_child_that_cannot_be_started_is_not_the_policys_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(python.sys, "executable", str(tmp_path / "nowhere"))
        with pytest.raises(InfrastructureError, match=r"could not start a process: .*nowhere"):
            run("1")
    with monkeypatch.context() as patch:
        patch.setattr(python, "CHILD", tmp_path / "missing.py")
        with pytest.raises(InfrastructureError, match=r"ended with status 2 before its program: .*missing\.py"):
            run("1")
    with pytest.raises(InfrastructureError, match="did not begin in time"):
        run("1", replace(LIMITS, wall_seconds=0))


def test_nothing_is_left_in_the_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python.tempfile, "tempdir", str(tmp_path))
    here, _ = outcomes(["import os\nopen('a', 'w')\nos.mkdir('b')\nos.getcwd()", "1 / 0"])
    assert here.output.startswith(str(tmp_path))
    assert os.listdir(tmp_path) == []
