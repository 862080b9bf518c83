"""The rollout page: the tree of real runs, refusal of damaged records, and that text of a policy stays text."""

import json
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, TreeBuilder

import numpy as np
import pytest
from byte_tokenizer import byte_tokenizer
from conftest import compose_config
from crashing import run
from transformers import AutoTokenizer

from analysis.view.__main__ import main
from analysis.view.page import passages, pieces, visible
from rtpo.core.chat import ChatFormat
from rtpo.run.config import PROJECT

RTPO = (
    *("deterministic=true", "task.held_out.count=2", "task.train.count=24", "budget.tasks_per_step=2"),
    *("algorithm=rtpo", "algorithm.trunks=2", "budget.rollouts=60", "samples_per_rollout=2"),
)
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


class Parsed(HTMLParser):
    """A page as elements; each must be closed by its own tag."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self._builder, self._open = TreeBuilder(), [""]
        self.feed(html)
        self.close()
        assert self._open == [""]
        self.page = self._builder.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._builder.start(tag, {name: value or "" for name, value in attrs})
        self._open.append(tag)
        if tag == "meta":
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        self._builder.end(tag)

    def handle_data(self, data: str) -> None:
        self._builder.data(data)


def words(node: Element | None) -> str:
    assert node is not None
    return "".join(node.itertext())


def below(node: Element, tag: str, name: str) -> list[Element]:
    """All elements below that have a class."""
    return [element for element in node.iter(tag) if name in element.get("class", "").split()]


def own(node: Element, tag: str, name: str = "") -> list[Element]:
    return [child for child in node.findall(tag) if not name or name in child.get("class", "").split()]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("view")
    assert run(compose_config(*RTPO, f"results={folder}")) == 0
    return folder / "default"


@pytest.fixture
def copied(results: Path, tmp_path: Path) -> Path:
    shutil.copytree(results / "rtpo-seed0", tmp_path / "run")
    return tmp_path / "run"


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rollouts.jsonl").read_text().splitlines()]


def tree_of(chosen: dict[str, Any], lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines if (line["step"], line["task"]) == (chosen["step"], chosen["task"])]


def page_of(folder: Path, output: Path, *arguments: str) -> Element:
    assert main([str(folder), "--output", str(output / "page.html"), *arguments]) == 0
    return Parsed((output / "page.html").read_text(encoding="utf-8")).page


def page_of_tree(folder: Path, output: Path, chosen: dict[str, Any]) -> dict[str, Element]:
    """The paths of a tree's page, by uid."""
    page = page_of(folder, output, "--step", str(chosen["step"]), "--question", chosen["task"])
    return {words(path.find("summary/strong")).split()[1]: path for path in below(page, "details", "path")}


def replies(path: Element) -> list[tuple[str, Element]]:
    """The heading and the reply of each turn that a path sampled itself."""
    headings = [words(heading) for heading in own(path, "h5") if words(heading).startswith("u_")]
    return list(zip(headings, own(path, "div", "reply"), strict=True))


def test_the_page_shows_the_tree_with_advantages_and_what_was_trained(results: Path, tmp_path: Path) -> None:
    lines = records(results / "rtpo-seed0")
    chosen = next(line for line in lines if any(training["advantage"] for training in line["trained"]))
    paths = page_of_tree(results / "rtpo-seed0", tmp_path, chosen)
    assert set(paths) == {line["rollout"] for line in tree_of(chosen, lines)}
    decode = ChatFormat(AutoTokenizer.from_pretrained(PROJECT / "rtpo" / "toy" / "warm_start_math")).decode
    for line in tree_of(chosen, lines):
        path = paths[line["rollout"]]
        summary, training = words(path.find("summary")), (line["trained"] or [None])[0]
        assert f"reward {line['reward']:g}" in summary
        assert (path.get("open") is not None) == (line["role"] == "trunk" or bool(training["advantage"]))
        if training:
            shown = f"{training['advantage']:+.3f}".replace("-", "−") if training["advantage"] else "0"
            assert f"A {shown}{line['termination']}" in summary
            forked = [part for part in own(paths[line["parent"]], "div", "forked") if path in part]
            assert [words(part.find("h5")) for part in forked] == [f"Forked from S_{line['start_k']}: 2"]
        for turn, (heading, reply) in zip(line["turns"], replies(path), strict=True):
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


def test_the_index_has_the_most_unequal_trees_first(results: Path, tmp_path: Path) -> None:
    lines = records(results / "rtpo-seed0")
    page = page_of(results / "rtpo-seed0", tmp_path, "--trees", "1")
    (index,) = below(page, "table", "index")
    rows = [[words(cell) for cell in row.iter("td")] for row in index.iter("tr")][1:]
    assert {(row[0], int(row[1])) for row in rows} == {(line["task"], line["step"]) for line in lines}
    spreads = []
    for row in rows:
        tree = tree_of({"task": row[0], "step": int(row[1])}, lines)
        rewards = [line["reward"] for line in tree]
        advantages = [training["advantage"] for line in tree for training in line["trained"]]
        spreads.append(np.std(rewards))
        assert row[2:5] == [str(len(tree)), f"{np.mean(rewards):.3f}", f"{spreads[-1]:.3f}"]
        assert row[5:] == [str(len(advantages)), str(np.count_nonzero(advantages))]
    assert spreads == sorted(spreads, reverse=True)
    (shown,) = below(page, "section", "tree")
    assert [link.get("href") for link in index.iter("a")] == [f"#{shown.get('id')}"]
    assert words(shown.find("h2")).startswith(rows[0][0])


def refusal(folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([str(folder), "--output", str(folder / "page.html"), *arguments]) == 1
    assert not (folder / "page.html").exists()
    (sentence,) = capsys.readouterr().err.splitlines()
    return sentence


def test_what_is_not_there_or_not_as_the_manifest_says_is_refused(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, data = copied / "rollouts.jsonl", (copied / "rollouts.jsonl").read_bytes()
    task = records(copied)[0]["task"]
    for missing in (("--question", "nope"), ("--step", "99")):
        assert task in refusal(copied, capsys, *missing)
    assert copied.name in refusal(copied.parent, capsys)
    file.write_bytes(data.replace(b"0.5", b"0.6"))
    assert str(file) in refusal(copied, capsys)
    (copied / "manifest.json").unlink()
    file.write_bytes(b"")
    assert str(file) in refusal(copied, capsys)


DAMAGE: dict[str, Callable[[dict[str, Any]], dict[str, Any] | str]] = {
    "half a line": lambda line: json.dumps(line)[:99],
    "no object": lambda line: "7",
    "a key lost": lambda line: {key: value for key, value in line.items() if key != "turns"},
    "a log-prob more": lambda line: line | {"turns": [line["turns"][0] | {"logprobs": []}]},
    "a log-prob above 0": lambda line: line | {"turns": [line["turns"][0] | {"logprobs": [9], "output_ids": [1]}]},
    "a reward in words": lambda line: line | {"reward": "good"},
    "a path twice": lambda line: line | {"rollout": "0.0.0.0"},
    "no parent": lambda line: line | {"parent": "0.9.9.9"},
    "its own parent": lambda line: line | {"parent": line["rollout"]},
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_line_is_refused_by_its_number(copied: Path, damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    (copied / "manifest.json").unlink()
    file = copied / "rollouts.jsonl"
    lines = file.read_text().splitlines()
    changed = DAMAGE[damage](json.loads(lines[2]))
    lines[2] = changed if isinstance(changed, str) else json.dumps(changed)
    file.write_text("\n".join(lines) + "\n")
    assert f"{file} line 3 " in refusal(copied, capsys)


def test_what_cannot_be_seen_is_spelled() -> None:
    assert visible("a\u202eb\u2028\x00\r\ud800\u200b") == "a⟨U+202E⟩b⟨U+2028⟩⟨U+0000⟩⟨U+000D⟩⟨U+D800⟩⟨U+200B⟩"
    assert visible("é 日\n\tx") == "é 日\n\tx"


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
        ("a<think>b</think>c<|im_end|>", [(True, "a<think>b</think>"), (False, "c<|im_end|>")]),
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
    page = Parsed(hostile.read_text(encoding="utf-8")).page
    assert {node.tag for node in page.iter()} <= set(TAGS.split())
    assert {name for node in page.iter() for name in node.attrib} <= set(ATTRIBUTES.split())
    assert all(node.get("href", "#").startswith("#") for node in page.iter())
    assert all(words(page).count(text) > 5 for text in HOSTILE[:4])
    assert "⟨U+2028⟩⟨U+2029⟩⟨U+202E⟩⟨U+0000⟩⟨U+000D⟩⟨U+001B⟩[31m &lt;b&gt; &#60; é 日" in words(page)


def browse(page: Path, profile: Path) -> tuple[Element, str]:
    """A page's document once Chromium has loaded it, and what its console said."""
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=1000"]
    command = ["chromium", *flags, f"--user-data-dir={profile}", "--dump-dom", page.as_uri()]
    seen = subprocess.run(command, capture_output=True, check=True, timeout=300)
    console = [line for line in seen.stderr.decode(errors="replace").splitlines() if "CONSOLE" in line]
    return Parsed(seen.stdout.decode()).page, "\n".join(console)


@pytest.mark.needs("chromium")
def test_a_browser_shows_hostile_text_and_runs_none_of_it(hostile: Path, tmp_path: Path) -> None:
    page, console = browse(hostile, tmp_path / "profile")
    assert console == ""
    assert MARK not in page.attrib
    assert not [node for node in page.iter() if node.tag in ("script", "img", "svg")]
    assert all(words(page).count(text) > 5 for text in HOSTILE[:4])
    folded = [node for kind in ("thinking", "context") for node in below(page, "details", kind)]
    assert len(folded) == 3 + 2
    assert all(node.get("open") is None and HOSTILE[0] in words(node) for node in folded)


@pytest.mark.needs("chromium")
def test_the_page_policy_stops_a_script_that_got_in(hostile: Path, tmp_path: Path) -> None:
    """Without the policy the script runs, so that the test before can fail."""
    broken = hostile.read_text(encoding="utf-8").replace("</section>", f"</section>{HOSTILE[0]}")
    page = tmp_path / "page.html"
    page.write_text(broken, encoding="utf-8")
    document, console = browse(page, tmp_path / "profile")
    assert MARK not in document.attrib
    assert "Content Security Policy" in console
    page.write_text(broken.replace("http-equiv", "data-was"), encoding="utf-8")
    document, _ = browse(page, tmp_path / "profile")
    assert document.get(MARK) == "1"
