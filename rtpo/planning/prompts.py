"""How long the real prompts are, in tokens of Qwen3's tokenizer: measured here, and kept in prompts.json beside this
file, which plans and docs/run/data.md read."""

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from rtpo.core.chat import ChatFormat
from rtpo.core.files import sha256, write_whole
from rtpo.data.prepare import DataFolder
from rtpo.data.records import read_records
from rtpo.data.registry import REGISTRY, DataSet
from rtpo.data.sources import parse_file
from rtpo.errors import DataError
from rtpo.run.composition import composed
from rtpo.run.config import TaskConfig, compose_run
from rtpo.tools.search.bm25 import build_index
from rtpo.types import Task

FILE = Path(__file__).with_name("prompts.json")
QUANTILES = (50, 90, 99)


@dataclass(frozen=True)
class Lengths:
    """Of a set's prompts, c_0 with its system message and tools. task: whose environment and limit these are. over: how
    many are longer than the limit."""

    task: str
    count: int
    mean: float
    quantiles: dict[str, float]
    longest: int
    limit: int
    over: int


@cache
def prompt_lengths() -> dict[str, Lengths]:
    """Those in the file, by set."""
    found = json.loads(FILE.read_text(encoding="utf-8"))["sets"]
    return {name: Lengths(**one) for name, one in found.items()}


def differing(found: dict[str, Lengths]) -> list[str]:
    """Sets whose kept lengths are others."""
    return [name for name, one in found.items() if prompt_lengths().get(name) != one]


def measure(data: Path, chat: ChatFormat) -> dict[str, Lengths]:
    """Of every set of mathematics and search that `data` has, prepared or as the raw file whose checksum the registry
    has. Raises DataError where it has none."""
    if not data.is_dir():
        raise DataError(f"{data} cannot be read: there is no such folder. Give one of data sets (docs/run/data.md).")
    raw = {sha256(file): file for file in sorted(data.iterdir()) if file.is_file()}
    found = {name: tasks for name, known in REGISTRY.items() if (tasks := _tasks(DataFolder(data), raw, known))}
    if not found:
        raise DataError(f"{data} has none of the sets {', '.join(REGISTRY)}: give a folder of them (docs/run/data.md).")
    with TemporaryDirectory() as folder:
        passages = Path(folder) / "passages.jsonl"
        passages.write_text('{"id": "1", "title": "a", "text": "b"}\n', encoding="utf-8")
        build_index(passages, index := Path(folder) / "index")
        search = f"task.settings.search.bm25.index={index}"  # of which a prompt says nothing
        opened = {
            kind: compose_run(composed("train", [f"task={kind}_paper", *([search] if kind == "search" else [])])).task
            for kind in ("math", "search")
        }
        return {name: _lengths(problems, opened[REGISTRY[name].kind], chat) for name, problems in found.items()}


def write(found: dict[str, Lengths], tokenizer: Path) -> None:
    """Keep them, with what the tokenizer was."""
    made_of = {name: sha256(tokenizer / name) for name in ("tokenizer.json", "chat_template.jinja")}
    record = {"tokenizer_sha256": made_of, "sets": {name: asdict(one) for name, one in found.items()}}
    write_whole(FILE, (json.dumps(record, indent=1) + "\n").encode())


def _tasks(folder: DataFolder, raw: dict[str, Path], known: DataSet) -> Sequence[Task]:
    if known.parse is None:
        return []
    if folder.is_ready(known.name):
        return read_records(folder.file(known.name))
    if known.sha256 not in raw:
        return []
    records, _ = parse_file(known.name, raw[known.sha256], known.parse)
    return [Task(one.uid, one.question, one.answers, one.meta) for one in records]


def _lengths(problems: Iterable[Task], task: TaskConfig, chat: ChatFormat) -> Lengths:
    async def all_of() -> list[int]:
        env: Any = task.make_env()
        return [len(chat.opening(await env.reset(problem))) for problem in problems]

    found, limit = np.array(asyncio.run(all_of())), task.max_prompt_tokens
    quantiles = {str(q): round(float(np.percentile(found, q)), 1) for q in QUANTILES}
    mean = round(float(found.mean()), 1)
    return Lengths(task.name, len(found), mean, quantiles, int(found.max()), limit, int((found > limit).sum()))
