"""A real HTTP server on this machine that answers as a test tells it to."""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True)
class Reply:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    declared: int | None = None
    """bytes that the header says there are"""


def completion(content: str | int) -> Reply:
    """A chat model's; an int is a status."""
    if isinstance(content, int):
        return Reply(content)
    choice = {"index": 0, "message": {"role": "assistant", "content": content}}
    return Reply(body=json.dumps({"id": "x", "object": "chat.completion", "choices": [choice]}).encode())


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    content: bytes

    @property
    def body(self) -> Any:
        """None for what is no JSON."""
        try:
            return json.loads(self.content)
        except ValueError:
            return None

    @property
    def query(self) -> str:
        """Of either protocol of search."""
        query: str = self.body["queries"][0] if self.content else parse_qs(urlsplit(self.path).query)["q"][0]
        return query


class Server:
    """A server in threads. `answer(asked)` makes each reply; `asked` keeps every request."""

    def __init__(self, path: str, answer: Callable[[Asked], Reply]) -> None:
        self.asked: list[Asked] = []
        self.answer = self._usual = answer
        self.released = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self) -> None:
                content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                asked = Asked(self.command, self.path, dict(self.headers), content)
                outer.asked.append(asked)
                reply = outer.answer(asked)
                self.send_response(reply.status)
                declared = len(reply.body) if reply.declared is None else reply.declared
                for name, value in {"Content-Length": str(declared), **reply.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(reply.body)
                if declared != len(reply.body):
                    self.close_connection = True

            do_GET = do_HEAD = do_POST = do_PUT = _serve

            def log_message(self, *_: object) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            request_queue_size = 128

            def handle_error(self, *_: object) -> None:
                """Clients that left."""

        self._server = Quiet(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}{path}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def in_turn(self, *replies: Reply) -> None:
        """These, then what is there."""
        left = list(replies)
        self.answer = lambda asked: left.pop(0) if left else self._usual(asked)

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
