"""A stand-in on this machine for the Hugging Face Hub and for a server of plain files: what of the Hub's HTTP interface
downloads of files and pushes of models ask for."""

import json
from base64 import b64decode
from hashlib import sha256
from pathlib import Path
from typing import Any

import datasets
import pytest
from huggingface_hub import constants
from json_server import Asked, Reply, Server

COMMIT = "c" * 40


class Hub(Server):
    """files: content by path, or the status that is answered instead. commit: of all files. let_in: the token that
    opens gates and pushes. cut: where bodies break off. seen: method, path and authorization of each request. refuses:
    a status by the last part of the path of what is pushed. made: what repositories were asked for."""

    def __init__(self) -> None:
        self.files: dict[str, bytes | int] = {}
        self.commit = COMMIT
        self.let_in = "mine"
        self.cut: int | None = None
        self.seen: list[tuple[str, str, str | None]] = []
        self.refuses: dict[str, int] = {}
        self.made: list[dict[str, Any]] = []
        self._large: dict[str, bytes] = {}
        super().__init__("", self._reply)

    def _reply(self, asked: Asked) -> Reply:
        token = next((value for name, value in asked.headers.items() if name.lower() == "authorization"), None)
        self.seen.append((asked.method, asked.path, token))
        if asked.method in ("GET", "HEAD"):
            return self._file(asked.path, token)
        status = self.refuses.get(asked.path.rpartition("/")[2], 200)
        return Reply(status, json.dumps(self.pushed(asked.path, asked.content) if status == 200 else {}).encode())

    def _file(self, path: str, token: str | None) -> Reply:
        content, is_known = self.files.get(path), token == f"Bearer {self.let_in}"
        if path == "/api/whoami-v2":
            status, content = 200 if is_known else 401, json.dumps({"name": "me", "orgs": [{"name": "lab"}]}).encode()
        elif path.endswith("/auth-check"):
            status = 200 if is_known else 401 if token is None else 403
        else:
            status = 404 if content is None else content if isinstance(content, int) else 200
        body = content if isinstance(content, bytes) else b""
        headers = {"ETag": f'"{sha256(body).hexdigest()}"', "X-Repo-Commit": self.commit}
        if status in (401, 403):
            headers["X-Error-Code"] = "GatedRepo"
        elif status == 404:
            is_entry = "/tree/" in path or "/resolve/" in path
            headers["X-Error-Code"] = "EntryNotFound" if is_entry else "RepoNotFound"
        return Reply(status, body[: self.cut], headers, declared=len(body))

    def fetched(self, path: str) -> int:
        return sum((method, asked) == ("GET", path) for method, asked, _ in self.seen)

    def pushed(self, path: str, body: bytes) -> Any:
        """A step of a push: weights go to a place of their own first, all else is in the commit."""
        if path.startswith("/large/"):
            self._large[path.removeprefix("/large/")] = body
            return {}
        lines = [json.loads(line) for line in body.splitlines()]
        if path == "/api/repos/create":
            self.made += lines
            return {"url": f"{self.url}/{lines[0].get('organization', 'me')}/{lines[0]['name']}"}
        if path == "/api/validate-yaml":
            return {"errors": [], "warnings": []}
        if "/preupload/" in path:
            modes = {True: "lfs", False: "regular"}
            names = [file["path"] for file in lines[0]["files"]]
            files = [{"path": p, "uploadMode": modes[p.endswith(".safetensors")], "shouldIgnore": False} for p in names]
            return {"files": files}
        if path.endswith("/info/lfs/objects/batch"):
            return {
                "objects": [
                    stored | {"actions": {"upload": {"href": f"{self.url}/large/{stored['oid']}"}}}
                    for stored in lines[0]["objects"]
                ]
            }
        repository = path.removeprefix("/api/models/").partition("/commit/")[0]
        for line in lines[1:]:
            value = line["value"]
            content = b64decode(value["content"]) if line["key"] == "file" else self._large[value["oid"]]
            self.files[f"/{repository}/resolve/main/{value['path']}"] = content
        siblings = [{"rfilename": line["value"]["path"]} for line in lines[1:]]
        self.files[f"/api/models/{repository}"] = json.dumps({"id": repository, "siblings": siblings}).encode()
        self.files[f"/api/models/{repository}/tree/main?recursive=true&expand=false"] = json.dumps(
            [{"type": "file", "path": stored["rfilename"], "size": 1, "oid": "0"} for stored in siblings]
        ).encode()
        return {"commitUrl": f"{self.url}/{repository}/commit/{COMMIT}", "commitOid": COMMIT, "success": True}


def point_to(hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As HF_ENDPOINT and HF_HOME do for a process that has not imported the libraries yet."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(cache / "token"))
    monkeypatch.setattr(datasets.config, "DOWNLOADED_DATASETS_PATH", str(cache / "downloads"))
