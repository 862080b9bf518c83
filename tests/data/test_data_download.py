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
        running.files[ON_HUB] = running.files["/file"] = running.files[f"/{COMMIT}/file"] = CONTENT
        yield running


def elsewhere(hub: Hub, path: str = "/file") -> DataSet:
    return replace(REGISTRY["gsm8k"], source=hub.url + path)


def fails(known: DataSet) -> str:
    with pytest.raises(DataError) as caught:
        fetch(known)
    assert str(caught.value).startswith(f"{known.name}: ")
    assert str(caught.value).endswith(f"give a file you have with --from {known.name}=FILE")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_file_of_the_hub_is_of_a_commit_and_is_fetched_once(hub: Hub) -> None:
    file, revision = fetch(REGISTRY["math_train"])
    assert (file.read_bytes(), revision) == (CONTENT, COMMIT)
    assert fetch(REGISTRY["math_train"]) == (file, revision)
    assert hub.fetched(ON_HUB) == 1
    hub.commit, hub.files[ON_HUB] = "d" * 40, b"changed"
    file, revision = fetch(REGISTRY["math_train"])
    assert (file.read_bytes(), revision) == (b"changed", "d" * 40)


def test_a_file_of_elsewhere_is_fetched_once(hub: Hub) -> None:
    for path, revision in (("/file", UNVERIFIED), (f"/{COMMIT}/file", COMMIT)):
        file, named = fetch(elsewhere(hub, path))
        assert (file.read_bytes(), named) == (CONTENT, revision)
        assert fetch(elsewhere(hub, path))[0] == file
        assert hub.fetched(path) == 1


def test_what_is_in_the_cache_needs_no_network(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    sets = (REGISTRY["math_train"], elsewhere(hub, f"/{COMMIT}/file"))
    files = [fetch(known) for known in sets]
    for module in (constants, datasets.config):
        monkeypatch.setattr(module, "HF_HUB_OFFLINE", True)
    asked = len(hub.seen)
    assert [fetch(known) for known in sets] == files
    assert "Offline mode is enabled" in fails(elsewhere(hub))
    assert len(hub.seen) == asked


@pytest.mark.parametrize("status", [404, 410, 500])
def test_a_server_that_refuses_is_said(hub: Hub, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    hub.files["/file"] = hub.files[ON_HUB] = status
    assert f"{hub.url}/file cannot be had (" in fails(elsewhere(hub))
    assert "hf://datasets/DigitalLearningGmbH/MATH-lighteval" in fails(REGISTRY["math_train"])


def test_a_file_that_breaks_off_is_not_there(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    hub.cut = 1000
    for known in (elsewhere(hub), REGISTRY["math_train"]):
        fails(known)
    hub.cut = None
    for known in (elsewhere(hub), REGISTRY["math_train"]):
        assert fetch(known)[0].read_bytes() == CONTENT


def test_the_token_goes_to_the_hub_alone(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    fetch(REGISTRY["math_train"])
    assert {token for _, _, token in hub.seen} == {"Bearer secret"}
    hub.seen.clear()
    fetch(elsewhere(hub))
    assert {token for _, _, token in hub.seen} == {None}


def test_a_gate_opens_to_those_let_in(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    gated = replace(elsewhere(hub), name="gaia", gate="gaia-benchmark/GAIA")
    for token in ("", "another"):
        monkeypatch.setenv("HF_TOKEN", token)
        sentence = fails(gated)
        assert "gaia-benchmark/GAIA is gated; accept its terms at https://huggingface.co/datasets/gaia-ben" in sentence
        assert "HF_TOKEN" in sentence
    assert hub.fetched("/file") == 0
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
