"""What holds for the toy tasks: their problems, their grades, and the models that are warm-started on them."""

import json
from dataclasses import asdict, astuple, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import compose_config
from episodes_played import play
from scripted import episodes, in_turn
from transformers import Qwen3ForCausalLM

from experiments.maintenance.warm_start import why_weak
from rtpo.core.chat import ChatFormat
from rtpo.core.files import sha256
from rtpo.core.splits import draw_tasks, split_of
from rtpo.envs.registry import make_env
from rtpo.envs.toy import keys, knowledge, math, walk
from rtpo.envs.toy.env import WITHOUT_LUCK
from rtpo.errors import ConfigError
from rtpo.harness.episodes import Plan
from rtpo.toy import warm_start
from rtpo.toy.recipes import recipes
from rtpo.toy.record import read_record
from rtpo.toy.tokenizer import build_tokenizer
from rtpo.toy.warm_start import SHIPPED
from rtpo.types import Feedback, Grade, Message, Role, RolloutContext, Task, ToolOutcome, ToolUse


@dataclass(frozen=True)
class Toy:
    """calls: those that lead to the answer, in order, and what the tool says to each."""

    name: str
    module: Any
    question: str
    answer: str
    wrong: str
    tool: str = ""
    calls: dict[str, str] = field(default_factory=dict)
    malformed: tuple[str, ...] = ()


TOYS = [
    Toy(
        *("toy_math", math, " compute 12 + 5 * 3", "27", "3"),
        *("calculator", {" 5 * 3": " 15", " 12 + 15": " 27"}),
        (" 12 + 5 * 3", " 5* 3", "", " 5 * 3</tool_call><tool_call> 5 * 3"),
    ),
    # the first two searches meet a distractor: another entity's boss, and another relation of e36
    Toy(
        *("toy_knowledge", knowledge, " find e53 boss rival friend from 37", "e30", "e3", "search"),
        {
            **{" search e53 boss": " e40 boss e13", " search  e53 boss": " e53 boss e36"},
            **{" search e36 rival": " e36 friend e52", " search  e36 rival": " e36 rival e17"},
            " search e17 friend": " e17 friend e30",
        },
        (" search e53", " search boss e53", " search e60 boss"),
    ),
]
WALK = Toy("toy_walk", walk, " start e3 from 37 12", answer="", wrong="")
KEYS = Toy("toy_keys", keys, " start e3 left boss right teacher from 37 12", answer="", wrong="")
every = pytest.mark.parametrize("toy", [*TOYS, WALK, KEYS], ids=lambda toy: toy.name)
both = pytest.mark.parametrize("toy", TOYS, ids=lambda toy: toy.name)


@every
def test_splits_are_disjoint_hold_no_problem_twice_and_depend_on_the_seed_alone(toy: Toy) -> None:
    count = 400 if toy is WALK else 100  # of the walk's few problems some are drawn twice
    splits = {split: toy.module.problems(split, count, 3) for split in ("train", "validation", "held_out")}
    assert len({task.question for tasks in splits.values() for task in tasks}) == 3 * count
    for split, tasks in splits.items():
        for task in tasks:
            problem = toy.module.parse_question(task.question)
            assert split_of(problem.key) == split
            assert task == Task(f"{toy.name}/{split}/{problem.key}", problem.question, problem.answer)
    assert toy.module.problems("train", 20, 3) == splits["train"][:20] != toy.module.problems("train", 20, 2)


def test_more_problems_than_a_split_has_are_refused() -> None:
    numbers = iter(range(10**6))
    with pytest.raises(ConfigError, match="count is 9"):
        draw_tasks("train", 9, lambda _: Task(str(next(numbers) % 8), "?", ""), lambda _: "a problem in training")


@both
def test_a_final_reply_is_graded_by_its_last_box_after_thinking(toy: Toy) -> None:
    right = f"\\boxed{{ {toy.answer}}}"
    for reply, reward in {
        f"<think> so answer {toy.answer}</think> answer{right}": 1.0,
        f"{right} then\\boxed{{ {toy.wrong}}}": 0.0,
        f"\\boxed{{ {toy.answer} {toy.answer}}}": 0.0,
        f"<think>{right}</think> answer": 0.0,
    }.items():
        feedback, grade = episode(toy, reply)
        assert (feedback, grade.reward) == ([Feedback((), True)], reward)


def episode(toy: Toy, *replies: str) -> tuple[list[Feedback], Grade]:
    task = Task("t", toy.question, toy.module.parse_question(toy.question).answer)
    return play(make_env(toy.name, WITHOUT_LUCK, 6), task, *replies)


@both
def test_calls_are_answered_until_the_answer_and_malformed_ones_with_an_error(toy: Toy) -> None:
    calls = [f"<think> so</think><tool_call>{call}</tool_call>" for call in toy.calls]
    feedback, grade = episode(toy, *calls, f"\\boxed{{ {toy.answer}}}")
    ok = ToolUse(toy.tool, ToolOutcome.OK)
    told = [Feedback((Message("tool", said),), False, (ok,)) for said in toy.calls.values()]
    assert (feedback, grade.reward) == ([*told, Feedback((), True)], 1.0)
    error = Feedback((Message("tool", " error"),), False, (ToolUse("", ToolOutcome.MALFORMED),))
    for malformed in (*(f"<tool_call>{call}</tool_call>" for call in toy.malformed), "<tool_call> 5 * 3"):
        feedback, grade = episode(toy, malformed, calls[0])
        assert (feedback, grade.reward) == ([error, told[0]], 0.0)


@pytest.mark.parametrize("shipped", sorted(SHIPPED.glob("warm_start_*")), ids=lambda folder: folder.name)
def test_a_shipped_checkpoint_is_the_one_recorded(shipped: Path, tmp_path: Path) -> None:
    first, record = SHIPPED / "warm_start_math", json.loads((shipped / "warm_start.json").read_text())
    name = shipped.name.removeprefix("warm_start_")
    seed = int(name[-1]) if name[-1].isdigit() else 0
    recipe = recipes()[name.removesuffix(f"_{seed}")]
    files = {path.name for path in shipped.iterdir()} - {"warm_start.json"}
    assert record["sha256"] == {name: sha256(shipped / name) for name in files}
    assert sum(path.stat().st_size for path in shipped.iterdir()) < 1_000_000
    assert record["settings"] == asdict(replace(recipe.settings, seed=seed))
    assert not why_weak(read_record(shipped))
    build_tokenizer(recipe.words).save_pretrained(tmp_path)
    for name, folder in (("tokenizer.json", tmp_path), ("chat_template.jinja", tmp_path), ("config.json", first)):
        assert (shipped / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.parametrize("mode", ["strip_think", "full"])
@pytest.mark.parametrize("name", recipes())
def test_samples_have_the_contexts_of_rollouts(name: str, mode: RolloutContext) -> None:
    """A demonstration's replies, played as an episode, have its grade and the contexts of its samples."""
    recipe = recipes()[name]
    tokenizer = build_tokenizer(recipe.words)
    limits = asdict(compose_config(f"task={recipe.settings.task}").task.limits)
    world = {"make_env": partial(warm_start.default_env, recipe), "rollout_context": mode, **limits}
    tasks, shown = warm_start.problems(recipe, "train", 20), warm_start.demonstrations(recipe, 20)
    for task, demonstration in zip(tasks, shown, strict=True):
        script = in_turn(*(turn.reply.removesuffix("<|im_end|>") for turn in demonstration.turns))
        (rollout,) = episodes(script, [Plan("t", task, Role.EVAL)], **world)
        assert rollout.grade == demonstration.grade
        samples = warm_start.turn_samples(demonstration, tokenizer, ChatFormat(tokenizer), mode)
        for turn, sample in zip(rollout.turns, samples, strict=True):
            assert np.array_equal(turn.context_ids, sample.ids[: sample.context_length])
            assert np.array_equal(turn.output_ids, sample.ids[sample.context_length :])


def test_where_the_return_is_decided_is_measured_by_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_start.variance, "PROBLEMS", 4)
    recipe, folder = recipes()["keys"], SHIPPED / "warm_start_keys"
    model = Qwen3ForCausalLM.from_pretrained(folder)
    (measured,) = warm_start.measure_turns(model, build_tokenizer(recipe.words), recipe).values()
    assert (measured.problems, measured.left[0], measured.reached[0]) == (4, 1.0, 1.0)
    assert {len(values) for values in astuple(measured) if isinstance(values, list)} == {keys.MAX_TURNS}
    assert list(measured.reached) == sorted(measured.reached, reverse=True)
