"""The Python tool where a machine or an interpreter fails: packages, lost interpreters, less isolation, the filter."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
from ordinary_user import as_ordinary_user
from python_calls import OK, ORDINARY, SESSION, SETTINGS, eventually, interpreters, run
from python_calls import no_pools as no_pools
from python_calls import no_pools_after as no_pools_after

from rtpo.errors import InfrastructureError, MachineError
from rtpo.run.config import PROJECT
from rtpo.tools.base import ToolResult
from rtpo.tools.python import pool as python_pool
from rtpo.tools.python import python_seccomp
from rtpo.tools.python import sandbox as python_sandbox
from rtpo.tools.python import tool as python
from rtpo.tools.python.tool import PythonTool, close_pools
from rtpo.types import ToolOutcome

pytestmark = [pytest.mark.needs("bwrap"), pytest.mark.usefixtures("no_pools_after")]


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
    for name in ("sympy", "mpmath", "numpy", "numpy.libs", "annotated_types"):
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
@pytest.mark.parametrize("broken", ["it ends", "it is missing", "it cannot confine", "it says nothing"])
def test_an_interpreter_that_cannot_start_is_not_the_policys_fault(
    broken: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = python_sandbox.PROGRAM.read_text()
    texts = {
        "it ends": "raise SystemExit('broken at its start')",
        "it cannot confine": whole.replace("def confine(", "def confine(*_):\n    1 / 0\ndef old("),
        "it says nothing": "import time\ntime.sleep(600)",
    }
    file = tmp_path / "broken.py"
    if broken in texts:
        file.write_text(texts[broken])
    with monkeypatch.context() as patch:
        patch.setattr(python_sandbox, "PROGRAM" if "confine" in broken else "CHILD", file)
        if broken == "it says nothing":
            patch.setattr(python_pool, "START_SECONDS", 0.2)
            patch.setattr(python_pool, "CLOSE_SECONDS", 0.1)
        with pytest.raises(InfrastructureError):
            run("1")
    eventually(lambda: broken == "it cannot confine" or interpreters() == [])
    assert run("1") == ToolResult(OK, "1")


@pytest.mark.usefixtures("no_pools")
@pytest.mark.parametrize("end", ["os._exit(3)", "os.kill(os.getpid() + 1, signal.SIGKILL)"])
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
def test_the_self_test_finds_a_sandbox_that_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = SETTINGS.check()
    assert (facts["isolation"], facts["user"]) == ("namespaces", "own" if os.getuid() else "reserved")
    folders = python_sandbox._system_folders()
    monkeypatch.setattr(python_sandbox, "_system_folders", lambda: [*folders, Path("/etc/passwd")])
    monkeypatch.setitem(python_sandbox.ENVIRONMENT, "SECRET", "x")
    monkeypatch.setattr(python, "ENVIRONMENT", {})
    close_pools()
    with pytest.raises(MachineError, match=r"SECRET.*/etc/passwd"):
        SETTINGS.check()


@pytest.mark.usefixtures("no_pools")
@pytest.mark.needs("nothing")
def test_a_machine_without_namespaces_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    refusing = tmp_path / "bwrap"
    refusing.write_text("#!/bin/sh\n[ $1 = --version ] && echo b 9.9 || { echo no namespaces for you >&2; exit 1; }")
    refusing.chmod(0o755)
    for bubblewrap in ("no-such-bwrap", str(refusing)):
        monkeypatch.setattr(python_sandbox, "BUBBLEWRAP", bubblewrap)
        with pytest.raises(MachineError, match=r"python\.isolation=limits"):
            SETTINGS.check()
        with pytest.raises((MachineError, InfrastructureError)):
            run("1")
        close_pools()


WEAKER = replace(SETTINGS, isolation="limits", output_characters=1000)


@pytest.mark.needs("ordinary user")
def test_less_isolation_is_used_where_it_is_asked_for() -> None:
    """By an ordinary user, who can read the interpreter. Threads may be refused to one who runs more, as tests do.
    What programs are denied there is in `hostile_programs.MESSAGES`."""
    ordinary = {code: said for code, said in ORDINARY.items() if "thread" not in code.lower()}
    script = (
        "import json, sys\n"
        f"sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parents[1] / 'helpers')]!r}\n"
        "from test_python_machine import WEAKER, run\n"
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
    if_fork, if_change = ([deny, allow][may] for may in (may_fork, may_change))

    def asked(number: int, *arguments: int, machine: int = name) -> int:
        return verdict(steps, number, [*arguments, 0, 0, 0, 0, 0, 0][:6], machine)

    def numbers_of(table: dict[str, python_seccomp.Numbers]) -> set[int]:
        return {number for numbers in table.values() if (number := numbers[column]) is not None}

    listed, changes, forks, signals = map(
        numbers_of, (python_seccomp.NUMBERS, python_seccomp.CHANGES, python_seccomp.FORKS, python_seccomp.SIGNALS)
    )
    clone, clone3 = python_seccomp.CLONE[column], python_seccomp.CLONE3[column]
    prctl, fcntl, ioctl, socketpair, prlimit, openat, openat2 = {
        "x86_64": (157, 72, 16, 53, 302, 257, 437),
        "aarch64": (167, 25, 29, 199, 261, 56, 437),
    }[machine]
    others = {*range(449)} - listed - changes - forks - signals - {clone, clone3, fcntl, ioctl, socketpair, openat2}
    for numbers, wanted in ((listed, deny), (changes, if_change), (forks, if_fork), (others, allow)):
        assert {asked(number) for number in numbers} <= {wanted}
    assert {asked(number) for number in (clone3, 449, 452, 463, 468, 0x40000000, 0x40000001)} == {unknown}
    assert asked(openat2) == (allow if may_change else unknown)
    for number in signals:
        assert [asked(number, pid) for pid in (77, 78)] == [allow, if_fork]
    thread, namespace = 0x10F00, 0x10000000
    cases: dict[tuple[int, ...], int] = {
        **{(openat, 0, 0, flags): allow for flags in (0, os.O_CLOEXEC, os.O_DIRECTORY)},
        **{(openat, 0, 0, flags): if_change for flags in (1, 2, os.O_CREAT, os.O_TRUNC, os.O_TMPFILE)},
        **{(clone, flags): deny for flags in (namespace | thread, 0x8000 | 17, 0x8000 | thread)},
        **{(clone, thread): allow, (clone, 17): if_fork, (prctl, 1): deny, (prctl, 4): allow},
        **{(prlimit, 0): allow, (prlimit, 77): allow, (prlimit, 1): deny},
        **{(prlimit, 0, 3): allow, (prlimit, 0, 4): deny},
        **{(fcntl, 0, command): allow for command in (0, 3, 4, 1030)},
        **{(fcntl, 0, command): deny for command in (5, 6, 7, 8, 10, 15, 36, 37, 38, 1024, 1031, 1036)},
        **{(ioctl, 0, request): deny for request in (0x5412, 0x8901, 0x40086602)},
        **{(ioctl, 0, 0x5401): allow, (socketpair, 1, 1): allow, (socketpair, 1, 0x80801): allow},
        **{(socketpair, *kind): deny for kind in ((2, 1), (1, 2), (1, 5))},
    }
    assert {call: asked(*call) for call in cases} == cases
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
