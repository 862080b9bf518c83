"""The Python tool where a machine or an interpreter fails: the filter, packages, lost interpreters."""

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from socket import socket
from typing import IO

import pytest
from denied_calls import DENIED
from python_calls import OK, SESSION, SETTINGS, eventually, interpreters, run
from python_calls import no_pools as no_pools
from python_calls import no_pools_after as no_pools_after
from python_calls import quick_starts as quick_starts

from rtpo.errors import InfrastructureError, MachineError
from rtpo.run.config import PROJECT
from rtpo.tools.base import ToolResult
from rtpo.tools.python import pool as python_pool
from rtpo.tools.python import python_seccomp
from rtpo.tools.python import sandbox as python_sandbox
from rtpo.tools.python import tool as python
from rtpo.tools.python.pool import Zygote
from rtpo.tools.python.python_child import Settings
from rtpo.tools.python.tool import close_pools
from rtpo.types import ToolOutcome

pytestmark = [pytest.mark.needs("bwrap"), pytest.mark.usefixtures("no_pools_after")]


def verdict(steps: list[python_seccomp.Step], number: int, arguments: list[int], machine: int) -> int:
    """What the kernel makes of a filter."""
    data = {0: number, 4: machine} | {16 + 8 * place: value for place, value in enumerate(arguments)}
    place = loaded = 0
    while True:
        code, yes, no, value = steps[place]
        place += 1
        assert code in (0x15, 0x35, 0x45) or (yes, no) == (0, 0)
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
def test_the_filter_allows_what_is_listed_and_denies_the_rest(machine: str, may_fork: bool, may_change: bool) -> None:
    name, column = python_seccomp.MACHINES[machine]
    assert name == {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[machine]
    steps = python_seccomp.steps(machine, 77, may_fork, may_change)
    allow, deny, unknown = 0x7FFF0000, 0x00050001, 0x00050026
    if_fork, if_change = ([deny, allow][may] for may in (may_fork, may_change))

    def asked(number: int, *arguments: int, machine: int = name) -> int:
        return verdict(steps, number, [*arguments, 0, 0, 0, 0, 0, 0][:6], machine)

    def numbers_of(table: dict[str, python_seccomp.Numbers]) -> set[int]:
        return {number for numbers in table.values() if (number := numbers[column]) is not None}

    listed, changes, forks, signals = map(
        numbers_of, (python_seccomp.ALLOWED, python_seccomp.CHANGES, python_seccomp.FORKS, python_seccomp.SIGNALS)
    )
    clone, clone3 = python_seccomp.CLONE[column], python_seccomp.CLONE3[column]
    prctl, fcntl, ioctl, socketpair, prlimit, openat, openat2, futex, setrlimit = {
        "x86_64": (157, 72, 16, 53, 302, 257, 437, 202, 160),
        "aarch64": (167, 25, 29, 199, 261, 56, 437, 98, 164),
    }[machine]
    known = {"x86_64": ({57, 58}, {62, 234}, 56), "aarch64": (set(), {129, 131}, 220)}
    assert (forks, signals, clone) == known[machine]
    by_argument = {clone, clone3, prctl, fcntl, ioctl, socketpair, prlimit, openat, openat2, futex, setrlimit}
    opens = {number for numbers, _ in python_seccomp.OPENS.values() if (number := numbers[column]) is not None}
    others = {*range(449)} - listed - changes - forks - signals - by_argument - opens
    assert numbers_of(DENIED) <= others
    for numbers, wanted in ((listed, allow), (changes, if_change), (forks, if_fork), (others, deny)):
        assert {asked(number) for number in numbers} <= {wanted}
    assert {asked(number) for number in (clone3, 449, 452, 463, 468, 0x40000000, 0x40000001)} == {unknown}
    assert asked(openat2) == (allow if may_change else unknown)
    for number, own, other, killing in (
        (python_seccomp.SIGNALS["kill"][column], (77, 15), (78, 15), (77, 9)),
        (python_seccomp.SIGNALS["tgkill"][column], (77, 77, 15), (78, 78, 15), (77, 77, 9)),
    ):
        assert number is not None
        assert [asked(number, *arguments) for arguments in (own, other, killing)] == [allow, if_fork, if_fork]
    thread, namespace = 0x10F00, 0x10000000
    cases: dict[tuple[int, ...], int] = {
        **{(openat, 0, 0, flags): allow for flags in (0, 16, os.O_CLOEXEC, os.O_DIRECTORY)},
        **{(openat, 0, 0, flags): if_change for flags in (1, 2, os.O_CREAT, os.O_TRUNC, os.O_TMPFILE)},
        **{(clone, flags): deny for flags in (namespace | thread, 0x8000 | 17, 0x8000 | thread)},
        **{(clone, thread): allow, (clone, 17): if_fork, (prctl, 1): deny, (prctl, 4): allow},
        **{(futex, 0, operation): allow for operation in (0, 9, 128, 129, 131, 133, 137, 0x189)},
        **{(futex, 0, operation): if_fork for operation in (1, 3, 4, 5, 10, 0x101)},
        **{(setrlimit, 3): allow, (setrlimit, 4): deny},
        **{(prlimit, 0): allow, (prlimit, 77): allow, (prlimit, 1): deny},
        **{(prlimit, 0, 3): allow, (prlimit, 0, 4): deny},
        **{(fcntl, 0, command): allow for command in (0, 3, 4, 1030)},
        **{(fcntl, 0, command): deny for command in (5, 6, 7, 8, 10, 15, 36, 37, 38, 1024, 1031, 1036)},
        **{(ioctl, 0, request): deny for request in (0x5412, 0x8901, 0x40086602)},
        **{(ioctl, 0, request): allow for request in (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451, 0x802C542A)},
        **{(socketpair, 1, 1): allow, (socketpair, 1, 0x80801): allow},
        **{(socketpair, *kind): deny for kind in ((2, 1), (1, 2), (1, 5))},
    }
    assert {call: asked(*call) for call in cases} == cases
    assert asked(0, machine=1) == 0x80000000


ENVIRONMENT_SCRIPT = """
import asyncio
from rtpo.tools.python.tool import PythonSettings, PythonTool, close_pools
settings = PythonSettings(processes=2, workers=1)
look = "import sympy, only_here; print(sympy.__version__, only_here.VALUE)"
child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {look!r}], stdout=-1).stdout.decode().strip()"
print(*[asyncio.run(PythonTool(settings).call({"code": code}, [])).output for code in (look, child)])
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
    (packages / "only_here.py").write_text("VALUE = 7\n")
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(PROJECT)}
    command = [folder / "bin" / "python", "-c", ENVIRONMENT_SCRIPT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stdout) == (0, "0.1.2 7 0.1.2 7\n"), done.stderr


@pytest.mark.usefixtures("quick_starts")
def test_an_interpreter_that_is_lost_is_replaced_and_the_call_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(SETTINGS, workers=1)
    run("1", settings=settings)
    (lost,) = python._pool(settings).pids

    begin = Zygote.begin

    def begin_and_kill(zygote: Zygote, cells: list[str]) -> None:
        begin(zygote, ["import time\ntime.sleep(600)"] if zygote.process.pid == lost else cells)
        if zygote.process.pid == lost:
            os.kill(lost, signal.SIGKILL)

    with monkeypatch.context() as patched:
        patched.setattr(Zygote, "begin", begin_and_kill)
        assert run("5", settings=settings) == ToolResult(OK, "5")
    (new,) = python._pool(settings).pids
    assert new != lost
    os.kill(new, signal.SIGKILL)
    assert run("6", settings=settings) == ToolResult(OK, "6")


@pytest.mark.usefixtures("quick_starts")
def test_an_interpreter_that_cannot_start_is_not_the_policys_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One that ends, is missing, says nothing or cannot confine a program is started three times."""
    whole = python_sandbox.PROGRAM.read_text()
    for place, text in (
        ("CHILD", "raise SystemExit('broken at its start')"),
        ("CHILD", None),
        ("CHILD", "import time\ntime.sleep(600)"),
        ("PROGRAM", whole.replace("def confine(", "def confine(*_):\n    1 / 0\ndef old(")),
    ):
        file, starts = tmp_path / "broken.py", [0]
        file.unlink(missing_ok=True) if text is None else file.write_text(text)

        def start(settings: Settings, starts: list[int] = starts) -> tuple[subprocess.Popen[bytes], socket, IO[bytes]]:
            starts[0] += 1
            return python_sandbox.start(settings)

        with monkeypatch.context() as patch:
            patch.setattr(python_pool, "start", start)
            patch.setattr(python_sandbox, place, file)
            if text and "sleep" in text:
                patch.setattr(python_pool, "START_SECONDS", 0.2)
                patch.setattr(python_pool, "CLOSE_SECONDS", 0.1)
            with pytest.raises(InfrastructureError):
                run("1")
        assert starts == [3]
    eventually(lambda: interpreters() == [])
    assert run("1") == ToolResult(OK, "1")


@pytest.mark.usefixtures("quick_starts")
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
    assert run(breaks, "x = 1", settings=SESSION) == replace(ended, is_forgotten=True)
    flawed("part")
    with pytest.raises(InfrastructureError, match=r"\(attempt 3 of 3\)"):
        run("print(1)\nimport time\ntime.sleep(1)")


@pytest.mark.usefixtures("no_pools")
def test_the_self_test_finds_other_packages_and_a_sandbox_that_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = SETTINGS.check()
    assert (facts["isolation"], facts["user"]) == ("namespaces", "own" if os.getuid() else "reserved")
    with monkeypatch.context() as patch:
        patch.setattr(python, "version", lambda name: "0.1.2" if name == "sympy" else version(name))
        with pytest.raises(MachineError, match=r"numpy as .* this process as 0\.1\.2"):
            SETTINGS.check()
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
