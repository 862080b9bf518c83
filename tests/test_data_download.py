"""The downloader against a real server on this machine: what has its name is whole."""

import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from data_server import (
    IMPATIENT,
    Answer,
    Server,
    chunk_then_end,
    hang,
    part,
    redirect,
    serving,
    status,
    to_the_let_in,
    wait_for,
    whole,
)

from rtpo.data.download import ENDPOINT, TOKEN, Changed, Fetched, Patience, check_gate, download
from rtpo.data.registry import HUB
from rtpo.errors import DataError, MachineError
from rtpo.run.config import PROJECT

CONTENT = bytes(range(256)) * 1000
SHA = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv(TOKEN, raising=False)
    with serving() as running:
        yield running


def fails(url: str, target: Path, patience: Patience = IMPATIENT) -> str:
    """The sentence; nothing may have the name of the target."""
    with pytest.raises(DataError) as caught:
        download(url, target, SHA, patience)
    assert not target.exists()
    return str(caught.value)


def test_a_file_comes_whole(server: Server, tmp_path: Path) -> None:
    url = server.put("/file", whole(CONTENT, X_Repo_Commit="abc"))
    assert download(url, tmp_path / "file", SHA) == Fetched(SHA, len(CONTENT), "abc")
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    (_, headers), *more = server.seen
    assert headers["accept-encoding"] == "identity"
    assert "authorization" not in headers
    assert more == []


def test_an_unknown_checksum_is_observed(server: Server, tmp_path: Path) -> None:
    url = server.put("/file", whole(CONTENT))
    assert download(url, tmp_path / "file", None) == Fetched(SHA, len(CONTENT), None)


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (status(500), "it answered 500"),
        (status(503), "it answered 503"),
        (status(429), "it answered 429"),
        (part(CONTENT[:1000], len(CONTENT)), "received 1000 bytes, expected 256000"),
        (chunk_then_end(CONTENT[:1000]), "incomplete chunked read"),
        (hang(CONTENT[:1000], len(CONTENT)), "ReadTimeout"),
    ],
    ids=["500", "503", "429", "cut", "cut in chunks", "hangs"],
)
def test_what_may_pass_is_tried_again(server: Server, tmp_path: Path, failure: Answer, words: str) -> None:
    patience = replace(IMPATIENT, timeout=0.4) if words == "ReadTimeout" else IMPATIENT
    url = server.put("/file", failure, whole(CONTENT))
    assert download(url, tmp_path / "file", SHA, patience).bytes == len(CONTENT)
    assert (tmp_path / "file").read_bytes() == CONTENT
    url = server.put("/never", failure)
    sentence = fails(url, tmp_path / "never", patience)
    assert f"{url} failed 3 times" in sentence
    assert words in sentence
    assert server.count("/never") == IMPATIENT.attempts


def test_each_wait_is_twice_the_one_before(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    sentence = fails(server.put("/file", status(500)), tmp_path / "file", Patience())
    assert waits == [1, 2, 4]
    assert "failed 4 times" in sentence


@pytest.mark.parametrize(
    ("code", "words"),
    [(401, "it may want a token"), (403, "it may want a token"), (404, "it may have moved"), (410, "answered 410")],
)
def test_a_refusal_is_said_at_once(server: Server, tmp_path: Path, code: int, words: str) -> None:
    sentence = fails(server.put("/file", status(code)), tmp_path / "file")
    assert f"/file answered {code}" in sentence
    assert words in sentence
    assert server.count("/file") == 1


def test_other_bytes_are_refused_with_both_checksums(server: Server, tmp_path: Path) -> None:
    other = CONTENT + b"\n"
    url = server.put("/file", whole(other))
    with pytest.raises(Changed):
        download(url, tmp_path / "file", SHA)
    sentence = fails(url, tmp_path / "file")
    assert hashlib.sha256(other).hexdigest() in sentence
    assert SHA in sentence
    assert list(tmp_path.iterdir()) == []
    # shorter than it says it is
    assert SHA in fails(server.put("/short", part(CONTENT, 1000)), tmp_path / "file")


def test_bytes_of_before_stay_where_new_ones_are_refused(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"before")
    with pytest.raises(Changed):
        download(server.put("/file", whole(b"changed")), tmp_path / "file", SHA)
    assert (tmp_path / "file").read_bytes() == b"before"


def test_no_network_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/file"
        assert "cannot be reached" in fails(url, tmp_path / "file")
    assert "cannot be read" in fails("ftp://127.0.0.1/file", tmp_path / "file")


def test_endless_redirects_are_said(server: Server, tmp_path: Path) -> None:
    url = server.put("/file", redirect("/file"))
    assert "redirects" in fails(url, tmp_path / "file")


def test_a_full_disk_is_said(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.part").symlink_to("/dev/full")
    with pytest.raises(MachineError, match="No space left"):
        download(server.put("/file", whole(CONTENT)), tmp_path / "file", SHA)
    assert not (tmp_path / "file").exists()


def test_the_token_goes_to_the_hub_alone(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "secret")
    monkeypatch.setenv(ENDPOINT, f"{server.url}/")
    with serving() as store:
        server.put("/datasets/a/b/file", redirect(store.put("/stored", whole(CONTENT))))
        assert download(f"{HUB}/datasets/a/b/file", tmp_path / "file", SHA).bytes == len(CONTENT)
        assert server.seen[-1][1]["authorization"] == "Bearer secret"
        assert "authorization" not in store.seen[-1][1]
        download(store.put("/elsewhere", whole(CONTENT)), tmp_path / "file", SHA)
        assert "authorization" not in store.seen[-1][1]


def test_a_gate_opens_to_those_let_in(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINT, server.url)
    path = "/api/datasets/owner/set/auth-check"
    server.put(path, to_the_let_in("mine"))
    for token, code in ((None, 401), ("another", 403)):
        if token:
            monkeypatch.setenv(TOKEN, token)
        with pytest.raises(DataError) as caught:
            check_gate("owner/set", IMPATIENT)
        assert f"owner/set is gated, and the Hub answered {code}" in str(caught.value)
        assert f"{HUB}/datasets/owner/set" in str(caught.value)
        assert TOKEN in str(caught.value)
    monkeypatch.setenv(TOKEN, "mine")
    check_gate("owner/set", IMPATIENT)
    server.put(path, status(404))
    with pytest.raises(DataError, match="auth-check answered 404, it may have moved"):
        check_gate("owner/set", IMPATIENT)


def test_a_kill_on_the_way_leaves_nothing_that_looks_whole(server: Server, tmp_path: Path) -> None:
    url = server.put("/file", hang(CONTENT[:100_000], len(CONTENT)), whole(CONTENT))
    target, beside = tmp_path / "file", tmp_path / "file.part"
    program = (
        "import sys; from pathlib import Path; from rtpo.data.download import *\n"
        "download(sys.argv[1], Path(sys.argv[2]), None, Patience(timeout=600))"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, url, str(target)], cwd=PROJECT, env={**os.environ, "NO_PROXY": "127.0.0.1"}
    )
    try:
        wait_for(lambda: beside.exists() and beside.stat().st_size > 0)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == -signal.SIGKILL
    assert not target.exists()
    assert download(url, target, None).sha256 == SHA
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
