"""The page of one question: a column for each folder, a tree in each column. No script, nothing from outside."""

import base64
import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.view.html import Html, element, joined, text
from analysis.view.records import (
    UNKNOWN,
    AnySource,
    EvaluationSource,
    PathRecord,
    RunSource,
    Training,
    Tree,
    TurnRecord,
)
from analysis.view.text import Passage, Piece, Reader

STYLE = Path(__file__).with_name("view.css")
SHADES = (0.9, 0.5, 0.1, 0.01)
"""a token's shade is the number of these that its probability is below"""
CALL = re.compile(r"<tool_call>.*?(?:</tool_call>|\Z)", re.DOTALL)
FACTS = (
    ("experiment", "experiment_name"),
    ("seed", "seed"),
    ("task", "task.name"),
    ("model", "model.name"),
    ("profile", "profile.name"),
    ("rollout context", "algorithm.rollout_context"),
    ("training context", "algorithm.training_context"),
)
SHOWN_DAMAGE = 10


def page(question: str, why: str, columns: Sequence[Html]) -> str:
    """The whole page, one self-contained file. Its policy lets no script run and nothing be loaded."""
    style = STYLE.read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", **{"http-equiv": "Content-Security-Policy"}, content=policy),
        element("meta", name="viewport", content="width=device-width"),
        element("title", f"Rollouts of {question}"),
        Html(f"<style>{style}</style>"),
    )
    body = element(
        "body",
        element("h1", "Rollouts of ", element("code", question)),
        element("p", f"This question: {why}."),
        _legend(),
        element("main", *columns),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def column(number: int, source: AnySource, question: str, step: int | None, reader: Reader | None) -> Html:
    """A folder's part of the page. reader: of a run's ids."""
    if isinstance(source, EvaluationSource):
        return _evaluation(source, question)
    assert reader is not None
    return _run(number, source, source.tree(question, step), reader)


def _legend() -> Html:
    labels = [f"p ≥ {SHADES[0]}", *(f"< {shade}" for shade in SHADES)]
    shades = [element("span", label, class_=f"t p{i}") for i, label in enumerate(labels)]
    return element(
        "p",
        "A token's shade is its probability when it was sampled: ",
        joined(shades, " "),
        " (point at it for the log-prob in nats). ",
        element("span", element("span", "Underlined", class_="t"), class_="trained"),
        " tokens were trained, those ",
        element("span", element("span", "underlined with dots", class_="t"), class_="trained tied"),
        " with advantage 0. Thinking, contexts and paths open with a click. Characters that cannot be seen are "
        "spelled ⟨U+…⟩.",
        class_="legend",
    )


# a run


@dataclass(frozen=True)
class _View:
    """What a tree's parts are shown with. anchors: an id on the page for each path's uid."""

    tree: Tree
    reader: Reader
    anchors: Mapping[str, str]


def _run(number: int, source: RunSource, tree: Tree, reader: Reader) -> Html:
    first = tree.paths[0]
    others = [step for step in source.steps_of(first.task) if step != first.step]
    anchors = {path.uid: f"run{number}-path{i}" for i, path in enumerate(tree.paths)}
    view = _View(tree, reader, anchors)
    facts = [("step", f"{first.step}" + (f" (also in {', '.join(map(str, others))})" if others else ""))]
    facts.append(("paths here", str(len(tree.paths))))
    facts += [(name, _setting(source.config, key)) for name, key in FACTS]
    return element(
        "section",
        element("h2", _setting(source.config, "algorithm.label")),
        _facts(source, facts),
        _overview(view),
        *(_path(path, view) for path in tree.roots),
        class_="run",
    )


def _facts(source: AnySource, facts: Sequence[tuple[str, str]]) -> Html:
    rows = [element("tr", element("th", name), element("td", value)) for name, value in facts]
    parts = [element("p", element("code", str(source.folder))), element("table", *rows, class_="facts")]
    if not source.is_finished:
        parts.append(element("p", "Not finished: this folder has no manifest.", class_="warning"))
    if source.damaged:
        shown = [element("li", sentence) for sentence in source.damaged[:SHOWN_DAMAGE]]
        if len(source.damaged) > SHOWN_DAMAGE:
            shown.append(element("li", f"and {len(source.damaged) - SHOWN_DAMAGE} more"))
        title = f"Damaged lines, left out: {len(source.damaged)}"
        parts.append(element("div", title, element("ul", *shown), class_="warning"))
    return joined(parts)


def _setting(config: Mapping[str, Any], key: str) -> str:
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return UNKNOWN if value is None else str(value)


def _overview(view: _View) -> Html:
    """The tree at a glance: a row for each path from the question, with what was forked from it."""
    last = max(path.start_k for path in view.tree.paths)
    head = [element("th", name) for name in ("path", "reward", "A", *(f"forked at S_{k}" for k in range(last + 1)))]
    rows = []
    for path in view.tree.roots:
        forked = view.tree.forked(path)
        cells = [_link(path, view, f"{path.role} {path.uid}"), text(_reward(path)), text(_advantages(path, short=True))]
        for k in range(last + 1):
            links = [_link(one, view, f"{_reward(one)} ({_advantages(one, short=True)})") for one in forked.get(k, [])]
            cells.append(joined(links, ", ") if links else text("–"))
        rows.append(element("tr", *(element("td", cell) for cell in cells)))
    caption = element("caption", "At a glance: reward (advantage A) of each path")
    return element("table", caption, element("tr", *head), *rows, class_="overview")


def _link(path: PathRecord, view: _View, words: str) -> Html:
    return element("a", words, href=f"#{view.anchors[path.uid]}")


def _path(path: PathRecord, view: _View) -> Html:
    """A path with its turns and, at each S_k, what was forked there."""
    is_root = view.tree.parent(path) is None
    versions = sorted({turn.version for turn in path.turns})
    facts = [
        f"reward {_reward(path)}",
        _advantages(path),
        path.termination,
        "policy " + ", ".join(f"v{version}" for version in versions) if versions else "no turns of its own",
    ]
    if is_root and path.parent is not None:
        facts.append(f"forked from S_{path.start_k} of {path.parent}, which is not in the records")
    summary = element("summary", element("strong", f"{path.role} {path.uid}"), " ", *(_fact(fact) for fact in facts))
    parts = []
    own = {turn.k: turn for turn in path.turns}
    forked = view.tree.forked(path)
    for k in sorted(own.keys() | forked.keys()):
        place = "" if k in own else "inherited" if k < path.start_k else "others go on from here"
        parts.append(element("h4", f"S_{k}", _fact(place)))
        if k in own:
            parts += [_context(path, own[k], view), _turn(path, own[k], view)]
        if k in forked:
            title = element("h5", f"Forked from S_{k}: {len(forked[k])}")
            parts.append(element("div", title, *(_path(one, view) for one in forked[k]), class_="forked"))
    is_open = is_root or _matters(path, view)
    return element(
        "details", summary, *parts, id=view.anchors[path.uid], class_=f"path {_word(path.role)}", open=is_open
    )


def _matters(path: PathRecord, view: _View) -> bool:
    """Whether it, or a path forked from it, was trained with an advantage that is not 0."""
    forked = view.tree.forked(path)
    return path.is_unequal or any(_matters(one, view) for found in forked.values() for one in found)


def _context(path: PathRecord, turn: TurnRecord, view: _View) -> Html:
    title = f"c_{turn.k} as the policy saw it, {len(turn.context_ids)} tokens"
    parent = view.tree.parent(path)
    if turn.k == path.start_k and parent is not None and view.tree.context(parent, turn.k) == turn.context_ids:
        return element("p", f"c_{turn.k}: the same {len(turn.context_ids)} tokens as above", class_="same")
    return element(
        "details",
        element("summary", title),
        element("div", view.reader.whole(turn.context_ids), class_="text"),
        class_="context",
    )


def _turn(path: PathRecord, turn: TurnRecord, view: _View) -> Html:
    trainings = view.tree.trainings(path, turn.k)
    total = None if turn.logprobs is None else sum(turn.logprobs)
    facts = [
        f"{len(turn.output_ids)} tokens",
        f"policy v{turn.version}",
        {"stop": "stopped", "length": "cut at its limit"}.get(turn.stop, turn.stop),
        f"log-prob {UNKNOWN if total is None else _signed(total)}",
        _trained(path, trainings),
    ]
    said = [_passage(passage, turn) for passage in view.reader.passages(turn.output_ids)]
    marked = "reply"
    if trainings:
        marked += " trained" if any(one.advantage for one in trainings) else " trained tied"
    return joined(
        [
            element("h5", f"u_{turn.k}", *(_fact(fact) for fact in facts)),
            element("div", *said, class_=marked),
            *_answer(turn, view),
        ]
    )


def _answer(turn: TurnRecord, view: _View) -> list[Html]:
    """What became of the tool calls, and f_k."""
    if turn.calls is None:
        calls = f"tool calls: {UNKNOWN}"
    elif turn.calls:
        calls = "tool calls: " + ", ".join(f"{tool or 'no such tool'}, {outcome}" for tool, outcome in turn.calls)
    else:
        calls = "no tool call"
    if turn.feedback_ids is None:
        return [element("p", f"{calls}; f_{turn.k}: {UNKNOWN}", class_="same")]
    if not turn.feedback_ids:
        return [element("p", f"{calls}; nothing follows", class_="same")]
    shown = element("div", view.reader.whole(turn.feedback_ids), class_="text feedback")
    return [element("h5", f"f_{turn.k}", _fact(calls)), shown]


def _passage(passage: Passage, turn: TurnRecord) -> Html:
    if passage.is_thinking:
        title = element("summary", f"thinking, {passage.tokens} tokens")
        return element("details", title, *(_token(piece, turn) for piece in passage.pieces), class_="thinking")
    calls, shown, place = [match.span() for match in CALL.finditer(passage.text)], [], 0
    for piece in passage.pieces:
        is_call = any(start <= place < end for start, end in calls)
        shown.append(_token(piece, turn, " call" if is_call else ""))
        place += len(piece.text)
    return joined(shown)


def _token(piece: Piece, turn: TurnRecord, marks: str = "") -> Html:
    ids = " ".join(str(one) for one in turn.output_ids[piece.first : piece.last])
    shown = piece.text or f"⟨{ids}⟩"
    if turn.logprobs is None:
        return element("span", shown, class_=f"t{marks}", title=f"log-prob {UNKNOWN}; id {ids}")
    logprobs = turn.logprobs[piece.first : piece.last]
    shade = sum(math.exp(min(logprobs)) < limit for limit in SHADES)
    odds = ", ".join(f"{_signed(one, 4)} (p {math.exp(one):.3f})" for one in logprobs)
    return element("span", shown, class_=f"t p{shade}{marks}", title=f"log-prob {odds}; id {ids}")


def _trained(path: PathRecord, trainings: Sequence[Training] | None) -> str:
    if trainings is None:
        return f"trained: {UNKNOWN}"
    if not trainings:
        return "not trained"
    each = []
    for one in trainings:
        whose = "" if one.path == path.uid else f" as part of {one.path}"
        each.append(f"A {_signed(one.advantage)} in update {one.update}{whose}")
    return f"trained: {'; '.join(each)}"


def _advantages(path: PathRecord, *, short: bool = False) -> str:
    """A path's own, by turn where they differ."""
    name = "" if short else "A "
    if path.trained is None:
        return f"{name}{UNKNOWN}"
    if not path.trained:
        return "not trained"
    if len({one.advantage for one in path.trained}) == 1:
        return f"{name}{_signed(path.trained[0].advantage)}"
    return name + ", ".join(f"{_signed(one.advantage)} on u_{one.k}" for one in path.trained)


def _reward(path: PathRecord) -> str:
    return path.grade if path.reward is None else f"{path.reward:g}"


def _signed(value: float, digits: int = 3) -> str:
    if value == 0:
        return "0"
    return f"{value:+.{digits}f}".replace("-", "−")


def _fact(words: str) -> Html:
    return element("span", words, class_="fact") if words else Html()


def _word(role: str) -> str:
    return role if role.isalpha() else ""


# an evaluation


def _evaluation(source: EvaluationSource, question: str) -> Html:
    lines = [line for line in source.lines if line["uid"] == question]
    facts = [("experiment", _setting(source.config, "experiment_name")), ("samples here", str(len(lines)))]
    return element(
        "section",
        element("h2", f"Evaluation {source.folder.parent.name}, {source.folder.name}"),
        _facts(source, facts),
        *(_sample(line) for line in lines),
        class_="run",
    )


def _sample(line: Mapping[str, Any]) -> Html:
    reward = str(line["grade"]) if line["reward"] is None else f"{line['reward']:g}"
    facts = [
        f"reward {reward}",
        str(line["termination"]),
        f"{line['turns']} turns",
        f"{line['generated_tokens']} tokens",
        f"calls {line.get('calls', UNKNOWN)}",
    ]
    summary = element("summary", element("strong", f"sample {line['sample']}"), " ", *(_fact(fact) for fact in facts))
    parts = [
        element("h5", "extracted answer"),
        element("div", "none" if line["extracted"] is None else str(line["extracted"]), class_="text"),
        element("h5", "final reply, its thinking left out"),
        element("div", "none" if line["answer"] is None else str(line["answer"]), class_="text"),
    ]
    if line.get("detail"):
        parts += [element("h5", "grading"), element("div", str(line["detail"]), class_="text")]
    return element("details", summary, *parts, class_="path", open=True)
