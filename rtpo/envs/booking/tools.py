"""The booking desk's tools: three reads, four writes, and the transfer to a human.

As in the airline domain the tools check what the database needs (a record exists, a seat is free), and not the desk's
rules: those are for the agent.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from rtpo.envs.booking.database import BAG_PRICE, CABINS, TODAY, Database, Departure, Reservation, User
from rtpo.tools.base import Arguments

MOST_BAGS = 20


class ToolError(Exception):
    """A call that fits its schema and cannot be done; its text is for the agent."""


Run = Callable[[Database, Arguments], tuple[Database, str]]
"""From a database and arguments that fit the schema to the database afterwards and what the agent is told."""


@dataclass(frozen=True, slots=True)
class BookingTool:
    """schema: as a chat template's `tools` takes it. writes: whether a call can change the database."""

    name: str
    schema: Mapping[str, Any]
    run: Run
    writes: bool


def _found_user(database: Database, user_id: str) -> User:
    user = database.user(user_id)
    if user is None:
        raise ToolError(f"no user {user_id}")
    return user


def _found_reservation(database: Database, reservation_id: str) -> Reservation:
    reservation = database.reservation(reservation_id)
    if reservation is None:
        raise ToolError(f"no reservation {reservation_id}")
    return reservation


def _booked(database: Database, reservation_id: str) -> Reservation:
    reservation = _found_reservation(database, reservation_id)
    if reservation.status == "cancelled":
        raise ToolError(f"{reservation_id} is cancelled")
    return reservation


def _departure(database: Database, flight: str, day: str, cabin: str, seats: int) -> Departure:
    """A departure with this many free seats in a cabin."""
    departure = database.departure(flight, day)
    if departure is None:
        raise ToolError(f"no flight {flight} on {day}")
    if departure.status != "available" or departure.seats[CABINS.index(cabin)] < seats:
        raise ToolError(f"no {cabin} seat on {flight} on {day}")
    return departure


def _seated(departure: Departure, cabin: str, change: int) -> Departure:
    """The departure with `change` more free seats in a cabin."""
    seats = (free + change * (cabin == name) for name, free in zip(CABINS, departure.seats, strict=True))
    return replace(departure, seats=tuple(seats))


def _freed(database: Database, reservation: Reservation) -> Database:
    """The database with the reservation's seats free again."""
    departure = database.departure(reservation.flight, reservation.date)
    if departure is None:
        raise LookupError(f"reservation {reservation.reservation_id} is on a departure that does not exist")
    return database.put(_seated(departure, reservation.cabin, len(reservation.passengers)))


def _told(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _view(reservation: Reservation) -> str:
    """What the agent sees of a reservation."""
    return _told(
        {
            "id": reservation.reservation_id,
            "user": reservation.user_id,
            "flight": reservation.flight,
            "date": reservation.date,
            "cabin": reservation.cabin,
            "passengers": len(reservation.passengers),
            "bags": reservation.bags,
            "insured": reservation.insured,
            "paid": reservation.paid,
            "status": reservation.status,
        }
    )


def _get_user(database: Database, arguments: Arguments) -> tuple[Database, str]:
    user = _found_user(database, arguments["user_id"])
    name = f"{user.passenger.first} {user.passenger.last}"
    return database, _told({"name": name, "level": user.membership, "reservations": user.reservations})


def _get_reservation(database: Database, arguments: Arguments) -> tuple[Database, str]:
    return database, _view(_found_reservation(database, arguments["reservation_id"]))


def _search_flights(database: Database, arguments: Arguments) -> tuple[Database, str]:
    departures = database.departures(arguments["origin"], arguments["destination"], arguments["date"])
    found = []
    for departure in departures:
        cabins = zip(CABINS, departure.prices, departure.seats, strict=True)
        if departure.status == "available":
            prices: dict[str, Any] = {cabin: price for cabin, price, seats in cabins if seats}
            found.append({"flight": departure.flight, "departs": departure.departs} | prices)
    return database, _told(found)


def _book(database: Database, arguments: Arguments) -> tuple[Database, str]:
    user, cabin = _found_user(database, arguments["user_id"]), arguments["cabin"]
    departure = _departure(database, arguments["flight"], arguments["date"], cabin, 1)
    number = 1
    while database.reservation(f"NEW{number}") is not None:
        number += 1
    reservation = Reservation(
        reservation_id=f"NEW{number}",
        user_id=user.user_id,
        flight=departure.flight,
        date=departure.date,
        cabin=cabin,
        passengers=(user.passenger,),
        bags=0,
        insured=False,
        payments=(departure.prices[CABINS.index(cabin)],),
        status="booked",
        created=TODAY.isoformat(),
    )
    owner = replace(user, reservations=(*user.reservations, reservation.reservation_id))
    return database.put(reservation, owner, _seated(departure, cabin, -1)), _view(reservation)


def _cancel(database: Database, arguments: Arguments) -> tuple[Database, str]:
    reservation = _booked(database, arguments["reservation_id"])
    refunds = tuple(-amount for amount in reservation.payments)
    cancelled = replace(reservation, status="cancelled", payments=reservation.payments + refunds)
    return _freed(database, reservation).put(cancelled), f"Cancelled, refund {reservation.paid}"


def _change_bags(database: Database, arguments: Arguments) -> tuple[Database, str]:
    reservation, bags = _booked(database, arguments["reservation_id"]), int(arguments["bags"])
    if not reservation.bags < bags <= MOST_BAGS:
        raise ToolError(f"bags must be from {reservation.bags + 1} to {MOST_BAGS}")
    price = BAG_PRICE * (bags - reservation.bags)
    changed = replace(reservation, bags=bags, payments=(*reservation.payments, price))
    return database.put(changed), f"{bags} bags, charged {price}"


def _change_flight(database: Database, arguments: Arguments) -> tuple[Database, str]:
    reservation = _booked(database, arguments["reservation_id"])
    seats, cabin = len(reservation.passengers), reservation.cabin
    before = database.departure(reservation.flight, reservation.date)
    after = _departure(database, arguments["flight"], arguments["date"], cabin, seats)
    if before is None or (before.origin, before.destination) != (after.origin, after.destination):
        raise ToolError(f"{after.flight} has another route")
    if before.key == after.key:
        raise ToolError(f"{reservation.reservation_id} is on {after.flight} on {after.date}")
    place = CABINS.index(cabin)
    price = seats * (after.prices[place] - before.prices[place])
    moved = replace(reservation, flight=after.flight, date=after.date, payments=(*reservation.payments, price))
    return _freed(database, reservation).put(moved, _seated(after, cabin, -seats)), f"Moved, charged {price}"


def _transfer(database: Database, arguments: Arguments) -> tuple[Database, str]:
    return database, "Transfer successful"


_TEXT = {"type": "string"}
_RESERVATION = {"reservation_id": _TEXT}


def _tool(name: str, description: str, properties: Mapping[str, Any], run: Run, *, writes: bool = False) -> BookingTool:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    function = {"name": name, "description": description, "parameters": parameters}
    return BookingTool(name, {"type": "function", "function": function}, run, writes)


_ALL = (
    _tool("get_user", "Read a user.", {"user_id": _TEXT}, _get_user),
    _tool("get_reservation", "Read a reservation.", _RESERVATION, _get_reservation),
    _tool(
        "search_flights",
        "Flights with free seats, and prices.",
        {"origin": _TEXT, "destination": _TEXT, "date": _TEXT},
        _search_flights,
    ),
    _tool(
        "book",
        "Book a flight for a user.",
        {"user_id": _TEXT, "flight": _TEXT, "date": _TEXT, "cabin": {**_TEXT, "enum": list(CABINS)}},
        _book,
        writes=True,
    ),
    _tool("cancel", "Cancel a reservation.", _RESERVATION, _cancel, writes=True),
    _tool("change_bags", "Set the bags.", {**_RESERVATION, "bags": {"type": "integer"}}, _change_bags, writes=True),
    _tool(
        "change_flight",
        "Move a reservation.",
        {**_RESERVATION, "flight": _TEXT, "date": _TEXT},
        _change_flight,
        writes=True,
    ),
    _tool("transfer_to_human", "Hand the user over.", {"summary": _TEXT}, _transfer),
)
TOOLS: Mapping[str, BookingTool] = MappingProxyType({tool.name: tool for tool in _ALL})
TRANSFER = "transfer_to_human"
