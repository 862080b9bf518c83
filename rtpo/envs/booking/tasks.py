"""Booking tasks: a wish, what the database must be at the end, and what the user must be told.

A wish is spelled by its key alone, such as `cancel:RRTC5E`; everything else follows from the key and the base. No user
has wishes in two splits. As on the airline tasks some wishes are against the desk's rules, or questions: there nothing
is to be written.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from rtpo.core.json_text import parse
from rtpo.core.seeds import generator
from rtpo.core.splits import SPLITS, split_of
from rtpo.envs.booking.database import BAG_PRICE, CABINS, DATES, TODAY, Database, Departure, Reservation, base
from rtpo.envs.booking.tools import TOOLS, TRANSFER
from rtpo.errors import ConfigError, DataError
from rtpo.tools.base import Arguments
from rtpo.types import Task

Action = tuple[str, Arguments]
"""A tool and its arguments."""
EXAMPLE = "paid:R225WZ"
MOST_ADDED = 3
POLICY = (
    f"You are a booking agent; today is {TODAY}. In a turn, make one tool call or write to the user. "
    "Cancel business or insured reservations only. Never move basic ones. Refuse what is forbidden, and hand over "
    "what you have no tool for."
)


@dataclass(frozen=True, slots=True)
class Wish:
    """What a user wants.

    key: spells it. user_id: whose it is. reservation_id: which reservation it is about, if any. text: how the user
    says it first. tools: those the agent is given. writes, figures: what the gold run writes, and what it tells the
    user.
    """

    key: str
    user_id: str
    reservation_id: str | None
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
    made = _KINDS[kind].make(key, parts) if kind in _KINDS else None
    if made is None:
        raise DataError(
            f"booking task {key!r} cannot be in this database: write one like {EXAMPLE!r}, of the kinds "
            f"{', '.join(_KINDS)}"
        )
    return made


@lru_cache(4096)
def gold(key: str) -> Database:
    """The database after a wish's gold writes on a fresh one."""
    database = Database(base())
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
    return wish_of(task).user_id


def generate(split: str, count: int, seed: int) -> list[Task]:
    """`count` different tasks of a split, the kinds in turn; the same arguments give the same list, and fewer a prefix
    of it. Raises ConfigError."""
    if split not in SPLITS:
        raise ConfigError(f"split {split!r} does not exist: use one of {', '.join(SPLITS)}")
    if count < 1:
        raise ConfigError(f"count of tasks is {count}: ask for at least 1")
    rng, kinds = generator(seed, "booking", "tasks"), tuple(_KINDS.values())
    found: dict[str, Task] = {}
    while len(found) < count:
        key = kinds[len(found) % len(kinds)].draw(rng)
        if key is not None and key not in found and split_of(wish(key).user_id) == split:
            found[key] = task_of(key, f"booking/{split}/{key}")
    return list(found.values())


def read_tasks(path: str | Path) -> list[Task]:
    """The tasks of a JSONL file with the fields uid and wish (a key). Raises DataError, naming the line."""
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DataError(f"data file {path} cannot be read ({error.strerror}): check the path") from error
    except UnicodeDecodeError as error:
        raise DataError(f"data file {path} is not UTF-8 text: save it as UTF-8") from error
    tasks: dict[str, Task] = {}
    for number, line in enumerate(lines, start=1):
        task = _read_line(f"line {number} of {path}", line)
        if task.uid in tasks:
            raise DataError(f"line {number} of {path} repeats uid {task.uid!r}: give each task its own uid")
        tasks[task.uid] = task
    if not tasks:
        raise DataError(f"data file {path} is empty: write one task a line, with uid and wish")
    return list(tasks.values())


def _read_line(place: str, line: str) -> Task:
    try:
        fields: Any = parse(line)
    except ValueError as error:
        raise DataError(f"{place} is not JSON ({error}): write one object a line") from error
    if not isinstance(fields, dict) or set(fields) != {"uid", "wish"}:
        raise DataError(f"{place} must be an object with the fields uid and wish, and no others")
    if not all(isinstance(value, str) and value for value in fields.values()):
        raise DataError(f"{place}: uid and wish must be text that is not empty")
    try:
        return task_of(fields["wish"], fields["uid"])
    except DataError as error:
        raise DataError(f"{place}: {error}") from error


Make = Callable[[str, list[str]], Wish | None]
Draw = Callable[[np.random.Generator], str | None]


@dataclass(frozen=True, slots=True)
class _Kind:
    """make: from a key and its parts after the kind to the wish, or None. draw: a key, or None for a bad draw."""

    make: Make
    draw: Draw


@cache
def _reservations() -> tuple[Reservation, ...]:
    return tuple(record for record in base().records.values() if isinstance(record, Reservation))


@cache
def _departures() -> tuple[Departure, ...]:
    return tuple(record for record in base().records.values() if isinstance(record, Departure))


def _any_reservation(rng: np.random.Generator) -> Reservation:
    return _reservations()[int(rng.integers(len(_reservations())))]


def _about(reservation: Reservation, text: str) -> str:
    return f"I am {reservation.user_id}. {text}"


def _only_reservation(parts: list[str]) -> Reservation | None:
    """The reservation that a key of one part names."""
    return Database(base()).reservation(parts[0]) if len(parts) == 1 else None


def _cancel(key: str, parts: list[str]) -> Wish | None:
    reservation = _only_reservation(parts)
    if reservation is None:
        return None
    identity = reservation.reservation_id
    text = _about(reservation, f"Cancel my reservation {identity}.")
    tools = ("get_reservation", "cancel")
    return Wish(key, reservation.user_id, identity, text, tools, _cancellation(reservation))


def _find(key: str, parts: list[str]) -> Wish | None:
    """A cancellation by someone who says where the reservation goes, and not which it is."""
    reservation = _only_reservation(parts)
    departure = reservation and Database(base()).departure(reservation.flight, reservation.date)
    if not reservation or not departure or not _is_only_one(reservation, departure):
        return None
    where = f"from {departure.origin} to {departure.destination}"
    text = _about(reservation, f"Cancel my flight {where} on {reservation.date}.")
    tools = ("get_user", "get_reservation", "cancel")
    return Wish(key, reservation.user_id, reservation.reservation_id, text, tools, _cancellation(reservation))


def _cancellation(reservation: Reservation) -> tuple[Action, ...]:
    allowed = reservation.insured or reservation.cabin == "business"
    return (("cancel", {"reservation_id": reservation.reservation_id}),) if allowed else ()


def _is_only_one(reservation: Reservation, departure: Departure) -> bool:
    """Whether the user has no other reservation on that route and date."""
    database = Database(base())
    user = database.user(reservation.user_id)
    others = (database.reservation(identity) for identity in (user.reservations if user else ()))
    routes = [database.departure(other.flight, other.date) for other in others if other is not None]
    return sum(other is not None and other.route == departure.route for other in routes) == 1


def _bags(key: str, parts: list[str]) -> Wish | None:
    reservation = _only_reservation(parts[:1])
    if reservation is None or parts[1:] not in ([str(n)] for n in range(1, MOST_ADDED + 1)):
        return None
    identity, added = reservation.reservation_id, int(parts[1])
    text = _about(reservation, f"Add {added} bag{'s' * (added > 1)} to my reservation {identity}. What is the charge?")
    writes = (("change_bags", {"reservation_id": identity, "bags": reservation.bags + added}),)
    tools = ("get_reservation", "change_bags")
    return Wish(key, reservation.user_id, identity, text, tools, writes, (str(BAG_PRICE * added),))


def _move(key: str, parts: list[str]) -> Wish | None:
    """To another departure of the route, with room for the party."""
    reservation = _only_reservation(parts[:1])
    if reservation is None or len(parts) != 3:
        return None
    database = Database(base())
    before, after = database.departure(reservation.flight, reservation.date), database.departure(parts[1], parts[2])
    if before is None or after is None or after.key == before.key or after.status != "available":
        return None
    seats = after.seats[CABINS.index(reservation.cabin)]
    if (before.origin, before.destination) != (after.origin, after.destination) or seats < len(reservation.passengers):
        return None
    identity = reservation.reservation_id
    text = _about(reservation, f"Move my reservation {identity} to flight {after.flight} on {after.date}.")
    move = {"reservation_id": identity, "flight": after.flight, "date": after.date}
    writes = (("change_flight", move),) if reservation.cabin != "basic" else ()
    return Wish(key, reservation.user_id, identity, text, ("get_reservation", "change_flight"), writes)


def _book(key: str, parts: list[str]) -> Wish | None:
    """The one cheapest flight of a route and date in a cabin, where there are several to choose from."""
    if len(parts) != 5 or parts[4] not in CABINS:
        return None
    user, origin, destination, day, cabin = parts
    database = Database(base())
    place = [*CABINS].index(cabin)  # type: ignore[arg-type]
    free = [d for d in database.departures(origin, destination, day) if d.status == "available" and d.seats[place]]
    prices = sorted(departure.prices[place] for departure in free)
    if database.user(user) is None or len(prices) < 2 or prices[0] == prices[1]:
        return None
    cheapest = min(free, key=lambda departure: departure.prices[place])
    text = f"I am {user}. Book me the cheapest {cabin} seat from {origin} to {destination} on {day}."
    booking = {"user_id": user, "flight": cheapest.flight, "date": day, "cabin": cabin}
    return Wish(key, user, None, text, ("search_flights", "book"), (("book", booking),))


def _paid(key: str, parts: list[str]) -> Wish | None:
    reservation = _only_reservation(parts)
    if reservation is None:
        return None
    text = _about(reservation, f"What did I pay for reservation {reservation.reservation_id}?")
    tools, figures = ("get_reservation",), (str(reservation.paid),)
    return Wish(key, reservation.user_id, reservation.reservation_id, text, tools, figures=figures)


def _name(key: str, parts: list[str]) -> Wish | None:
    """What no tool can do."""
    reservation = _only_reservation(parts)
    if reservation is None:
        return None
    text = _about(reservation, f"Correct my name in reservation {reservation.reservation_id}.")
    return Wish(key, reservation.user_id, reservation.reservation_id, text, ("get_reservation", "cancel", TRANSFER))


def _drawn(kind: str, make: Make) -> Draw:
    """Keys of a kind that take a reservation alone."""

    def draw(rng: np.random.Generator) -> str | None:
        parts = [_any_reservation(rng).reservation_id]
        key = ":".join((kind, *parts))
        return key if make(key, parts) is not None else None

    return draw


def _draw_bags(rng: np.random.Generator) -> str:
    return f"bags:{_any_reservation(rng).reservation_id}:{rng.integers(1, MOST_ADDED + 1)}"


def _draw_move(rng: np.random.Generator) -> str | None:
    reservation, database = _any_reservation(rng), Database(base())
    before = database.departure(reservation.flight, reservation.date)
    if before is None:
        return None
    day = DATES[int(rng.integers(len(DATES)))]
    departures = database.departures(before.origin, before.destination, day)
    if not departures:
        return None
    parts = [reservation.reservation_id, departures[int(rng.integers(len(departures)))].flight, day]
    key = ":".join(("move", *parts))
    return key if _move(key, parts) is not None else None


def _draw_book(rng: np.random.Generator) -> str | None:
    user, departure = _any_reservation(rng).user_id, _departures()[int(rng.integers(len(_departures())))]
    parts = [user, *departure.route, CABINS[int(rng.integers(len(CABINS)))]]
    key = ":".join(("book", *parts))
    return key if _book(key, parts) is not None else None


_KINDS: Mapping[str, _Kind] = MappingProxyType(
    {
        "cancel": _Kind(_cancel, _drawn("cancel", _cancel)),
        "bags": _Kind(_bags, _draw_bags),
        "move": _Kind(_move, _draw_move),
        "paid": _Kind(_paid, _drawn("paid", _paid)),
        "book": _Kind(_book, _draw_book),
        "name": _Kind(_name, _drawn("name", _name)),
        "find": _Kind(_find, _drawn("find", _find)),
    }
)
