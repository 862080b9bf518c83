"""A request to stop, by Ctrl-C or a signal."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

from tqdm import tqdm

from rtpo.errors import Stopped


class _PhaseLeft(KeyboardInterrupt):
    """Ends a phase past its grace period. It is a KeyboardInterrupt, so no code inside a phase handles it."""


class StopRequest:
    """Set by Ctrl-C or SIGTERM: the run finishes its phase and saves. A second Ctrl-C stops at once. Another SIGTERM
    changes nothing: SLURM may repeat it during the save."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._grace: float | None = None
        self._heard = Lock()  # is locked by the first signal: another may arrive while that one is handled

    @contextmanager
    def listening(self, grace: float | None = None) -> Iterator[None]:
        """Listen to signals in this context. grace: seconds after SIGTERM to finish the phase and save; None: no limit.
        Raises Stopped when this time is over; the last save stays as it was."""
        self._grace = grace
        handlers = {signal.SIGINT: self._hear, signal.SIGTERM: self._hear, signal.SIGALRM: self._leave}
        previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        except _PhaseLeft:
            raise Stopped(
                f"stopped by {self.reason}: the phase was not finished and saved within save.grace {grace:g} s, and is "
                "dropped. Run the same command to go on from the last save."
            ) from None
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _hear(self, number: int, frame: Any) -> None:
        if self._heard.acquire(blocking=False):
            self.reason = signal.Signals(number).name
            tqdm.write(f"{self.reason}: finishing this phase, then saving (Ctrl-C to stop at once, without saving)")
            if number == signal.SIGTERM and self._grace is not None:
                signal.setitimer(signal.ITIMER_REAL, max(self._grace, 1e-6))  # 0 would switch the timer off
        elif number == signal.SIGINT:
            raise KeyboardInterrupt

    def _leave(self, number: int, frame: Any) -> None:
        raise _PhaseLeft
