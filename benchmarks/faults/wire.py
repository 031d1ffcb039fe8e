"""Attacks on the wire: rows of `benchmarks/wire_attacks.py`, with bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks import wire_attacks
from benchmarks.wire_attacks import AttackResult

from openclaw_rl.common.sockets import free_port

# Seconds that the other clients wait at most.
LONGEST_WAIT = 0.5
# MB of resident memory that the gateway keeps at most.
LARGEST_GROWTH = 100.0
ATTACKS = (
    "bomb of 170 MiB without a key",
    "1,100 silent sockets",
    "1,100 begun heads",
    "31 MB of prose",
    "31 MB of messages of 30 bytes",
    "31 MB of keys in a message",
    "a chunk longer than it says",
    "500 wrong keys",
    "500 connections with a ticket",
    "60 held bodies of 31 MiB with a ticket",
    "60 held bodies of 31 MiB with the key",
)


def find_violations(result: AttackResult) -> list[str]:
    """Return which bounds the attack broke."""
    found = []
    if result.failures:
        found.append(f"{result.failures} of {result.requests} requests of others failed")
    if result.longest > LONGEST_WAIT:
        found.append(f"others waited {result.longest:.2f} s instead of at most {LONGEST_WAIT:g} s")
    if result.growth > LARGEST_GROWTH:
        found.append(
            f"the gateway kept {result.growth:.0f} MB instead of at most {LARGEST_GROWTH:g} MB"
        )
    return found


def run_attacks(names: Sequence[str], seen: Callable[[AttackResult], None]) -> list[AttackResult]:
    """Run these attacks on one gateway, one after the other. `seen`: called after each."""
    found = []
    with wire_attacks.attacked_gateway(free_port()) as target:
        for result in wire_attacks.measure(target, names):
            found.append(result)
            seen(result)
    return found
