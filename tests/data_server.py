"""A stand-in on this machine for the Hugging Face Hub and for a server of plain files."""

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import datasets
import pytest
from huggingface_hub import constants

COMMIT = "c" * 40


class Handler(BaseHTTPRequestHandler):
    server: "Hub"

    def do_GET(self) -> None:
        token = self.headers.get("Authorization")
        self.server.seen.append((self.command, self.path, token))
        content = self.server.files.get(self.path)
        if self.path.endswith("/auth-check"):
            status = 200 if token == f"Bearer {self.server.let_in}" else 401 if token is None else 403
        else:
            status = 404 if content is None else content if isinstance(content, int) else 200
        body = content if isinstance(content, bytes) else b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{sha256(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", self.server.commit)
        if status in (401, 403):
            self.send_header("X-Error-Code", "GatedRepo")
        elif status == 404:
            self.send_header("X-Error-Code", "EntryNotFound")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[: self.server.cut])
        self.close_connection = True

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


class Hub(ThreadingHTTPServer):
    """files: content by path, or the status that is answered instead. commit: of all files. let_in: the token that
    opens gates. cut: where bodies break off. seen: method, path and authorization of each request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.files: dict[str, bytes | int] = {}
        self.commit = COMMIT
        self.let_in = "mine"
        self.cut: int | None = None
        self.seen: list[tuple[str, str, str | None]] = []

    def fetched(self, path: str) -> int:
        return sum((method, asked) == ("GET", path) for method, asked, _ in self.seen)


@contextmanager
def serving() -> Iterator[Hub]:
    with Hub() as hub:
        thread = Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()


def point_to(hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As HF_ENDPOINT and HF_HOME do for a process that has not imported the libraries yet."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(cache / "token"))
    monkeypatch.setattr(datasets.config, "DOWNLOADED_DATASETS_PATH", str(cache / "downloads"))
