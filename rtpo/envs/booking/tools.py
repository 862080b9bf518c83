"""The booking desk's tools: two reads and two writes.

As in the airline domain the tools check what the database needs (a record exists, a seat is free), and not the desk's
rules: those are for the agent.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

from rtpo.envs.booking.database import Database, Departure, Reservation
from rtpo.tools.base import Arguments


class ToolError(Exception):
    """A call that fits its schema and cannot be done; its text is for the agent."""


Run = Callable[[Database, Arguments], tuple[Database, str]]
"""From a database and arguments that fit the schema to the database afterwards and what the agent is told."""


@dataclass(frozen=True, slots=True)
class BookingTool:
    """schema: as a chat template's `tools` takes it. writes: whether a call can change the database."""

    schema: Mapping[str, Any]
    run: Run
    writes: bool


def _reservation(database: Database, arguments: Arguments) -> Reservation:
    reservation = database.reservation(arguments["reservation"])
    if reservation is None:
        raise ToolError(f"no reservation {arguments['reservation']}")
    return reservation


def _departure(database: Database, flight: str, day: str) -> Departure:
    departure = database.departure(flight, day)
    if departure is None:
        raise ToolError(f"no flight {flight} on {day}")
    return departure


def _told(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _get_reservation(database: Database, arguments: Arguments) -> tuple[Database, str]:
    return database, _told(asdict(_reservation(database, arguments)))


def _search_flights(database: Database, arguments: Arguments) -> tuple[Database, str]:
    found = database.free(arguments["origin"], arguments["destination"], arguments["date"])
    return database, _told({departure.flight: departure.price for departure in found})


def _book(database: Database, arguments: Arguments) -> tuple[Database, str]:
    departure = _departure(database, arguments["flight"], arguments["date"])
    if not departure.seats:
        raise ToolError(f"no seat on {departure.flight} on {departure.date}")
    number = 1
    while database.reservation(f"NEW{number}") is not None:
        number += 1
    new = Reservation(f"NEW{number}", arguments["user"], departure.flight, departure.date, False, departure.price)
    return database.put(new, replace(departure, seats=departure.seats - 1)), _told(asdict(new))


def _cancel(database: Database, arguments: Arguments) -> tuple[Database, str]:
    reservation = _reservation(database, arguments)
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
