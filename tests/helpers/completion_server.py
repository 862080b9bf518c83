"""A local server with OpenAI's completions, on the embedded decoder, that fails where a test told it to."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import Any

from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from rtpo.engines.base import Request, Sampling
from rtpo.engines.decoder import Decoder
from rtpo.types import StopReason, as_ids

Fault = Callable[["Handler", bytes], None]
"""Answers a request in its own way; it is given the body of the true answer."""


class Handler(BaseHTTPRequestHandler):
    server: "Server"

    def do_POST(self) -> None:
        server = self.server
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.seen.append((self.path, dict(self.headers), asked))
        answer = json.dumps(server.complete(asked)).encode()
        fault = server.faults.pop(0) if server.faults else server.always
        (fault or send)(self, answer)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    """seen: path, headers and body of each request. faults: of the next requests, one each; always: of all others.
    knows_ids: whether it gives sampled ids to who asks. release: ends answers that hang. change: made to a choice."""

    daemon_threads = True

    def __init__(self, model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self._decoder = Decoder(model.config, {tokenizer.eos_token_id}, cache_tokens=0)
        self._decoder.load(model.state_dict().items(), version=0)
        self._tokenizer = tokenizer
        self._lock = Lock()
        self.seen: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.faults: list[Fault] = []
        self.always: Fault | None = None
        self.knows_ids = True
        self.change: dict[str, Any] = {}
        self.release = Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def complete(self, asked: dict[str, Any]) -> dict[str, Any]:
        sampling = Sampling(asked["temperature"], asked["top_p"], asked.get("top_k", -1), asked["max_tokens"])
        request = Request(as_ids(asked["prompt"]), sampling, asked["seed"], "served", "served")
        with self._lock:
            (generation,) = self._decoder.generate([request])
        ids = generation.output_ids.tolist()
        said = ids[:-1] if generation.stop is StopReason.STOP else ids
        choice: dict[str, Any] = {
            "index": 0,
            "text": self._tokenizer.decode(said, skip_special_tokens=False),
            "finish_reason": generation.stop.value,
        }
        if self.knows_ids and asked.get("return_token_ids"):
            choice |= {"token_ids": ids, "prompt_token_ids": asked["prompt"]}
        return {"object": "text_completion", "model": asked["model"], "choices": [choice | self.change]}


@contextmanager
def serving(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> Iterator[Server]:
    with Server(model, tokenizer) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.release.set()
            server.shutdown()
            thread.join()


def send(handler: Handler, body: bytes, status: int = 200, length: int | None = None) -> None:
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(body) if length is None else length))
    handler.end_headers()
    handler.wfile.write(body)


def status(code: int, body: bytes = b"{}") -> Fault:
    return lambda handler, answer: send(handler, body, code)


def truncated(handler: Handler, answer: bytes) -> None:
    """Half of the JSON, as if it were all."""
    send(handler, answer[: len(answer) // 2])


def broken_off(handler: Handler, answer: bytes) -> None:
    """Half of the JSON, and then the connection is closed."""
    send(handler, answer[: len(answer) // 2], length=len(answer))
    handler.close_connection = True


def hang(handler: Handler, answer: bytes) -> None:
    handler.server.release.wait(60)
