"""A local server with OpenAI's completions, on the embedded decoder, that fails where a test told it to."""

import json
from collections.abc import Callable
from threading import Lock
from typing import Any

import json_server
from json_server import Asked, Reply
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from rtpo.engines.base import Request, Sampling
from rtpo.engines.decoder import Decoder
from rtpo.types import StopReason, as_ids

Fault = Callable[["Server", bytes], Reply]
"""Answers a request in its own way; it is given the body of the true answer."""


class Server(json_server.Server):
    """fault: of all answers. knows_ids: whether it gives sampled ids to who asks. change: made to a choice."""

    def __init__(self, model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
        self._decoder = Decoder(model.config, {tokenizer.eos_token_id}, cache_tokens=0)
        self._decoder.load(model.state_dict().items(), version=0)
        self._tokenizer = tokenizer
        self._lock = Lock()
        self.knows_ids = True
        self.fault: Fault | None = None
        self.change: dict[str, Any] = {}
        super().__init__("/v1", self._reply)

    def _reply(self, asked: Asked) -> Reply:
        body = json.dumps(self._complete(asked.body)).encode()
        return self.fault(self, body) if self.fault else Reply(body=body)

    def _complete(self, asked: dict[str, Any]) -> dict[str, Any]:
        sampling = Sampling(asked["temperature"], asked["top_p"], asked.get("top_k", -1), asked["max_tokens"])
        request = Request(as_ids(asked["prompt"]), sampling, asked["seed"], "served", "served")
        with self._lock:
            (generation,) = self._decoder.generate([request])
        ids = generation.output_ids.tolist()
        said = ids[:-1] if generation.stop is StopReason.STOP else ids
        text = self._tokenizer.decode(said, skip_special_tokens=False)
        choice: dict[str, Any] = {"index": 0, "text": text, "finish_reason": generation.stop.value}
        if self.knows_ids and asked.get("return_token_ids"):
            choice |= {"token_ids": ids, "prompt_token_ids": asked["prompt"]}
        return {"object": "text_completion", "model": asked["model"], "choices": [choice | self.change]}


def status(code: int, body: bytes = b"{}") -> Fault:
    return lambda server, answer: Reply(code, body)
