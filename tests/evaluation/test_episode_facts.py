"""What is recorded of a sample: its answer, calls, end and scores."""

import numpy as np
import pytest
from byte_tokenizer import byte_tokenizer

from rtpo.core.chat import ChatFormat
from rtpo.engines.base import Generation, Request, Sampling
from rtpo.envs.math import MathEnv, MathSettings
from rtpo.evaluation.panel import episode_facts, qa_scores
from rtpo.harness.episodes import EpisodeLimits, EpisodeWorld, Plan, run_episodes
from rtpo.tools.protocol import render_call
from rtpo.types import Role, Rollout, StopReason, Task, as_ids

BYTES = ChatFormat(byte_tokenizer())


class Replies:
    """An engine that says what it is told, by turn, in bytes; a reply that ends in ✂ meets its limit."""

    def __init__(self, *replies: str) -> None:
        self._replies = iter(replies)
        self._tokenizer = byte_tokenizer()

    async def generate(self, request: Request) -> Generation:
        text = next(self._replies)
        stop = StopReason.LENGTH if text.endswith("✂") else StopReason.STOP
        text = text.removesuffix("✂") + ("" if stop is StopReason.LENGTH else "<|im_end|>")
        ids = as_ids(self._tokenizer.encode(text, add_special_tokens=False))
        return Generation(ids, np.zeros(len(ids), np.float32), 0, stop, None)


def played(task: Task, *replies: str, max_turns: int = 4) -> Rollout:
    def make_env() -> MathEnv:
        return MathEnv(MathSettings(calls_per_reply=2), 4)

    limits = EpisodeLimits(max_turns, 8192, 4096, 32768)
    world = EpisodeWorld(Replies(*replies), BYTES, make_env, limits, "strip_think", 0)
    (rollout,) = run_episodes(world, [Plan("p", task, Role.EVAL)], Sampling(), on_retry=print)
    return rollout


def python(code: str) -> str:
    return render_call("python", {"code": code})


@pytest.mark.needs("bwrap")
def test_a_sample_is_recorded_with_its_answer_calls_and_end() -> None:
    rollout = played(
        Task("t", "1/2 + 1/4?", ("\\frac{3}{4}", "14")),
        f"<think>\n140 or 1.14\n</think>\n\nFirst.\n{python('1/2')}{python('1/')}{python('3')}",
        "<tool_call>\nnonsense\n</tool_call>" + render_call("search", {"query": "x"}),
        "<think>" + "x" * 50 + "✂",
        "<think>\n\\boxed{1}\n</think>\n\nSo \\boxed{0.75}.",
    )
    assert episode_facts(rollout, BYTES, is_qa=False) == {
        "answer": "\n\nSo \\boxed{0.75}.",
        "extracted": "0.75",
        "grade": "graded",
        "reward": 1.0,
        "detail": rollout.grade.detail,
        "qa": None,
        "termination": "answered",
        "turns": 4,
        "cut_turns": 1,
        "generated_tokens": sum(len(turn.output_ids) for turn in rollout.turns),
        "calls": {
            "python": {"attempted": 3, "executed": 2, "ok": 1, "failed": 1},
            "none": {"attempted": 2, "executed": 0, "ok": 0, "failed": 2},
        },
        "audit": {"repeated": 0, "programs": 3, "valid_programs": 2, "answer_first": False},
    }
    called = f"<think>\nit is 1.\n</think>\n\n{python('1')}"
    facts = episode_facts(played(Task("t", "?", ("1",)), called, called, max_turns=2), BYTES, is_qa=True)
    assert (facts["answer"], facts["extracted"], facts["reward"], facts["termination"]) == (None, None, 0, "turn_limit")
    assert facts["qa"] == {"em": 0.0, "f1": 0.0, "span_f1": 0.0, "answer_hit": 0.0, "output_hit": 1.0}
    assert facts["audit"] == {"repeated": 1, "programs": 2, "valid_programs": 2, "answer_first": True}
    rollout = played(Task("t", "?", ("7",)), f"<think>so</think>7{python('1')}<think>and 22✂", "\\boxed{7}")
    assert episode_facts(rollout, BYTES, is_qa=False)["audit"]["answer_first"] is False


def test_short_answers_have_their_scores() -> None:
    """Of what was boxed, of the final reply's text, and of all that was written, thinking too."""
    task, said = Task("t", "Which sea?", ("The Aral Sea", "Aral")), "It is \\boxed{the sea of Aral}."
    # sea of aral: 2 tokens in common of 3 and 2, one of 3 and 1; in the text the span "aral" is an alias
    scores = {"em": 0.0, "f1": 0.8, "span_f1": 1.0, "answer_hit": 1.0, "output_hit": 1.0}
    assert qa_scores(task, "the sea of Aral", said, ["The Caspian?", said]) == scores
    scores = qa_scores(task, "Rome", "\\boxed{Rome}", ["<think>Aral?</think>", "\\boxed{Rome}"])
    assert scores == {"em": 0.0, "f1": 0.0, "span_f1": 0.0, "answer_hit": 0.0, "output_hit": 1.0}
    assert qa_scores(Task("t", "?", ("",)), "x", "x", ["x"]) is None
