"""TextWorld: what is a command, how games end, and what becomes of an interpreter that ends."""

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import pytest
from byte_tokenizer import byte_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from small_models import SMOLLM2, small_model
from textworld_games import FAMILIES, file_of, game, needs_textworld

from experiments import minimal
from rtpo.core.files import sha256
from rtpo.envs.textworld import making
from rtpo.envs.textworld.env import NO_COMMAND, VERBS, TextWorldEnv, TextWorldSettings, command_of
from rtpo.envs.textworld.games import SPLITS, Family, GameRow, first_seed, read_games, write_games
from rtpo.envs.textworld.interpreter import Interpreters, interpreters
from rtpo.envs.textworld.interpreter_child import Player
from rtpo.envs.textworld.making import make_games
from rtpo.errors import DataError, InfrastructureError
from rtpo.types import Feedback, Grade, StopReason, Task

SETTINGS = TextWorldSettings(interpreters=1)
KINDS = sorted(FAMILIES)


async def played(task: Task, commands: Sequence[str]) -> tuple[list[Feedback], Grade]:
    env = TextWorldEnv(SETTINGS)
    await env.reset(task)
    answers = [await env.step(f"<think>so</think>{command}", StopReason.STOP) for command in commands]
    return answers, await env.grade()


@given(st.text("abc .,;\n>", max_size=12), st.sampled_from(sorted(VERBS)), st.sampled_from(list(StopReason)))
def test_a_command_is_one_line_that_begins_with_a_verb_of_the_game(rest: str, verb: str, stop: StopReason) -> None:
    command = command_of(f"<think>{rest}</think>\n\n{verb} {rest}", stop)
    assert command == NO_COMMAND or (stop is StopReason.STOP and command.split()[0] == verb)
    assert not set(command) & set(".\n,;>")


@pytest.mark.parametrize(
    ("reply", "command"),
    [
        ("Take Key.", "take key"),
        ("<think>go west</think>go east", "go east"),
        ("go east then go west", NO_COMMAND),
        ("restart", NO_COMMAND),
        ("<think>go east", NO_COMMAND),
        ("take " + "x" * 200, NO_COMMAND),
    ],
)
def test_what_is_no_command_of_the_game_is_not_sent(reply: str, command: str) -> None:
    assert command_of(reply, StopReason.STOP) == command


@needs_textworld
@pytest.mark.parametrize("kind", KINDS)
def test_the_walkthrough_wins_and_nothing_else_is_paid(kind: str) -> None:
    task = game(kind)
    answers, grade = asyncio.run(played(task, task.answer))
    assert (answers[-1].done, grade.reward) == (True, 1)
    answers, grade = asyncio.run(played(task, [*task.answer[:-1], "hello", "look"]))
    assert (answers[-1].done, grade.reward) == (False, 0)
    said = [message.content for answer in answers for message in answer.messages]
    assert all(text and text == text.strip() and "=-0/" not in text and "$$" not in text for text in said)
    assert "beg your pardon" in said[-2]
    assert said[-1].startswith("-= ")


@needs_textworld
def test_the_opening_is_the_goal_and_the_room() -> None:
    task = game("quests")
    opening = asyncio.run(TextWorldEnv(SETTINGS).reset(task))
    text = opening.messages[-1].content
    assert text.startswith(f"{task.question}\n-= ")
    assert "$$" not in text
    assert not text.endswith(">")


@needs_textworld
def test_taking_the_wrong_treasure_loses() -> None:
    task = game("treasure")
    infos = json.loads(Path(task.meta["game"]).with_suffix(".json").read_text())["infos"]
    objects = {info["name"] for _, info in infos if info["type"] not in ("P", "I", "r", "d") and info["name"]}
    (wrong,) = (name for name in objects if name not in task.answer[-1])

    async def search(commands: tuple[str, ...]) -> Grade | None:
        """The grade of the first walk within these rooms that ends with the wrong object."""
        answers, _ = await played(task, commands)
        if f"{wrong} " in " ".join(message.content for message in answers[-1].messages):
            taken, grade = await played(task, [*commands, f"take {wrong}"])
            assert taken[-1].done
            return grade
        return None

    walks = [("look",), *((a,) for a in GO), *((a, b) for a in GO for b in GO)]
    walks += [(a, b, c) for a in GO for b in GO for c in GO]
    grades = (asyncio.run(search(walk)) for walk in walks)
    lost = next(grade for grade in grades if grade is not None)
    assert (lost.reward, lost.detail) == (0, "lost")


GO = ("go north", "go east", "go south", "go west")


@needs_textworld
def test_states_that_are_remembered_answer_as_the_whole_game_played_again() -> None:
    task, other, whole = game("quests"), game("treasure"), Player()
    commands = ("look", "take", "inventory", "go", "examine", *task.answer[:-1], "look")
    remembering = Player()
    for number in range(1, len(commands) + 1):
        remembering.answer(other.meta["game"], ("look",) * (number % 3))
        played_again = list(whole.replay(task.meta["game"], commands[:number]))
        assert remembering.answer(task.meta["game"], commands[:number]) == played_again[-1]


@needs_textworld
def test_a_killed_interpreter_is_an_infrastructure_error_and_the_next_call_has_another() -> None:
    task, pool = game("quests"), Interpreters(1)

    async def check() -> None:
        env = TextWorldEnv(SETTINGS)
        env._interpreters = pool
        await env.reset(task)
        before = env.snapshot()
        (pid,) = pool.pids
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(InfrastructureError, match="ended"):
            await env.step(task.answer[0], StopReason.STOP)
        assert env.snapshot() == before
        for command in task.answer:
            await env.step(command, StopReason.STOP)
        assert (await env.grade()).reward == 1

    asyncio.run(check())
    pool.close()


@needs_textworld
def test_many_episodes_at_once_do_not_mix() -> None:
    tasks = [game(kind) for kind in KINDS for _ in range(16)]

    async def all_at_once() -> list[tuple[list[Feedback], Grade]]:
        return list(await asyncio.gather(*(played(task, ["look", *task.answer]) for task in tasks)))

    played_together = asyncio.run(all_at_once())
    assert [grade.reward for _, grade in played_together] == [1.0] * len(tasks)
    assert len({answers[0].messages for answers, _ in played_together}) == 2


@needs_textworld
def test_games_made_again_are_the_same_and_a_stop_loses_none(tmp_path: Path) -> None:
    family = FAMILIES["quests"]
    make_games(tmp_path, family, {"train": 1})
    (task,) = read_games(tmp_path / "train.jsonl")
    assert task == replace(game("quests"), meta=task.meta)
    file = Path(task.meta["game"])
    before = file.stat().st_mtime_ns
    make_games(tmp_path, family, {"train": 1})
    assert file.stat().st_mtime_ns == before
    make_games(tmp_path, family, {"train": 0})
    assert read_games(tmp_path / "train.jsonl") == [task]  # a file does not lose games
    with pytest.raises(DataError, match="other settings"):
        make_games(tmp_path, replace(family, objects=5), {"train": 1})
    for damage in (lambda: file.write_bytes(file.read_bytes()[:-1]), file.unlink):
        damage()
        with pytest.raises(DataError, match=r"damaged|cannot be read"):
            read_games(tmp_path / "train.jsonl")
        make_games(tmp_path, family, {"train": 1})
        assert read_games(tmp_path / "train.jsonl") == [task]


@needs_textworld
def test_no_two_splits_of_a_folder_share_a_game(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call leaves repeated games out; a later one refuses them, so that every machine has the same games."""
    (tmp_path / "story").write_text("")
    same = sha256(tmp_path / "story")
    drawn = {"held_out": "abac", "validation": "dbe", "train": "aefg"}  # texts, by seed

    def games_of(_folder: Path, _family: Family, split: str) -> Iterator[GameRow]:
        rows = enumerate(drawn[split])
        return (GameRow(f"quests/{split}{n}", "story", "goal", ("go",), same, text) for n, text in rows)

    def texts() -> dict[str, list[str]]:
        files = tmp_path.glob("*.jsonl")
        return {file.stem: [json.loads(line)["texts"] for line in file.read_text().splitlines()] for file in files}

    monkeypatch.setattr(making, "_games", games_of)
    make_games(tmp_path, FAMILIES["quests"], dict.fromkeys(drawn, 2))
    assert texts() == {"held_out": ["a", "b"], "validation": ["d", "e"], "train": ["f", "g"]}
    with pytest.raises(DataError, match="held_out"):
        make_games(tmp_path, FAMILIES["quests"], {"train": 2})
    monkeypatch.setattr(making, "MOST_REPEATS", 3)
    drawn["validation"] = "hhhhh"
    with pytest.raises(DataError, match="repeated"):
        make_games(tmp_path, FAMILIES["quests"], {"validation": 3})
    drawn["train"] = "hfg"
    make_games(tmp_path, FAMILIES["quests"], {"train": 2})
    assert texts()["train"] == ["h", "f"]


@needs_textworld
def test_a_family_that_gives_no_game_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "MOST_FAILURES", 3)
    with pytest.raises(DataError, match=r"length=\(5, 5\)"):
        make_games(tmp_path, Family("treasure", (2, 2), 4, (5, 5)), {"train": 1})


def test_seeds_of_splits_never_meet_and_a_file_of_games_names_what_is_wrong(tmp_path: Path) -> None:
    seeds = sorted(map(first_seed, SPLITS))
    assert min(after - before for before, after in pairwise(seeds)) >= 1_000_000
    with pytest.raises(DataError, match=r"prepare_data\.py TASK"):
        read_games(tmp_path / "train.jsonl")
    (tmp_path / "a.z8").write_bytes(b"story")
    row = GameRow("quests/1", "a.z8", "Eat.", ("eat pear",), sha256(tmp_path / "a.z8"), "texts")
    write_games(tmp_path / "train.jsonl", [row])
    assert read_games(tmp_path / "train.jsonl")[0].answer == ("eat pear",)
    (tmp_path / "train.jsonl").write_text(json.dumps(asdict(replace(row, game="b.z8"))) + "\n")
    with pytest.raises(DataError, match=r"line 1.*b\.z8"):
        read_games(tmp_path / "train.jsonl")
    for field, damaged in (("walkthrough", "eat pear"), ("walkthrough", []), ("walkthrough", [3]), ("texts", None)):
        (tmp_path / "train.jsonl").write_text(json.dumps(asdict(row) | {field: damaged}) + "\n")
        with pytest.raises(DataError, match=field):
            read_games(tmp_path / "train.jsonl")
    assert Family("quests", (3, 1)).problems("games") == ["games.rooms is (3, 1): give the least first."]
    assert Family("treasure", (1, 2)).problems("games")
    assert not Family("treasure", (2, 2)).problems("games")


def test_one_pool_serves_a_process() -> None:
    assert interpreters(1) is interpreters(1)


@needs_textworld
def test_minimal_trains_a_language_model_on_the_games_of_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = file_of("quests", 0)
    shutil.copytree(source.parent, tmp_path / "quests")
    shutil.copy(source, tmp_path / "quests" / "held_out.jsonl")
    small_model(byte_tokenizer(), tmp_path / "model", **SMOLLM2)
    own = ["--model", str(tmp_path / "model"), "--env", "textworld", "--data", str(tmp_path / "quests")]
    minimal.main([*own, "--rollouts", "1"])
    first, step, last = capsys.readouterr().out.splitlines()
    assert first.startswith("before, mean reward on 1 held-out tasks")
    assert int(step.split()[0]) > 2
    assert last.startswith("after,")
    with pytest.raises(DataError, match=r"prepare_data.py TASK makes it"):
        minimal.main([*own[:-1], str(tmp_path)])
