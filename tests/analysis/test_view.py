"""The rollout page: the tree of real runs, refusal of damaged records, and that text of a policy stays text."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, fromstring

import numpy as np
import pytest
from byte_tokenizer import byte_tokenizer
from transformers import AutoTokenizer

from analysis.view.__main__ import main
from analysis.view.page import passages, pieces
from rtpo.core.chat import ChatFormat
from rtpo.run.config import PROJECT

RUN = PROJECT / "results" / "reference" / "rtpo-seed0"
LINES = [json.loads(line) for line in (RUN / "rollouts.jsonl").read_text().splitlines()]
BYTES = ChatFormat(byte_tokenizer())
MARK = "data-hostile"
HOSTILE = (
    f"<script>document.documentElement.setAttribute('{MARK}', 1); document.title = 'ran'</script>",
    f"<img src=x onerror=\"document.documentElement.setAttribute('{MARK}', 1)\">",
    "</script></style></title></textarea></pre></details><!-- --> ]]> -->",
    "<svg/onload=alert(1)><a href='javascript:alert(1)'>\"' onmouseover='alert(1)",
    "\u2028\u2029\u202e\u0000\r\x1b[31m &lt;b&gt; &#60; é 日",
)


TAGS = "html head meta title style body section h1 h2 h4 h5 p div span strong details summary table caption tr th td a"
ATTRIBUTES = "lang charset http-equiv content name class id href open title"


def parsed(html: str) -> Element:
    """A page's elements, each of which must be closed."""
    return fromstring(re.sub(r"(<meta [^>]*)>", r"\1/>", html.replace(" open>", ' open="">')))


def words(node: Element | None) -> str:
    assert node is not None
    return "".join(node.itertext())


def below(node: Element, tag: str, name: str) -> list[Element]:
    """All elements below that have a class."""
    return [element for element in node.iter(tag) if name in element.get("class", "").split()]


def own(node: Element, tag: str, name: str = "") -> list[Element]:
    return [child for child in node.findall(tag) if not name or name in child.get("class", "").split()]


def tree_of(step: int, task: str) -> list[dict[str, Any]]:
    return [line for line in LINES if (line["step"], line["task"]) == (step, task)]


def page_of(folder: Path, output: Path, *arguments: str) -> Element:
    assert main([str(folder), "--output", str(output / "page.html"), *arguments]) == 0
    return parsed((output / "page.html").read_text(encoding="utf-8"))


def test_the_page_shows_the_tree_with_advantages_and_what_was_trained(tmp_path: Path) -> None:
    trained = (line for line in LINES if any(training["advantage"] for training in line["trained"]))
    step, task = next((line["step"], line["task"]) for line in trained)
    page = page_of(RUN, tmp_path, "--step", str(step), "--question", task)
    paths = {words(path.find("summary/strong")).split()[1]: path for path in below(page, "details", "path")}
    assert set(paths) == {line["rollout"] for line in tree_of(step, task)}
    decode = ChatFormat(AutoTokenizer.from_pretrained(PROJECT / "rtpo" / "toy" / "warm_start_math")).decode
    for line in tree_of(step, task):
        path = paths[line["rollout"]]
        summary, training = words(path.find("summary")), (line["trained"] or [None])[0]
        assert f"reward {line['reward']:g}" in summary
        assert (path.get("open") is not None) == (line["role"] == "trunk" or bool(training["advantage"]))
        if training:
            shown = f"{training['advantage']:+.3f}".replace("-", "−") if training["advantage"] else "0"
            assert f"A {shown}{line['termination']}" in summary
            forked = [part for part in own(paths[line["parent"]], "div", "forked") if path in part]
            assert [words(part.find("h5")) for part in forked] == [f"Forked from S_{line['start_k']}: 2"]
        headings = [words(heading) for heading in own(path, "h5") if words(heading).startswith("u_")]
        for turn, heading, reply in zip(line["turns"], headings, own(path, "div", "reply"), strict=True):
            is_trained = training is not None and training["k"] == turn["k"]
            tied = ["tied"] if is_trained and not training["advantage"] else []
            assert reply.get("class", "").split() == ["reply", *(["trained"] if is_trained else []), *tied]
            assert f"policy v{turn['policy_version']}" in heading
            tokens = below(reply, "span", "t")
            assert "".join(map(words, tokens)) == decode(turn["output_ids"])
            for token, token_id, logprob in zip(tokens, turn["output_ids"], turn["logprobs"], strict=True):
                title = token.get("title", "").replace("−", "-")
                assert title.endswith(f"id {token_id}")
                assert float(title.split()[1]) == pytest.approx(logprob, abs=1e-9)
                assert f"p{sum(np.exp(logprob) < limit for limit in (0.9, 0.5, 0.1, 0.01))}" in token.get("class", "")
            assert [words(thinking)[-8:] for thinking in below(reply, "details", "thinking")] == ["</think>"]
        contexts = [words(context.find("div")) for context in own(path, "details", "context")]
        assert contexts == [decode(turn["context_ids"]) for turn in line["turns"][bool(line["parent"]) :]]
        feedback = [words(part) for part in own(path, "div", "feedback")]
        assert feedback == [decode(turn["feedback_ids"]) for turn in line["turns"] if turn["feedback_ids"]]


def test_the_index_has_the_most_unequal_trees_first(tmp_path: Path) -> None:
    page = page_of(RUN, tmp_path, "--trees", "1")
    (index,) = below(page, "table", "index")
    rows = [[words(cell) for cell in row.iter("td")] for row in index.iter("tr")][1:]
    assert {(row[0], int(row[1])) for row in rows} == {(line["task"], line["step"]) for line in LINES}
    for row in rows:
        tree = tree_of(int(row[1]), row[0])
        rewards = [line["reward"] for line in tree]
        advantages = [training["advantage"] for line in tree for training in line["trained"]]
        assert row[2:5] == [str(len(tree)), f"{np.mean(rewards):.3f}", f"{np.std(rewards):.3f}"]
        assert row[5:] == [str(len(advantages)), str(np.count_nonzero(advantages))]
    spreads = [float(row[4]) for row in rows]
    assert spreads == sorted(spreads, reverse=True)
    (shown,) = below(page, "section", "tree")
    assert [link.get("href") for link in index.iter("a")] == [f"#{shown.get('id')}"]
    assert words(shown.find("h2")).startswith(rows[0][0])


@pytest.mark.parametrize(
    "damage",
    [
        lambda line: {"turns": [line["turns"][0] | {"logprobs": []}]},
        lambda line: {"rollout": "0.0.0.0"},
        lambda line: {"parent": line["rollout"]},
    ],
    ids=["log-probs lost", "a path twice", "its own parent"],
)
def test_a_damaged_line_of_an_unfinished_run_is_refused_by_its_number(
    damage: Callable[[dict[str, Any]], dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(RUN / "config.yaml", tmp_path)
    file = tmp_path / "rollouts.jsonl"
    first, second, third, *_ = tree_of(LINES[0]["step"], LINES[0]["task"])
    lines = [first, second, third | damage(third)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main([str(tmp_path), "--output", str(tmp_path / "page.html")]) == 1
    assert f"{file} line 3 " in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("text", ["plain", "é日🙂é", "a\x00\u2028b", "<think>x</think>"])
def test_pieces_are_whole_characters_and_make_the_text(text: str) -> None:
    ids = byte_tokenizer().encode(text)
    shown = pieces(ids, 0, len(ids), BYTES.decode)
    assert "".join(piece.text for piece in shown) == text
    assert [piece.first for piece in shown] == [0, *(piece.last for piece in shown[:-1])]
    assert all("\ufffd" not in piece.text for piece in shown)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a<think>b<|im_end|>", [(False, "a"), (True, "<think>b"), (False, "<|im_end|>")]),
        ("a</think>b</think>c<think>d", [(True, "a</think>b</think>"), (False, "c"), (True, "<think>d")]),
        ("", []),
    ],
)
def test_thinking_is_what_the_policy_does_not_see_again(text: str, parts: list[tuple[bool, str]]) -> None:
    shown = passages(BYTES, byte_tokenizer().encode(text))
    assert [(part.is_thinking, "".join(piece.text for piece in part.pieces)) for part in shown] == parts


def hostile_run(folder: Path) -> Path:
    """A run whose policy, tools and names write markup."""
    byte_tokenizer().save_pretrained(folder / "model")
    (folder / "run").mkdir()
    model = {"name": HOSTILE[0] + HOSTILE[2], "path": str(folder / "model")}
    config = {"experiment_name": HOSTILE[0], "algorithm": {"label": HOSTILE[1]}, "model": model}
    (folder / "run" / "config.yaml").write_text(json.dumps(config))
    text, encode = "\n".join(HOSTILE), byte_tokenizer().encode
    reply = encode(f"<think>{text}</think>{text}<tool_call>{text}</tool_call><|im_end|>")
    ids = {"context_ids": encode(f"context {text}"), "output_ids": reply, "feedback_ids": encode(text)}
    facts = {"policy_version": 0, "logprobs": [-0.5] * len(reply), "stop": HOSTILE[1], "calls": [[HOSTILE[0], "ok"]]}
    turns = [{"k": k, **ids, **facts} for k in (0, 1)]
    path = {"step": 1, "task": f"q{HOSTILE[0]}{HOSTILE[2]}", "termination": HOSTILE[1], "grade": "graded", "reward": 0}
    trunk = path | {"rollout": "0.0", "parent": None, "start_k": 0, "role": "trunk", "turns": turns, "trained": []}
    trained = [{"update": 0, "k": 1, "advantage": 0.5, "group": HOSTILE[0]}]
    sibling = trunk | {"rollout": f"0.1{HOSTILE[3]}", "parent": "0.0", "start_k": 1, "role": HOSTILE[1]}
    lines = [trunk, sibling | {"turns": turns[1:], "trained": trained}]
    (folder / "run" / "rollouts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder / "run"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of such a run, as a file."""
    folder = tmp_path_factory.mktemp("hostile")
    page_of(hostile_run(folder), folder)
    return folder / "page.html"


def test_a_page_holds_nothing_but_its_own_elements(hostile: Path) -> None:
    page = parsed(hostile.read_text(encoding="utf-8"))
    assert {node.tag for node in page.iter()} <= set(TAGS.split())
    assert {name for node in page.iter() for name in node.attrib} <= set(ATTRIBUTES.split())
    assert all(node.get("href", "#").startswith("#") for node in page.iter())
    assert all(words(page).count(text) > 5 for text in HOSTILE[:4])
    assert "⟨U+2028⟩⟨U+2029⟩⟨U+202E⟩⟨U+0000⟩⟨U+000D⟩⟨U+001B⟩[31m &lt;b&gt; &#60; é 日" in words(page)


def browse(page: Path, profile: Path) -> tuple[str, str]:
    """A page's document once Chromium has loaded it, from its first tag on, and what its console said."""
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=1000"]
    command = ["chromium", *flags, f"--user-data-dir={profile}", "--dump-dom", page.as_uri()]
    seen = subprocess.run(command, capture_output=True, check=True, timeout=300)
    console = [line for line in seen.stderr.decode(errors="replace").splitlines() if "CONSOLE" in line]
    return seen.stdout.decode().removeprefix("<!DOCTYPE html>"), "\n".join(console)


@pytest.mark.needs("chromium")
def test_a_browser_runs_no_script_of_hostile_text(hostile: Path, tmp_path: Path) -> None:
    """Nor one that got into the page, which its policy stops; without the policy it runs, so that this can fail."""
    broken = hostile.read_text(encoding="utf-8").replace("</section>", f"</section>{HOSTILE[0]}")
    pages = {"broken": broken, "without policy": broken.replace("http-equiv", "data-was")}
    for name, text in pages.items():
        (tmp_path / f"{name}.html").write_text(text, encoding="utf-8")
    tags, consoles = [], []
    for page in (hostile, *(tmp_path / f"{name}.html" for name in pages)):
        document, console = browse(page, tmp_path / "profile")
        tags.append(document[: document.index(">")])
        consoles.append(console)
        assert all(document.count(escape(text, quote=False)) > 5 for text in HOSTILE[:4])
    assert [MARK in tag for tag in tags] == [False, False, True]
    assert consoles[0] == ""
    assert "Content Security Policy" in consoles[1]


def test_an_edited_rollout_of_a_finished_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(shutil.copytree(RUN, tmp_path / "run"))
    file = folder / "rollouts.jsonl"
    edited = file.read_text().replace('"reward": 1.0', '"reward": 0.0', 1)
    assert edited != file.read_text()
    file.write_text(edited)
    assert main([str(folder), "--output", str(tmp_path / "page.html")]) == 1
    assert str(file) in capsys.readouterr().err
