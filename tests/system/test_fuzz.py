"""Whatever is sent to whatever route: never a 5xx, never a hang, and memory that does not grow with it.

`make test` sends some; `make fuzz` sends ten thousand.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from pathlib import Path

import aiohttp
import pytest
from tests.system.fuzz import Shot, shot

from openclaw_rl.store import heartbeats
from openclaw_rl.store.db import Store
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config

pytestmark = pytest.mark.system

CLIENTS = 16
HANG = 60.0  # seconds


def resident(pid: int) -> float:
    """MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def pid_of(system: SubprocessSystem, room: str) -> int:
    store = Store.open(system.config.store_path, create=False)
    try:
        with store.read() as conn:
            return next(b.pid for b in heartbeats.read_heartbeats(conn) if b.name == room)
    finally:
        store.close()


async def fire(session: aiohttp.ClientSession, one: Shot) -> tuple[int, bytes]:
    async with session.request(
        one.method, one.path, data=one.body or None, headers=one.headers
    ) as answer:
        return answer.status, await answer.read()


async def barrage(system: SubprocessSystem, shots: list[Shot], bad: list[str]) -> Counter[int]:
    """Sixteen at a time; what is not as promised is put into `bad`."""
    seen: Counter[int] = Counter()
    queue = iter(shots)

    async def client(session: aiohttp.ClientSession) -> None:
        for one in queue:
            try:
                status, body = await asyncio.wait_for(fire(session, one), HANG)
            except TimeoutError:
                bad.append(f"no end within {HANG:g} s: {one}")
                continue
            except aiohttp.ClientError as error:
                bad.append(f"{type(error).__name__} {error}: {one}")
                continue
            seen[status] += 1
            if status >= 500:
                bad.append(f"{status} {body[:300]!r}: {one}")
            elif status == 200 and b"data: " in body and not _whole(body):
                bad.append(f"a stream without an end {body[-300:]!r}: {one}")

    headers = {"Authorization": f"Bearer {system.api_key}", "Content-Type": "application/json"}
    # A connection for each request: after an error the gateway may close one, and what came of a request shows.
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(
        system.base_url, headers=headers, connector=connector
    ) as session:
        await asyncio.gather(*(client(session) for _ in range(CLIENTS)))
    return seen


def _whole(body: bytes) -> bool:
    return any(
        end in body
        for end in (b"[DONE]", b"message_stop", b"response.completed", b"response.incomplete")
    )


@pytest.mark.timeout(1800)
def test_nothing_breaks_it(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    count: int = request.config.getoption("--fuzz")
    rng = random.Random(20)
    shots = [shot(rng) for _ in range(count)]
    bad: list[str] = []
    with SubprocessSystem(scratch_config(tmp_path / "home", {"judge.num_judges": 1})) as system:
        gateway = pid_of(system, "gateway")
        seen = asyncio.run(barrage(system, shots[: count // 2], bad))
        half = resident(gateway)
        began = time.perf_counter()
        seen += asyncio.run(barrage(system, shots[count // 2 :], bad))
        took, whole = time.perf_counter() - began, resident(gateway)
        assert pid_of(system, "gateway") == gateway, f"the gateway died:\n{system.log_tail(40)}"
        last = asyncio.run(barrage(system, [Shot(method="GET", path="/readyz")], bad))
    told = (
        f"{count} requests, answers {dict(sorted(seen.items()))}; gateway {half:.0f} MiB at "
        f"half, {whole:.0f} at the "
    )
    sys.stderr.write(f"\n{told}end; the second half took {took:.0f} s\n")
    assert not bad, "\n".join(bad[:10])
    assert seen[200] > count / 20, f"too few good ones to say anything: {seen}"
    assert last == {200: 1}
    assert whole < half + 24, (
        f"memory grew from {half:.0f} to {whole:.0f} MiB over {count // 2} requests"
    )
