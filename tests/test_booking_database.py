"""The booking database and its tools: nothing changes the base, and forks do not see each other's writes."""

import json
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtpo.envs.booking.database import (
    CABINS,
    Base,
    Database,
    Departure,
    Reservation,
    User,
    base,
    departure_key,
    frozen_base,
    reservation_key,
    user_key,
)
from rtpo.envs.booking.tools import TOOLS, ToolError

CONTENT = "22b0962f955da7d739ef6f619b8b731f694fa850e203d6e7e66119d5ecb6511e"
"""of seed 0 as JSON: another content needs another name, since digests go by the name"""


def content(database: Base | Database) -> str:
    return sha256(json.dumps(database.as_json()).encode()).hexdigest()


@pytest.fixture(scope="module")
def small() -> Base:
    """One user with reservations in every cabin, and the departures of their routes and dates."""
    everything = base()
    user = next(
        u
        for u in everything.records.values()
        if isinstance(u, User) and {r.cabin for r in reservations(u)} == set(CABINS)
    )
    owned = reservations(user)
    departures = [Database(everything).departure(r.flight, r.date) for r in owned]
    routes = {departure.route for departure in departures if departure is not None}
    around = [everything.records[key] for route in sorted(routes) for key in everything.routes[route]]
    return frozen_base("small", [user, *owned, *around])


def reservations(user: User) -> list[Reservation]:
    found = [Database(base()).reservation(identity) for identity in user.reservations]
    return [reservation for reservation in found if reservation is not None]


def test_the_base_is_the_same_everywhere_and_of_realistic_size() -> None:
    text = json.dumps(base().as_json())
    assert sha256(text.encode()).hexdigest() == CONTENT
    assert 6.5e6 < len(text) < 7.5e6
    assert base() is base()
    assert base.__wrapped__(1).records != base().records


def test_the_base_is_whole() -> None:
    """Every reservation is on a departure and in its user's list; a party has room in the price."""
    found = Database(base())
    for record in base().records.values():
        if isinstance(record, Reservation):
            departure, user = found.departure(record.flight, record.date), found.user(record.user_id)
            assert departure is not None
            assert user is not None
            assert record.reservation_id in user.reservations
            assert record.passengers[0] == user.passenger
        elif isinstance(record, User):
            assert all(found.reservation(identity) is not None for identity in record.reservations)


@pytest.mark.parametrize(
    "change",
    [
        lambda b: b.records.__setitem__(user_key("x"), None),
        lambda b: b.records.pop(next(iter(b.records))),
        lambda b: b.routes.clear(),
        lambda b: setattr(b, "name", "other"),
        lambda b: setattr(next(iter(b.records.values())), "user_id", "x"),
        lambda b: next(iter(b.records.values())).reservations.append("x"),
        lambda b: pickle.dumps(b),
    ],
)
def test_nothing_changes_the_base_and_it_is_never_pickled(change: Callable[[Base], Any]) -> None:
    with pytest.raises((TypeError, AttributeError, FrozenInstanceError)):
        change(base())


def test_two_records_of_one_key_are_refused() -> None:
    record = next(iter(base().records.values()))
    with pytest.raises(ValueError, match="two records have the key"):
        frozen_base("twice", [record, replace(record)])


def put_back(database: Database, small: Base) -> Database:
    return database.put(*small.records.values())


def test_what_is_put_back_is_not_a_change(small: Base) -> None:
    database = Database(small)
    user = next(record for record in small.records.values() if isinstance(record, User))
    changed = database.put(replace(user, card="card_0"))
    assert changed.user(user.user_id) == replace(user, card="card_0")
    assert changed.digest() != database.digest()
    assert put_back(changed, small) == database
    assert put_back(changed, small).digest() == database.digest()


def calls(small: Base) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    """Calls of tools that write, on what is in the small base and on what they make."""
    records = small.records.values()
    user = next(record.user_id for record in records if isinstance(record, User))
    identity = st.sampled_from([*[r.reservation_id for r in records if isinstance(r, Reservation)], "NEW1"])
    place = st.sampled_from([(d.flight, d.date) for d in records if isinstance(d, Departure)])
    return st.one_of(
        st.builds(lambda r: ("cancel", {"reservation_id": r}), identity),
        st.builds(lambda r, n: ("change_bags", {"reservation_id": r, "bags": n}), identity, st.integers(0, 5)),
        st.builds(lambda r, p: ("change_flight", {"reservation_id": r, "flight": p[0], "date": p[1]}), identity, place),
        st.builds(
            lambda p, c: ("book", {"user_id": user, "flight": p[0], "date": p[1], "cabin": c}),
            place,
            st.sampled_from(CABINS),
        ),
    )


def run(database: Database, script: list[tuple[str, dict[str, Any]]]) -> Database:
    for name, arguments in script:
        try:
            database, _ = TOOLS[name].run(database, arguments)
        except ToolError:
            continue
    return database


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_forks_are_isolated_and_digests_go_by_content(small: Base, data: st.DataObject) -> None:
    script = st.lists(calls(small), max_size=5)
    fork = run(Database(small), data.draw(script))
    kept = content(fork), fork.digest()
    one, other = run(fork, data.draw(script)), run(fork, data.draw(script))
    assert (content(fork), fork.digest()) == kept
    assert (one.digest() == other.digest()) == (content(one) == content(other)) == (one == other)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_seats_and_money_are_kept(small: Base, data: st.DataObject) -> None:
    """A free seat becomes a passenger's or the other way round; a cancelled reservation has cost nothing."""
    before, after = Database(small), run(Database(small), data.draw(st.lists(calls(small), max_size=6)))
    assert passengers(before) + seats(before) == passengers(after) + seats(after)
    for row in after.as_json()["reservations"]:
        assert row["status"] != "cancelled" or sum(row["payments"]) == 0
    for row in after.as_json()["departures"]:
        assert min(row["seats"]) >= 0


def passengers(database: Database) -> int:
    return sum(len(row["passengers"]) for row in database.as_json()["reservations"] if row["status"] == "booked")


def seats(database: Database) -> int:
    return sum(sum(row["seats"]) for row in database.as_json()["departures"])


def test_what_cannot_be_done_is_said(small: Base) -> None:
    database = Database(small)
    reservation = next(r for r in small.records.values() if isinstance(r, Reservation))
    identity = {"reservation_id": reservation.reservation_id}
    away = next(
        d
        for d in base().records.values()
        if isinstance(d, Departure)
        and d.status == "available"
        and min(d.seats) > 3
        and departure_key(d.flight, d.date) not in small.records
    )
    wide = Database(frozen_base("wide", [*small.records.values(), away]))
    cancelled, _ = TOOLS["cancel"].run(database, identity)
    flight = {"flight": reservation.flight, "date": reservation.date}
    full = Database(small)
    for key, record in small.records.items():
        if isinstance(record, Departure):
            assert key == record.key
            full = full.put(replace(record, seats=(0, 0, 0)))
    refused = [
        ("no user x", database, "get_user", {"user_id": "x"}),
        ("no reservation x", database, "get_reservation", {"reservation_id": "x"}),
        ("is cancelled", cancelled, "cancel", identity),
        ("bags must be from", database, "change_bags", {**identity, "bags": reservation.bags}),
        ("bags must be from", database, "change_bags", {**identity, "bags": 10**9}),
        ("no flight x", database, "change_flight", {**identity, **flight, "flight": "x"}),
        ("seat on", full, "change_flight", {**identity, **flight}),
        ("another route", wide, "change_flight", {**identity, "flight": away.flight, "date": away.date}),
        ("no user x", database, "book", {"user_id": "x", **flight, "cabin": "basic"}),
    ]
    for why, at, name, arguments in refused:
        with pytest.raises(ToolError, match=why):
            TOOLS[name].run(at, arguments)


def test_a_move_to_the_same_departure_is_refused() -> None:
    reservation = next(
        r
        for r in base().records.values()
        if isinstance(r, Reservation)
        and (d := Database(base()).departure(r.flight, r.date)) is not None
        and d.status == "available"
        and min(d.seats) > 3
    )
    arguments = {"reservation_id": reservation.reservation_id, "flight": reservation.flight, "date": reservation.date}
    with pytest.raises(ToolError, match="is on"):
        TOOLS["change_flight"].run(Database(base()), arguments)


def test_reads_change_nothing_and_see_the_writes_before_them(small: Base) -> None:
    reservation = next(r for r in small.records.values() if isinstance(r, Reservation))
    arguments = {"reservation_id": reservation.reservation_id}
    cancelled, told = TOOLS["cancel"].run(Database(small), arguments)
    assert told == f"Cancelled, refund {reservation.paid}"
    after, seen = TOOLS["get_reservation"].run(cancelled, arguments)
    assert after == cancelled
    assert json.loads(seen)["status"] == "cancelled"
    departure = Database(small).departure(reservation.flight, reservation.date)
    assert departure is not None
    full = cancelled.put(replace(departure, seats=(0, 0, 0)))
    route = dict(zip(("origin", "destination", "date"), departure.route, strict=True))
    found = json.loads(TOOLS["search_flights"].run(full, route)[1])
    assert all(set(row) == {"flight", "departs"} for row in found if row["flight"] == departure.flight)


def test_every_tool_but_the_reads_and_the_transfer_writes() -> None:
    assert {name for name, tool in TOOLS.items() if tool.writes} == {"book", "cancel", "change_bags", "change_flight"}
    assert len(TOOLS) == 8
    assert reservation_key("x") != user_key("x")
