"""A local BM25 index, built once from JSONL passages and opened memory-mapped.

An index is a folder with FILES and, written last, MANIFEST with each file's size and SHA-256.
"""

import asyncio
import hashlib
import json
import os
import re
import unicodedata
from array import array
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from bm25s import BM25
from bm25s.stopwords import STOPWORDS_EN

from rtpo.core.files import check_is_free, disk_errors, flush, readable, sha256, write_whole
from rtpo.core.json_text import parse
from rtpo.errors import DataError
from rtpo.tools.search.remote import split_contents
from rtpo.tools.search.replay import SearchBackend
from rtpo.tools.search.text import Passage, render

FORMAT = 2
"""version of the folder's format"""
MANIFEST = "manifest.json"
PASSAGES, OFFSETS = "passages.jsonl", "offsets.npy"
"""a passage `{"id", "title", "text"}` a line, and the byte offset of each line"""
ARRAYS = ("data.csc.index.npy", "indices.csc.index.npy", "indptr.csc.index.npy")
FILES = (*ARRAYS, "vocab.index.json", "params.index.json", PASSAGES, OFFSETS)
WORD = r"\w+"
METHOD = {"method": "lucene", "k1": 1.5, "b": 0.75, "dtype": "float32", "int_dtype": "int32"}
_STOPWORDS = frozenset(STOPWORDS_EN)
TOKENIZER = {"unicode": "NFC", "pattern": WORD, "lower_case": True, "stop_words": sorted(_STOPWORDS)}
"""the settings of `tokens`, stored in the manifest"""
_words = re.compile(WORD).findall
# bm25s holds the GIL for most of a search: more than two threads do fewer searches per second
_searchers = ThreadPoolExecutor(2, thread_name_prefix="search-bm25")


@dataclass(frozen=True)
class Bm25Settings:
    """Settings of the bm25 backend."""

    index: str | None = None  # a folder that experiments/build_index.py made

    def problems(self, path: str) -> list[str]:
        if self.index is None:
            return [f"{path}.index is missing: name a folder that experiments/build_index.py made."]
        return []


def tokens(text: str) -> list[str]:
    """Words (letters, digits and underscores) in NFC and lower case, without bm25s's English stop words."""
    text = unicodedata.normalize("NFC", text).lower()
    return [word for word in _words(text) if word not in _STOPWORDS]


def build_index(passages: Path, folder: Path) -> dict[str, Any]:
    """Build an index in `folder` from a JSONL file of passages; returns its manifest.

    A line is `{"id", "title", "text"}` or Search-R1's `{"id", "contents"}`. Lines are read once, one at a time. The
    same passages give the same files. The build runs in `<folder>.partial-…`, which a killed build leaves behind.

    Raises DataError for an invalid line, a repeated id or an existing folder, and MachineError if the disk is full.
    """
    check_is_free(folder)
    with disk_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f"{folder.name}.partial-", dir=folder.parent) as name:
            partial = Path(name)
            manifest = _build(passages, partial)
            write_whole(partial / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())
            partial.chmod(0o755)
            partial.rename(folder)
        flush(folder.parent)
    return manifest


def _build(passages: Path, partial: Path) -> dict[str, Any]:
    digest = hashlib.sha256()
    offsets, documents, ids = array("q", [0]), [], set()
    vocabulary: dict[str, int] = {}
    with (partial / PASSAGES).open("wb") as out:
        for place, uid, passage in _rows(passages, digest):
            if uid in ids:
                raise DataError(f"{place} repeats the id {uid!r}: give each passage its own.")
            ids.add(uid)
            row = {"id": uid, "title": passage.title, "text": passage.text}
            offsets.append(offsets[-1] + out.write(json.dumps(row, ensure_ascii=False).encode() + b"\n"))
            words = tokens(f"{passage.title} {passage.text}")
            documents.append(array("i", [vocabulary.setdefault(word, len(vocabulary)) for word in words]))
    if not vocabulary:
        raise DataError(f"{passages} holds no passage with a word to index.")
    np.save(partial / OFFSETS, np.frombuffer(offsets, np.int64))
    model = BM25(**METHOD, backend="numpy", csc_backend="numpy")
    model.scores = model.build_index_from_ids(list(range(len(vocabulary))), documents, show_progress=False)
    model.vocab_dict = vocabulary
    model.save(partial, show_progress=False)
    for file in FILES:
        flush(partial / file)
    return {
        "format": FORMAT,
        "passages": {"file": passages.name, "rows": len(ids), "sha256": digest.hexdigest()},
        "tokenizer": TOKENIZER,
        "bm25": METHOD | {"bm25s": version("bm25s"), "words": len(vocabulary)},
        "files": {file: _size_and_checksum(partial / file) for file in FILES},
    }


def _rows(passages: Path, digest: Any) -> Iterator[tuple[str, str, Passage]]:
    """Place, id and passage of each line. Updates `digest` with the file's bytes."""
    with readable("the passages", passages), passages.open("rb") as file:
        for number, line in enumerate(file, start=1):
            digest.update(line)
            if not line.strip():
                continue
            place = f"{passages}, line {number}"
            try:
                row = parse(line)
            except ValueError as error:
                raise DataError(f"{place} is not JSON: {error}.") from error
            match row:
                case {"id": str() | int() as uid, "contents": str(contents)}:
                    yield place, str(uid), split_contents(contents)
                case {"id": str() | int() as uid, "text": str(text)} if isinstance(title := row.get("title", ""), str):
                    yield place, str(uid), Passage(title, text)
                case _:
                    raise DataError(f"{place} is neither {{id, title, text}} nor {{id, contents}}.")


class Bm25Index:
    """An index made by `build_index`, checked and memory-mapped, so the operating system caches what it reads.

    Raises DataError for a folder that is incomplete, differs from its manifest, or has another tokenizer.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.manifest = _manifest(folder)
        self.checksum = hashlib.sha256(json.dumps(self.manifest["files"], sort_keys=True).encode()).hexdigest()
        self._model = BM25.load(folder, mmap=True, backend="numpy", show_progress=False)
        self._offsets = np.load(folder / OFFSETS, mmap_mode="r")

    def search(self, query: str, results: int) -> list[tuple[str, Passage, float]]:
        """Id, passage and score of the best passages that share a word with the query, at most `results`. Ties are in
        file order."""
        words = self._model.get_tokens_ids(tokens(query))
        if not words:
            return []
        scores = self._model.get_scores_from_ids(words)
        places = np.flatnonzero(scores)  # drop the many zeros first: they slow np.partition down
        if len(places) > results:
            places = places[scores[places] >= np.partition(scores[places], -results)[-results]]
        best = places[np.argsort(-scores[places], kind="stable")[:results]]
        with (self._folder / PASSAGES).open("rb") as file:
            return [(*self._passage(file.fileno(), number), float(scores[number])) for number in best]

    def _passage(self, file: int, number: int) -> tuple[str, Passage]:
        start, end = self._offsets[number], self._offsets[number + 1]
        row = json.loads(os.pread(file, int(end - start), int(start)))
        return row["id"], Passage(row["title"], row["text"])


class Bm25Backend(SearchBackend):
    """A search backend on a local index."""

    def __init__(self, folder: Path, results: int, characters: int) -> None:
        self._index, self._results, self._characters = Bm25Index(folder), results, characters
        self.identity = {
            "backend": "bm25",
            "index": self._index.checksum,
            "passages": self._index.manifest["passages"]["sha256"],
            "results": results,
            "characters": characters,
        }

    async def answer(self, query: str) -> str:
        loop = asyncio.get_running_loop()
        hits = await loop.run_in_executor(_searchers, self._index.search, query, self._results)
        return render((passage for _, passage, _ in hits), self._characters)


def _manifest(folder: Path) -> Mapping[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_bytes())
        if manifest.get("format") != FORMAT or manifest["tokenizer"] != TOKENIZER:
            raise ValueError("another version of this project built it")
    except (OSError, ValueError) as error:
        build = "build one with experiments/build_index.py"
        raise DataError(f"{folder} is not a complete search index ({error}): {build}.") from error
    for file, expected in manifest["files"].items():
        if not (folder / file).exists() or _size_and_checksum(folder / file) != expected:
            raise DataError(f"{folder / file} is lost or damaged: build the index again.")
    return manifest


def _size_and_checksum(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}
