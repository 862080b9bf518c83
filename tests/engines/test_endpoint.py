"""The endpoint as an engine, against a real server with a real model behind it, and one that fails."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from byte_model import build_model
from byte_tokenizer import byte_tokenizer
from completion_server import Fault, Server, broken_off, hang, serving, status, truncated

from rtpo.core.http_client import RequestSettings
from rtpo.engines.base import Generation, Request, Sampling
from rtpo.engines.endpoint import EndpointEngine, EndpointSettings
from rtpo.errors import ConfigError, InfrastructureError, MachineError
from rtpo.toy.warm_start import local_engine
from rtpo.types import StopReason, as_ids

TOKENIZER = byte_tokenizer()
STOP = int(TOKENIZER.eos_token_id)
MODEL = build_model(TOKENIZER, seed=0)
MODEL.model.embed_tokens.weight.data[STOP] *= 3  # so that some turns end by themselves
CONTEXT = as_ids(TOKENIZER.encode("<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\n"))
QUICK = RequestSettings(timeout_seconds=20.0, tries=3, first_wait_seconds=0.01, longest_wait_seconds=0.05)
SETTINGS = EndpointSettings(model="bytes", tokenizer="given", requests=QUICK)
SAMPLING = Sampling(temperature=1.0, top_p=0.95, max_tokens=24)


@pytest.fixture(scope="module")
def _server() -> Iterator[Server]:
    with serving(MODEL, TOKENIZER) as server:
        yield server


@pytest.fixture
def server(_server: Server) -> Server:
    _server.seen, _server.faults, _server.always, _server.knows_ids, _server.change = [], [], None, True, {}
    return _server


def engine_of(server: Server, **changes: Any) -> EndpointEngine:
    return EndpointEngine(server.url, replace(SETTINGS, **changes), TOKENIZER)


def asked(seed: int, sampling: Sampling = SAMPLING) -> Request:
    return Request(CONTEXT, sampling, seed, f"s{seed}", f"s{seed}")


def ask(engine: Any, *requests: Request) -> list[Generation]:
    async def ask_all() -> list[Generation]:
        return await asyncio.gather(*[engine.generate(request) for request in requests])

    return asyncio.run(ask_all())


def test_a_server_that_gives_ids_says_what_the_decoder_says(server: Server) -> None:
    engine = engine_of(server)
    assert engine.check() == "server"
    requests = [asked(seed) for seed in range(12)] + [asked(0, replace(SAMPLING, temperature=0.0))]
    found, expected = ask(engine, *requests), ask(local_engine(MODEL, STOP), *requests)
    for one, other in zip(found, expected, strict=True):
        assert one.output_ids.tolist() == other.output_ids.tolist()
        assert one.stop is other.stop
        assert np.isnan(one.logprobs).all()
        assert len(one.logprobs) == len(one.output_ids)
        assert (one.policy_version, one.top_logprobs) == (0, None)
    assert {one.stop for one in found} == {StopReason.STOP, StopReason.LENGTH}


def test_the_request_says_how_to_draw_and_where_to_stop(server: Server) -> None:
    ask(engine_of(server), asked(2**40 + 5, Sampling(0.6, 0.95, 20, max_tokens=3)))
    ((path, headers, body),) = server.seen
    assert path == "/v1/completions"
    assert "Authorization" not in headers
    assert body == {
        "model": "bytes",
        "prompt": CONTEXT.tolist(),
        "max_tokens": 3,
        "temperature": 0.6,
        "top_p": 0.95,
        "top_k": 20,
        "seed": (2**40 + 5) % 2**31,
        "ignore_eos": True,
        "stop_token_ids": [STOP],
        "skip_special_tokens": False,
        "return_token_ids": True,
    }
    ask(engine_of(server, dialect="openai"), asked(5))
    assert server.seen[1][2].keys() == {"model", "prompt", "max_tokens", "temperature", "top_p", "seed", "stop"}
    assert server.seen[1][2]["stop"] == ["<|im_end|>"]


def test_other_servers_texts_are_tokenised(server: Server) -> None:
    engine = engine_of(server, dialect="openai")
    assert engine.check() == "text"
    requests = [asked(seed) for seed in range(12)]
    for one, request in zip(ask(engine, *requests), requests, strict=True):
        (choice,) = server.complete({"model": "bytes", "prompt": CONTEXT.tolist(), **said(request)})["choices"]
        stop = "<|im_end|>" if choice["finish_reason"] == "stop" else ""
        assert TOKENIZER.decode(one.output_ids) == choice["text"] + stop
        assert one.stop.value == choice["finish_reason"]
        assert (one.output_ids == STOP).sum() == (one.stop is StopReason.STOP)


def said(request: Request) -> dict[str, Any]:
    how = request.sampling
    return {"seed": request.seed, "temperature": how.temperature, "top_p": how.top_p, "max_tokens": how.max_tokens}


def test_a_server_that_does_not_know_the_dialect_is_read_by_its_text(server: Server) -> None:
    server.knows_ids = False
    engine = engine_of(server)
    assert engine.check() == "text"
    server.change = {"text": "<think>\nx\n</think>\n\nyes<|im_end|>\nmore", "finish_reason": "length"}
    (generation,) = ask(engine, asked(0))
    assert TOKENIZER.decode(generation.output_ids) == "<think>\nx\n</think>\n\nyes<|im_end|>"
    assert generation.stop is StopReason.STOP


@pytest.mark.parametrize(
    ("change", "ids", "stop"),
    [
        ({"token_ids": [65, 66], "finish_reason": "length"}, [65, 66], StopReason.LENGTH),
        ({"token_ids": [65, STOP], "finish_reason": "stop"}, [65, STOP], StopReason.STOP),
        ({"token_ids": [65], "finish_reason": "stop"}, [65, STOP], StopReason.STOP),
        ({"token_ids": [], "finish_reason": "stop"}, [STOP], StopReason.STOP),
        ({"token_ids": [65, STOP], "finish_reason": "length"}, [65, STOP], StopReason.STOP),
        ({"token_ids": [5000], "finish_reason": "length"}, [5000], StopReason.LENGTH),
    ],
)
def test_how_a_turn_ended(server: Server, change: dict[str, Any], ids: list[int], stop: StopReason) -> None:
    server.change = change
    (generation,) = ask(engine_of(server), asked(0))
    assert (generation.output_ids.tolist(), generation.stop) == (ids, stop)


@pytest.mark.parametrize(
    ("fault", "tries", "why"),
    [
        (status(500, b"no room"), 3, "failed; it last answered status 500: no room"),
        (status(400, b"too long"), 1, "was asked once and failed; it last answered status 400: too long"),
        (truncated, 3, "malformed reply"),
        (broken_off, 3, "could not be reached"),
        (hang, 3, "no reply within 0.2 s"),
    ],
    ids=["500", "400", "truncated", "broken off", "hang"],
)
def test_an_outage_is_no_answer(server: Server, fault: Fault, tries: int, why: str) -> None:
    server.always = fault
    settings = replace(QUICK, timeout_seconds=0.2) if fault is hang else QUICK
    with pytest.raises(InfrastructureError, match="the endpoint of bytes cannot be had") as raised:
        ask(engine_of(server, requests=settings), asked(1))
    assert why in str(raised.value)
    assert len(server.seen) == tries


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"finish_reason": "abort"}, "no one choice with a text and the finish_reason stop or length"),
        ({"finish_reason": None}, "no one choice"),
        ({"text": None}, "no one choice"),
        ({"token_ids": ["A"]}, "its token_ids are not a list of ids"),
        ({"token_ids": [-1]}, "its token_ids are not a list of ids"),
        ({"token_ids": [True]}, "its token_ids are not a list of ids"),
        ({"token_ids": "AB"}, "its token_ids are not a list of ids"),
        ({"token_ids": [65] * 25}, "it has 25 tokens and 24 were asked for at most"),
        ({"token_ids": [], "finish_reason": "length"}, "it has no tokens"),
        ({"prompt_token_ids": [65]}, "the server saw another prompt"),
        ({"token_ids": None}, "its ids come from the text, and those of earlier replies from the server"),
    ],
)
def test_a_reply_that_cannot_be_is_no_answer(server: Server, change: dict[str, Any], why: str) -> None:
    engine = engine_of(server)
    assert engine.check() == "server"
    server.change = change
    with pytest.raises(InfrastructureError) as raised:
        ask(engine, asked(0))
    assert why in str(raised.value)


@pytest.mark.parametrize("body", [b"[]", b"null", b'{"choices": []}', b'{"choices": {}}', b"\xff", b"[" * 100_000])
def test_other_json_is_no_answer(server: Server, body: bytes) -> None:
    server.always = status(200, body)
    with pytest.raises(InfrastructureError, match="malformed reply"):
        ask(engine_of(server), asked(0))


def test_the_key_is_sent_and_shown_nowhere(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENDPOINT_KEY", "sesame-123")
    engine = engine_of(server, key_variable="ENDPOINT_KEY")
    ask(engine, asked(0))
    assert server.seen[0][1]["Authorization"] == "Bearer sesame-123"
    server.always = status(401, b"sesame-123 is not a key")
    with pytest.raises(InfrastructureError, match=r"\*\*\* is not a key"):
        ask(engine, asked(0))
    monkeypatch.setenv("ENDPOINT_KEY", "")
    with pytest.raises(ConfigError, match="put it into the environment variable ENDPOINT_KEY"):
        engine_of(server, key_variable="ENDPOINT_KEY")


def test_a_server_that_is_not_there_is_told_before_anything_starts(server: Server) -> None:
    server.always = status(404)
    with pytest.raises(MachineError, match="Start the server, or correct checkpoint or endpoint"):
        engine_of(server).check()


def test_settings_that_cannot_be_are_named() -> None:
    def problems(url: str = "http://host/v1", sampling: Sampling = SAMPLING, **changes: Any) -> list[str]:
        return replace(SETTINGS, **changes).problems(url, sampling)

    assert problems() == []
    assert "endpoint.model is missing" in problems(model=None)[0]
    assert "endpoint.tokenizer is missing" in problems(tokenizer=None)[0]
    assert "checkpoint has a user, a query or a fragment" in problems(url="http://me:secret@host/v1")[0]
    assert "endpoint.requests.tries is 0" in problems(requests=replace(QUICK, tries=0))[0]
    (problem,) = problems(key_variable="sk-123")
    assert "sk-123" not in problem
    assert "decoding.top_k is 20" in problems(dialect="openai", sampling=replace(SAMPLING, top_k=20))[0]
    assert problems(sampling=replace(SAMPLING, top_k=20)) == []
