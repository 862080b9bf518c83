"""A child process that answers requests: a grader, or an interpreter of games."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from rtpo.errors import InfrastructureError

START_SECONDS: Final = 120.0
EMPTY: Final[Mapping[str, str]] = MappingProxyType({})


class Child:
    """A child process that is ready to answer. It writes a line of JSON when it is ready, then one for each request
    from standard input.

    program: a Python file. name: of the child in messages, such as `the grading process`. environment: variables beside
    those of this process. advice: added to the message of a child that does not start.
    Raises InfrastructureError if it does not start.
    """

    def __init__(self, program: Path, name: str, environment: Mapping[str, str] = EMPTY, advice: str = "") -> None:
        self.pipe, child_end = socket.socketpair()
        try:
            # the child gets its own session: Ctrl-C must not end it, since the run needs it to finish the phase
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(program)],
                stdin=child_end.fileno(),
                stdout=child_end.fileno(),
                env=os.environ | environment,
                start_new_session=True,
            )
        except OSError as error:
            self.pipe.close()
            raise InfrastructureError(f"{name} could not be started: {error}") from error
        finally:
            child_end.close()
        try:
            self.ask(b"", START_SECONDS)
        except BaseException as error:
            self.end()
            if not isinstance(error, EOFError | OSError):
                raise
            raise InfrastructureError(f"{name} did not start; its own message is above.{advice}") from error

    def ask(self, request: bytes, seconds: float) -> str:
        """The child's answer to a request: a line with its newline, or nothing to wait for the line that says it is
        ready. Raises TimeoutError without a byte for `seconds`, and EOFError or ConnectionError if it has ended."""
        self.pipe.settimeout(seconds)
        self.pipe.sendall(request)
        line = b""
        while not line.endswith(b"\n"):
            part = self.pipe.recv(1 << 16)
            if not part:
                raise EOFError
            line += part
        return str(json.loads(line))

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.pipe.close()
