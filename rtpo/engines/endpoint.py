"""An OpenAI-compatible server as an engine, for evaluation only.

`POST {url}/completions` takes the ids of c_k as the prompt. Servers in vLLM's dialect return the sampled
ids; others return only the text, which is tokenised.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from rtpo.core.http_client import Client, RequestSettings, key_problems, url_problems
from rtpo.core.names import counted
from rtpo.engines.base import Generation, Request, Sampling
from rtpo.errors import InfrastructureError, MachineError
from rtpo.types import StopReason, as_ids

IdSource = Literal["server", "text"]


@dataclass(frozen=True)
class EndpointSettings:
    """Settings of the server whose address the setting `checkpoint` gives."""

    model: str | None = None  # as the server names it
    tokenizer: str | None = None  # the folder of the model's tokenizer, with its chat template
    key_variable: str | None = None  # environment variable with the key, which is written nowhere; null: no key
    dialect: Literal["vllm", "openai"] = "vllm"
    """vllm: request sampled ids and name the stop token by id, in fields that vLLM and SGLang have. openai: use only
    OpenAI's fields"""
    requests: RequestSettings = field(default_factory=lambda: RequestSettings(timeout_seconds=1800.0))
    """timeout_seconds limits each try of a turn"""

    def problems(self, url: str, sampling: Sampling) -> list[str]:
        problems = url_problems(url, "checkpoint")
        problems += [
            f"endpoint.{name} is missing: {remedy}."
            for name, remedy in (
                ("model", "name the model as the server does"),
                ("tokenizer", "name the folder of the model's tokenizer"),
            )
            if not getattr(self, name)
        ]
        problems += key_problems(self.key_variable, "endpoint.key_variable")
        if self.dialect == "openai" and sampling.top_k != -1:
            problems.append(
                f"decoding.top_k is {sampling.top_k}, which endpoint.dialect openai cannot say: use -1, or dialect "
                "vllm where the server knows it."
            )
        return problems


class EndpointEngine:
    """`rtpo.engines.base.Engine` on a server. Log-probs are not asked for and are NaN; the policy version is 0.

    A turn ends with the tokenizer's eos token. Requests of all episodes are in flight at once.

    Raises ConfigError where the key is missing.
    """

    def __init__(self, url: str, settings: EndpointSettings, tokenizer: Any) -> None:
        self._settings = settings
        self._tokenizer = tokenizer
        address = f"{url.rstrip('/')}/completions"
        self._client = Client(address, settings.requests, settings.key_variable, "the endpoint's")
        self._source: IdSource | None = None

    def check(self) -> IdSource:
        """Request one token; return where ids come from. Later replies must have the same source. Do not call it in
        an event loop. Raises MachineError."""
        ids = as_ids(self._tokenizer.encode("1 + 1 =", add_special_tokens=False))
        try:
            reply = asyncio.run(self._ask(Request(ids, Sampling(max_tokens=1), seed=0, session="check", route="check")))
        except InfrastructureError as error:
            raise MachineError(f"{error}. {self._remedy(error.status)}") from error
        self._source = "server" if reply.get("token_ids") is not None else "text"
        return self._source

    async def generate(self, request: Request) -> Generation:
        """Raises InfrastructureError if the server is not reached, or its reply is invalid."""
        choice = await self._ask(request)
        ids, stop = choice["ids"], choice["stop"]
        return Generation(as_ids(ids), np.full(len(ids), np.nan, np.float32), 0, stop, None)

    async def _ask(self, request: Request) -> dict[str, Any]:
        def read(reply: Any) -> dict[str, Any]:
            choice = _choice(reply)
            ids, stop = self._output(choice, request)
            return {"ids": ids, "stop": stop, "token_ids": choice.get("token_ids")}

        try:
            return await self._client.ask("POST", read, body=self._body(request))
        except InfrastructureError as error:
            raise InfrastructureError(
                f"the endpoint of {self._settings.model} cannot be used: {error}", error.status
            ) from error

    def _remedy(self, status: int | None) -> str:
        """What the user can do when the first request fails. status: HTTP status of the reply, if there was one."""
        if status == 404:
            return (
                "Correct checkpoint, below which the server must have /completions (chat/completions alone takes no "
                "ids), or endpoint.model."
            )
        if status in (400, 422) and self._settings.dialect == "vllm":
            return "If the server does not know vLLM's fields, give endpoint.dialect=openai."
        return "Start the server, or correct checkpoint or endpoint."

    def _body(self, request: Request) -> dict[str, Any]:
        sampling = request.sampling
        body = {
            "model": self._settings.model,
            "prompt": request.context_ids.tolist(),
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": request.seed % 2**31,
        }
        if self._settings.dialect == "openai":
            return body | {"stop": [self._tokenizer.eos_token]}
        return body | {
            "top_k": sampling.top_k,
            "ignore_eos": True,  # no other eos token of the model's generation config ends a turn
            "stop_token_ids": [self._tokenizer.eos_token_id],
            "skip_special_tokens": False,
            "return_token_ids": True,
        }

    def _output(self, choice: dict[str, Any], request: Request) -> tuple[list[int], StopReason]:
        """u_k and how it ended. Raises ValueError for an invalid reply."""
        stop_id = int(self._tokenizer.eos_token_id)
        ids = choice.get("token_ids")
        source: IdSource = "text" if ids is None else "server"
        if self._source not in (None, source):
            raise ValueError(f"its ids come from the {source}, and those of earlier replies from the {self._source}")
        if ids is None:
            text, stop_text, _ = str(choice["text"]).partition(self._tokenizer.eos_token)
            ids = self._tokenizer.encode(text, add_special_tokens=False)
            stopped = bool(stop_text) or choice["finish_reason"] == "stop"
        else:
            _check_ids(ids, request.sampling.max_tokens)
            prompt_ids = choice.get("prompt_token_ids")
            if prompt_ids is not None and prompt_ids != request.context_ids.tolist():
                raise ValueError("the server saw another prompt than the ids it was sent")
            stopped = choice["finish_reason"] == "stop" or stop_id in ids
            if stop_id in ids:
                ids = ids[: ids.index(stop_id)]
        if stopped:
            return [*ids, stop_id], StopReason.STOP
        if not ids:
            raise ValueError("it has no tokens")
        return ids, StopReason.LENGTH


def _choice(reply: Any) -> dict[str, Any]:
    match reply:
        case {"choices": [{"text": str(), "finish_reason": "stop" | "length"} as choice]}:
            return dict(choice)
    raise ValueError("it is not one choice with a text and the finish_reason stop or length")


def _check_ids(ids: Any, limit: int) -> None:
    if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < 2**31 for i in ids):
        raise ValueError("its token_ids are not a list of ids")
    if len(ids) > limit:
        raise ValueError(f"it has {counted(len(ids), 'token')} and {limit} were asked for at most")
