"""The rollout page: the tree of real runs, refusal of damaged records, and that text of a policy stays text."""

import json
import re
import shutil
import subprocess
from html import escape
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, fromstring

import numpy as np
import pytest
from byte_tokenizer import byte_tokenizer
from transformers import AutoTokenizer

from analysis.figures.game import main as draw_game
from analysis.figures.game import uneven_siblings
from analysis.view.__main__ import main
from analysis.view.page import passages, pieces
from analysis.view.rollouts import load_recorded
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


def own(node: Element, tag: str, name: str) -> list[Element]:
    return [child for child in node.findall(tag) if name in child.get("class", "").split()]


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
            (forked,) = (part for part in own(paths[line["parent"]], "div", "forked") if path in part)
            assert words(forked.find("h5")).startswith(f"Forked from S_{line['start_k']}")
        for turn, reply in zip(line["turns"], own(path, "div", "reply"), strict=True):
            is_trained = training is not None and training["k"] == turn["k"]
            tied = ["tied"] if is_trained and not training["advantage"] else []
            assert reply.get("class", "").split() == ["reply", *(["trained"] if is_trained else []), *tied]
            tokens = below(reply, "span", "t")
            assert "".join(map(words, tokens)) == decode(turn["output_ids"])
            for token, token_id, logprob in zip(tokens, turn["output_ids"], turn["logprobs"], strict=True):
                title = token.get("title", "").replace("−", "-")
                assert title.endswith(f"id {token_id}")
                assert float(title.split()[1]) == pytest.approx(logprob, abs=1e-9)
        contexts = [words(context.find("div")) for context in own(path, "details", "context")]
        assert contexts == [decode(turn["context_ids"]) for turn in line["turns"][bool(line["parent"]) :]]
        feedback = [words(part) for part in own(path, "div", "feedback")]
        assert feedback == [decode(turn["feedback_ids"]) for turn in line["turns"] if turn["feedback_ids"]]


def test_the_index_has_the_most_unequal_trees_first(tmp_path: Path) -> None:
    page = page_of(RUN, tmp_path, "--trees", "1")
    (index,), (shown,) = below(page, "table", "index"), below(page, "section", "tree")
    rows = [[words(cell) for cell in row.iter("td")] for row in index.iter("tr")][1:]
    assert {(row[0], int(row[1])) for row in rows} == {(line["task"], line["step"]) for line in LINES}
    for row in rows:
        rewards = [line["reward"] for line in tree_of(int(row[1]), row[0])]
        assert row[2:5] == [str(len(rewards)), f"{np.mean(rewards):.3f}", f"{np.std(rewards):.3f}"]
    spreads = [float(row[4]) for row in rows]
    assert spreads == sorted(spreads, reverse=True)
    assert words(shown.find("h2")).startswith(rows[0][0])


def test_a_turn_is_said_to_have_no_tool_call_where_the_run_has_tools(tmp_path: Path) -> None:
    config = (RUN / "config.yaml").read_text()

    def said(name: str, lines: list[dict[str, Any]]) -> int:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.yaml").write_text(config)
        (folder / "rollouts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return words(page_of(folder, folder)).count("no tool call")

    with_tools = json.loads(json.dumps(tree_of(LINES[0]["step"], LINES[0]["task"])))
    assert any(turn["calls"] for line in with_tools for turn in line["turns"])
    with_tools[0]["turns"][-1]["calls"] = []
    assert said("tools", with_tools) > 0
    for turn in (turn for line in with_tools for turn in line["turns"]):
        turn["calls"] = []
    assert said("words", with_tools) == 0


def test_a_damaged_line_of_an_unfinished_run_is_refused_by_its_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Log-probs are lost, a path is there twice, one is its own parent."""
    shutil.copy(RUN / "config.yaml", tmp_path)
    file = tmp_path / "rollouts.jsonl"
    first, second, third, *_ = tree_of(LINES[0]["step"], LINES[0]["task"])
    lost = [third["turns"][0] | {"logprobs": []}]
    for damage in ({"turns": lost}, {"rollout": first["rollout"]}, {"parent": third["rollout"]}):
        file.write_text("".join(json.dumps(line) + "\n" for line in [first, second, third | damage]))
        assert main([str(tmp_path), "--output", str(tmp_path / "page.html")]) == 1
        assert f"{file} line 3 " in capsys.readouterr().err
        assert not (tmp_path / "page.html").exists()


def test_thinking_is_what_the_policy_does_not_see_again_in_whole_characters() -> None:
    for text, expected in (
        ("a<think>b<|im_end|>", [(False, "a"), (True, "<think>b"), (False, "<|im_end|>")]),
        ("a</think>é</think>日🙂\x00<think>d", [(True, "a</think>é</think>"), (False, "日🙂\x00"), (True, "<think>d")]),
        ("", []),
    ):
        ids = byte_tokenizer().encode(text)
        shown = passages(BYTES, ids)
        assert [(part.is_thinking, "".join(piece.text for piece in part.pieces)) for part in shown] == expected
        assert all("\ufffd" not in piece.text for piece in pieces(ids, 0, len(ids), BYTES.decode))


def with_text(value: Any) -> Any:
    """A record with hostile text behind each of its texts."""
    if isinstance(value, dict):
        return {key: with_text(part) for key, part in value.items()}
    if isinstance(value, list):
        return [with_text(part) for part in value]
    return "".join([value, *HOSTILE]) if isinstance(value, str) else value


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run whose policy, tools and names write markup."""
    folder = tmp_path_factory.mktemp("hostile")
    byte_tokenizer().save_pretrained(folder / "model")
    config = with_text({"experiment_name": "", "algorithm": {"label": ""}, "model": {"name": ""}})
    config["model"]["path"] = str(folder / "model")
    (folder / "config.yaml").write_text(json.dumps(config))
    text, tree = "\n".join(HOSTILE), with_text(tree_of(LINES[0]["step"], LINES[0]["task"]))
    reply = f"<think>{text}</think>{text}<tool_call>{text}</tool_call><|im_end|>"
    texts = {"context_ids": f"context {text}", "output_ids": reply, "feedback_ids": text}
    ids = {name: byte_tokenizer().encode(written) for name, written in texts.items()}
    for turn in (turn for line in tree for turn in line["turns"]):
        turn |= ids | {"logprobs": [-0.5] * len(ids["output_ids"])}
    (folder / "rollouts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in tree))
    page_of(folder, folder)
    return folder / "page.html"


def test_a_page_holds_nothing_but_its_own_elements(hostile: Path) -> None:
    page = parsed(hostile.read_text(encoding="utf-8"))
    assert {node.tag for node in page.iter()} <= set(TAGS.split())
    assert {name for node in page.iter() for name in node.attrib} <= set(ATTRIBUTES.split())
    assert all(node.get("href", "#").startswith("#") for node in page.iter())
    assert all(words(page).count(text) > 5 for text in HOSTILE[:4])
    assert "⟨U+2028⟩⟨U+2029⟩⟨U+202E⟩⟨U+0000⟩⟨U+000D⟩⟨U+001B⟩[31m &lt;b&gt; &#60; é 日" in words(page)


@pytest.mark.needs("chromium")
def test_a_browser_runs_no_script_of_hostile_text(hostile: Path, tmp_path: Path) -> None:
    """One that got into the page is stopped by its policy; without the policy it runs, so that this can fail."""
    html = hostile.read_text(encoding="utf-8").replace("</section>", f"</section>{HOSTILE[0]}")
    assert HOSTILE[0] in html
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=1000"]
    page = tmp_path / "page.html"
    command = ["chromium", *flags, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", page.as_uri()]
    for is_run, text in ((False, html), (True, html.replace("http-equiv", "data-was"))):
        page.write_text(text, encoding="utf-8")
        seen = subprocess.run(command, capture_output=True, check=True, timeout=300)
        document = seen.stdout.decode().removeprefix("<!DOCTYPE html>")
        assert (MARK in document[: document.index(">")]) == is_run
        console = [line for line in seen.stderr.decode(errors="replace").splitlines() if "CONSOLE" in line]
        assert all("Content Security Policy" in line for line in console)
        assert (console == []) == is_run
        assert all(document.count(escape(written, quote=False)) > 5 for written in HOSTILE[:4])


def test_a_game_is_drawn_with_siblings_of_one_turn_that_earned_more_and_less(tmp_path: Path) -> None:
    for trunk, better, worse in uneven_siblings(load_recorded(RUN)):
        assert better.parent == worse.parent == trunk.rollout
        assert better.start_k == worse.start_k > 0
        assert (better.reward or 0) > (worse.reward or 0)
    draw_game([str(RUN), "--output", str(tmp_path / "game.png")])
    assert (tmp_path / "game.png").read_bytes().startswith(b"\x89PNG")
