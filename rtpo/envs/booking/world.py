"""The booking desk's world: a database, the tools that change it, users' wishes, and the scripted user.

A fixed seed determines the base database. A `Database` holds only the records that differ from the base and is
immutable. So all forks share the base, and no fork sees another's writes. The tools check that a record exists or a
seat is free. They do not check the desk's rules: the agent must follow those.

A wish is determined by a key, such as `cancel:R1007`, and the base. All wishes of one user are in one split. A wish
that breaks the desk's rules, or is a question, has no gold writes.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date, timedelta
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from rtpo.core.seeds import generator
from rtpo.core.splits import draw_tasks
from rtpo.data.reading import read_task_file
from rtpo.errors import DataError
from rtpo.tools.base import Arguments
from rtpo.types import Task

STOP = "###STOP###"
"""the user's last message contains it"""
MOST_MESSAGES = 8
"""the user gives up after this many messages of the agent"""
SEED = 0
USERS, RESERVATIONS = 400, 2000
TODAY = date(2024, 5, 15)
DATES = tuple((TODAY + timedelta(days=day)).isoformat() for day in range(1, 11))
AIRPORTS = ("ATL", "BOS", "DEN", "JFK", "LAX", "SEA")
DEPARTURES = 4
"""number of flights on each route and date"""
_DIGIT = re.compile(r"\d")
_ABOUT_WHICH = re.compile(r"\b(reservation|booking|which)\b", re.IGNORECASE)
_NAMES = ("ava", "chen", "daiki", "emma", "fatima", "ivan", "lucas", "mia", "noah", "raj", "sofia", "yara")


@dataclass(frozen=True, slots=True)
class Departure:
    """A flight on a date."""

    flight: str  # such as ATLBOS0
    date: str
    seats: int  # free seats
    price: int  # dollars

    @property
    def key(self) -> str:
        return f"{self.flight}/{self.date}"


@dataclass(frozen=True, slots=True)
class Reservation:
    """A user's reservation of a seat."""

    key: str
    user: str
    flight: str
    date: str
    insured: bool
    paid: int  # dollars; 0 once cancelled
    status: Literal["booked", "cancelled"] = "booked"


Record = Departure | Reservation


@dataclass(frozen=True, slots=True)
class Database:
    """A database, as its changes to the base. Two are equal exactly when all their records are equal."""

    changed: tuple[Record, ...] = ()  # records that are new or differ from the base's, sorted by key

    def put(self, *records: Record) -> "Database":
        """A copy with these records added, each replacing the record with its key."""
        changed = {record.key: record for record in (*self.changed, *records)}
        return Database(tuple(changed[key] for key in sorted(changed) if base().get(key) != changed[key]))

    def get(self, key: str) -> Record | None:
        return next((record for record in self.changed if record.key == key), base().get(key))

    def free(self, origin: str, destination: str, day: str) -> list[Departure]:
        """Departures with a free seat, for a route and date."""
        departures = (self.get(f"{origin}{destination}{number}/{day}") for number in range(DEPARTURES))
        return [record for record in departures if isinstance(record, Departure) and record.seats]


@cache
def base() -> Mapping[str, Record]:
    """All records of a fresh database by key, made once per process. It is read-only."""
    rng = generator(SEED, "booking")
    routes = [f"{start}{end}" for start in AIRPORTS for end in AIRPORTS if start != end]
    flights = [f"{route}{number}" for route in routes for number in range(DEPARTURES)]
    departures = [
        Departure(flight, day, int(rng.integers(20)), int(rng.integers(60, 400))) for flight in flights for day in DATES
    ]
    records: list[Record] = [*departures]
    for number in range(RESERVATIONS):
        user, place, insured = (int(rng.integers(most)) for most in (USERS, len(departures), 2))
        key, name, seat = f"R{1000 + number}", f"{_NAMES[user % len(_NAMES)]}_{user}", departures[place]
        records.append(Reservation(key, name, seat.flight, seat.date, bool(insured), seat.price))
    return MappingProxyType({record.key: record for record in records})


# tools


class ToolError(Exception):
    """A call that fits its schema but cannot be carried out. The agent reads the error's message."""


Run = Callable[[Database, Arguments], tuple[Database, str]]


@dataclass(frozen=True, slots=True)
class BookingTool:
    """A tool of the booking desk."""

    schema: Mapping[str, Any]  # an entry of a chat template's `tools`
    run: Run  # (database, arguments that fit the schema) -> (new database, text for the agent)
    writes: bool  # a call can change the database


def _reservation(database: Database, key: str) -> Reservation:
    record = database.get(key)
    if not isinstance(record, Reservation):
        raise ToolError(f"no reservation {key}")
    return record


def _departure(database: Database, flight: str, day: str) -> Departure:
    record = database.get(f"{flight}/{day}")
    if not isinstance(record, Departure):
        raise ToolError(f"no flight {flight} on {day}")
    return record


def _as_json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _get_reservation(database: Database, arguments: Arguments) -> tuple[Database, str]:
    return database, _as_json(asdict(_reservation(database, arguments["reservation"])))


def _search_flights(database: Database, arguments: Arguments) -> tuple[Database, str]:
    departures = database.free(arguments["origin"], arguments["destination"], arguments["date"])
    return database, _as_json({departure.flight: departure.price for departure in departures})


def _book(database: Database, arguments: Arguments) -> tuple[Database, str]:
    departure = _departure(database, arguments["flight"], arguments["date"])
    if not departure.seats:
        raise ToolError(f"no seat on {departure.flight} on {departure.date}")
    key = f"NEW{1 + sum(record.key.startswith('NEW') for record in database.changed)}"
    new = Reservation(key, arguments["user"], departure.flight, departure.date, False, departure.price)
    return database.put(new, replace(departure, seats=departure.seats - 1)), _as_json(asdict(new))


def _cancel(database: Database, arguments: Arguments) -> tuple[Database, str]:
    reservation = _reservation(database, arguments["reservation"])
    if reservation.status == "cancelled":
        raise ToolError(f"{reservation.key} is cancelled")
    departure = _departure(database, reservation.flight, reservation.date)
    freed = replace(departure, seats=departure.seats + 1)
    return database.put(replace(reservation, status="cancelled", paid=0), freed), f"Refund: {reservation.paid}"


def _tool(name: str, description: str, arguments: str, run: Run, *, writes: bool = False) -> tuple[str, BookingTool]:
    properties = {argument: {"type": "string"} for argument in arguments.split()}
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    function = {"name": name, "description": description, "parameters": parameters}
    return name, BookingTool({"type": "function", "function": function}, run, writes)


TOOLS: Mapping[str, BookingTool] = MappingProxyType(
    dict(
        [
            _tool("get_reservation", "Read a reservation.", "reservation", _get_reservation),
            _tool("search_flights", "Flights with free seats, and prices.", "origin destination date", _search_flights),
            _tool("book", "Book a seat for a user.", "user flight date", _book, writes=True),
            _tool("cancel", "Cancel a reservation.", "reservation", _cancel, writes=True),
        ]
    )
)


# wishes

Action = tuple[str, Arguments]
"""a tool and its arguments"""
EXAMPLE = "paid:R1007"
KINDS = ("cancel", "paid", "book", "find")  # paid: asks what was paid; find: cancels without naming the reservation
POLICY = (
    f"You are a booking agent; today is {TODAY}. In a turn, make one tool call or write to the user. "
    "Cancel insured reservations only; refuse to cancel others."
)


@dataclass(frozen=True, slots=True)
class Wish:
    """What a user wants."""

    key: str  # determines the wish
    user: str
    about: tuple[str, ...]  # the reservation's key, or origin, destination and date
    text: str  # the user's first message
    tools: tuple[str, ...]  # that the agent gets
    writes: tuple[Action, ...] = ()  # gold writes: calls of the reference solution that change the database
    figures: tuple[str, ...] = ()  # that the agent must tell the user

    @property
    def kind(self) -> str:
        return self.key.partition(":")[0]


@lru_cache(4096)
def wish(key: str) -> Wish:
    """The wish with this key. Raises DataError if the key does not fit the base database."""
    kind, *parts = key.split(":")
    if kind == "book":
        if len(parts) == 4 and (booking := _booking_wish(key, *parts)):
            return booking
    elif kind in KINDS and len(parts) == 1 and isinstance(reservation := base().get(parts[0]), Reservation):
        return _reservation_wish(key, kind, reservation)
    raise DataError(
        f"booking task {key!r} does not fit the database: write one like {EXAMPLE!r}, of the kinds {', '.join(KINDS)}"
    )


def _booking_wish(key: str, user: str, *route: str) -> Wish | None:
    """A wish for the cheapest flight. None without such a user, without two flights, or if two are the cheapest."""
    origin, destination, day = route
    departures = sorted(Database().free(*route), key=lambda departure: departure.price)
    users = {reservation.user for reservation in _reservations()}
    if user not in users or len(departures) < 2 or departures[0].price == departures[1].price:
        return None
    text = f"I am {user}. Book me the cheapest seat from {origin} to {destination} on {day}."
    booking = ("book", {"user": user, "flight": departures[0].flight, "date": day})
    return Wish(key, user, route, text, ("search_flights", "book"), (booking,))


def _reservation_wish(key: str, kind: str, reservation: Reservation) -> Wish:
    """A wish about a reservation. A wish of kind `find` asks to cancel it without naming it."""
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
    """A fresh database after a wish's gold writes."""
    database = Database()
    for tool, arguments in wish(key).writes:
        database, _ = TOOLS[tool].run(database, arguments)
    return database


def task_of(key: str, uid: str) -> Task:
    """The task with this wish. Raises DataError if the key does not fit the base database."""
    request = wish(key)
    return Task(uid=uid, question=request.text, answer=request.figures, meta={"wish": key})


def wish_of(task: Task) -> Wish:
    """The wish of a booking task."""
    return wish(task.meta["wish"])


def split_key(task: Task) -> str:
    """The task's user: all wishes of one user are in one split."""
    return wish_of(task).user


def generate(split: str, count: int, seed: int) -> list[Task]:
    """Draw `count` different tasks of a split, cycling through KINDS. The same arguments give the same list; a smaller
    `count` gives a prefix of it. Raises ConfigError."""
    rng = generator(seed, "booking", "tasks")

    def draw(number: int) -> Task | None:
        kind, reservation = KINDS[number % len(KINDS)], _reservations()[int(rng.integers(RESERVATIONS))]
        key = f"{kind}:{reservation.key}"
        if kind == "book":
            route = (str(rng.choice(names)) for names in (AIRPORTS, AIRPORTS, DATES))
            key = ":".join((kind, reservation.user, *route))
        try:
            return task_of(key, f"booking/{split}/{key}")
        except DataError:  # fewer than two flights, or two cheapest ones
            return None

    return draw_tasks(split, count, draw, split_key)


@cache
def _reservations() -> list[Reservation]:
    return [record for record in base().values() if isinstance(record, Reservation)]


def read_tasks(path: str | Path) -> list[Task]:
    """Read tasks from a file with the fields wish (a key) and uid. Raises DataError naming the line."""

    def make(row: Mapping[str, Any]) -> Task:
        if not isinstance(row["wish"], str):
            raise DataError(f"wish must be text like {EXAMPLE!r}")
        return task_of(row["wish"], row["uid"])

    return read_task_file(path, ("wish",), make)


# the user


def answer(wish: Wish, messages: Sequence[str], *, wrote: bool) -> str:
    """The user's answer to the agent's last message. The user answers questions, believes the agent, insists once if
    refused, and leaves. wrote: a call has written to the database."""
    last = messages[-1]
    if len(messages) >= MOST_MESSAGES:
        return STOP
    if "?" in last:
        is_known = wish.kind != "book" and _ABOUT_WHICH.search(last)
        return f"It is {wish.about[0]}." if is_known else f"Yes. I am {wish.user}."
    if (wrote or wish.kind == "paid") and (not wish.figures or _DIGIT.search(last)):
        return f"Thanks. {STOP}"
    if any("?" not in message for message in messages[:-1]):
        return f"Then leave it. {STOP}"
    return "Please do check again."
