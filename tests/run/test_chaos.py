"""That tests/chaos.py sees every difference; its runs are `make chaos`."""

import json
import zipfile
from pathlib import Path
from typing import Any

from whole_runs import WEIGHTS, differences

from rtpo.run.records import MANIFEST_KEYS, SCHEMA, RunFolder

FILES = ("steps.jsonl", "rollouts.jsonl", "evaluations.jsonl")


def finished(path: Path, *, changed: str = "", **of_ledger: Any) -> RunFolder:
    """A finished run's files, with another number in the file named `changed`."""
    weights = path / "checkpoints" / "step00001" / "weights"
    weights.mkdir(parents=True)
    (path / "checkpoints" / "latest").write_text("step00001")
    for file in FILES:
        (path / file).write_text(json.dumps({"number": int(file == changed), "wall_seconds": 1}) + "\n")
    for file in WEIGHTS:
        with zipfile.ZipFile(weights / file, "w") as archive:
            archive.writestr(f"{file}/data/0", bytes([file == changed]))
    ledger = {"rollouts": 4, "seconds": id(path)} | of_ledger
    manifest = dict.fromkeys(MANIFEST_KEYS, "") | {"schema": SCHEMA, "ledger": ledger}
    (path / "manifest.json").write_text(json.dumps(manifest))
    return RunFolder(path)


def test_what_differs_is_named(tmp_path: Path) -> None:
    whole = finished(tmp_path / "whole")
    for file in (*FILES, *WEIGHTS):
        changed = finished(tmp_path / file, changed=file)
        assert differences(changed, whole) == ["weights" if file in WEIGHTS else file]
    assert differences(finished(tmp_path / "killed", lost=8, syncs=2), whole) == []
    assert differences(finished(tmp_path / "other", rollouts=5), whole) == ["ledger"]
