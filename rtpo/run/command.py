"""How every command ends: in a sentence and an exit status, whatever a user gave it and whenever Ctrl-C came.

Commands import it before what is slow to import (`isort` in pyproject.toml), so that Ctrl-C is one line from then on.
"""

import argparse
import math
import os
import re
import shutil
import signal
import sys
import textwrap
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn, ParamSpec

from rtpo.core.names import missing_file, nearest
from rtpo.errors import RTPOError, Stopped

STOPPED = 75
"""exit status of what saved and can be resumed (sysexits' EX_TEMPFAIL)"""
INTERRUPTED = 130
"""that of what Ctrl-C ended, as shells have it"""
LARGEST = 2**31 - 1
WIDTH = 100
"""of a help text at most, in columns"""
_INTERRUPTED = "stopped by Ctrl-C"
_FOLDERS = [Path(__file__).resolve().parents[2] / name for name in ("experiments", "analysis")]
P = ParamSpec("P")


def _leave(number: int, frame: Any) -> None:
    """Ctrl-C while modules are imported, and once the command is over: libraries swallow exceptions there."""
    os.write(2, f"{_INTERRUPTED}\n".encode())
    os._exit(INTERRUPTED)


_file = getattr(sys.modules["__main__"], "__file__", None)
_is_ours = _file is not None and any(folder in Path(_file).resolve().parents for folder in _FOLDERS)
# one that is to be ignored, as under nohup, stays ignored
if _is_ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _leave)


def command(main: Callable[P, int | None]) -> Callable[P, int]:
    """`main` as a command: errors that are a user's to mend become a sentence on stderr and an exit status."""

    @wraps(main)
    def run(*arguments: P.args, **named: P.kwargs) -> int:
        is_whole_process = signal.getsignal(signal.SIGINT) is _leave
        try:
            if is_whole_process:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            status = main(*arguments, **named)
            sys.stdout.flush()
            return status or 0
        except KeyboardInterrupt:
            return _say(_INTERRUPTED, INTERRUPTED)
        except Stopped as stopped:
            return _say(str(stopped), STOPPED)
        except RTPOError as error:
            return _say(f"error: {error}")
        except OSError as error:
            _settle_output()
            return _say(f"error: {_in_words(error)}")
        finally:
            if is_whole_process:
                signal.signal(signal.SIGINT, _leave)

    return run


def _say(sentence: str, status: int = 1) -> int:
    print(sentence, file=sys.stderr)
    return status


def _in_words(error: OSError) -> str:
    if error.filename is None:
        return f"the machine refuses what was asked of it: {error.strerror or error}."
    if isinstance(error, FileNotFoundError):
        return f"{missing_file(error.filename)}."
    return f"{error.filename}: {error.strerror}. Check the path, and that it can be read or written."


def _settle_output() -> None:
    """Drop what cannot be printed, as to a reader that has gone: the interpreter would try again at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Help(argparse.HelpFormatter):
    """Prose is wrapped, and indented lines are as they are."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32, width=min(WIDTH, shutil.get_terminal_size().columns))

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(
            part if part.startswith("  ") else textwrap.fill(part, width, break_on_hyphens=False)
            for part in text.strip("\n").split("\n\n")
        )


def _typed() -> str:
    """This process's command, as it is given to a shell."""
    module = sys.modules["__main__"].__spec__
    return f"python -m {module.name.removesuffix('.__main__')}" if module else f"python {sys.argv[0]}"


class Parser(argparse.ArgumentParser):
    """Of a command's own docstring. What is wrong with its arguments is one line."""

    def __init__(self, description: str | None = None, **settings: Any) -> None:
        settings.setdefault("formatter_class", _Help)
        settings.setdefault("prog", _typed())
        super().__init__(description=description, **settings)

    def error(self, message: str) -> NoReturn:
        for pattern, known in (
            (r"invalid choice: '(.*)' \(choose from (.*)\)", None),
            (r"unrecognized arguments: (-\S+)", list(self._option_string_actions)),
        ):
            if found := re.search(pattern, message):
                near = nearest(found[1], known or found[2].replace("'", "").split(", "))
                message = f"{message[: found.start()]}{found[1]!r} cannot be given; {near}"
        self.exit(2, f"error: {message} (--help says what can be given)\n")


def whole(least: int) -> Callable[[str], int]:
    """The type of an argument that is a whole number from `least` on."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= LARGEST:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} to {LARGEST}")
        return value

    return read


def positive(text: str) -> float:
    """The type of an argument that is a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no finite number above 0")
    return value


def folder(text: str) -> Path:
    """The type of an argument that is a folder which is there."""
    if not os.path.isdir(text):
        raise argparse.ArgumentTypeError(f"{text!r} is a file" if os.path.exists(text) else missing_file(text))
    return Path(text)
