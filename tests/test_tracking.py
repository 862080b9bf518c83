"""Tracking: the same names on every backend, and no backend that can end a run."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import compose_config
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb.proto.wandb_internal_pb2 import Record

from rtpo.errors import ConfigError
from rtpo.harness.budget import Budget, Ledger
from rtpo.run.config import RunConfig
from rtpo.run.records import RunFolder
from rtpo.run.tracking import Tracking, tracked_ledger, tracked_name, tracked_step
from rtpo.verl_harness.session import tracker

KEY = "0123456789" * 4
LINE: dict[str, Any] = {
    "success": 0.5,
    "mean_reward": 0.75,
    "rollouts": 64,
    "generated_tokens": 640,
    "trained_tokens": 320,
    "optimizer_steps": 2,
    "wall_seconds": 1.5,
    "seconds": {"generate": 1.0, "update": 0.25},
    "updates": [
        {"trained_turns": [2], "rows": 8, "mismatch/kl_k1": 0.125, "residual": None, "zero_advantage": {"all": 0.5}},
        {"trained_turns": [], "rows": 0, "residual": None},
    ],
    "algorithm": {"baseline/turn_0": -0.5},
}
NUMBERS = {
    "success": 0.5,
    "mean_reward": 0.75,
    "rollouts": 64,
    "generated_tokens": 640,
    "trained_tokens": 320,
    "optimizer_steps": 2,
    "wall_seconds": 1.5,
    "seconds/generate": 1.0,
    "seconds/update": 0.25,
    "update_2/rows": 8,
    "update_2/mismatch/kl_k1": 0.125,
    "update_empty/rows": 0,
    "algorithm/baseline/turn_0": -0.5,
}


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No key, no settings and no network of the machine's."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DIR", "TENSORBOARD_DIR", "VERL_FILE_LOGGER_ROOT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")


def config_of(tmp_path: Path, *track: str) -> RunConfig:
    return compose_config(f"results={tmp_path / 'results'}", f"profile.track=[{','.join(track)}]", "experiment_name=e")


def folder_of(config: RunConfig) -> RunFolder:
    folder = RunFolder(config.folder)
    folder.open(config.as_dict())
    return folder


def manifest_of(folder: RunFolder, steps: int) -> dict[str, Any]:
    manifest = {"steps": steps, "ledger": Ledger(Budget(100)).as_dict()}
    (folder.path / "manifest.json").write_text(json.dumps(manifest))
    return manifest


def whole_run(config: RunConfig) -> RunFolder:
    """Two steps and an end."""
    folder = folder_of(config)
    track = Tracking(config, folder, tracker, None)
    track.log({"evaluation/sampled/success": 0.25}, 0)
    for step in (1, 2):
        track.log(tracked_step(LINE), step)
    track.finish(manifest_of(folder, 2))
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


def wandb_history(records: list[Record]) -> dict[int, dict[str, float]]:
    lines = {}
    for record in records:
        if record.WhichOneof("record_type") == "history":
            items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            lines[int(items["_step"])] = {key: value for key, value in items.items() if not key.startswith("_")}
    return lines


def board_of(folder: Path) -> dict[int, dict[str, float]]:
    board = EventAccumulator(str(folder)).Reload()
    lines: dict[int, dict[str, float]] = {}
    for tag in board.Tags()["scalars"]:
        for event in board.Scalars(tag):
            lines.setdefault(event.step, {})[tag] = event.value
    return lines


def file_of(path: Path) -> dict[int, dict[str, float]]:
    lines: dict[int, dict[str, float]] = {}
    for text in path.read_text().splitlines():
        line = json.loads(text)
        lines.setdefault(line["step"], {}).update(line["data"])
    return lines


def test_a_step_is_flat_numbers() -> None:
    assert tracked_step(LINE) == NUMBERS


def test_names_sort_by_seed() -> None:
    names = [tracked_name(compose_config(f"seed={seed}")) for seed in (2, 10)]
    assert names == ["default/rtpo-seed02", "default/rtpo-seed10"] == sorted(names)


def test_every_backend_has_the_same_names_and_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    config = config_of(tmp_path, "wandb", "tensorboard", "file")
    folder = whole_run(config)
    ledger = tracked_ledger(Ledger(Budget(100)).as_dict())
    assert ledger["ledger/budget/rollouts"] == 100
    assert "ledger/tool_calls/ok" in ledger
    expected = {0: {"evaluation/sampled/success": 0.25}, 1: NUMBERS, 2: NUMBERS | ledger}
    root = tmp_path / "results" / "tracking"
    assert file_of(root / "file" / "e" / "rtpo-seed00.jsonl") == expected
    assert board_of(root / "tensorboard" / "e" / "rtpo-seed00") == expected
    (records,) = wandb_records(root)
    assert wandb_history(records) == expected

    (run,) = [record.run for record in records if record.WhichOneof("record_type") == "run"][:1]
    assert (run.project, run.display_name, run.run_group) == ("rtpo", "e/rtpo-seed00", "e")
    assert run.run_id == (folder.path / "wandb_id").read_text()
    configured = {update.key: update.value_json for r in records for update in r.config.update}
    assert json.loads(configured["algorithm"])["name"] == "rtpo"
    saved = {item.path for record in records for item in record.files.files}
    assert {"config.yaml", "manifest.json"} <= saved
    text = EventAccumulator(str(root / "tensorboard" / "e" / "rtpo-seed00")).Reload().Tags()["tensors"]
    assert {"config/text_summary", "manifest/text_summary"} == set(text)


def test_a_resumed_run_goes_on_where_its_save_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    config = config_of(tmp_path, "wandb", "tensorboard", "file")
    folder = folder_of(config)
    for resumed_at, steps in ((None, (1, 2, 3)), (2, (3,)), (None, (1,))):
        track = Tracking(config, folder, tracker, resumed_at)
        for step in steps:
            track.log({"rollouts": 10.0 * step + (0 if resumed_at is None else 5)}, step)
        track.close()
        root = tmp_path / "results" / "tracking"
        if resumed_at is not None:
            expected = {1: {"rollouts": 10.0}, 2: {"rollouts": 20.0}, 3: {"rollouts": 35.0}}
            assert file_of(root / "file" / "e" / "rtpo-seed00.jsonl") == expected
            assert board_of(root / "tensorboard" / "e" / "rtpo-seed00") == expected
    first, second, anew = (next(r.run.run_id for r in records if r.run.run_id) for records in wandb_records(root))
    assert first == second != anew == (folder.path / "wandb_id").read_text()
    assert file_of(root / "file" / "e" / "rtpo-seed00.jsonl") == {1: {"rollouts": 10.0}}


def test_disabled_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    whole_run(config_of(tmp_path, "wandb"))
    assert list((tmp_path / "results" / "tracking").rglob("*.wandb")) == []


def test_nothing_is_opened_without_a_backend(tmp_path: Path) -> None:
    whole_run(config_of(tmp_path))
    assert not (tmp_path / "results" / "tracking").exists()


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
    assert wandb_history(records)[1] == NUMBERS
    said = capfd.readouterr().out
    assert said.count("W&B cannot be reached (") == 1
    assert "is tracked offline in" in said


def test_a_backend_that_fails_is_left_out_and_said_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = config_of(tmp_path, "tensorboard", "file")
    folder = folder_of(config)
    (tmp_path / "results" / "tracking").mkdir()
    (tmp_path / "results" / "tracking" / "tensorboard").write_text("a file where a folder should be")
    track = Tracking(config, folder, tracker, None)
    track.log({"rollouts": 1.0}, 1)
    track._backends["file"].logger["file"].fp.close()
    for step in (2, 3):
        track.log({"rollouts": 1.0}, step)
    track.finish(manifest_of(folder, 3))
    said = capfd.readouterr().out
    assert said.count("tracking with tensorboard is left out: ") == 1
    assert said.count("tracking with file ends here, the run goes on: ") == 1
    assert file_of(tmp_path / "results" / "tracking" / "file" / "e" / "rtpo-seed00.jsonl") == {1: {"rollouts": 1.0}}


def test_an_unknown_backend_is_refused_by_name(tmp_path: Path) -> None:
    config = config_of(tmp_path, "tensorboard", "abacus")
    with pytest.raises(ConfigError, match="no backend 'abacus'; there are wandb, tensorboard, file"):
        Tracking(config, RunFolder(tmp_path), tracker, None)
