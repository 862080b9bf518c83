"""The booking database: one base a process that nothing can change, and small overlays of changed records.

The base is a function of a seed. A `Database` is what differs from it and is never changed in place, so any number of
forks share the base and none sees another's writes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache
from types import MappingProxyType
from typing import Literal

from rtpo.core.seeds import generator

SEED = 0
USERS, RESERVATIONS = 400, 2000
TODAY = date(2024, 5, 15)
DATES = tuple((TODAY + timedelta(days=day)).isoformat() for day in range(1, 11))
AIRPORTS = ("ATL", "BOS", "DEN", "JFK", "LAX", "SEA")
A_ROUTE = 4
"""departures of a route on a date"""
_NAMES = ("ava", "chen", "daiki", "emma", "fatima", "ivan", "lucas", "mia", "noah", "raj", "sofia", "yara")


@dataclass(frozen=True, slots=True)
class Departure:
    """A flight, such as ATLBOS0, on a date. seats: free ones. price: dollars."""

    flight: str
    date: str
    seats: int
    price: int

    @property
    def key(self) -> str:
        return f"{self.flight}/{self.date}"


@dataclass(frozen=True, slots=True)
class Reservation:
    """A seat. paid: dollars, nothing of a cancelled one."""

    key: str
    user: str
    flight: str
    date: str
    insured: bool
    paid: int
    status: Literal["booked", "cancelled"] = "booked"


Record = Departure | Reservation


@dataclass(frozen=True, slots=True)
class Database:
    """changed: the records that are new or differ from the base's, in the order of their keys. Two databases are equal
    exactly when all their records are."""

    changed: tuple[Record, ...] = ()

    def put(self, *records: Record) -> "Database":
        """This database with these records in place of those with their keys."""
        changed = {record.key: record for record in (*self.changed, *records)}
        return Database(tuple(changed[key] for key in sorted(changed) if base().get(key) != changed[key]))

    def departure(self, flight: str, day: str) -> Departure | None:
        record = self._get(f"{flight}/{day}")
        return record if isinstance(record, Departure) else None

    def reservation(self, key: str) -> Reservation | None:
        record = self._get(key)
        return record if isinstance(record, Reservation) else None

    def free(self, origin: str, destination: str, day: str) -> list[Departure]:
        """The departures of a route and date with a free seat."""
        found = (self.departure(f"{origin}{destination}{number}", day) for number in range(A_ROUTE))
        return [departure for departure in found if departure is not None and departure.seats]

    def _get(self, key: str) -> Record | None:
        return next((record for record in self.changed if record.key == key), base().get(key))


@cache
def base() -> Mapping[str, Record]:
    """Every record of a fresh database by its key, made once a process; nothing in it can be changed."""
    rng = generator(SEED, "booking")
    routes = [f"{one}{other}" for one in AIRPORTS for other in AIRPORTS if one != other]
    flights = [f"{route}{number}" for route in routes for number in range(A_ROUTE)]
    departures = [
        Departure(flight, day, int(rng.integers(20)), int(rng.integers(60, 400))) for flight in flights for day in DATES
    ]
    records: list[Record] = [*departures]
    for number in range(RESERVATIONS):
        user, place, insured = (int(rng.integers(most)) for most in (USERS, len(departures), 2))
        name, on = f"{_NAMES[user % len(_NAMES)]}_{user}", departures[place]
        records.append(Reservation(f"R{1000 + number}", name, on.flight, on.date, bool(insured), on.price))
    return MappingProxyType({record.key: record for record in records})
