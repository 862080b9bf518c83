"""Runs in processes of their own that are killed, really, at a chosen moment.

The run is that of experiments/train.py on `LocalBackend`. Processes are forked from one that has imported everything
and has read verl's settings, so that a run takes a second.
"""

import io
import multiprocessing
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from local_backend import LocalBackend

import rtpo.algorithms
import rtpo.verl_harness.session as session
from experiments.training import train
from rtpo.engines.decoder import Decoder
from rtpo.errors import RTPOError
from rtpo.harness.budget import ChargeJournal
from rtpo.run import records
from rtpo.run.cli import composed
from rtpo.run.config import RunConfig, compose_run
from rtpo.run.records import RunFolder
from rtpo.run.run import StopRequest

session.settings_of(compose_run(composed("train", ())))  # which a process does once for all its runs
FORKS = multiprocessing.get_context("forkserver")
REFUSED = 1

Act = Callable[[tuple[Any, ...]], None]


@dataclass(frozen=True)
class Moment:
    """The n-th call of `owner.name` whose arguments `fits`: the process ends before it, after it, or once `half` did a
    part of its work."""

    owner: Any
    name: str
    n: int = 1
    after: bool = False
    half: Act | None = None
    fits: Callable[[tuple[Any, ...]], bool] = lambda arguments: True


@dataclass(frozen=True)
class Call:
    """The n-th call of any Python function; 0 kills nothing and counts them."""

    n: int


def _half_line(path: Path) -> None:
    with path.open("a") as file:
        file.write('{"charged": 4, "tot')


def _half_file(arguments: tuple[Any, ...]) -> None:
    _WRITE(arguments[0], arguments[1][: len(arguments[1]) // 2])


def _half_checkpoint(arguments: tuple[Any, ...]) -> None:
    whole = io.BytesIO()
    _SAVE(arguments[0], whole)
    _WRITE(arguments[1], whole.getvalue()[: whole.tell() // 2])


_SAVE, _WRITE = torch.save, Path.write_bytes


def _is_save(arguments: tuple[Any, ...]) -> bool:
    return (arguments[0] / "state.pkl").exists()


def _half_deleted(arguments: tuple[Any, ...]) -> None:
    (arguments[0] / "state.pkl").unlink()


def _of_file(place: int, name: str) -> Callable[[tuple[Any, ...]], bool]:
    return lambda arguments: Path(arguments[place]).name == name


MOMENTS = {
    "in the first evaluation": Moment(Decoder, "generate", 2),
    "a charge half written": Moment(ChargeJournal, "append", 3, half=lambda a: _half_line(a[0].path)),
    "a charge written, its rollouts not sent": Moment(ChargeJournal, "append", 3, after=True),
    "among siblings": Moment(Decoder, "generate", 12),
    "an optimizer step taken": Moment(LocalBackend, "step", 2, after=True),
    "between two reverse phases, saved": Moment(LocalBackend, "push", 5),
    "between two reverse phases, the engine new": Moment(LocalBackend, "push", 5, after=True),
    "between two phases of the second step": Moment(LocalBackend, "push", 9),
    "a checkpoint half written": Moment(torch, "save", 3, half=_half_checkpoint),
    "the rest of a save half written": Moment(Path, "write_bytes", 3, half=_half_file, fits=_of_file(0, "state.pkl")),
    "a save whole, not in its place": Moment(Path, "rename", 3, fits=lambda a: a[0].suffix == ".partial"),
    "a save in its place, not the latest": Moment(records, "write_whole", 3, fits=_of_file(0, "latest")),
    "the name of the latest save half written": Moment(Path, "replace", 3, fits=_of_file(1, "latest")),
    "the save before half deleted": Moment(shutil, "rmtree", 2, half=_half_deleted, fits=_is_save),
    "the save before the last half deleted": Moment(shutil, "rmtree", 7, half=_half_deleted, fits=_is_save),
    "a step's line half written": Moment(
        RunFolder, "append", 2, half=lambda a: _half_line(a[0].path / a[1]), fits=lambda a: a[1] == "steps.jsonl"
    ),
    "a step's line written, its samples not": Moment(RunFolder, "append", 2, fits=lambda a: a[1] == "rollouts.jsonl"),
    "in the last evaluation": Moment(RunFolder, "append", 3, after=True, fits=lambda a: a[1] == "evaluations.jsonl"),
    "the manifest not in its place": Moment(Path, "replace", 1, fits=_of_file(1, "manifest.json")),
}


Full = tuple[Moment, Callable[[tuple[Any, ...]], int]]
"""from this moment on no file grows beyond so many bytes, by the call's arguments"""


def _line_beyond(file: str, n: int) -> Full:
    """The n-th time lines are appended to `file`, there is room for a part of the first."""
    moment = Moment(RunFolder, "append", n, fits=lambda a: a[1] == file)
    return moment, lambda a: (a[0].path / a[1]).stat().st_size + 40


FULL: dict[str, Full] = {
    "the journal": (Moment(ChargeJournal, "append", 3), lambda a: a[0].path.stat().st_size + 5),
    "the steps": _line_beyond("steps.jsonl", 2),
    "the samples": _line_beyond("rollouts.jsonl", 2),
    "the evaluations": _line_beyond("evaluations.jsonl", 3),
    "the weights": (Moment(torch, "save", 3), lambda a: 100_000),
    "the rest of a save": (Moment(Path, "write_bytes", 3, fits=_of_file(0, "state.pkl")), lambda a: len(a[1]) // 2),
    "the name of the latest save": (Moment(records, "write_whole", 3, fits=_of_file(0, "latest")), lambda a: 4),
    "the manifest": (Moment(records, "write_whole", 1, fits=_of_file(0, "manifest.json")), lambda a: 100),
}


def run(
    config: RunConfig,
    kill: str | Call | None = None,
    full: str | None = None,
    damage: str | None = None,
    method: str | None = None,
) -> int:
    """Run the configuration in a process of its own; returns its exit status (-9 when it was killed).

    kill: a key of MOMENTS, or a call. full: a key of FULL. damage: a file of the run whose first line loses its first
    bytes in the last evaluation. method: a module whose algorithm is run in the place of RTPO.
    """
    FORKS.set_forkserver_preload([__name__])
    with pytest.MonkeyPatch.context() as patch:
        # the server, which starts once, does not take sys.path over by itself
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        process = FORKS.Process(target=_run, args=(config, kill, full, damage, method))
        process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def _run(config: RunConfig, kill: str | Call | None, full: str | None, damage: str | None, method: str | None) -> None:
    if method is not None:
        rtpo.algorithms.algorithms = lambda: {"rtpo": method}
    session.open_backend = _open_local  # type: ignore[assignment]
    sys.stdout = sys.stderr = io.StringIO()
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    if full is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        moment, room = FULL[full]
        _arm(moment, lambda a: resource.setrlimit(resource.RLIMIT_FSIZE, (room(a), unlimited[1])))
    if isinstance(kill, str):
        _arm(MOMENTS[kill], lambda arguments: _die())
    if damage is not None:
        _arm(MOMENTS["in the last evaluation"], lambda a: _zero(a[0].path / damage))
    calls = _Calls(kill) if isinstance(kill, Call) else None
    sys.setprofile(calls)
    try:
        folder = train(config, StopRequest())
    except RTPOError as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        (config.folder / "error.txt").write_text(f"{type(error).__name__}: {error}")
        sys.exit(REFUSED)
    finally:
        sys.setprofile(None)
    backend = _BACKENDS.pop()
    backend.push(0)
    (folder.path / "weights.txt").write_text(backend.decoder.weight_checksum())
    if calls is not None:
        (folder.path / "calls.txt").write_text(str(calls.count))


_BACKENDS: list[LocalBackend] = []


def _open_local(config: RunConfig) -> LocalBackend:
    _BACKENDS.append(LocalBackend(config))
    return _BACKENDS[-1]


class _Calls:
    """Counts Python calls, and dies at one of them."""

    def __init__(self, last: Call) -> None:
        self.count, self._last = 0, last.n

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            self.count += 1
            if self.count == self._last:
                _die()


def _zero(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(bytes(4))


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _arm(moment: Moment, act: Act) -> None:
    """Do `act` at the moment."""
    original = getattr(moment.owner, moment.name)
    seen = 0

    def call(*arguments: Any, **settings: Any) -> Any:
        nonlocal seen
        seen += moment.fits(arguments)
        is_now = seen == moment.n and moment.fits(arguments)
        if is_now and moment.half is not None:
            moment.half(arguments)
        if is_now and not moment.after:
            act(arguments)
        result = original(*arguments, **settings)
        if is_now and moment.after:
            act(arguments)
        return result

    setattr(moment.owner, moment.name, call)
