"""What every command shares: composing configurations with Hydra, parsing arguments, reporting errors."""

import argparse
import logging
import math
import os
import re
import shutil
import signal
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from difflib import get_close_matches
from functools import wraps
from itertools import dropwhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

from rtpo.core.names import counted, missing_file, nearest
from rtpo.core.visible import visible
from rtpo.errors import ConfigError, RTPOError, Stopped

if TYPE_CHECKING:
    from omegaconf import DictConfig

STOPPED = 75
"""exit status of a command that saved and can be resumed (EX_TEMPFAIL of sysexits.h)"""
INTERRUPTED, TERMINATED = 130, 143
"""exit statuses after Ctrl-C and SIGTERM, as in shells"""
LARGEST = 2**31 - 1
"""the largest whole number that an argument may be"""
WIDTH = 100
"""the widest help text, in columns"""
PROJECT = Path(__file__).resolve().parents[2]
CONFIGS = PROJECT / "configs"
P = ParamSpec("P")
T = TypeVar("T")


def on_sigterm(number: int, frame: Any) -> None:
    """Raise KeyboardInterrupt, as Ctrl-C does, and ignore any further SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt("SIGTERM")


def command(main: Callable[P, int | None]) -> Callable[P, int]:
    """Wrap `main` as a command: errors that a user can mend become a sentence on stderr and an exit status."""

    @wraps(main)
    def run(*arguments: P.args, **named: P.kwargs) -> int:
        before = signal.getsignal(signal.SIGTERM)
        if before is signal.SIG_DFL:  # otherwise Ray installs its own handler, which aborts with a trace
            signal.signal(signal.SIGTERM, on_sigterm)
        try:
            status = main(*arguments, **named)
            sys.stdout.flush()
            return status or 0
        except KeyboardInterrupt as interrupted:
            # Ray may raise its own KeyboardInterrupt instead of on_sigterm's
            is_ignored = signal.getsignal(signal.SIGTERM) is signal.SIG_IGN and before is not signal.SIG_IGN
            is_sigterm = interrupted.args or is_ignored
            return _say("stopped by SIGTERM", TERMINATED) if is_sigterm else _say("stopped by Ctrl-C", INTERRUPTED)
        except Stopped as stopped:
            return _say(str(stopped), STOPPED)
        except RTPOError as error:
            return _say(f"error: {error}")
        except OSError as error:
            _settle_output()
            is_missing = isinstance(error, FileNotFoundError) and error.filename is not None
            return _say(f"error: {missing_file(error.filename) if is_missing else error}.")
        finally:
            if before is signal.SIG_DFL and signal.getsignal(signal.SIGTERM) is on_sigterm:
                signal.signal(signal.SIGTERM, before)

    return run


def _say(sentence: str, status: int = 1) -> int:
    print(visible(sentence), file=sys.stderr)
    return status


def _settle_output() -> None:
    """Discard output that cannot be printed, as to a closed pipe; otherwise Python tries again when it exits."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# arguments


class _Help(argparse.HelpFormatter):
    """Wraps prose and keeps indented lines as they are."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32, width=min(WIDTH, shutil.get_terminal_size().columns))

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(
            part if part.startswith("  ") else textwrap.fill(part, width, break_on_hyphens=False)
            for part in text.strip("\n").split("\n\n")
        )


class Parser(argparse.ArgumentParser):
    """A parser whose help is the command's docstring. It reports wrong arguments in one line."""

    def __init__(self, description: str | None = None, **settings: Any) -> None:
        module = sys.modules["__main__"].__spec__  # None if the command was started as a file
        program = f"python -m {module.name.removesuffix('.__main__')}" if module else f"python {sys.argv[0]}"
        defaults: dict[str, Any] = {"formatter_class": _Help, "prog": program}
        super().__init__(description=description, **defaults | settings)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message} (--help says what can be given)\n")


def whole_number(least: int) -> Callable[[str], int]:
    """An argument's type: a whole number of at least `least`."""

    def read(text: str) -> int:
        with suppress(ValueError):
            if least <= (value := int(text)) <= LARGEST:
                return value
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {LARGEST}")

    return read


def positive(text: str) -> float:
    """An argument's type: a finite number above 0."""
    with suppress(ValueError):
        if 0 < (value := float(text)) < math.inf:
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a finite number above 0")


def folder(text: str) -> Path:
    """An argument's type: a folder that exists."""
    if not os.path.isdir(text):
        raise argparse.ArgumentTypeError(f"{text!r} is a file" if os.path.exists(text) else missing_file(text))
    return Path(text)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as a table with aligned columns, one line for each row."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


# configurations; Hydra is imported where it is used


def with_configuration(
    name: str,
    description: str | None,
    prepare: Callable[["DictConfig"], T],
    run: Callable[[T], None],
    check: Callable[[Sequence[T]], None] = lambda _: None,
) -> int:
    """Compose configs/<name>.yaml with the command line's overrides, `prepare` it and `run` it. With -m, several
    configurations run in turn; all are prepared, then checked together, before the first runs. In a job of submitit,
    prepare and run the job's configuration, without `check`. description: the help text. Returns the exit status as
    `each_in_turn`. Raises ConfigError."""
    import hydra
    from hydra._internal.utils import get_args_parser
    from hydra.core.hydra_config import HydraConfig

    known, unknown = Parser(description, parents=[get_args_parser()], add_help=False).parse_known_args()
    parser = Parser(description, usage="%(prog)s [-m] [--cfg job] [FIELD=VALUE ...]", add_help=False)
    if known.help:
        parser.print_help()
        return 0
    for word in unknown:
        is_option = word.startswith("-")
        parser.error(f"unrecognized argument {word}" if is_option else f"{word} must stand before the options")

    @hydra.main(version_base=None, config_path=str(CONFIGS), config_name=name)
    def job(tree: "DictConfig") -> None:
        hydra_tree = HydraConfig.get()
        overrides = list(hydra_tree.overrides.task)
        if wrong := _wrong_group(hydra_tree):
            refused.append(wrong)
            return
        if not hydra_tree.launcher["_target_"].endswith(".BasicLauncher"):  # this is a job of submitit's
            _name_model(tree, overrides)
            if status := command(run)(prepare(tree)):
                sys.exit(status)
            return
        try:
            _name_model(tree, overrides)
            prepared.append(prepare(tree))
        except RTPOError as error:
            refused.append(f"{' '.join(overrides)}: {error}" if known.multirun else str(error))

    prepared: list[T] = []
    refused: list[str] = []
    logging.getLogger("submitit").addFilter(_first_sacct_error())
    with hydra_errors(name, known.overrides):
        job()
    if refused:
        raise ConfigError("\n".join(dict.fromkeys(refused)))
    check(prepared)
    return each_in_turn(run, prepared)


def _wrong_group(hydra_tree: Any) -> str:
    """A sentence if Hydra's launcher or sweeper is a plain value, else "". Hydra checks the rest of its tree."""
    for group in ("launcher", "sweeper"):
        if not isinstance(value := hydra_tree[group], Mapping):
            return f"hydra.{group} is {value!r}: choose an option, as in hydra/{group}=basic, or set its fields."
    return ""


def _first_sacct_error() -> Callable[[logging.LogRecord], bool]:
    """A filter that lets the first warning about sacct through: submitit warns at each poll where a SLURM keeps no
    accounts."""
    seen: list[logging.LogRecord] = []

    def is_shown(record: logging.LogRecord) -> bool:
        if "Bypassing sacct error" not in record.getMessage():
            return True
        seen.append(record)
        return len(seen) == 1

    return is_shown


def each_in_turn(run: Callable[[T], None], prepared: Sequence[T]) -> int:
    """Run the configurations one after another. After a failure the next one runs; after a stop none does. Returns the
    exit status of the stop, else of the first failure, else 0."""
    failed: list[int] = []
    for number, configuration in enumerate(prepared, start=1):
        try:
            status = command(run)(configuration)
        except Exception:
            if len(prepared) == 1:
                raise
            traceback.print_exc()
            status = 1
        if status in (STOPPED, INTERRUPTED, TERMINATED):
            return status
        if status:
            failed.append(status)
            if number < len(prepared):
                print(f"run {number} of {len(prepared)} failed; going on with the next", file=sys.stderr, flush=True)
    if failed and len(prepared) > 1:
        print(f"{len(failed)} of {counted(len(prepared), 'run')} failed: give the same command again", file=sys.stderr)
    return failed[0] if failed else 0


def _name_model(tree: "DictConfig", overrides: Sequence[str]) -> None:
    """Name a model after its folder if only `model.path` is set."""
    from omegaconf import OmegaConf

    fields = {override.partition("=")[0].lstrip("+") for override in overrides}
    if "model.path" in fields and "model.name" not in fields:
        OmegaConf.update(tree, "model.name", Path(str(tree.model.path)).absolute().name)


def composed(name: str, overrides: Sequence[str], *, with_hydra: bool = False) -> "DictConfig":
    """Compose configs/<name>.yaml with overrides. with_hydra: include Hydra's own tree. Raises ConfigError."""
    from hydra import compose

    with configurations(name, overrides):
        tree = compose(name, list(overrides), return_hydra_config=with_hydra)
        _name_model(tree, overrides)
        return tree


@contextmanager
def configurations(name: str, overrides: Sequence[str] = ()) -> Iterator[None]:
    """Let `hydra.compose` find configs/ in this context, as `hydra.main` does. Raises as `hydra_errors`."""
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    is_known = GlobalHydra.instance().is_initialized()
    with (
        hydra_errors(name, overrides),
        nullcontext() if is_known else initialize_config_dir(str(CONFIGS), version_base=None),
    ):
        yield


@contextmanager
def hydra_errors(name: str, overrides: Sequence[str] = ()) -> Iterator[None]:
    """Turn Hydra's errors about configs/<name>.yaml and its overrides into a ConfigError of one line."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    import rtpo.run.config  # noqa: F401  (it registers resolvers that the files use)

    os.environ["HYDRA_FULL_ERROR"] = "1"  # otherwise `hydra.main` prints the error
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        text = re.split(" Config search path| See http| Available options", " ".join(str(error).split()))[0].rstrip(".")
        override = getattr(error, "override", None)  # Hydra's parser does not always name it
        text = f"{override!r}: {text}" if override and override not in text else text
        if text.startswith("Lexer"):  # its text names a parser class and sketches the position
            text = f"{override!r} cannot be read: quote its value, as in \"name='value'\""
        if not re.match(r"Could not override '(task\.settings|verl)\.", text):  # trees that accept new fields
            text = text.partition(". To append")[0]
        raise ConfigError(f"{text}.{_near(error, name, overrides)}") from error
    except (AssertionError, AttributeError, TypeError, ValueError) as error:  # Hydra's own, such as for task=null
        frames = traceback.walk_tb(error.__traceback__)
        packages = (str(frame.f_globals["__name__"]).partition(".")[0] for frame, _ in frames)
        packages_from_hydra_on = list(dropwhile(lambda package: package not in ("hydra", "omegaconf"), packages))
        if not packages_from_hydra_on or __name__.partition(".")[0] in packages_from_hydra_on:
            raise
        swept = [word for word in overrides if re.match(r"[+~]*hydra\.sweeper\.params\b", word)]
        if swept:
            raise ConfigError(f"{swept[0]}: Hydra cannot set this; sweep over fields, as in seed=0,1 -m.") from error
        what = " ".join(overrides)
        why = str(error).partition("\n")[0] or traceback.extract_tb(error.__traceback__)[-1].line
        raise ConfigError(f"configs/{name}.yaml cannot be composed with {what or 'nothing'}: {why}.") from error


def _near(error: Exception, name: str, overrides: Sequence[str]) -> str:
    """A hint about a name that Hydra refused: the nearest option of its group, or the nearest field or group."""
    from omegaconf import OmegaConf

    from rtpo.run.building import leaves

    if missing := getattr(error, "missing_cfg_file", None):
        group, _, option = missing.rpartition("/")
        options = sorted(file.stem for file in (CONFIGS / group).glob("[!_]*.yaml"))
        return f" In configs/{group}, {nearest(option, options)}."
    quoted = re.match(r"Could not (?:override|delete|delete from config\.) '([^']*)'", str(error))
    if quoted is None:
        return ""
    field = str(getattr(error.__cause__, "full_key", None) or quoted[1])
    chosen = [word for word in overrides if "," not in word and (CONFIGS / word.partition("=")[0].lstrip("+")).is_dir()]
    default_fields, fields = (
        [path for path, _ in leaves(OmegaConf.to_container(composed(name, groups)))]
        for groups in ((), chosen if chosen != list(overrides) else ())
    )
    if field in default_fields and field not in fields:
        return f" It is not a field with {' '.join(chosen)}."
    known = fields + [group.name for group in CONFIGS.iterdir()]
    same_end = [path for path in known if path.rpartition(".")[2] == field.rpartition(".")[2]]
    close = get_close_matches(field, same_end, 1, 0) or get_close_matches(field, known, 1)
    return f" The nearest is {close[0]}." if close else ""
