"""Makes TextWorld games from seeds, in a folder per task (docs/run/data.md).

A task's folder has these files:

    settings.json           the `Family`
    <split>.jsonl           the split's games, a `GameRow` a line
    games/<seed>.z8         a game
    games/<seed>.json       what TextWorld knows of it
    games/<seed>.row.json   its `GameRow`, written last: after a stop, the next call reuses the game
"""

import contextlib
import hashlib
import io
import json
import logging
import multiprocessing
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from functools import cache, partial
from importlib.util import find_spec
from itertools import count, islice
from pathlib import Path
from typing import Any

from tqdm import tqdm

from rtpo.core.files import sha256, write_whole
from rtpo.core.seeds import generator
from rtpo.envs.textworld.games import INSTALL, LOST, SPLITS, WON, Family, GameRow, first_seed, read_games, write_games
from rtpo.envs.textworld.interpreter_child import Player
from rtpo.errors import DataError, MachineError

WORKERS = 2
"""games made at once, if there are as many CPUs"""
MOST_FAILURES = 100
"""a family is given up after so many seeds in a row without a game"""
MOST_REPEATS = 1000
"""a family is given up after so many games in a row that it already had"""


def make_games(folder: Path, family: Family, counts: Mapping[str, int]) -> None:
    """Make the first `counts[split]` games of each split and write the split's JSONL file. A file that has more games
    keeps their number, since runs may use them.

    A game is kept if its walkthrough wins and no earlier game of this call has the same texts. Raises MachineError
    without the package, and DataError if the folder holds games with other settings, no game can be made, or a game is
    also in one of the folder's other splits.
    """
    if find_spec("textworld") is None:
        raise MachineError(f"Games of TextWorld need its package: {INSTALL}.")
    _check_settings(folder, family)
    others = [file for split in SPLITS if split not in counts and (file := folder / f"{split}.jsonl").exists()]
    theirs = {task.meta["texts"]: file for file in others for task in read_games(file)}
    checksums: set[str] = set()
    for split, wanted in counts.items():
        file, rows = folder / f"{split}.jsonl", list[GameRow]()
        number = max(wanted, len(file.read_bytes().splitlines()) if file.exists() else 0)
        with tqdm(total=number, unit="game", desc=f"{family.kind} {split}", disable=None) as bar:
            for row in islice(_without_repeats(_games(folder, family, split), checksums), number):
                if row.texts in theirs:
                    raise DataError(
                        f"{row.uid} of {file} is also in {theirs[row.texts]}: make both splits by one call (--games), "
                        "which leaves repeated games out."
                    )
                rows.append(row)
                bar.update()
        write_games(file, rows)


def _check_settings(folder: Path, family: Family) -> None:
    (folder / "games").mkdir(parents=True, exist_ok=True)
    file, settings = folder / "settings.json", json.dumps(asdict(family)) + "\n"
    if file.exists() and file.read_text(encoding="utf-8") != settings:
        kept = file.read_text(encoding="utf-8").strip()
        raise DataError(f"{folder} holds games with other settings ({kept}): name another --folder, or move it away.")
    write_whole(file, settings.encode())


def _without_repeats(rows: Iterator[GameRow], checksums: set[str]) -> Iterator[GameRow]:
    """Drop games whose texts' checksum is already in `checksums`, and add the others' checksums to it. Raises DataError
    after MOST_REPEATS repeated games in a row."""
    repeats = 0
    for row in rows:
        repeats = repeats + 1 if row.texts in checksums else 0
        if repeats == MOST_REPEATS:
            raise DataError(f"{repeats} games in a row are repeated: change task.settings.games, or ask for fewer.")
        if not repeats:
            checksums.add(row.texts)
            yield row


def _games(folder: Path, family: Family, split: str) -> Iterator[GameRow]:
    """Make a split's games in the order of their seeds, without end. Seeds that give no game are skipped. Raises
    DataError after MOST_FAILURES of them in a row."""
    workers = min(WORKERS, len(os.sched_getaffinity(0)))
    # the compiler and the interpreter are C programs: they run in a new process, not in a fork of this one
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))
    try:
        seeds, failures = count(first_seed(split)), 0
        waiting = [pool.submit(make_game, folder / "games", family, seed) for seed in islice(seeds, 2 * workers)]
        while True:
            try:
                row = waiting.pop(0).result()
            except BrokenProcessPool as error:
                raise MachineError(
                    "A process that makes games was killed; finished games are kept. Run the same command to continue."
                ) from error
            waiting.append(pool.submit(make_game, folder / "games", family, next(seeds)))
            failures = 0 if row is not None else failures + 1
            if failures == MOST_FAILURES:
                raise DataError(f"{family} gives no game in {failures} tries: change task.settings.games.")
            if row is not None:
                yield row
    finally:
        pool.shutdown(cancel_futures=True)


def make_game(folder: Path, family: Family, seed: int) -> GameRow | None:
    """Make a seed's game in a folder, unless it exists. None if it cannot be made or its walkthrough does not win."""
    from textworld.generator import QuestGenerationError

    row_file = folder / f"{seed}.row.json"
    game = folder / f"{seed}.z8"
    if row_file.exists():
        row = GameRow(**json.loads(row_file.read_text(encoding="utf-8")))
        if game.exists() and sha256(game) == row.sha256:
            return row
    try:
        goal, walkthrough = _compile(family, seed, game)
    except QuestGenerationError:
        return None
    texts = list(Player().replay(str(game), walkthrough))
    if WON not in texts[-1] or any(mark in text for text in texts[:-1] for mark in (WON, LOST)):
        return None
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()
    row = GameRow(f"{family.kind}/{seed}", f"games/{game.name}", goal, walkthrough, sha256(game), digest)
    write_whole(row_file, json.dumps(asdict(row), ensure_ascii=False).encode())
    return row


def _compile(family: Family, seed: int, game: Path) -> tuple[str, tuple[str, ...]]:
    """Write a game's files; returns its goal and shortest walkthrough. Raises QuestGenerationError if the world has no
    quest of this length."""
    import textworld.generator

    rng = generator(seed, "textworld", family.kind)
    rooms, length = (int(rng.integers(least, most + 1)) for least, most in (family.rooms, family.length))
    options = _options(family, rooms, length)
    options.seeds = seed
    options.path, options.file_ext, options.force_recompile = str(game), ".z8", True
    with contextlib.redirect_stdout(io.StringIO()):
        generated = _generators()[family.kind](options)
        textworld.generator.compile_game(generated, options)
    game.with_suffix(".ni").unlink(missing_ok=True)  # the compiler's source
    return generated.objective.strip(), tuple(generated.metadata.get("walkthrough") or generated.walkthrough)


def _options(family: Family, rooms: int, length: int) -> Any:
    import textworld

    logging.getLogger("textworld").setLevel(logging.ERROR)
    options = textworld.GameOptions()
    options.nb_rooms, options.nb_objects = rooms, family.objects
    options.quest_length = length
    options.chaining.min_breadth = options.chaining.max_breadth = 1
    # otherwise the goal states the whole solution
    options.grammar.only_last_action = True
    return options


@cache
def _generators() -> dict[str, Any]:
    """For each kind of game, a function from options to a game."""
    from textworld.challenges.tw_treasure_hunter import treasure_hunter
    from textworld.generator import make_game
    from textworld.generator.data import KnowledgeBase

    knowledge = {"quests": KnowledgeBase.default(), "treasure": KnowledgeBase.load(treasure_hunter.KB_PATH)}
    generators = {"quests": make_game, "treasure": partial(treasure_hunter.make_game, "easy")}

    def generate(kind: str, options: Any) -> Any:
        options.kb = knowledge[kind]  # read once: it takes as long as making a game
        return generators[kind](options)

    return {kind: partial(generate, kind) for kind in generators}
