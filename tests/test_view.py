"""The page of a question's rollouts: what it shows of real runs, what it refuses, and that text stays text."""

import functools
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import compose_config
from crashing import run
from transformers import AutoTokenizer

from analysis.view.__main__ import main, view
from analysis.view.page import visible
from analysis.view.records import load_source
from analysis.view.text import TextReader, pieces
from experiments.maintenance.pack import pack
from rtpo.core.chat import ChatFormat
from rtpo.harness.harness import Trained
from rtpo.run.config import PROJECT
from rtpo.run.run import sample_line
from rtpo.toy.byte_model import byte_tokenizer
from rtpo.types import (
    Grade,
    GradeOutcome,
    Role,
    Rollout,
    Snapshot,
    StopReason,
    Task,
    Termination,
    ToolOutcome,
    ToolUse,
    Turn,
    as_ids,
)

SMALL = ("deterministic=true", "task.held_out.count=2", "task.train.count=24", "budget.tasks_per_step=2")
RUNS = {
    "rtpo": ("algorithm=rtpo", "algorithm.trunks=2", "budget.rollouts=60", "samples_per_rollout=2"),
    "grpo": ("algorithm=grpo", "algorithm.chains=4", "budget.rollouts=24"),
    "arpo": ("algorithm=arpo", "algorithm.paths=6", "algorithm.roots=2", "budget.rollouts=24"),
}
BYTES = ChatFormat(byte_tokenizer())
MARK = "data-hostile"
HOSTILE = (
    f"<script>document.documentElement.setAttribute('{MARK}', 1); document.title = 'ran'</script>",
    f"<img src=x onerror=\"document.documentElement.setAttribute('{MARK}', 1)\">",
    "</script></style></title></textarea></pre></details><!-- --> ]]> -->",
    "<svg/onload=alert(1)><a href='javascript:alert(1)'>\"' onmouseover='alert(1)",
    "\u2028\u2029\u202e\u0000\r\x1b[31m &lt;b&gt; &#60; é 日",
)
BREAK_OUT = HOSTILE[0] + HOSTILE[2]


# a page as a tree


@dataclass
class Node:
    tag: str
    attributes: dict[str, str | None]
    parent: "Node | None" = None
    children: "list[Node | str]" = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    @property
    def classes(self) -> list[str]:
        return (self.attributes.get("class") or "").split()

    def all(self, tag: str, *classes: str) -> "list[Node]":
        """Those below it, in order."""
        found: list[Node] = []
        for child in self.children:
            if isinstance(child, Node):
                found += [child] if child.tag == tag and set(classes) <= set(child.classes) else []
                found += child.all(tag, *classes)
        return found

    def own(self, tag: str, *classes: str) -> "list[Node]":
        """Its children."""
        return [c for c in self.children if isinstance(c, Node) and c.tag == tag and set(classes) <= set(c.classes)]

    def above(self) -> "Iterator[Node]":
        if self.parent is not None:
            yield self.parent
            yield from self.parent.above()


class Parsed(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.root = self._at = Node("", {})
        self.feed(html)
        self.close()
        assert self._at is self.root

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, dict(attrs), self._at)
        self._at.children.append(node)
        if tag != "meta":
            self._at = node

    def handle_endtag(self, tag: str) -> None:
        assert self._at.tag == tag
        assert self._at.parent is not None
        self._at = self._at.parent

    def handle_data(self, data: str) -> None:
        self._at.children.append(data)


def parse(html: str) -> Node:
    return Parsed(html).root


def path_of(page: Node, uid: str) -> Node:
    (found,) = [p for p in page.all("details", "path") if p.own("summary")[0].own("strong")[0].text.split()[1] == uid]
    return found


def turns_of(path: Node) -> list[tuple[str, Node]]:
    """The heading and the reply of each turn that a path sampled itself."""
    headings = [h.text for h in path.own("h5") if h.text.startswith("u_")]
    return list(zip(headings, path.own("div", "reply"), strict=True))


# real runs


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("view")
    for settings in RUNS.values():
        assert run(compose_config(*SMALL, *settings, f"results={folder}")) == 0
    return folder / "default"


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rollouts.jsonl").read_text().splitlines()]


def page_of(*folders: Path, step: int | None = None, question: str | None = None, trees: int = 20) -> Node:
    return parse(view([load_source(folder) for folder in folders], step, question, ids=False, trees=trees))


def question_of(page: Node) -> str:
    return page.all("h1")[0].text.removeprefix("Rollouts of ")


@pytest.fixture(scope="module")
def rtpo(results: Path) -> Path:
    return results / "rtpo-seed0"


def test_a_run_keeps_whole_trees_and_what_was_trained(rtpo: Path) -> None:
    lines = records(rtpo)
    steps = [json.loads(line) for line in (rtpo / "steps.jsonl").read_text().splitlines()]
    assert len({line["step"] for line in lines}) == len(steps) > 1
    for step in steps:
        here = {line["rollout"]: line for line in lines if line["step"] == step["step"]}
        trunks = [line for line in here.values() if line["role"] == "trunk"]
        assert len(trunks) == 2
        for trunk in trunks:
            assert trunk["trained"] == []
            for turn in trunk["turns"]:
                k = turn["k"]
                siblings = [s for s in here.values() if (s["parent"], s["start_k"]) == (trunk["rollout"], k)]
                assert len(siblings) == 2
                mean = sum(s["reward"] for s in siblings) / 2
                for sibling in siblings:
                    (trained,) = sibling["trained"]
                    assert (trained["k"], trained["group"]) == (k, f"{trunk['rollout']}/{k}")
                    assert trained["advantage"] == sibling["reward"] - mean
                    assert step["updates"][trained["update"]]["trained_turns"] == [k]
                    assert sibling["turns"][0]["context_ids"] == turn["context_ids"]
        assert len(here) == 2 + sum(2 * len(trunk["turns"]) for trunk in trunks)
    for line in lines:
        for turn, later in zip(line["turns"], [*line["turns"][1:], None], strict=True):
            assert len(turn["logprobs"]) == len(turn["output_ids"])
            assert all(one <= 0 and one == round(one, 4) for one in turn["logprobs"])
            end = turn["feedback_ids"]
            assert (later["context_ids"][-len(end) :] == end) if later else end == []


def test_the_page_shows_the_tree_with_advantages_and_what_was_trained(rtpo: Path) -> None:
    lines = records(rtpo)
    chosen = next(line for line in lines if any(one["advantage"] for one in line["trained"]))
    page = page_of(rtpo, step=chosen["step"], question=chosen["task"])
    assert question_of(page) == chosen["task"]
    tree = [line for line in lines if (line["step"], line["task"]) == (chosen["step"], chosen["task"])]
    assert len(page.all("details", "path")) == len(tree)
    decode = ChatFormat(AutoTokenizer.from_pretrained(PROJECT / "rtpo" / "toy" / "warm_start_math")).decode
    for line in tree:
        path = path_of(page, line["rollout"])
        summary = path.own("summary")[0].text
        assert f"reward {line['reward']:g}" in summary
        assert line["termination"] in summary
        unequal = any(one["advantage"] for one in line["trained"])
        assert ("open" in path.attributes) == (line["role"] == "trunk" or unequal)
        if line["parent"]:
            advantage = line["trained"][0]["advantage"]
            shown = f"{advantage:+.3f}".replace("-", "−") if advantage else "0"
            assert f"A {shown}{line['termination']}" in summary
            forked = path.parent
            assert forked is not None
            assert forked.own("h5")[0].text == f"Forked from S_{line['start_k']}: 2"
            assert forked.parent is path_of(page, line["parent"])
        else:
            assert "not trained" in summary
        for turn, (heading, reply) in zip(line["turns"], turns_of(path), strict=True):
            trained = [one for one in line["trained"] if one["k"] == turn["k"]]
            assert ("trained" in reply.classes) == bool(trained)
            assert ("tied" in reply.classes) == bool(trained and not trained[0]["advantage"])
            assert ("not trained" in heading) == (not trained)
            assert f"policy v{turn['policy_version']}" in heading
            tokens = reply.all("span", "t")
            assert "".join(token.text for token in tokens) == decode(turn["output_ids"])
            for token, one, logprob in zip(tokens, turn["output_ids"], turn["logprobs"], strict=True):
                title = str(token.attributes["title"]).replace("−", "-")
                assert title.endswith(f"id {one}")
                assert float(title.split()[1]) == pytest.approx(logprob, abs=1e-9)
                shade = sum(np.exp(logprob) < limit for limit in (0.9, 0.5, 0.1, 0.01))
                assert f"p{shade}" in token.classes
            (thinking,) = reply.all("details", "thinking")
            assert "open" not in thinking.attributes
            assert "</think>" in thinking.text
        contexts = [c.own("div", "text")[0].text for c in path.own("details", "context")]
        skipped = 1 if line["parent"] else 0
        assert contexts == [decode(turn["context_ids"]) for turn in line["turns"][skipped:]]
        feedback = [part.text for part in path.own("div", "feedback")]
        assert feedback == [decode(turn["feedback_ids"]) for turn in line["turns"] if turn["feedback_ids"]]
        assert path.text.count("calculator, ok") >= sum(
            turn["calls"] == [["calculator", "ok"]] for turn in line["turns"]
        )
    (overview,) = page.all("table", "overview")
    anchors = {str(path.attributes["id"]) for path in page.all("details", "path")}
    assert {str(link.attributes["href"])[1:] for link in overview.all("a")} == anchors


def test_turns_that_other_paths_inherited_show_those_that_trained_them(results: Path) -> None:
    """In ARPO a path is sampled in pieces, and the last piece is trained as a whole."""
    lines = records(results / "arpo-seed0")
    chosen = next(line for line in lines if line["trained"])
    shown = [line for line in lines if (line["step"], line["task"]) == (chosen["step"], chosen["task"])]
    page = page_of(results / "arpo-seed0", step=chosen["step"], question=chosen["task"])
    by_uid = {line["rollout"]: line for line in shown}

    def owner(line: dict[str, Any], k: int) -> str:
        return str(line["rollout"]) if k >= line["start_k"] else owner(by_uid[line["parent"]], k)

    open_ended = [line for line in shown if line["termination"] == "open"]
    assert open_ended
    for line in shown:
        for turn, (heading, reply) in zip(line["turns"], turns_of(path_of(page, line["rollout"])), strict=True):
            trained = [
                (other["rollout"], one)
                for other in shown
                for one in other["trained"]
                if one["k"] == turn["k"] and owner(other, turn["k"]) == line["rollout"]
            ]
            assert heading.count("in update") == len(trained)
            assert all(uid in heading for uid, _ in trained if uid != line["rollout"])
            assert ("trained" in reply.classes) == bool(trained)
    assert all(line["trained"] == [] for line in open_ended)
    assert any(
        heading.count("as part of") > 1
        for line in open_ended
        for heading, _ in turns_of(path_of(page, line["rollout"]))
    )


def test_several_runs_stand_side_by_side_on_one_question(results: Path, rtpo: Path) -> None:
    question = records(rtpo)[0]["task"]
    page = page_of(rtpo, results / "grpo-seed0", step=1, question=question)
    one, other = page.all("section", "run")
    assert [column.all("h2")[0].text[:4] for column in (one, other)] == ["rtpo", "grpo"]
    assert len(one.all("details", "trunk")) == 2
    assert len(other.all("details", "chain")) == 4
    for column, folder in ((one, rtpo), (other, results / "grpo-seed0")):
        held = [line for line in records(folder) if line["task"] == question and line["step"] == 1]
        assert len(column.all("details", "path")) == len(held)
        contexts = {
            c.own("div", "text")[0].text for c in column.all("details", "context") if "c_0" in c.own("summary")[0].text
        }
        assert len(contexts) == 1
    ids = [node.attributes["id"] for node in page.all("details", "path")]
    assert len(set(ids)) == len(ids)


def test_the_page_opens_on_an_index_with_the_most_unequal_trees_first(rtpo: Path) -> None:
    lines = records(rtpo)
    rewards: dict[tuple[str, str], list[float]] = {}
    for line in lines:
        rewards.setdefault((line["task"], str(line["step"])), []).append(line["reward"])
    page = page_of(rtpo, trees=1)
    (index,) = page.all("table", "index")
    rows = [[cell.text for cell in row.all("td")] for row in index.all("tr")[1:]]
    assert {(row[0], row[1]) for row in rows} == set(rewards)
    spreads = [float(np.std(rewards[row[0], row[1]])) for row in rows]
    assert spreads == sorted(spreads, reverse=True)
    for row, spread in zip(rows, spreads, strict=True):
        held = [line for line in lines if (line["task"], str(line["step"])) == (row[0], row[1])]
        trained = [one["advantage"] for line in held for one in line["trained"]]
        mean = float(np.mean(rewards[row[0], row[1]]))
        assert row[2:5] == [str(len(held)), f"{mean:.3f}", f"{spread:.3f}"]
        assert row[5:] == [str(len(trained)), str(sum(one != 0 for one in trained))]
    trees = page.all("section", "tree")
    assert [str(link.attributes["href"])[1:] for link in index.all("a")] == [tree.attributes["id"] for tree in trees]
    assert len(trees) == 1 < len(rows)
    assert "the first 1 stand on this page" in index.all("caption")[0].text
    for tree, row in zip(trees, rows, strict=False):
        assert tree.own("h2")[0].text.startswith(row[0])
        assert len(tree.all("details", "path")) == int(row[2])


def test_of_several_folders_the_index_has_the_questions_of_all(results: Path, rtpo: Path) -> None:
    page = page_of(rtpo, results / "grpo-seed0")
    both = {line["task"] for line in records(rtpo)} & {line["task"] for line in records(results / "grpo-seed0")}
    (index,) = page.all("table", "index")
    assert {row.all("td")[0].text for row in index.all("tr")[2:]} == both
    assert all(len(tree.all("section", "run")) == 2 for tree in page.all("section", "tree"))
    ids = [node.attributes["id"] for node in page.all("details", "path")]
    assert len(set(ids)) == len(ids)


def test_a_step_can_be_asked_for(rtpo: Path) -> None:
    lines = records(rtpo)
    step = lines[-1]["step"]
    assert {question_of(page_of(rtpo, step=step))} == {line["task"] for line in lines if line["step"] == step}


# records of earlier versions, and without the model


def older(folder: Path, beside: Path) -> Path:
    """A run as an earlier version left it."""
    copied = beside / folder.name
    shutil.copytree(folder, copied)
    (copied / "manifest.json").unlink()
    lines = records(folder)
    for line in lines:
        del line["trained"]
        for turn in line["turns"]:
            del turn["logprobs"], turn["calls"], turn["feedback_ids"]
    (copied / "rollouts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return copied


def test_what_older_records_do_not_say_is_unknown(results: Path, rtpo: Path, tmp_path: Path) -> None:
    folders = [older(rtpo, tmp_path), older(results / "grpo-seed0", tmp_path)]
    page = page_of(*folders, step=1, question=records(rtpo)[0]["task"])
    one, other = page.all("section", "run")
    assert not page.all("div", "reply", "trained")
    for section in (one, other):
        for path in section.all("details", "path"):
            assert "A unknown" in path.own("summary")[0].text
            for heading, _ in turns_of(path):
                assert "log-prob unknown" in heading
                assert "trained: unknown" in heading
    assert "tool calls: unknown; f_0: unknown" in page.text


def test_ids_are_shown_on_request_alone(rtpo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    shutil.copytree(rtpo, folder)
    (folder / "manifest.json").unlink()
    config = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(config.replace("${project:}/rtpo/toy/warm_start_math", "/gone/model"))
    output = tmp_path / "page.html"
    assert main([str(folder), "--output", str(output)]) == 1
    said = capsys.readouterr().err
    assert "the tokenizer of /gone/model (model.path of the run's config.yaml) is needed" in said
    assert "--ids" in said
    assert not output.exists()
    assert main([str(folder), "--ids", "--output", str(output)]) == 0
    page = parse(output.read_text())
    line = records(folder)[0]
    reply = path_of(page, line["rollout"]).own("div", "reply")[0]
    assert reply.text.split() == [str(one) for one in line["turns"][0]["output_ids"]]


# what is refused, and what is damaged


@pytest.fixture
def copied(rtpo: Path, tmp_path: Path) -> Path:
    shutil.copytree(rtpo, tmp_path / "run")
    return tmp_path / "run"


def refusal(capsys: pytest.CaptureFixture[str], tmp_path: Path, *arguments: str | Path) -> str:
    assert main([*map(str, arguments), "--output", str(tmp_path / "page.html")]) == 1
    assert not (tmp_path / "page.html").exists()
    return capsys.readouterr().err


def test_what_cannot_be_shown_is_said_in_a_sentence(
    rtpo: Path, copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse = functools.partial(refusal, capsys, tmp_path)
    task = records(rtpo)[0]["task"]
    assert f"{rtpo.parent} is no run's folder: give that of one of its runs, " in refuse(rtpo.parent)
    assert f"has no rollouts of question nope: choose from {task}" in refuse(rtpo, "--question", "nope")
    assert "has no sampled rollouts of step 99: choose from 1, 2" in refuse(rtpo, "--step", "99")
    other = tmp_path / "other"
    shutil.copytree(copied, other)
    (other / "manifest.json").unlink()
    (other / "rollouts.jsonl").write_text((copied / "rollouts.jsonl").read_text().replace('"task": "', '"task": "x'))
    assert "no question is in all of the folders in step 2" in refuse(rtpo, other, "--step", "2")
    manifest = json.loads((copied / "manifest.json").read_text())
    (copied / "rollouts.jsonl").write_bytes((rtpo / "rollouts.jsonl").read_bytes().replace(b"0.5", b"0.6"))
    assert "rollouts.jsonl is not the file the run left: its sha256 differs" in refuse(copied)
    (copied / "manifest.json").write_text(json.dumps(manifest | {"schema": 0}))
    assert "has schema 0 and this version reads schema 1" in refuse(copied)
    (copied / "manifest.json").unlink()
    (copied / "rollouts.jsonl").write_text("")
    assert "has no rollouts: a run keeps some with samples_per_rollout=1" in refuse(copied)
    (copied / "rollouts.jsonl").write_text("{")
    assert "(1 damaged lines; the first: " in refuse(copied)
    (copied / "config.yaml").write_text("- a list")
    assert "is not a mapping" in refuse(copied)


def changed(line: str, **values: Any) -> str:
    return json.dumps(json.loads(line) | values)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda line: line[: len(line) // 2], "is damaged"),
        (lambda line: "7", "is damaged"),
        (lambda line: json.dumps({k: v for k, v in json.loads(line).items() if k != "turns"}), "lacks 'turns'"),
        (lambda line: line.replace('"logprobs": [', '"logprobs": [-0.5, ', 1), "output ids and"),
        (
            lambda line: line.replace('"logprobs": [', '"logprobs": [1e9, ', 1).replace(
                '"output_ids": [', '"output_ids": [1, ', 1
            ),
            "log-prob that is none",
        ),
        (lambda line: changed(line, reward="good"), "is damaged"),
        (lambda line: changed(line, rollout="0.0.0.0"), "repeats rollout 0.0.0.0 of step 1"),
    ],
)
def test_damaged_lines_are_named_counted_and_left_out(
    copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[str], str], said: str
) -> None:
    """In an unfinished run, whose last line may be half written."""
    (copied / "manifest.json").unlink()
    file = copied / "rollouts.jsonl"
    lines = file.read_text().splitlines()
    lines[2] = damage(lines[2])
    file.write_text("\n".join(lines))
    assert main([str(copied), "--step", "1", "--output", str(tmp_path / "page.html")]) == 0
    told = capsys.readouterr().err
    assert f"{file} line 3" in told
    assert said in told
    page = parse((tmp_path / "page.html").read_text())
    (finished,), (damaged,) = page.all("p", "warning"), page.all("div", "warning")
    assert finished.text == f"{copied} is not finished: it has no manifest."
    assert damaged.text.startswith(f"Damaged lines, left out: 1{file} line 3")


def test_a_packed_run_is_read(copied: Path, rtpo: Path) -> None:
    shutil.rmtree(copied / "checkpoints", ignore_errors=True)
    pack(copied.parent)
    assert not copied.exists()
    assert [tree.text for tree in page_of(copied).all("main")] == [tree.text for tree in page_of(rtpo).all("main")]


def test_a_path_whose_parent_is_not_there_is_shown_apart(copied: Path) -> None:
    """A parent that comes later, or is the path itself, is none."""
    (copied / "manifest.json").unlink()
    file = copied / "rollouts.jsonl"
    lines = [line for line in records(copied) if line["step"] == 1]
    task = lines[0]["task"]
    lines[0]["parent"] = lines[0]["rollout"]
    lines[1]["parent"] = "0.9.9.9"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = page_of(copied, step=1, question=task)
    assert len(page.all("details", "path")) == len(lines)
    (section,) = page.all("section", "run")
    apart = section.own("details", "path")
    for path, parent in zip(apart, ("0.0.0.0", "0.9.9.9"), strict=True):
        assert f"forked from S_0 of {parent}, which is not in the records" in path.own("summary")[0].text


# evaluations


def test_an_evaluation_shows_its_lines(tmp_path: Path, rtpo: Path) -> None:
    folder = tmp_path / "label" / "gsm8k"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("experiment_name: <b>\n")
    task = records(rtpo)[0]["task"]
    line = {
        "uid": task,
        "sample": 0,
        "grade": "graded",
        "reward": 1.0,
        "detail": "<i>right</i>",
        "termination": "answered",
        "turns": 2,
        "generated_tokens": 31,
        "calls": {"python": {"attempted": 1, "executed": 1, "failed": 0}},
        "answer": "it is <script>",
        "extracted": "27",
    }
    no_reward = line | {"sample": 1, "grade": "ungradable", "reward": None, "answer": None, "extracted": None}
    (folder / "samples.jsonl").write_text("".join(json.dumps(one) + "\n" for one in (line, no_reward)))
    page = page_of(rtpo, folder, question=task, trees=1)
    _, evaluation = page.all("section", "run")
    assert [part.text for part in evaluation.all("div", "text")] == [
        "27",
        "it is <script>",
        "<i>right</i>",
        "none",
        "none",
        "<i>right</i>",
    ]
    one, other = evaluation.all("details", "path")
    assert "reward 1" in one.text
    assert "reward ungradable" in other.text
    assert not page.all("script")


# text


def test_what_cannot_be_seen_is_spelled() -> None:
    assert visible("a\u202eb\u2028\x00\r\ud800\u200b") == "a⟨U+202E⟩b⟨U+2028⟩⟨U+0000⟩⟨U+000D⟩⟨U+D800⟩⟨U+200B⟩"
    assert visible("é 日\n\tx") == "é 日\n\tx"


@pytest.mark.parametrize("words", ["plain", "é日🙂é", "a\x00\u2028b", "<think>x</think>"])
def test_pieces_are_whole_characters_and_make_the_text(words: str) -> None:
    ids = byte_tokenizer().encode(words)
    found = pieces(ids, 0, len(ids), BYTES.decode)
    assert "".join(piece.text for piece in found) == words
    assert [piece.first for piece in found] == [0, *(piece.last for piece in found[:-1])]
    assert all("\ufffd" not in piece.text for piece in found)
    assert len(found) <= len(words)


def test_bytes_that_make_no_character_are_shown_broken() -> None:
    ids = byte_tokenizer().encode("é")[:1] * 20 + byte_tokenizer().encode("x")
    found = pieces(ids, 0, len(ids), BYTES.decode)
    assert found[-1].last == len(ids)
    assert {one for piece in found for one in piece.text} == {"\ufffd", "x"}


def test_thinking_is_what_the_policy_does_not_see_again() -> None:
    reader = TextReader(BYTES)

    def split(words: str) -> list[tuple[bool, str]]:
        return [(part.is_thinking, part.text) for part in reader.passages(byte_tokenizer().encode(words))]

    assert split("a<think>b</think>c<|im_end|>") == [(True, "a<think>b</think>"), (False, "c<|im_end|>")]
    assert split("a<think>b<|im_end|>") == [(False, "a"), (True, "<think>b"), (False, "<|im_end|>")]
    assert split("<think>a</think>b</think>c<think>d") == [
        (True, "<think>a</think>b</think>"),
        (False, "c"),
        (True, "<think>d"),
    ]
    assert split("") == []


# hostile output


def hostile_run(folder: Path) -> Path:
    """A run whose policy, tools and names write markup."""
    model = folder / "model"
    byte_tokenizer().save_pretrained(model)
    words = "\n".join(HOSTILE)
    config = {
        "experiment_name": HOSTILE[0],
        "algorithm": {"name": "rtpo", "label": HOSTILE[1]},
        "model": {"name": BREAK_OUT, "path": str(model)},
    }
    run_folder = folder / "run"
    run_folder.mkdir()
    (run_folder / "config.yaml").write_text(json.dumps(config))

    def ids(said: str) -> Any:
        return as_ids(byte_tokenizer().encode(said))

    def turn(k: int) -> Turn:
        reply = ids(f"<think>{words}</think>{words}<tool_call>{words}</tool_call><|im_end|>")
        logprobs = np.full(len(reply), -0.5, np.float32)
        used = (ToolUse(HOSTILE[0], ToolOutcome.OK),)
        return Turn(k, ids(f"context {words}"), reply, logprobs, 0, StopReason.STOP, Snapshot((), ""), ids(words), used)

    task = Task(f"q{BREAK_OUT}", "?", 1)
    trunk = Rollout(
        "0.0.0.0", task, Role.TRUNK, 0, None, (turn(0), turn(1)), Termination.ANSWERED, Grade(GradeOutcome.GRADED, 0.0)
    )
    sibling = replace(trunk, uid=f"0.1{HOSTILE[3]}", role=Role.SIBLING, parent_uid="0.0.0.0", start_k=1)
    trained = [Trained(sibling.uid, 0, 1, 0.5, HOSTILE[0])]
    lines = [sample_line(1, path, trained) for path in (trunk, sibling)]
    lines[1]["termination"] = lines[1]["turns"][0]["stop"] = HOSTILE[1]
    (run_folder / "rollouts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + HOSTILE[0])
    return run_folder


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of such a run, as a file."""
    folder = tmp_path_factory.mktemp("hostile")
    output = folder / "page.html"
    assert main([str(hostile_run(folder)), "--output", str(output)]) == 0
    return output


TAGS = (
    "html head meta title style body main section h1 h2 h4 h5 p div span strong code details summary table caption "
    "tr th td a ul li"
)
ATTRIBUTES = {"lang", "charset", "http-equiv", "content", "name", "class", "id", "href", "open", "title", "colspan"}


def test_a_page_holds_nothing_but_its_own_elements(hostile: Path) -> None:
    page = parse(hostile.read_text(encoding="utf-8"))
    nodes = [page.all(tag) for tag in TAGS.split()]
    everything = sum(map(len, nodes))

    def below(node: Node) -> Iterator[Node]:
        for child in node.children:
            if isinstance(child, Node):
                yield child
                yield from below(child)

    assert sum(1 for _ in below(page)) == everything
    for node in below(page):
        assert node.attributes.keys() <= ATTRIBUTES
        assert str(node.attributes.get("href", "#")).startswith("#")
    for words in HOSTILE[:4]:
        assert page.text.count(words) > 5
    assert "⟨U+2028⟩⟨U+2029⟩⟨U+202E⟩⟨U+0000⟩⟨U+000D⟩⟨U+001B⟩[31m &lt;b&gt; &#60; é 日" in page.text
    (policy,) = [m.attributes["content"] for m in page.all("meta") if m.attributes.get("http-equiv")]
    assert str(policy).startswith("default-src 'none'; style-src 'sha256-")


def browse(page: Path, profile: Path) -> tuple[str, str]:
    """A page's document once Chromium has loaded it, and what its console said."""
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=1000"]
    seen = subprocess.run(
        ["chromium", *flags, f"--user-data-dir={profile}", "--dump-dom", page.as_uri()],
        capture_output=True,
        check=True,
        timeout=300,
    )
    console = [line for line in seen.stderr.decode(errors="replace").splitlines() if "CONSOLE" in line]
    return seen.stdout.decode(), "\n".join(console)


@pytest.mark.needs("chromium")
def test_a_browser_shows_hostile_text_and_runs_none_of_it(hostile: Path, tmp_path: Path) -> None:
    document, console = browse(hostile, tmp_path / "profile")
    assert console == ""
    page = parse(document)
    (root,) = page.all("html")
    assert MARK not in root.attributes
    assert page.all("title")[0].text == parse(hostile.read_text(encoding="utf-8")).all("title")[0].text
    assert not page.all("script") + page.all("img") + page.all("svg")
    for words in HOSTILE[:4]:
        assert page.text.count(words) > 5
    folded = [node for kind in ("thinking", "context") for node in page.all("details", kind)]
    assert len(folded) == 3 + 2
    assert all("open" not in node.attributes and HOSTILE[0] in node.text for node in folded)


@pytest.mark.needs("chromium")
def test_the_page_policy_stops_a_script_that_got_in(hostile: Path, tmp_path: Path) -> None:
    """And without the policy it would run: what the test before looks for can be seen."""
    broken = hostile.read_text(encoding="utf-8").replace("</main>", f"</main>{HOSTILE[0]}")
    page = tmp_path / "page.html"
    page.write_text(broken, encoding="utf-8")
    document, console = browse(page, tmp_path / "profile")
    assert MARK not in parse(document).all("html")[0].attributes
    assert "Content Security Policy" in console
    page.write_text(broken.replace("http-equiv", "data-was"), encoding="utf-8")
    document, _ = browse(page, tmp_path / "profile")
    (root,) = parse(document).all("html")
    assert root.attributes[MARK] == "1"
    assert root.all("title")[0].text == "ran"
