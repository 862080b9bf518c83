"""The booking database: one base a process that nothing can change, and small overlays of changed records.

The base is a function of a seed, about 7 MB as JSON. A `Database` is the base and the records that differ from it;
it is never changed in place, so any number of forks share the base and none sees another's writes.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from functools import cache
from hashlib import sha256
from itertools import groupby
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from rtpo.core.seeds import generator

Cabin = Literal["basic", "economy", "business"]
CABINS: tuple[Cabin, ...] = ("basic", "economy", "business")
Membership = Literal["regular", "silver", "gold"]
MEMBERSHIPS: tuple[Membership, ...] = ("regular", "silver", "gold")
Key = tuple[str, str]
"""A table, and the id of a record in it."""
Route = tuple[str, str, str]
"""Origin, destination, date."""

SEED = 0
USERS, FLIGHTS, RESERVATIONS, DAYS = 2000, 600, 11_000, 30
TODAY = date(2024, 5, 15)
DATES = tuple((TODAY + timedelta(days=day)).isoformat() for day in range(1, DAYS + 1))
BAG_PRICE = 50
"""dollars"""

_AIRPORTS = (
    "ATL", "BOS", "CLT", "DEN", "DFW", "DTW", "EWR", "IAH", "JFK", "LAS", "LAX", "LGA", "MCO", "MIA", "MSP", "ORD",
    "PHL", "PHX", "SEA", "SFO",
)  # fmt: skip
_FIRST = (
    "Aarav", "Ava", "Chen", "Daiki", "Emma", "Fatima", "Ivan", "James", "Lei", "Lucas", "Mia", "Noah", "Olivia", "Raj",
    "Sofia", "Yara",
)  # fmt: skip
_LAST = (
    "Ahmed", "Brown", "Davis", "Garcia", "Ito", "Jackson", "Khan", "Kim", "Kovacs", "Li", "Lopez", "Moore", "Muller",
    "Patel", "Rossi", "Silva",
)  # fmt: skip
_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
_FARES = np.array([60, 110, 320])
"""the least a flight costs, by cabin"""


@dataclass(frozen=True, slots=True)
class Passenger:
    first: str
    last: str
    born: str


@dataclass(frozen=True, slots=True)
class User:
    user_id: str
    passenger: Passenger
    email: str
    membership: Membership
    card: str
    reservations: tuple[str, ...]

    @property
    def key(self) -> Key:
        return ("users", self.user_id)


@dataclass(frozen=True, slots=True)
class Departure:
    """A flight on a date. seats and prices (dollars) are by cabin, in the order of `CABINS`."""

    flight: str
    date: str
    origin: str
    destination: str
    departs: str
    status: Literal["available", "cancelled"]
    seats: tuple[int, ...]
    prices: tuple[int, ...]

    @property
    def key(self) -> Key:
        return departure_key(self.flight, self.date)

    @property
    def route(self) -> Route:
        return (self.origin, self.destination, self.date)


@dataclass(frozen=True, slots=True)
class Reservation:
    """payments: dollars, in order; refunds are negative."""

    reservation_id: str
    user_id: str
    flight: str
    date: str
    cabin: Cabin
    passengers: tuple[Passenger, ...]
    bags: int
    insured: bool
    payments: tuple[int, ...]
    status: Literal["booked", "cancelled"]
    created: str

    @property
    def key(self) -> Key:
        return reservation_key(self.reservation_id)

    @property
    def paid(self) -> int:
        return sum(self.payments)


Record = User | Departure | Reservation


def user_key(user_id: str) -> Key:
    return ("users", user_id)


def departure_key(flight: str, day: str) -> Key:
    return ("departures", f"{flight}/{day}")


def reservation_key(reservation_id: str) -> Key:
    return ("reservations", reservation_id)


@dataclass(frozen=True, slots=True, eq=False)
class Base:
    """Every record of a fresh database; nothing in it can be changed, and it cannot be pickled.

    name: stands for all of it in digests. routes: the keys of the departures of each route, by flight.
    """

    name: str
    records: Mapping[Key, Record]
    routes: Mapping[Route, tuple[Key, ...]]

    def as_json(self) -> dict[str, list[dict[str, Any]]]:
        """The tables, as plain data."""
        return _tables(self.records.values())


def frozen_base(name: str, records: Iterable[Record]) -> Base:
    """A base of these records. Raises ValueError where two have one key."""
    found: dict[Key, Record] = {}
    for record in records:
        if found.setdefault(record.key, record) is not record:
            raise ValueError(f"two records have the key {record.key}")
    departures = sorted((r for r in found.values() if isinstance(r, Departure)), key=lambda d: (d.route, d.flight))
    routes = {route: tuple(d.key for d in group) for route, group in groupby(departures, key=lambda d: d.route)}
    return Base(name, MappingProxyType(found), MappingProxyType(routes))


@dataclass(frozen=True, slots=True)
class Database:
    """A base and what differs from it.

    changed: the records that are new or differ from the base's, in the order of their keys. Two databases on one base
    are equal exactly when their records are.
    """

    base: Base
    changed: tuple[Record, ...] = ()

    def get(self, key: Key) -> Record | None:
        """The record, or None where there is none."""
        for record in self.changed:
            if record.key == key:
                return record
        return self.base.records.get(key)

    def put(self, *records: Record) -> "Database":
        """This database with these records in place of those with their keys."""
        changed = {record.key: record for record in (*self.changed, *records)}
        kept = (record for key, record in changed.items() if self.base.records.get(key) != record)
        return Database(self.base, tuple(sorted(kept, key=lambda record: record.key)))

    def user(self, user_id: str) -> User | None:
        record = self.get(user_key(user_id))
        return record if isinstance(record, User) else None

    def departure(self, flight: str, day: str) -> Departure | None:
        record = self.get(departure_key(flight, day))
        return record if isinstance(record, Departure) else None

    def reservation(self, reservation_id: str) -> Reservation | None:
        record = self.get(reservation_key(reservation_id))
        return record if isinstance(record, Reservation) else None

    def departures(self, origin: str, destination: str, day: str) -> tuple[Departure, ...]:
        """The departures of a route, by flight."""
        found = (self.get(key) for key in self.base.routes.get((origin, destination, day), ()))
        return tuple(record for record in found if isinstance(record, Departure))

    def digest(self) -> str:
        """Equal exactly when the databases are; costs as much as what was changed."""
        return sha256(json.dumps([self.base.name, _tables(self.changed)], sort_keys=True).encode()).hexdigest()

    def as_json(self) -> dict[str, list[dict[str, Any]]]:
        """The tables with every record, as plain data: as large as the base."""
        return _tables({**self.base.records, **{record.key: record for record in self.changed}}.values())


@cache
def base(seed: int = SEED) -> Base:
    """The base of a seed, made once a process."""
    rng = generator(seed, "booking")
    people, departures = _people(rng), list(_departures(rng))
    reservations = list(_reservations(rng, people, departures))
    owned: dict[str, list[str]] = {}
    for reservation in reservations:
        owned.setdefault(reservation.user_id, []).append(reservation.reservation_id)
    users = _users(rng, people, owned)
    return frozen_base(f"booking/{seed}", (*users, *departures, *reservations))


def _people(rng: np.random.Generator) -> list[tuple[str, Passenger]]:
    """Every user's id, and the passenger that the user is."""
    births = rng.integers(0, 50 * 365, size=USERS).tolist()
    names = [(_FIRST[n % len(_FIRST)], _LAST[n // len(_FIRST) % len(_LAST)]) for n in range(USERS)]
    return [
        (
            f"{first}_{last}_{n}".lower(),
            Passenger(first, last, (date(1950, 1, 1) + timedelta(days=births[n])).isoformat()),
        )
        for n, (first, last) in enumerate(names)
    ]


def _users(
    rng: np.random.Generator, people: list[tuple[str, Passenger]], owned: Mapping[str, list[str]]
) -> Iterable[User]:
    cards = rng.integers(1_000_000, 10_000_000, size=USERS).tolist()
    levels = rng.choice(len(MEMBERSHIPS), p=(0.5, 0.3, 0.2), size=USERS).tolist()
    for (user_id, passenger), card, level in zip(people, cards, levels, strict=True):
        yield User(
            user_id=user_id,
            passenger=passenger,
            email=f"{user_id}@example.com",
            membership=MEMBERSHIPS[level],
            card=f"card_{card}",
            reservations=tuple(owned.get(user_id, ())),
        )


def _departures(rng: np.random.Generator) -> Iterable[Departure]:
    ends = rng.integers(len(_AIRPORTS), size=FLIGHTS).tolist()
    steps = rng.integers(1, len(_AIRPORTS), size=FLIGHTS).tolist()
    times = rng.integers(6 * 12, 23 * 12, size=FLIGHTS).tolist()
    seats = rng.integers(0, 20, size=(FLIGHTS, DAYS, len(CABINS))).tolist()
    prices = (_FARES + rng.integers(0, 150, size=(FLIGHTS, DAYS, len(CABINS)))).tolist()
    cancelled = (rng.random((FLIGHTS, DAYS)) < 0.1).tolist()
    for n in range(FLIGHTS):
        origin, destination = _AIRPORTS[ends[n]], _AIRPORTS[(ends[n] + steps[n]) % len(_AIRPORTS)]
        departs = f"{times[n] // 12:02}:{times[n] % 12 * 5:02}"
        for k, day in enumerate(DATES):
            status: Literal["available", "cancelled"] = "cancelled" if cancelled[n][k] else "available"
            yield Departure(
                f"F{n + 100}", day, origin, destination, departs, status, tuple(seats[n][k]), tuple(prices[n][k])
            )


def _reservations(
    rng: np.random.Generator, people: list[tuple[str, Passenger]], departures: list[Departure]
) -> Iterable[Reservation]:
    owners = rng.integers(len(people), size=RESERVATIONS).tolist()
    places = rng.integers(len(departures), size=RESERVATIONS).tolist()
    cabins = rng.choice(len(CABINS), p=(0.4, 0.4, 0.2), size=RESERVATIONS).tolist()
    parties = rng.integers(1, 4, size=RESERVATIONS).tolist()
    friends = rng.integers(len(people), size=(RESERVATIONS, 2)).tolist()
    bags = rng.integers(0, 3, size=RESERVATIONS).tolist()
    insured = (rng.random(RESERVATIONS) < 0.25).tolist()
    ages = rng.integers(1, 30, size=RESERVATIONS).tolist()
    identities = rng.permutation(len(_LETTERS) ** 4)[:RESERVATIONS].tolist()
    for n in range(RESERVATIONS):
        departure, cabin = departures[places[n]], cabins[n]
        party = tuple(people[user][1] for user in (owners[n], *friends[n])[: parties[n]])
        yield Reservation(
            reservation_id=_code(identities[n]),
            user_id=people[owners[n]][0],
            flight=departure.flight,
            date=departure.date,
            cabin=CABINS[cabin],
            passengers=party,
            bags=bags[n],
            insured=insured[n],
            payments=(departure.prices[cabin] * len(party) + BAG_PRICE * bags[n],),
            status="booked",
            created=(TODAY - timedelta(days=ages[n])).isoformat(),
        )


def _code(number: int) -> str:
    """A number below 32 to the 4th as six characters, of which the first two follow from the others."""
    letters = [_LETTERS[number // len(_LETTERS) ** place % len(_LETTERS)] for place in range(4)]
    return "R" + _LETTERS[sum(map(ord, letters)) % len(_LETTERS)] + "".join(letters)


def _tables(records: Iterable[Record]) -> dict[str, list[dict[str, Any]]]:
    tables: dict[str, list[dict[str, Any]]] = {}
    for record in sorted(records, key=lambda record: record.key):
        tables.setdefault(record.key[0], []).append(asdict(record))
    return tables
