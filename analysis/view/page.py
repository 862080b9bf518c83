"""The page of rollouts: an index of trees, then each tree with a column for each folder, as page.html lays it out. No
script, nothing from outside."""

import base64
import hashlib
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from analysis.view.records import (
    UNKNOWN,
    AnySource,
    Entry,
    EvaluationSource,
    PathRecord,
    RunSource,
    Training,
    Tree,
    TurnRecord,
)
from analysis.view.text import Passage, Reader

HERE = Path(__file__).parent
HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""categories of characters that show nothing, or change how others are shown"""
SHADES = (0.9, 0.5, 0.1, 0.01)
"""a token's shade is the number of these that its probability is below"""
CALL = re.compile(r"<tool_call>.*?(?:</tool_call>|\Z)", re.DOTALL)
INDEX = ("step", "paths", "mean reward", "spread", "turns trained", "with A ≠ 0")
"""what the index has of a tree"""
FACTS = (
    ("configuration", "algorithm.label"),
    ("experiment", "experiment_name"),
    ("seed", "seed"),
    ("task", "task.name"),
    ("model", "model.name"),
    ("profile", "profile.name"),
    ("rollout context", "algorithm.rollout_context"),
    ("training context", "algorithm.training_context"),
)
SHOWN_DAMAGE = 10


def page(sources: Sequence[AnySource], entries: Sequence[Entry], readers: Sequence[Reader | None], shown: int) -> str:
    """The whole page, one self-contained file: an index of all entries where there are several, and the trees of the
    first `shown`. readers: of each run's ids, in the order of the sources. Its policy lets no script run and nothing be
    loaded."""
    style = (HERE / "view.css").read_text(encoding="utf-8")
    trees = []
    for i, entry in enumerate(entries[:shown]):
        columns = [
            Column(source, entry, reader, f"tree{i}-run{number}-path")
            for number, (source, reader) in enumerate(zip(sources, readers, strict=True))
        ]
        trees.append({"anchor": f"tree{i}", "question": entry.question, "columns": columns})
    cells = [
        {"question": one.question, "anchor": f"tree{i}" if i < shown else "", "cells": _cells(one, sources)}
        for i, one in enumerate(entries)
    ]
    several = len(entries) > 1
    rest = (
        f" Of these the first {shown} stand on this page; --question shows another, --trees shows more."
        if len(entries) > shown
        else ""
    )
    return _template().render(
        title=", ".join(source.name for source in sources) if several else entries[0].question,
        style=style,
        digest=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        shades=[f"p ≥ {SHADES[0]}", *(f"< {shade}" for shade in SHADES)],
        index=cells if several else [],
        headings=INDEX,
        sources=sources,
        folders=_folders(sources),
        caption="The most unequal first: by the spread (standard deviation) of a tree's rewards." + rest,
        trees=trees,
        shown_damage=SHOWN_DAMAGE,
    )


def visible(value: object) -> object:
    """Text whose characters that cannot be seen, but for spaces and line ends, are spelled: ⟨U+202E⟩."""
    if type(value) is not str or value.isprintable():
        return value
    return "".join(f"⟨U+{ord(one):04X}⟩" if _is_hidden(one) else one for one in value)


def _is_hidden(character: str) -> bool:
    return character not in "\n\t" and unicodedata.category(character) in HIDDEN


def _template() -> Any:
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=visible,
    )
    names = {"tokens_of": tokens, "calls": calls, "reward": reward, "advantages": advantages}
    environment.globals.update(names, sample_facts=sample_facts)
    return environment.get_template("page.html")


def _folders(sources: Sequence[AnySource]) -> list[tuple[str, list[object]]]:
    """What is said of the folders, once for all trees."""
    shown: list[tuple[str, list[object]]] = [("folder", [source.folder for source in sources])]
    shown += [(name, [_setting(source.config, key) for source in sources]) for name, key in FACTS]
    return [(name, values) for name, values in shown if set(values) != {UNKNOWN}]


def _cells(entry: Entry, sources: Sequence[AnySource]) -> list[object]:
    """Of the index, in the order of INDEX for each folder."""
    cells: list[object] = []
    for source in sources:
        rewards = source.rewards(entry)
        mean = f"{sum(rewards) / len(rewards):.3f}" if rewards else UNKNOWN
        if isinstance(source, RunSource):
            tree = source.tree(entry)
            trained = [one for path in tree.paths for one in path.trained or ()]
            known = all(path.trained is not None for path in tree.paths)
            turns = [len(trained), sum(one.advantage != 0 for one in trained)] if known else [UNKNOWN, UNKNOWN]
            cells += [tree.paths[0].step, len(tree.paths), mean, f"{entry.spread(source):.3f}", *turns]
        else:
            cells += ["–", len(source.of(entry)), mean, f"{entry.spread(source):.3f}", "–", "–"]
    return cells


# a column


@dataclass(frozen=True)
class Boundary:
    """What stands at S_k of a path: its own turn, if it sampled one there, and what was forked."""

    k: int
    place: str
    turn: TurnRecord | None
    forked: Sequence[PathRecord]


@dataclass(frozen=True)
class Column:
    """A folder's part of a tree. reader: of a run's ids. prefix: of the ids of its paths on the page."""

    source: AnySource
    entry: Entry
    reader: Reader | None
    prefix: str

    @cached_property
    def tree(self) -> Tree | None:
        """None for an evaluation."""
        return self.source.tree(self.entry) if isinstance(self.source, RunSource) else None

    @property
    def lines(self) -> Sequence[Mapping[str, Any]]:
        """An evaluation's samples."""
        return self.source.of(self.entry) if isinstance(self.source, EvaluationSource) else ()

    @property
    def title(self) -> str:
        if self.tree is None:
            return f"Evaluation {self.source.folder.parent.name}, {self.source.folder.name}"
        return _setting(self.source.config, "algorithm.label")

    @property
    def facts(self) -> list[str]:
        if not isinstance(self.source, RunSource) or self.tree is None:
            return [f"{len(self.lines)} samples here"]
        first = self.tree.paths[0]
        others = [str(step) for step in self.source.steps_of(first.task) if step != first.step]
        also = f" (also in {', '.join(others)})" if others else ""
        return [f"step {first.step}{also}", f"{len(self.tree.paths)} paths here"]

    @property
    def last(self) -> int:
        """The largest k that something was forked at."""
        return max(path.start_k for path in self._tree.paths)

    def anchor(self, path: PathRecord) -> str:
        return f"{self.prefix}{self._tree.paths.index(path)}"

    def is_open(self, path: PathRecord) -> bool:
        return self._tree.parent(path) is None or self._matters(path)

    def path_facts(self, path: PathRecord) -> list[str]:
        versions = sorted({turn.version for turn in path.turns})
        facts = [
            f"reward {reward(path)}",
            advantages(path, name="A "),
            path.termination,
            "policy " + ", ".join(f"v{version}" for version in versions) if versions else "no turns of its own",
        ]
        if self._tree.parent(path) is None and path.parent is not None:
            facts.append(f"forked from S_{path.start_k} of {path.parent}, which is not in the records")
        return facts

    def boundaries(self, path: PathRecord) -> list[Boundary]:
        own = {turn.k: turn for turn in path.turns}
        forked = self._tree.forked(path)
        found = []
        for k in sorted(own.keys() | forked.keys()):
            place = "" if k in own else "inherited" if k < path.start_k else "others go on from here"
            found.append(Boundary(k, place, own.get(k), forked.get(k, ())))
        return found

    def inherits(self, path: PathRecord, turn: TurnRecord) -> bool:
        """Whether a fork's first context has the ids of the boundary's."""
        parent = self._tree.parent(path)
        if parent is None or turn.k != path.start_k:
            return False
        return self._tree.context(parent, turn.k) == turn.context_ids

    def turn_facts(self, path: PathRecord, turn: TurnRecord) -> list[str]:
        total = UNKNOWN if turn.logprobs is None else _signed(sum(turn.logprobs))
        return [
            f"{len(turn.output_ids)} tokens",
            f"policy v{turn.version}",
            {"stop": "stopped", "length": "cut at its limit"}.get(turn.stop, turn.stop),
            f"log-prob {total}",
            _trained(path, self._tree.trainings(path, turn.k)),
        ]

    def marks(self, path: PathRecord, turn: TurnRecord) -> str:
        trainings = self._tree.trainings(path, turn.k)
        if not trainings:
            return "reply"
        return "reply trained" if any(one.advantage for one in trainings) else "reply trained tied"

    @property
    def _tree(self) -> Tree:
        assert self.tree is not None
        return self.tree

    def _matters(self, path: PathRecord) -> bool:
        """Whether it, or a path forked from it, was trained with an advantage that is not 0."""
        forked = self._tree.forked(path)
        return path.is_unequal or any(self._matters(one) for found in forked.values() for one in found)


def _setting(config: Mapping[str, Any], key: str) -> str:
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return UNKNOWN if value is None else str(value)


# words


@dataclass(frozen=True)
class Token:
    """A piece of a reply, as it is shown."""

    text: str
    marks: str
    title: str


def tokens(passage: Passage, turn: TurnRecord) -> list[Token]:
    """A passage's pieces, those of tool calls marked unless it is thinking."""
    found = [] if passage.is_thinking else [match.span() for match in CALL.finditer(passage.text)]
    shown, place = [], 0
    for piece in passage.pieces:
        call = " call" if any(start <= place < end for start, end in found) else ""
        place += len(piece.text)
        ids = " ".join(str(one) for one in turn.output_ids[piece.first : piece.last])
        words = piece.text or f"⟨{ids}⟩"
        if turn.logprobs is None:
            shown.append(Token(words, f"t{call}", f"log-prob {UNKNOWN}; id {ids}"))
            continue
        logprobs = turn.logprobs[piece.first : piece.last]
        shade = sum(math.exp(min(logprobs)) < limit for limit in SHADES)
        odds = ", ".join(f"{_signed(one, 4)} (p {math.exp(one):.3f})" for one in logprobs)
        shown.append(Token(words, f"t p{shade}{call}", f"log-prob {odds}; id {ids}"))
    return shown


def calls(turn: TurnRecord) -> str:
    """What became of the tool calls."""
    if turn.calls is None:
        return f"tool calls: {UNKNOWN}"
    if not turn.calls:
        return "no tool call"
    return "tool calls: " + ", ".join(f"{tool or 'no such tool'}, {outcome}" for tool, outcome in turn.calls)


def reward(path: PathRecord) -> str:
    return path.grade if path.reward is None else f"{path.reward:g}"


def advantages(path: PathRecord, name: str = "") -> str:
    """A path's own, by turn where they differ."""
    if path.trained is None:
        return f"{name}{UNKNOWN}"
    if not path.trained:
        return "not trained"
    if len({one.advantage for one in path.trained}) == 1:
        return f"{name}{_signed(path.trained[0].advantage)}"
    return name + ", ".join(f"{_signed(one.advantage)} on u_{one.k}" for one in path.trained)


def sample_facts(line: Mapping[str, Any]) -> list[str]:
    """Of an evaluation's sample."""
    return [
        f"reward {line['grade'] if line['reward'] is None else format(line['reward'], 'g')}",
        str(line["termination"]),
        f"{line['turns']} turns",
        f"{line['generated_tokens']} tokens",
        f"calls {line.get('calls', UNKNOWN)}",
    ]


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


def _signed(value: float, digits: int = 3) -> str:
    if value == 0:
        return "0"
    return f"{value:+.{digits}f}".replace("-", "−")
