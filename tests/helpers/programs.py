"""Programs that are found before those of the machine."""

from pathlib import Path

import pytest


def put_programs(place: Path, monkeypatch: pytest.MonkeyPatch, **programs: str) -> None:
    """Shell scripts by their names, in a folder that is first in PATH."""
    place.mkdir(parents=True, exist_ok=True)
    for name, body in programs.items():
        (place / name).write_text(f"#!/bin/sh\n{body}\n")
        (place / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:/usr/bin:/bin")
