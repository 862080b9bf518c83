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
from rtpo.run.stopping import StopRequest

session.settings_of(compose_run(composed("train", ())))  # which a process does once for all its runs
FORKS = multiprocessing.get_context("forkserver")
REFUSED = 1

Arguments = tuple[Any, ...]
Name = str | None


@dataclass(frozen=True)
class Moment:
    """The n-th call of `owner.name` whose arguments `fits`: the process ends before it, after it, or once `half` did a
    part of its work."""

    owner: Any
    name: str
    n: int = 1
    after: bool = False
    half: Callable[[Arguments], None] | None = None
    fits: Callable[[Arguments], bool] = lambda arguments: True


def _half_line(path: Path) -> None:
    with path.open("a") as file:
        file.write('{"charged": 4, "tot')


def _half_checkpoint(arguments: Arguments, save: Callable[..., None] = torch.save) -> None:
    whole = io.BytesIO()
    save(arguments[0], whole)
    arguments[1].write_bytes(whole.getvalue()[: whole.tell() // 2])


def _appended(file: str) -> Callable[[Arguments], bool]:
    return lambda arguments: arguments[1] == file


def _of_file(place: int, name: str) -> Callable[[Arguments], bool]:
    return lambda arguments: Path(arguments[place]).name == name


IN_A_STEP = {
    "in the first evaluation": Moment(Decoder, "generate", 2),
    "among siblings": Moment(Decoder, "generate", 12),
    "a charge half written": Moment(ChargeJournal, "append", 3, half=lambda a: _half_line(a[0].path)),
    "a charge written, its rollouts not sent": Moment(ChargeJournal, "append", 3, after=True),
    "an optimizer step taken": Moment(LocalBackend, "step", after=True),
    "between two phases": Moment(LocalBackend, "push", 4),
}
IN_ITS_RECORDS = {
    "a checkpoint half written": Moment(torch, "save", 2, half=_half_checkpoint),
    "a save whole, not in its place": Moment(Path, "rename", 2, fits=lambda a: a[0].suffix == ".partial"),
    "a save in its place, not the latest": Moment(records, "write_whole", 2, fits=_of_file(0, "latest")),
    "the save before half deleted": Moment(
        shutil, "rmtree", 2, half=lambda a: (a[0] / "state.pkl").unlink(), fits=lambda a: (a[0] / "state.pkl").exists()
    ),
    "a step's line half written": Moment(
        RunFolder, "append", half=lambda a: _half_line(a[0].path / a[1]), fits=_appended("steps.jsonl")
    ),
    "a step's line written, its samples not": Moment(RunFolder, "append", fits=_appended("rollouts.jsonl")),
    "in the last evaluation": Moment(
        RunFolder, "append", after=True, fits=lambda a: a[1] == "evaluations.jsonl" and a[2][0]["when"] == "after"
    ),
    "the manifest not in its place": Moment(Path, "replace", fits=_of_file(1, "manifest.json")),
}
MOMENTS = IN_A_STEP | IN_ITS_RECORDS
"""of a run, each in a process that goes on after the one before"""
FULL: dict[str, tuple[Moment, Callable[[Arguments], int]]] = {
    "the weights": (Moment(torch, "save", 2), lambda a: 100_000),
    "the rest of a save": (Moment(Path, "write_bytes", 2, fits=_of_file(0, "state.pkl")), lambda a: len(a[1]) // 2),
    "the name of the latest save": (Moment(records, "write_whole", 2, fits=_of_file(0, "latest")), lambda a: 4),
    "the journal": (Moment(ChargeJournal, "append", 2), lambda a: a[0].path.stat().st_size + 5),
    "the steps": (
        Moment(RunFolder, "append", fits=_appended("steps.jsonl")),
        lambda a: (a[0].path / a[1]).stat().st_size + 40,
    ),
    "the manifest": (Moment(records, "write_whole", fits=_of_file(0, "manifest.json")), lambda a: 100),
}
"""from this moment on no file grows beyond so many bytes, by the call's arguments"""


def run(config: RunConfig, **happens: Name) -> int:
    """Run the configuration in a process of its own; returns its exit status (-9 when it was killed).

    kill: a key of MOMENTS. full: a key of FULL. damage: a file of the run whose first line loses its first bytes in the
    last evaluation. method: a module whose algorithm is run in the place of RTPO.
    """
    FORKS.set_forkserver_preload([__name__])
    with pytest.MonkeyPatch.context() as patch:
        # the server, which starts once, does not take sys.path over by itself
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        # real verl sets OMP_NUM_THREADS for all that starts later, and the last bits of sums depend on threads
        process = FORKS.Process(target=_run, args=(config, torch.get_num_threads()), kwargs=happens)
        process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def _run(
    config: RunConfig,
    threads: int,
    *,
    kill: Name = None,
    full: Name = None,
    damage: Name = None,
    method: Name = None,
) -> None:
    torch.set_num_threads(threads)
    if method:
        rtpo.algorithms.algorithms = lambda: {"rtpo": method}
    backend = LocalBackend(config)
    session.open_backend = lambda config: backend  # type: ignore[assignment]
    sys.stdout = sys.stderr = io.StringIO()
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    if full:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        moment, room = FULL[full]
        _arm(moment, lambda a: resource.setrlimit(resource.RLIMIT_FSIZE, (room(a), unlimited[1])))
    if kill:
        _arm(MOMENTS[kill], lambda arguments: os.kill(os.getpid(), signal.SIGKILL))
    if damage:
        file = config.folder / damage
        _arm(MOMENTS["in the last evaluation"], lambda _: file.write_bytes(bytes(4) + file.read_bytes()[4:]))
    try:
        folder = train(config, StopRequest())
    except RTPOError as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        (config.folder / "error.txt").write_text(f"{type(error).__name__}: {error}")
        sys.exit(REFUSED)
    backend.push(0)
    (folder.path / "weights.txt").write_text(backend.decoder.weight_checksum())


def _arm(moment: Moment, act: Callable[[Arguments], object]) -> None:
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
