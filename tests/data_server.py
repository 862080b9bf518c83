"""A local HTTP server that does at each request what a test told it to, and a folder of sets whose sources it has."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

from rtpo.data.download import Patience

IMPATIENT = Patience(attempts=3, first_wait=0.01, timeout=20)

Answer = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    server: "Server"

    def do_GET(self) -> None:
        self.server.seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        answers = self.server.answers[self.path]
        answer = answers.pop(0) if len(answers) > 1 else answers[0] if answers else status(404)
        answer(self)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    """answers: by path, one for each request, the last for all later ones. seen: path and headers of each request.
    release: ends answers that hang."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: defaultdict[str, list[Answer]] = defaultdict(list)
        self.seen: list[tuple[str, dict[str, str]]] = []
        self.release = Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def put(self, path: str, *answers: Answer) -> str:
        """The URL that gives these answers."""
        self.answers[path] = list(answers)
        return f"{self.url}{path}"

    def count(self, path: str) -> int:
        return sum(seen == path for seen, _ in self.seen)


@contextmanager
def serving() -> Iterator[Server]:
    with Server() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.release.set()
            server.shutdown()
            thread.join()


def status(code: int) -> Answer:
    def answer(handler: Handler) -> None:
        handler.send_response(code)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


def whole(content: bytes, **headers: str) -> Answer:
    return part(content, len(content), headers)


def part(content: bytes, length: int, headers: dict[str, str] | None = None) -> Answer:
    """`content`, announced as `length` bytes."""

    def answer(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(length))
        for name, value in (headers or {}).items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(content)
        handler.close_connection = True

    return answer


def unannounced(content: bytes) -> Answer:
    """Of no said length: the end of the connection ends it, wherever that is."""

    def answer(handler: Handler) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(content)
        handler.close_connection = True

    return answer


def chunk_then_end(content: bytes) -> Answer:
    """In chunks, of which the last never comes."""

    def answer(handler: Handler) -> None:
        handler.protocol_version = "HTTP/1.1"
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))
        handler.close_connection = True

    return answer


def hang(content: bytes, length: int) -> Answer:
    """`content`, and then nothing until the test ends."""

    def answer(handler: Handler) -> None:
        part(content, length)(handler)
        handler.wfile.flush()
        handler.server.release.wait(60)

    return answer


def redirect(url: str) -> Answer:
    def answer(handler: Handler) -> None:
        handler.send_response(302)
        handler.send_header("Location", url)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


def to_the_let_in(token: str) -> Answer:
    """200 with this token, 401 without one, 403 with another."""

    def answer(handler: Handler) -> None:
        given = handler.headers.get("Authorization")
        status(200 if given == f"Bearer {token}" else 401 if given is None else 403)(handler)

    return answer


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
