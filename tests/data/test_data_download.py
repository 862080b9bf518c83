"""Raw files from a stand-in for the Hub and from a server of plain files, through Hugging Face's own libraries."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import datasets
import pytest
from data_server import COMMIT, Hub, point_to
from huggingface_hub import constants

from rtpo.data.download import fetch
from rtpo.data.registry import REGISTRY, UNVERIFIED, DataSet
from rtpo.errors import DataError

ON_HUB = "/datasets/DigitalLearningGmbH/MATH-lighteval/resolve/refs%2Fconvert%2Fparquet/default/train/0000.parquet"
CONTENT = bytes(range(256)) * 1000


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub() as running:
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
        assert (file.read_bytes(), named, fetch(known)[0]) == (CONTENT, revision, file)
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


def test_a_server_that_refuses_or_breaks_off_is_said_and_leaves_nothing(hub: Hub) -> None:
    for known, path in ((elsewhere(hub), "/file"), (REGISTRY["math_train"], ON_HUB)):
        for hub.files[path], hub.cut in ((404, None), (500, None), (CONTENT, 1000)):
            with pytest.raises(DataError, match=rf"{known.name}: .*--from {known.name}=FILE"):
                fetch(known)
        hub.cut = None
        assert fetch(known)[0].read_bytes() == CONTENT


def test_the_token_goes_to_the_hub_alone_and_opens_its_gates(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    for known, sent in ((REGISTRY["math_train"], "Bearer secret"), (elsewhere(hub), None)):
        hub.seen.clear()
        fetch(known)
        assert {token for _, _, token in hub.seen} == {sent}
    gated = replace(elsewhere(hub, f"/{COMMIT}/file"), name="gaia", gate="gaia-benchmark/GAIA")
    for token in ("", "another"):
        monkeypatch.setenv("HF_TOKEN", token)
        with pytest.raises(DataError, match=r"gaia-benchmark/GAIA.*HF_TOKEN"):
            fetch(gated)
    assert hub.fetched(f"/{COMMIT}/file") == 0
    monkeypatch.setenv("HF_TOKEN", hub.let_in)
    assert fetch(gated)[0].read_bytes() == CONTENT
