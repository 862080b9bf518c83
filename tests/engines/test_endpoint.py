"""The endpoint as an engine, against a real server with a real model behind it, and one that fails."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from byte_model import build_model
from byte_tokenizer import byte_tokenizer
from completion_server import Server, status

from rtpo.core.http_client import RequestSettings
from rtpo.engines.base import Generation, Request, Sampling
from rtpo.engines.endpoint import EndpointEngine, EndpointSettings
from rtpo.errors import InfrastructureError, MachineError
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


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(MODEL, TOKENIZER) as server:
        yield server


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
    answers, expected = ask(engine, *requests), ask(local_engine(MODEL, STOP), *requests)
    for answer, other in zip(answers, expected, strict=True):
        assert answer.output_ids.tolist() == other.output_ids.tolist()
        assert answer.stop is other.stop
        assert np.isnan(answer.logprobs).all()
        assert len(answer.logprobs) == len(answer.output_ids)
    assert {answer.stop for answer in answers} == {StopReason.STOP, StopReason.LENGTH}


def test_the_request_says_how_to_draw_and_where_to_stop(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(engine_of(server), asked(2**40 + 5, Sampling(0.6, 0.95, 20, max_tokens=3)))
    (sent,) = server.asked
    assert sent.path == "/v1/completions"
    assert "Authorization" not in sent.headers
    drawn = {"max_tokens": 3, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "seed": (2**40 + 5) % 2**31}
    ends = {"ignore_eos": True, "stop_token_ids": [STOP], "skip_special_tokens": False, "return_token_ids": True}
    assert sent.body == {"model": "bytes", "prompt": CONTEXT.tolist()} | drawn | ends
    monkeypatch.setenv("ENDPOINT_KEY", "sesame-123")
    ask(engine_of(server, dialect="openai", key_variable="ENDPOINT_KEY"), asked(5))
    assert server.asked[1].headers["Authorization"] == "Bearer sesame-123"
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


def test_a_turn_ended_as_its_ids_and_the_reason_say(server: Server) -> None:
    for sent, reason, ids, stop in (
        ([65, 5000], "length", [65, 5000], "length"),
        ([], "stop", [STOP], "stop"),
        ([65, STOP], "length", [65, STOP], "stop"),
        ([65, STOP, 66], "length", [65, STOP], "stop"),
    ):
        server.change = {"token_ids": sent, "finish_reason": reason}
        (generation,) = ask(engine_of(server), asked(0))
        assert (generation.output_ids.tolist(), generation.stop) == (ids, StopReason(stop))


def test_an_outage_is_no_answer(server: Server) -> None:
    """What is tried again, and how long for, is tested of the same client in tests/tools/test_search_servers.py."""
    for code, tries in ((500, 3), (400, 1)):
        server.asked.clear()
        server.fault = status(code, b"no room")
        with pytest.raises(InfrastructureError, match=f"the endpoint of bytes cannot be used: .*{code}"):
            ask(engine_of(server), asked(1))
        assert len(server.asked) == tries


@pytest.mark.parametrize(
    ("code", "dialect", "remedy"),
    [
        (404, "vllm", "chat/completions"),
        (400, "vllm", "endpoint.dialect=openai"),
        (422, "vllm", "endpoint.dialect=openai"),
        (400, "openai", "checkpoint or endpoint"),
    ],
)
def test_a_first_request_that_is_refused_has_a_remedy(server: Server, code: int, dialect: Any, remedy: str) -> None:
    server.fault = status(code, b"")
    with pytest.raises(MachineError) as caught:
        engine_of(server, dialect=dialect).check()
    assert f"status {code}. " in str(caught.value)
    assert remedy in str(caught.value)
    assert ("dialect" in str(caught.value)) == ("dialect" in remedy)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"finish_reason": "abort"}, "finish_reason"),
        ({"text": None}, "text"),
        ({"token_ids": ["A"]}, "token_ids"),
        ({"token_ids": [65] * 25}, "25 tokens"),
        ({"token_ids": [], "finish_reason": "length"}, "tokens"),
        ({"prompt_token_ids": [65]}, "prompt"),
        ({"token_ids": None}, "earlier"),
    ],
)
def test_a_faulty_reply_is_no_answer(server: Server, change: dict[str, Any], why: str) -> None:
    engine = engine_of(server)
    assert engine.check() == "server"
    server.change = change
    with pytest.raises(InfrastructureError, match=why):
        ask(engine, asked(0))


def test_a_wrong_setting_is_named() -> None:
    sampling = replace(SAMPLING, top_k=20)
    assert SETTINGS.problems("http://host/v1", sampling) == []
    assert "checkpoint" in SETTINGS.problems("http://me:secret@host/v1", sampling)[0]
    for name, value in {"model": None, "tokenizer": None, "key_variable": "sk-secret", "dialect": "openai"}.items():
        (problem,) = replace(SETTINGS, **{name: value}).problems("http://host/v1", sampling)
        assert ("decoding.top_k" if name == "dialect" else f"endpoint.{name}") in problem
        assert "secret" not in problem
