"""The endpoint as an engine, against a real server with a real model behind it, and one that fails."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from byte_model import build_model
from byte_tokenizer import byte_tokenizer
from completion_server import Fault, Server, broken_off, hang, status, truncated

from rtpo.core.http_client import RequestSettings
from rtpo.engines.base import Generation, Request, Sampling
from rtpo.engines.endpoint import EndpointEngine, EndpointSettings
from rtpo.errors import ConfigError, InfrastructureError
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
    with Server(MODEL, TOKENIZER) as server:
        yield server


@pytest.fixture
def server(_server: Server) -> Server:
    _server.reset()
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
    (sent,) = server.asked
    assert sent.path == "/v1/completions"
    assert "Authorization" not in sent.headers
    assert sent.body == {
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
    assert server.asked[1].body.keys() == {"model", "prompt", "max_tokens", "temperature", "top_p", "seed", "stop"}
    assert server.asked[1].body["stop"] == ["<|im_end|>"]


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
        (status(500, b"no room"), 3, "500"),
        (status(400, b"too long"), 1, "400"),
        (status(200, b"[]"), 3, ""),
        (status(200, b"\xff"), 3, ""),
        (truncated, 3, ""),
        (broken_off, 3, ""),
        (hang, 3, "0.2 s"),
    ],
    ids=["500", "400", "other JSON", "bytes", "truncated", "broken off", "hang"],
)
def test_an_outage_is_no_answer(server: Server, fault: Fault, tries: int, why: str) -> None:
    server.fault = fault
    settings = replace(QUICK, timeout_seconds=0.2) if fault is hang else QUICK
    with pytest.raises(InfrastructureError, match="endpoint") as raised:
        ask(engine_of(server, requests=settings), asked(1))
    assert why in str(raised.value)
    assert len(server.asked) == tries


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"finish_reason": "abort"}, "finish_reason"),
        ({"text": None}, "text"),
        ({"token_ids": ["A"]}, "token_ids"),
        ({"token_ids": [True]}, "token_ids"),
        ({"token_ids": "AB"}, "token_ids"),
        ({"token_ids": [65] * 25}, "25 tokens"),
        ({"token_ids": [], "finish_reason": "length"}, "tokens"),
        ({"prompt_token_ids": [65]}, "prompt"),
        ({"token_ids": None}, "ids"),
    ],
)
def test_a_reply_that_cannot_be_is_no_answer(server: Server, change: dict[str, Any], why: str) -> None:
    engine = engine_of(server)
    assert engine.check() == "server"
    server.change = change
    with pytest.raises(InfrastructureError) as raised:
        ask(engine, asked(0))
    assert why in str(raised.value)


def test_the_key_is_sent_and_shown_nowhere(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENDPOINT_KEY", "sesame-123")
    engine = engine_of(server, key_variable="ENDPOINT_KEY")
    ask(engine, asked(0))
    assert server.asked[0].headers["Authorization"] == "Bearer sesame-123"
    server.fault = status(401, b"sesame-123 is not a key")
    with pytest.raises(InfrastructureError, match=r"\*\*\* is not a key"):
        ask(engine, asked(0))
    monkeypatch.setenv("ENDPOINT_KEY", "")
    with pytest.raises(ConfigError, match="put it into the environment variable ENDPOINT_KEY"):
        engine_of(server, key_variable="ENDPOINT_KEY")


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("endpoint.model", {"model": None}),
        ("endpoint.tokenizer", {"tokenizer": None}),
        ("endpoint.key_variable", {"key_variable": "sk-123"}),
    ],
)
def test_settings_that_cannot_be_are_named(field: str, changes: dict[str, Any]) -> None:
    assert SETTINGS.problems("http://host/v1", replace(SAMPLING, top_k=20)) == []
    (problem,) = replace(SETTINGS, **changes).problems("http://host/v1", SAMPLING)
    assert field in problem
    assert "sk-123" not in problem


def test_an_address_with_a_secret_and_a_setting_that_the_dialect_lacks_are_named() -> None:
    assert "checkpoint" in SETTINGS.problems("http://me:secret@host/v1", SAMPLING)[0]
    openai = replace(SETTINGS, dialect="openai")
    assert "decoding.top_k" in openai.problems("http://host/v1", replace(SAMPLING, top_k=20))[0]
