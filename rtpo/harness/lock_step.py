"""Episodes in lock-step: the engine gets the requests of all episodes at once, in a fixed order.

So the duration of a tool changes no result. Every call of the engine has the same requests in the same order, and its
numbers are the same to the last bit.
"""

import asyncio
from collections.abc import Sequence

from rtpo.engines.base import Engine, Generation, Request


class LockStep:
    """An `Engine` for a fixed set of sessions. A request waits until every session that has not left waits too."""

    def __init__(self, engine: Engine, sessions: Sequence[str]) -> None:
        self._engine = engine
        self._place = {session: place for place, session in enumerate(sessions)}
        self._running = len(sessions)
        self._waiting: dict[str, asyncio.Future[None]] = {}

    async def generate(self, request: Request) -> Generation:
        go = asyncio.get_running_loop().create_future()
        self._waiting[request.session] = go
        self._go_if_all_wait()
        await go
        return await self._engine.generate(request)

    def leave(self) -> None:
        """Say that a session has ended."""
        self._running -= 1
        self._go_if_all_wait()

    def _go_if_all_wait(self) -> None:
        if len(self._waiting) == self._running:
            # later, or the last request would reach the engine before those that wait
            asyncio.get_running_loop().call_soon(self._go)

    def _go(self) -> None:
        wave, self._waiting = self._waiting, {}
        for session in sorted(wave, key=self._place.__getitem__):
            if not wave[session].done():  # its episode was cancelled
                wave[session].set_result(None)
