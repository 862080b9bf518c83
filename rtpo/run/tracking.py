"""Send a run's curves, against rollouts, and some of its rollouts to tracking backends (docs/run/runs.md). Tracking
never ends a run: a backend that fails is reported once and dropped."""

import html
import json
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rtpo.core.files import write_whole
from rtpo.core.names import nearest
from rtpo.errors import ConfigError
from rtpo.harness.curves import X_AXIS
from rtpo.run.config import RunConfig
from rtpo.run.records import RunFolder

PROJECT_NAME = "rtpo"
WANDB_SECONDS = {"WANDB_INIT_TIMEOUT": 30, "WANDB_LOGIN_TIMEOUT": 30, "WANDB_FINISH_TIMEOUT": 60}
"""timeouts to reach W&B and to send what is left, unless the environment sets them"""
WANDB_MODES = ("online", "offline", "shared", "disabled", "dryrun", "run")
Connect = Callable[[str, str, str], Any]
TableRow = Mapping[str, str | int | float | None]
"""a row of a table, by its columns"""


def tracked_group(config: RunConfig) -> str:
    """The group of all seeds of a method."""
    return f"{config.experiment_name}/{config.label}"


def tracked_name(config: RunConfig) -> str:
    """The experiment and the run's folder, such as `default/rtpo-seed0`."""
    return f"{tracked_group(config)}-seed{config.seed}"


def check_tracking(config: RunConfig) -> None:
    """Raises ConfigError for an unknown WANDB_MODE. No other fault of tracking ends a run."""
    mode = os.environ.get("WANDB_MODE", "online")
    if "wandb" in config.profile.track and mode not in WANDB_MODES:
        raise ConfigError(f"WANDB_MODE is {mode!r}: {nearest(mode, WANDB_MODES)}; use one of {', '.join(WANDB_MODES)}.")


class Tracking:
    """The backends in `profile.track`. connect: opens verl's tracking, from the names of project, run and backend.
    resumed_at: the rollouts up to which earlier tracking is kept; None for a run from its start. Backends write to
    `<results>/tracking`, unless WANDB_DIR, TENSORBOARD_DIR or VERL_FILE_LOGGER_ROOT is set."""

    def __init__(self, config: RunConfig, folder: RunFolder, connect: Connect, resumed_at: int | None) -> None:
        self._config, self._folder, self._connect, self._resumed_at = config, folder, connect, resumed_at
        self._name = tracked_name(config)
        self._root = Path(config.results) / "tracking"
        self._backends: dict[str, Any] = {}
        openers = {"wandb": self._open_wandb, "tensorboard": self._open_tensorboard, "file": self._open_file}
        for name in config.profile.track:
            try:
                self._backends[name] = openers[name]()
            except Exception as error:  # whatever a backend raises, the run goes on
                _say(f"tracking with {name} is left out", error)

    def log(self, data: dict[str, float], rollouts: int) -> None:
        """Log numbers at a count of rollouts. W&B gets the count in the same line, as the x-axis."""
        x = {X_AXIS: float(rollouts)}
        self._each(lambda name, backend: backend.log(x | data if name == "wandb" else data, rollouts))

    def show(self, name: str, table: Sequence[TableRow], rollouts: int) -> None:
        """Show rows: as a table in W&B, as text in TensorBoard, as they are in the file."""

        def show(kind: str, backend: Any) -> None:
            if kind == "tensorboard":
                backend.logger[kind].writer.add_text(name, _markdown(table), rollouts)
            elif kind == "wandb":
                import wandb

                rows: Any = [list(row.values()) for row in table]
                backend.log({name: wandb.Table(columns=list(table[0]), data=rows)}, rollouts)
            else:
                backend.log({name: table}, rollouts)

        self._each(show)

    def finish(self, manifest: Mapping[str, Any]) -> None:
        """Attach the manifest as a file, beside config.yaml (W&B), or as text (TensorBoard), and close."""

        def attach(name: str, backend: Any) -> None:
            if name == "wandb":
                for file in ("config.yaml", "manifest.json"):
                    backend.logger[name].save(str(self._folder.path / file), str(self._folder.path), "now")
            if name == "tensorboard":
                backend.logger[name].writer.add_text("manifest", _block(json.dumps(manifest, indent=1)), 0)

        self._each(attach)
        self.close(0)

    def close(self, exit_code: int = 1) -> None:
        """Close the backends after a stop or an error. After `finish` this does nothing."""
        self._each(lambda name, backend: backend.finish(exit_code=exit_code))
        if "wandb" in self._backends:
            import wandb

            wandb.teardown()  # the next run of this process reads its own environment
        self._backends.clear()

    def _each(self, do: Callable[[str, Any], None]) -> None:
        for name, backend in list(self._backends.items()):
            try:
                do(name, backend)
            except Exception as error:
                del self._backends[name]
                _say(f"tracking with {name} ends here, the run goes on", error)

    def _open_wandb(self) -> Any:
        import wandb

        directory = self._directory("WANDB_DIR", "")
        directory.mkdir(parents=True, exist_ok=True)
        id_file = self._folder.path / "wandb_id"  # resumes keep the id; a run from its start gets a new one
        if self._resumed_at is None or not id_file.exists():
            write_whole(id_file, uuid.uuid4().hex.encode())
        settings = {
            "WANDB_DIR": str(directory),
            "WANDB_RUN_GROUP": tracked_group(self._config),
            "WANDB_RUN_ID": id_file.read_text(encoding="utf-8"),
            "WANDB_RESUME": "allow",
            **{name: os.environ.get(name, str(seconds)) for name, seconds in WANDB_SECONDS.items()},
        }
        try:
            backend = self._verl("wandb", settings)
        except Exception as error:
            later = f"this run is tracked offline in {directory}/wandb; send it later with `wandb sync`"
            _say(f"W&B cannot be reached; {later}", error)
            wandb.teardown()
            backend = self._verl("wandb", settings | {"WANDB_MODE": "offline"})
        wandb.config.update(self._config.as_dict(), allow_val_change=True)
        wandb.define_metric("*", step_metric=X_AXIS)
        return backend

    def _open_tensorboard(self) -> Any:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        board = self._directory("TENSORBOARD_DIR", "tensorboard") / self._name
        backend = self._verl("tensorboard", {"TENSORBOARD_DIR": str(board)})
        writer = backend.logger["tensorboard"].writer
        if self._resumed_at is None:
            writer.add_text("config", _block(yaml.safe_dump(self._config.as_dict(), sort_keys=False)), 0)
        # TensorBoard drops what an earlier process wrote from this step on
        first = 0 if self._resumed_at is None else self._resumed_at + 1
        writer.file_writer.add_event(Event(step=first, session_log=SessionLog(status=SessionLog.START)))
        return backend

    def _open_file(self) -> Any:
        path = self._directory("VERL_FILE_LOGGER_ROOT", "file") / f"{self._name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = b""
        if self._resumed_at is not None and path.exists():
            whole = (line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n"))
            kept = b"".join(line for line in whole if json.loads(line)["step"] <= self._resumed_at)
        backend = self._verl("file", {"VERL_FILE_LOGGER_PATH": str(path)})  # this empties the file
        backend.logger["file"].fp.write(kept)
        return backend

    def _verl(self, name: str, settings: Mapping[str, str]) -> Any:
        """Open verl's backend, which reads its settings from the environment."""
        before = {variable: os.environ.pop(variable, None) for variable in settings}
        os.environ.update(settings)
        try:
            return self._connect(PROJECT_NAME, self._name, name)
        finally:
            for variable, value in before.items():
                os.environ.pop(variable, None)
                os.environ |= {} if value is None else {variable: value}

    def _directory(self, variable: str, name: str) -> Path:
        return Path(os.path.abspath(os.environ.get(variable, self._root / name)))


def _block(text: str) -> str:
    return f"```\n{text}\n```"


def _markdown(table: Sequence[TableRow]) -> str:
    """A Markdown table with escaped cells."""
    escaped = {ord("|"): "&#124;", ord("\n"): "<br>"}
    cells = [[html.escape(str(cell)).translate(escaped) for cell in row.values()] for row in table]
    return "\n".join(f"| {' | '.join(row)} |" for row in [list(table[0]), ["---"] * len(table[0]), *cells])


def _say(sentence: str, error: Exception) -> None:
    print(f"{sentence}: {(str(error).strip() or type(error).__name__).splitlines()[0]}", flush=True)
