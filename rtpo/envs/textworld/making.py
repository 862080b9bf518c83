"""Makes games of TextWorld by seed, and keeps them in a folder of one family (docs/run/data.md).

A family's folder has one file of rows for each split, `train.jsonl`, and the games in `games/`. A game's row stands
beside it, written last; so what was made before a stop is there for the next call.
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
from rtpo.envs.textworld.games import INSTALL, LOST, WON, Family, GameRow, first_seed, write_games
from rtpo.envs.textworld.interpreter_child import Player
from rtpo.errors import DataError, MachineError

WORKERS = 2
"""games made at once, where the machine has as many processors"""


def make_games(folder: Path, family: Family, counts: Mapping[str, int]) -> dict[str, int]:
    """Make the first games of each split, `counts` by its name, and write its file of rows.

    A game is kept if its walkthrough wins it and no other game of the family has the same texts. Returns how many games
    each file has. Raises MachineError without the package, DataError where the folder holds games of other settings.
    """
    if find_spec("textworld") is None:
        raise MachineError(f"Games of TextWorld need its package: {INSTALL}.")
    _check_settings(folder, family)
    texts: set[str] = set()
    for split, wanted in counts.items():
        rows = []
        with tqdm(total=wanted, unit="game", desc=f"{family.kind} {split}", disable=None) as bar:
            for row in islice(_new(_made(folder, family, split), texts), wanted):
                rows.append(row)
                bar.update()
        write_games(folder / f"{split}.jsonl", rows)
    return dict(counts)


def _check_settings(folder: Path, family: Family) -> None:
    (folder / "games").mkdir(parents=True, exist_ok=True)
    file, wanted = folder / "settings.json", json.dumps(asdict(family)) + "\n"
    if file.exists() and file.read_text(encoding="utf-8") != wanted:
        kept = file.read_text(encoding="utf-8").strip()
        raise DataError(f"{folder} holds games of other settings ({kept}): name another --folder, or move it away.")
    write_whole(file, wanted.encode())


def _new(rows: Iterator[GameRow], texts: set[str]) -> Iterator[GameRow]:
    """Those with texts that no earlier one has."""
    for row in rows:
        if row.texts not in texts:
            texts.add(row.texts)
            yield row


def _made(folder: Path, family: Family, split: str) -> Iterator[GameRow]:
    """The games of a split by seed, without end; a seed of which none comes is passed over."""
    workers = min(WORKERS, len(os.sched_getaffinity(0)))
    # the compiler and the interpreter are C programs: a fresh process for them, forked from nothing
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))
    try:
        seeds = count(first_seed(split))
        waiting = [pool.submit(make_game, folder / "games", family, seed) for seed in islice(seeds, 2 * workers)]
        while True:
            try:
                row = waiting.pop(0).result()
            except BrokenProcessPool as error:
                raise MachineError(
                    "A process that makes games was ended from outside; the games that are made are kept. "
                    "Run the same command to go on."
                ) from error
            waiting.append(pool.submit(make_game, folder / "games", family, next(seeds)))
            if row is not None:
                yield row
    finally:
        pool.shutdown(cancel_futures=True)


def make_game(folder: Path, family: Family, seed: int) -> GameRow | None:
    """The game of a seed, made in a folder unless it is there. None where the package makes none that its walkthrough
    wins."""
    from textworld.generator import QuestGenerationError

    noted = folder / f"{seed}.row.json"
    if noted.exists():
        return GameRow(**json.loads(noted.read_text(encoding="utf-8")))
    game = folder / f"{seed}.z8"
    try:
        goal, walkthrough = _compiled(family, seed, game)
    except QuestGenerationError:
        return None
    texts = list(islice(Player().replay(str(game), walkthrough), 1 + len(walkthrough)))
    if WON not in texts[-1] or any(mark in text for text in texts[:-1] for mark in (WON, LOST)):
        return None
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()
    row = GameRow(f"{family.kind}/{seed}", f"games/{game.name}", goal, walkthrough, sha256(game), digest)
    write_whole(noted, json.dumps(asdict(row), ensure_ascii=False).encode())
    return row


def _compiled(family: Family, seed: int, game: Path) -> tuple[str, tuple[str, ...]]:
    """Write a game's files; its goal and shortest walkthrough. Raises QuestGenerationError where the world has no quest
    of this length."""
    import textworld.generator

    rng = generator(seed, "textworld", family.kind)
    rooms, length = (int(rng.integers(least, most + 1)) for least, most in (family.rooms, family.length))
    options = _options(family, rooms, length)
    options.seeds = seed
    options.path, options.file_ext, options.force_recompile = str(game), ".z8", True
    with contextlib.redirect_stdout(io.StringIO()):
        made = _makers()[family.kind](options)
        textworld.generator.compile_game(made, options)
    game.with_suffix(".ni").unlink(missing_ok=True)  # the compiler's source
    return made.objective.strip(), tuple(made.metadata.get("walkthrough") or made.walkthrough)


def _options(family: Family, rooms: int, length: int) -> Any:
    import textworld

    logging.getLogger("textworld").setLevel(logging.ERROR)
    options = textworld.GameOptions()
    options.nb_rooms, options.nb_objects = rooms, family.objects
    options.quest_length = length
    options.chaining.min_breadth = options.chaining.max_breadth = 1
    # otherwise the goal recites the whole solution
    options.grammar.only_last_action = True
    return options


@cache
def _makers() -> dict[str, Any]:
    """By kind of game: makes one of its options."""
    from textworld.challenges.tw_treasure_hunter import treasure_hunter
    from textworld.generator import make_game
    from textworld.generator.data import KnowledgeBase

    knowledge = {"quests": KnowledgeBase.default(), "treasure": KnowledgeBase.load(treasure_hunter.KB_PATH)}
    make = {"quests": make_game, "treasure": partial(treasure_hunter.make_game, "easy")}

    def made(kind: str, options: Any) -> Any:
        options.kb = knowledge[kind]  # reading it takes as long as making a game
        return make[kind](options)

    return {kind: partial(made, kind) for kind in make}
