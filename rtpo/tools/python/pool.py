"""The pool of interpreters behind the Python tool.

A worker is a thread of this process with its own zygote (`rtpo.tools.python.python_child`). It runs one call at a time.
A call is a list of cells (`Reply`). If it finds no idle worker, it starts a new one, up to the number of workers.
"""

import asyncio
import os
import queue
import select
import subprocess
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from rtpo.errors import InfrastructureError
from rtpo.tools.python.python_child import REPLAY_FACTOR, SETUP_SECONDS, Reply, Settings, receive, send
from rtpo.tools.python.sandbox import FIRST_USER, USERS, start

START_SECONDS: Final = 120.0
SPARE_SECONDS: Final = 30.0
"""extra time for a zygote to answer after a call's own limits"""
CLOSE_SECONDS: Final = 5.0
ATTEMPTS: Final = 3
PAUSE_SECONDS: Final = 0.2
"""pause before the second attempt; twice as long before the third"""
CLOSED: Final = "the Python tool's pool was closed, or the call was cancelled, before its program ended"
TEST_PROGRAM: Final = "print('whole')"
"""a program that any working interpreter runs"""


class _Ended(Exception):
    """A zygote failed. begun: number of cells that began; 0 if no cell caused the failure."""

    def __init__(self, why: str, begun: int = 0) -> None:
        super().__init__(why)
        self.begun = begun


class Zygote:
    """A keeper and its zygote, an interpreter with its libraries; programs run in forks of the zygote. One thread calls
    `begin`, then `finish`. Any thread may call `give_up` in between."""

    def __init__(self, settings: Settings) -> None:
        """Start it. Raises MachineError if the machine lacks something, and _Ended if it does not start."""
        self._settings = settings
        try:
            self.process, self._control, self._errors = start(settings)
        except OSError as error:
            raise _Ended(f"could not be started: {error}") from error
        try:
            self._receive(START_SECONDS)
        except BaseException:
            self.close()
            raise

    def begin(self, cells: list[str]) -> None:
        """Send the cells to run. Raises _Ended."""
        try:
            send(self._control, cells)
        except OSError as error:
            raise _Ended(f"ended between calls: {self._last_words()}") from error

    def finish(self, cells: int) -> Reply:
        """Wait for the result of this number of cells. Raises _Ended, and InfrastructureError after `give_up`."""
        seconds = self._settings.wall_seconds * (1 + REPLAY_FACTOR * (cells > 1))
        reply = Reply(**self._receive(SETUP_SECONDS + seconds + SPARE_SECONDS, cells))
        if reply.is_given_up:
            raise InfrastructureError(CLOSED)
        if reply.failure:
            raise _Ended(f"did not run a program: {reply.failure}", reply.begun)
        return reply

    def give_up(self) -> None:
        """End the running program."""
        with suppress(OSError):
            send(self._control, None)

    def close(self) -> None:
        """End it and everything that runs in it."""
        self._control.close()
        try:
            self.process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._errors.close()

    def forget(self) -> None:
        """In a forked process: drop the parent's zygote without ending it."""
        self._control.close()
        self._errors.close()
        self.process.returncode = 0

    def _receive(self, seconds: float, cells: int = 0) -> Any:
        # without a reply, all cells are assumed to have begun
        if not select.select([self._control], [], [], seconds)[0]:
            raise _Ended(f"said nothing for {seconds:g} s", cells)
        try:
            return receive(self._control)
        except (EOFError, OSError) as error:
            raise _Ended(f"ended: {self._last_words()}", cells) from error

    def _last_words(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(CLOSE_SECONDS)
        self._errors.seek(0)
        words = self._errors.read().decode("utf-8", "replace").strip().splitlines()[-3:]
        return " ".join(words) or f"status {self.process.returncode}"


@dataclass
class _Job:
    cells: list[str]
    future: "Future[Reply]" = field(default_factory=Future)
    lock: threading.Lock = field(default_factory=threading.Lock)
    zygote: Zygote | None = None
    is_given_up: bool = False


class Pool:
    """Up to `workers` interpreters. `run` from any event loop."""

    def __init__(self, settings: Settings, workers: int) -> None:
        self._settings = settings
        self._workers = workers
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._zygotes: dict[int, Zygote] = {}
        self._idle = threading.Semaphore(0)
        """counts idle threads"""
        self._is_closed = False

    @property
    def pids(self) -> list[int]:
        """Process ids of the running keepers, or of their bubblewrap processes, which end together with them."""
        return [zygote.process.pid for zygote in list(self._zygotes.values())]

    async def run(self, cells: list[str]) -> Reply:
        """Run cells in one process, once a worker is free. Cancelling it ends the program.

        Raises InfrastructureError after three failed attempts that the cells did not cause, and MachineError if no
        attempt can succeed.
        """
        job = _Job(cells)
        with self._lock:
            if self._is_closed:
                raise InfrastructureError("the Python tool's pool was closed before the call")
            if not self._idle.acquire(blocking=False) and len(self._threads) < self._workers:
                self._threads.append(threading.Thread(target=self._work, args=(len(self._threads),), daemon=True))
                self._threads[-1].start()
            # under the lock, so that a closed pool gets no more jobs
            self._jobs.put(job)
        try:
            return await asyncio.wrap_future(job.future)
        except asyncio.CancelledError:
            with job.lock:
                job.is_given_up = True
                job.future.cancel()
                if job.zygote is not None:
                    job.zygote.give_up()
            raise

    def close(self) -> None:
        """End the interpreters, running programs included."""
        with self._lock:
            self._is_closed = True
        for zygote in list(self._zygotes.values()):
            zygote.give_up()
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def forget(self) -> None:
        """In a forked process: drop the parent's zygotes."""
        for zygote in self._zygotes.values():
            zygote.forget()

    def _work(self, number: int) -> None:
        while (job := self._jobs.get()) is not None:
            if job.future.set_running_or_notify_cancel():
                try:
                    reply = self._attempt(job, number)
                except BaseException as error:
                    job.future.set_exception(error)
                else:
                    job.future.set_result(reply)
            self._idle.release()
        self._end(number)

    def _attempt(self, job: _Job, number: int) -> Reply:
        """Run a job, up to ATTEMPTS times. Raises InfrastructureError and MachineError."""
        failures: list[_Ended] = []
        while len(failures) < ATTEMPTS and not self._is_closed:
            try:
                return self._run(job, number)
            except _Ended as error:
                failures.append(error)
                self._end(number)
                time.sleep(len(failures) * PAUSE_SECONDS)
        if self._is_closed:
            raise InfrastructureError(CLOSED)
        if all(failure.begun for failure in failures) and self._is_well(number):
            return Reply(failures[-1].begun, is_interpreter_ended=True)
        raise InfrastructureError(f"the Python tool's interpreter {failures[-1]} (attempt {ATTEMPTS} of {ATTEMPTS})")

    def _run(self, job: _Job, number: int) -> Reply:
        """Run a job once. Raises MachineError, _Ended, and InfrastructureError if the job was cancelled."""
        zygote = self._zygotes.get(number)
        if zygote is None:
            user = None if os.getuid() else FIRST_USER + (os.getpid() + number) % USERS
            zygote = self._zygotes[number] = Zygote(replace(self._settings, user=user))
        with job.lock:
            if job.is_given_up:
                raise InfrastructureError(CLOSED)
            # under the lock, so that a cancellation's message comes after this one
            zygote.begin(job.cells)
            job.zygote = zygote
        try:
            return zygote.finish(len(job.cells))
        finally:
            with job.lock:
                job.zygote = None

    def _is_well(self, number: int) -> bool:
        """Whether this worker's interpreter, started anew, runs TEST_PROGRAM."""
        try:
            return self._run(_Job([TEST_PROGRAM]), number).output == "whole"
        except (_Ended, InfrastructureError):
            self._end(number)
            return False

    def _end(self, number: int) -> None:
        ended = self._zygotes.pop(number, None)
        if ended is not None:
            ended.close()
