"""Raw files from a stand-in for the Hub and from a server of plain files, through Hugging Face's own libraries."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import datasets
import pytest
from data_server import COMMIT, Hub, point_to, serving
from huggingface_hub import constants

from rtpo.data.download import fetch
from rtpo.data.registry import REGISTRY, UNVERIFIED, DataSet
from rtpo.errors import DataError
from rtpo.run.config import PROJECT

ON_HUB = "/datasets/DigitalLearningGmbH/MATH-lighteval/resolve/refs%2Fconvert%2Fparquet/default/train/0000.parquet"
CONTENT = bytes(range(256)) * 1000


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving() as running:
        point_to(running, tmp_path / "cache", monkeypatch)
        monkeypatch.setattr(time, "sleep", lambda _: None)
        running.files[ON_HUB] = running.files["/file"] = running.files[f"/{COMMIT}/file"] = CONTENT
        yield running


def elsewhere(hub: Hub, path: str = "/file") -> DataSet:
    return replace(REGISTRY["gsm8k"], source=hub.url + path)


def test_a_file_is_of_a_revision_and_fetched_once(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = ((REGISTRY["math_train"], ON_HUB, COMMIT), (elsewhere(hub), "/file", UNVERIFIED))
    for known, path, revision in (*cases, (elsewhere(hub, f"/{COMMIT}/file"), f"/{COMMIT}/file", COMMIT)):
        file, named = fetch(known)
        assert (file.read_bytes(), named) == (CONTENT, revision)
        assert fetch(known)[0] == file
        assert hub.fetched(path) == 1
    hub.commit, hub.files[ON_HUB] = "d" * 40, b"changed"
    file, named = fetch(REGISTRY["math_train"])
    assert (file.read_bytes(), named) == (b"changed", "d" * 40)
    # what is in the cache needs no network
    for module in (constants, datasets.config):
        monkeypatch.setattr(module, "HF_HUB_OFFLINE", True)
    asked = len(hub.seen)
    assert fetch(REGISTRY["math_train"])[0] == file
    with pytest.raises(DataError):
        fetch(elsewhere(hub, "/another"))
    assert len(hub.seen) == asked


@pytest.mark.parametrize("status", [404, 500])
def test_a_server_that_refuses_is_said(hub: Hub, status: int) -> None:
    hub.files["/file"] = hub.files[ON_HUB] = status
    for known in (elsewhere(hub), REGISTRY["math_train"]):
        with pytest.raises(DataError, match=f"{known.name}: .*--from {known.name}=FILE"):
            fetch(known)


def test_a_file_that_breaks_off_is_not_there(hub: Hub) -> None:
    for known in (elsewhere(hub), REGISTRY["math_train"]):
        hub.cut = 1000
        with pytest.raises(DataError):
            fetch(known)
        hub.cut = None
        assert fetch(known)[0].read_bytes() == CONTENT


def test_the_token_goes_to_the_hub_alone_and_opens_its_gates(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    fetch(REGISTRY["math_train"])
    assert {token for _, _, token in hub.seen} == {"Bearer secret"}
    hub.seen.clear()
    fetch(elsewhere(hub))
    assert {token for _, _, token in hub.seen} == {None}

    gated = replace(elsewhere(hub, f"/{COMMIT}/file"), name="gaia", gate="gaia-benchmark/GAIA")
    for token in ("", "another"):
        monkeypatch.setenv("HF_TOKEN", token)
        with pytest.raises(DataError, match=r"gaia-benchmark/GAIA.*HF_TOKEN"):
            fetch(gated)
    assert hub.fetched(f"/{COMMIT}/file") == 0
    monkeypatch.setenv("HF_TOKEN", hub.let_in)
    assert fetch(gated)[0].read_bytes() == CONTENT


def test_the_command_hears_the_libraries_variables(tmp_path: Path) -> None:
    """In a process of its own, since they are read at import."""
    command = [sys.executable, "experiments/prepare_data.py", "gaia", "oe_math", "--folder", str(tmp_path / "data")]
    with serving() as hub:
        variables = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": "another"}
        environment = os.environ | variables | {"NO_PROXY": "127.0.0.1"}
        done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
        seen = {(path, token) for _, path, token in hub.seen}
    assert done.returncode == 1
    assert [line.split(": ")[0] for line in done.stderr.splitlines()] == ["oe_math", "gaia"]
    assert ("/api/datasets/gaia-benchmark/GAIA/auth-check", "Bearer another") in seen
    assert any(path.startswith("/datasets/Hothan/OlympiadBench/resolve/") for path, _ in seen)
