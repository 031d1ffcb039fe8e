"""Tools of a travel agency. The state is travel.json in the work folder, which each task brings along."""

import json
from pathlib import Path

FILE = Path("/work/travel.json")


def read_state() -> dict:
    return json.loads(FILE.read_text())


def find_flights(origin: str, destination: str) -> list:
    flights = read_state()["flights"]
    return [f for f in flights if f["origin"].lower() == origin.lower() and f["destination"].lower() == destination.lower()]


def book_flight(flight: str, passenger: str, seats: int) -> dict:
    state = read_state()
    chosen = next((f for f in state["flights"] if f["flight"] == flight), None)
    if chosen is None:
        raise LookupError(f"no flight {flight}")
    if chosen["seats"] < seats:
        raise ValueError(f"{flight} has {chosen['seats']} free seats")
    chosen["seats"] -= seats
    number = 1 + max((b["booking"] for b in state["bookings"]), default=100)
    state["bookings"].append({"booking": number, "flight": flight, "passenger": passenger, "seats": seats})
    FILE.write_text(json.dumps(state))
    return {"booking": number, "price": seats * chosen["price"]}


def cancel_booking(booking: int) -> str:
    state = read_state()
    found = next((b for b in state["bookings"] if b["booking"] == booking), None)
    if found is None:
        raise LookupError(f"no booking {booking}")
    state["bookings"].remove(found)
    next(f for f in state["flights"] if f["flight"] == found["flight"])["seats"] += found["seats"]
    FILE.write_text(json.dumps(state))
    return "cancelled"


def list_bookings(passenger: str) -> list:
    return [b for b in read_state()["bookings"] if b["passenger"].lower() == passenger.lower()]
