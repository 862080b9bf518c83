"""Tracking: the same curves on every backend, and no backend that can end a run."""

import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import compose_config
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb.proto.wandb_internal_pb2 import Record
from whole_runs import StopAt, config_in, lines

from experiments.training import check_and_load, train
from rtpo.errors import ConfigError, Stopped
from rtpo.harness.curves import step_curves
from rtpo.run.config import RunConfig
from rtpo.run.records import RunFolder
from rtpo.run.stopping import StopRequest
from rtpo.run.tracking import Tracking, check_tracking, tracked_name
from rtpo.verl_harness.session import tracker

KEY = "0123456789" * 4
STEP = {"train/rollouts": 64.0, "train/success": 0.5, "parts/turn_02/kl": 0.125}
AGAIN = {name: 2 * value for name, value in STEP.items()}
EVALUATION = {"evaluation/sampled/success": 0.25}
SHOWN = "evaluation/sampled/rollouts"
TABLE = [{"rollouts": 0, "task": "t", "reward": None, "text": "<think> 1 | 2\nno"}]


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No key, no settings and no network of the machine's."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DIR", "TENSORBOARD_DIR", "VERL_FILE_LOGGER_ROOT"):
        monkeypatch.delenv(name, raising=False)
    places = {"HOME": str(tmp_path), "NETRC": str(tmp_path / "netrc"), "WANDB_CONFIG_DIR": str(tmp_path)}
    for name, value in (places | {"WANDB_SILENT": "true", "WANDB_BASE_URL": "http://127.0.0.1:9"}).items():
        monkeypatch.setenv(name, value)


def config_of(tmp_path: Path, *track: str) -> RunConfig:
    return compose_config(f"results={tmp_path / 'results'}", f"profile.track=[{','.join(track)}]", "experiment_name=e")


def folder_of(config: RunConfig) -> RunFolder:
    folder = RunFolder(config.folder)
    folder.open(config.as_dict())
    return folder


def whole_run(config: RunConfig) -> RunFolder:
    """An evaluation, two steps and an end."""
    folder = folder_of(config)
    track = Tracking(config, folder, tracker, None)
    track.log(EVALUATION, 0)
    track.show(SHOWN, TABLE, 0)
    track.log(STEP, 64)
    track.log(AGAIN, 128)
    (folder.path / "manifest.json").write_text('{"steps": 2}')
    track.finish({"steps": 2})
    track.close()
    return folder


def wandb_records(root: Path) -> list[list[Record]]:
    """The records of every offline run under `root`, oldest first."""
    files = sorted(root.glob("wandb/offline-run-*/*.wandb"), key=lambda file: file.stat().st_mtime)
    return [[Record.FromString(data) for data in log_entries(file.read_bytes())] for file in files]


def log_entries(log: bytes) -> Iterator[bytes]:
    """The entries of a LevelDB log, which W&B's offline file is after seven bytes of its own."""
    assert log.startswith(b":W&B")
    at, entry = 7, b""
    while at + 7 <= len(log):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", log[at : at + 7])
        entry += log[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield entry
            entry = b""


def wandb_history(records: list[Record]) -> dict[int, dict[str, Any]]:
    """The numbers and tables by step."""
    lines = {}
    for history in (record.history for record in records if record.WhichOneof("record_type") == "history"):
        items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in history.item}
        lines[int(items["_step"])] = {key: value for key, value in items.items() if not key.startswith("_")}
    return lines


def board_of(board: EventAccumulator) -> dict[int, dict[str, float]]:
    lines: dict[int, dict[str, float]] = {}
    for tag in board.Tags()["scalars"]:
        for event in board.Scalars(tag):
            lines.setdefault(event.step, {})[tag] = event.value
    return lines


def file_of(path: Path) -> dict[int, dict[str, Any]]:
    lines: dict[int, dict[str, Any]] = {}
    for line in map(json.loads, path.read_text().splitlines()):
        lines.setdefault(line["step"], {}).update(line["data"])
    return lines


def test_every_backend_has_the_same_names_and_numbers_against_rollouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    folder = whole_run(config_of(tmp_path, "wandb", "tensorboard", "file"))
    root = tmp_path / "results" / "tracking"
    expected: dict[int, Any] = {0: EVALUATION | {SHOWN: TABLE}, 64: STEP, 128: AGAIN}
    assert file_of(root / "file" / "e" / "rtpo-seed0.jsonl") == expected

    board = EventAccumulator(str(root / "tensorboard" / "e" / "rtpo-seed0")).Reload()
    assert board_of(board) == expected | {0: EVALUATION}
    texts = {"config", "manifest", SHOWN}
    assert set(board.Tags()["tensors"]) == {f"{name}/text_summary" for name in texts}
    (event,) = board.Tensors(f"{SHOWN}/text_summary")
    assert "&lt;think&gt; 1 &#124; 2<br>no" in event.tensor_proto.string_val[0].decode()

    (records,) = wandb_records(root)
    history = wandb_history(records)
    (file,) = root.glob(f"wandb/offline-run-*/files/{history[0][f'{SHOWN}/path']}")
    table = {"columns": ["rollouts", "task", "reward", "text"], "data": [[0, "t", None, "<think> 1 | 2\nno"]]}
    assert json.loads(file.read_text()) == table
    numbers = {x: {name: value for name, value in line.items() if SHOWN not in name} for x, line in history.items()}
    assert numbers == expected | {0: EVALUATION | {"train/rollouts": 0}}
    metrics = [record.metric for record in records if record.WhichOneof("record_type") == "metric"]
    drawn = {metric.glob_name or metric.name: metric.step_metric for metric in metrics if metric.step_metric}
    assert drawn == {"*": "train/rollouts"}
    (run,) = [record.run for record in records if record.WhichOneof("record_type") == "run"][:1]
    assert (run.project, run.display_name, run.run_group) == ("rtpo", "e/rtpo-seed0", "e/rtpo")
    assert run.run_id == (folder.path / "wandb_id").read_text()
    configured = {update.key: update.value_json for r in records for update in r.config.update}
    assert json.loads(configured["algorithm"])["name"] == "rtpo"
    assert {"config.yaml", "manifest.json"} <= {item.path for record in records for item in record.files.files}


def test_a_resumed_run_goes_on_where_its_save_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    config = config_of(tmp_path, "wandb", "tensorboard", "file")
    folder, root = folder_of(config), tmp_path / "results" / "tracking"
    file = root / "file" / "e" / "rtpo-seed0.jsonl"
    for resumed_at, used, steps in ((None, (10, 20, 30), 0), (20, (30,), 5), (None, (10,), 0)):
        track = Tracking(config, folder, tracker, resumed_at)
        for rollouts in used:
            track.log({"train/steps": rollouts / 10 + steps}, rollouts)
        track.close()
        if resumed_at is not None:
            expected = {10: {"train/steps": 1.0}, 20: {"train/steps": 2.0}, 30: {"train/steps": 8.0}}
            assert file_of(file) == expected
            assert board_of(EventAccumulator(str(root / "tensorboard" / "e" / "rtpo-seed0")).Reload()) == expected
    first, second, anew = (next(r.run.run_id for r in records if r.run.run_id) for records in wandb_records(root))
    assert first == second != anew == (folder.path / "wandb_id").read_text()
    assert file_of(file) == {10: {"train/steps": 1.0}}


@pytest.mark.parametrize("key", [None, KEY])
def test_without_key_or_network_the_run_is_tracked_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], key: str | None
) -> None:
    """Port 9 of this machine refuses."""
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "3")
    if key is not None:
        monkeypatch.setenv("WANDB_API_KEY", key)
    whole_run(config_of(tmp_path, "wandb"))
    (records,) = wandb_records(tmp_path / "results" / "tracking")
    assert wandb_history(records)[64] == STEP
    assert capfd.readouterr().out.count("W&B cannot be reached") == 1


def test_a_backend_that_fails_is_left_out_and_said_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = config_of(tmp_path, "tensorboard", "file")
    root = tmp_path / "results" / "tracking"
    root.mkdir(parents=True)
    (root / "tensorboard").write_text("a file where a folder should be")
    track = Tracking(config, folder_of(config), tracker, None)
    track.log(STEP, 1)
    track._backends["file"].logger["file"].fp.close()
    track.log(STEP, 2)
    track.log(STEP, 3)
    track.finish({})
    said = capfd.readouterr().out
    assert [said.count(f"tracking with {name}") for name in ("tensorboard", "file")] == [1, 1]
    assert file_of(root / "file" / "e" / "rtpo-seed0.jsonl") == {1: STEP}


def test_a_run_that_stopped_within_a_step_is_tracked_once(tmp_path: Path, plain_trainer: None) -> None:
    """Look 4 is between two phases of the first step: nothing of it was tracked before its save."""
    config = config_in(tmp_path, "profile.track=[file]", "budget.rollouts=60")
    with pytest.raises(Stopped) as stopped:
        train(config, StopAt(4))
    (used,) = re.findall(r"after (\d+) of 60 rollouts", str(stopped.value))
    file = tmp_path / "tracking" / "file" / f"{tracked_name(config)}.jsonl"
    with file.open("a") as out:
        out.write(json.dumps({"step": int(used), "data": {"train/steps": 1.0, "lost": 1.0}}) + "\n")
    folder = train(config, StopRequest())
    told = [json.loads(line) for line in file.read_text().splitlines()]
    curves = {line["rollouts"]: step_curves(line) for line in lines(folder.path, "steps.jsonl")}
    tracked, steps = file_of(file), list(curves)
    for rollouts, values in curves.items():
        assert {key: tracked[rollouts][key] for key in values} == pytest.approx(values)
    after = [line for line in lines(folder.path, "evaluations.jsonl") if line["when"] == "after"]
    sampled = [(line["task"], line["reward"]) for line in after if line["mode"] == "sampled"]
    assert [(row["task"], row["reward"]) for row in tracked[steps[-1]][SHOWN]] == sampled
    assert [line["step"] for line in told if "train/steps" in line["data"]] == steps
    assert not any("lost" in line["data"] for line in told)


def test_an_unknown_mode_of_wandb_is_refused_where_it_is_tracked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for mode in ("online", "offline", "disabled"):
        monkeypatch.setenv("WANDB_MODE", mode)
        check_tracking(config_of(tmp_path, "wandb"))
    monkeypatch.setenv("WANDB_MODE", "ofline")
    check_tracking(config_of(tmp_path, "file"))
    with pytest.raises(ConfigError, match=r"WANDB_MODE is 'ofline'.*the nearest is offline"):
        check_and_load(config_of(tmp_path, "wandb"))
