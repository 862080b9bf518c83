"""Booking tasks: a wish, what the database must be at the end, and what the user must be told.

A wish is spelled by its key alone, such as `cancel:R1007`; everything else follows from the key and the base. No user
has wishes in two splits. As on the airline tasks some wishes are against the desk's rules, or questions: there nothing
is to be written.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from rtpo.core.seeds import generator
from rtpo.core.splits import SPLITS, split_of
from rtpo.envs.booking.database import AIRPORTS, DATES, RESERVATIONS, TODAY, Database, Reservation, base
from rtpo.envs.booking.tools import TOOLS
from rtpo.envs.task_files import read_task_file
from rtpo.errors import ConfigError, DataError
from rtpo.tools.base import Arguments
from rtpo.types import Task

Action = tuple[str, Arguments]
"""a tool and its arguments"""
EXAMPLE = "paid:R1007"
KINDS = ("cancel", "paid", "book", "find")
POLICY = (
    f"You are a booking agent; today is {TODAY}. In a turn, make one tool call or write to the user. "
    "Cancel insured reservations only; refuse to cancel others."
)


@dataclass(frozen=True, slots=True)
class Wish:
    """What a user wants.

    key: spells it. user: whose it is. about: the reservation or the route it is about. text: how the user says it
    first. tools: those the agent is given. writes, figures: what the gold run writes, and what it tells the user.
    """

    key: str
    user: str
    about: tuple[str, ...]
    text: str
    tools: tuple[str, ...]
    writes: tuple[Action, ...] = ()
    figures: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        return self.key.partition(":")[0]


@lru_cache(4096)
def wish(key: str) -> Wish:
    """The wish that a key spells. Raises DataError for one that cannot be."""
    kind, *parts = key.split(":")
    made = None
    if kind == "book" and len(parts) == 4:
        made = _booking(key, *parts)
    elif kind in KINDS and len(parts) == 1 and (reservation := Database().reservation(parts[0])):
        made = _of_reservation(key, kind, reservation)
    if made is None:
        raise DataError(
            f"booking task {key!r} cannot be in this database: write one like {EXAMPLE!r}, of the kinds "
            f"{', '.join(KINDS)}"
        )
    return made


def _booking(key: str, user: str, *route: str) -> Wish | None:
    """The one cheapest flight of a route and date, where there are several to choose from."""
    origin, destination, day = route
    found = sorted(Database().free(*route), key=lambda departure: departure.price)
    if user not in {one.user for one in _reservations()} or len(found) < 2 or found[0].price == found[1].price:
        return None
    text = f"I am {user}. Book me the cheapest seat from {origin} to {destination} on {day}."
    booking = ("book", {"user": user, "flight": found[0].flight, "date": day})
    return Wish(key, user, route, text, ("search_flights", "book"), (booking,))


def _of_reservation(key: str, kind: str, reservation: Reservation) -> Wish:
    """`find` is a cancellation by someone who does not say which reservation it is."""
    identity, cancels = reservation.key, kind in ("cancel", "find") and reservation.insured
    says, tools = {
        "cancel": (f"Cancel my reservation {identity}. What is the refund?", ("get_reservation", "cancel")),
        "find": ("Cancel my reservation. What is the refund?", ("get_reservation", "cancel")),
        "paid": (f"What did I pay for reservation {identity}?", ("get_reservation",)),
    }[kind]
    return Wish(
        key,
        reservation.user,
        (identity,),
        f"I am {reservation.user}. {says}",
        tools,
        (("cancel", {"reservation": identity}),) if cancels else (),
        (str(reservation.paid),) if cancels or kind == "paid" else (),
    )


@lru_cache(4096)
def gold(key: str) -> Database:
    """The database after a wish's gold writes on a fresh one."""
    database = Database()
    for tool, arguments in wish(key).writes:
        database, _ = TOOLS[tool].run(database, arguments)
    return database


def task_of(key: str, uid: str) -> Task:
    """The task of a wish. Raises DataError for a key that cannot be."""
    found = wish(key)
    return Task(uid=uid, question=found.text, answer=found.figures, meta={"wish": key})


def wish_of(task: Task) -> Wish:
    """The wish of a booking task."""
    return wish(task.meta["wish"])


def needs_write(task: Task) -> bool:
    """Whether the gold run writes to the database."""
    return bool(wish_of(task).writes)


def split_key(task: Task) -> str:
    """The user: all wishes of one are in one split."""
    return wish_of(task).user


def generate(split: str, count: int, seed: int) -> list[Task]:
    """`count` different tasks of a split, the kinds in turn; the same arguments give the same list, and fewer a prefix
    of it. Raises ConfigError."""
    if split not in SPLITS:
        raise ConfigError(f"split {split!r} does not exist: use one of {', '.join(SPLITS)}")
    if count < 1:
        raise ConfigError(f"count of tasks is {count}: ask for at least 1")
    rng = generator(seed, "booking", "tasks")
    found: dict[str, Task] = {}
    while len(found) < count:
        key = _drawn(KINDS[len(found) % len(KINDS)], rng)
        try:
            is_right = key not in found and split_of(wish(key).user) == split
        except DataError:  # no two flights, or two that cost the same
            continue
        if is_right:
            found[key] = task_of(key, f"booking/{split}/{key}")
    return list(found.values())


def _drawn(kind: str, rng: np.random.Generator) -> str:
    reservation = _reservations()[int(rng.integers(RESERVATIONS))]
    if kind != "book":
        return f"{kind}:{reservation.key}"
    origin, destination, day = (str(rng.choice(names)) for names in (AIRPORTS, AIRPORTS, DATES))
    return f"book:{reservation.user}:{origin}:{destination}:{day}"


@cache
def _reservations() -> list[Reservation]:
    return [record for record in base().values() if isinstance(record, Reservation)]


def read_tasks(path: str | Path) -> list[Task]:
    """The tasks of a file with the fields wish (a key) and uid. Raises DataError, naming the line."""

    def make(row: Mapping[str, Any]) -> Task:
        if not isinstance(row["wish"], str):
            raise DataError(f"wish must be text like {EXAMPLE!r}")
        return task_of(row["wish"], row["uid"])

    return read_task_file(path, ("wish",), make)
