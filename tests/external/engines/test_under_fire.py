"""kill -9 of vLLM under load: streams say that they broke, it is back by itself, and nothing of it is ever left behind.

These tests end the shared system, so they come last.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest
from benchmarks.demo import user_driver
from benchmarks.faults.client_log import ClientLog
from benchmarks.faults.clients import crowd
from tests.external.engines.conftest import Served

from openclaw_rl.store import exchanges
from openclaw_rl.types import ExchangeStatus

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc"),
    pytest.mark.timeout(900),  # vLLM starts twice, which takes minutes each on a busy machine
]


def _stat(pid: int) -> list[str]:
    """State, parent, process group and so on; empty when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    except FileNotFoundError:
        return []


def _servers(served: Served) -> list[int]:
    """The API servers on this system's socket."""
    socket, found = str(served.config.engine_socket).encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if (
            socket in words
            and b"vllm.entrypoints.openai.api_server" in words
            and b"-I" not in words
        ):
            found.append(int(entry.name))
    return found


def _group(pid: int) -> list[int]:
    """All living processes of the group."""
    group, found = _stat(pid)[2], []
    for entry in Path("/proc").glob("[0-9]*"):
        stat = _stat(int(entry.name))
        if stat and stat[2] == group and stat[0] != "Z":
            found.append(int(entry.name))
    return found


def _until(condition: Callable[[], object], seconds: float = 30) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(condition())


def _alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if (stat := _stat(pid)) and stat[0] != "Z"]


@dataclass(slots=True)
class Heard:
    """What a client hears of one reply. `words`: how it ended; empty where it only stopped."""

    id: str = ""
    words: str = ""


async def _listen(
    api: openai.AsyncOpenAI, stop: tuple[int, ...], heard: Heard, begun: asyncio.Event
) -> None:
    """Ask for a reply that would fill the context, and follow it to its end."""
    try:
        stream = await api.chat.completions.create(
            model="openclaw",
            messages=[{"role": "user", "content": "Name the capital of Peru."}],
            stream=True,
            logit_bias={str(i): -100 for i in stop},
        )
        async for chunk in stream:
            heard.id = chunk.id
            begun.set()
            heard.words = next(
                (c.finish_reason for c in chunk.choices if c.finish_reason), heard.words
            )
    except openai.OpenAIError as error:
        assert not heard.words, "an error behind a finish"
        heard.words = str(error)
    finally:
        begun.set()


async def _four_at_once(
    api: openai.AsyncOpenAI, served: Served, heard: list[Heard]
) -> list[asyncio.Task[None]]:
    """Four replies that all run now, as the gateway sees it: a client on a busy machine hears of an end too late."""
    for _ in range(10):
        heard[:] = [Heard() for _ in range(4)]
        begun = [asyncio.Event() for _ in heard]
        listeners = [
            asyncio.create_task(_listen(api, served.stop_token_ids, h, b))
            for h, b in zip(heard, begun, strict=True)
        ]
        await asyncio.gather(*(b.wait() for b in begun))
        if all(_status(served, h.id) is ExchangeStatus.RUNNING for h in heard):
            return listeners
        await asyncio.gather(*listeners)
    raise AssertionError("four replies never ran at once")


def _status(served: Served, id: str) -> ExchangeStatus:
    """As the gateway has recorded it."""
    with served.store.read() as conn:
        found = exchanges.get(conn, id)
    assert found is not None
    return found.reply.status if found.reply is not None else ExchangeStatus.RUNNING


def test_a_killed_vllm_is_started_again_and_its_versions_are_loaded_again(served: Served) -> None:
    ledger = ClientLog()
    [server] = _servers(served)
    old = _group(server)
    assert len(old) >= 2, "vLLM has an engine process beside its server"

    async def siege() -> list[Heard]:
        heard: list[Heard] = []
        api = user_driver.openai_client(served.system.base_url, served.system.api_key)
        async with crowd(served.system, 4, ledger):
            while len(ledger.finished) < 12:
                await asyncio.sleep(0.05)
            before, seen = len(ledger.finished), max(ledger.versions)
            assert seen > 0
            listeners = await _four_at_once(api, served, heard)
            os.kill(server, signal.SIGKILL)
            ledger.versions.clear()
            end = time.monotonic() + 240
            while time.monotonic() < end and len(ledger.finished) < before + 20:
                await asyncio.sleep(0.1)
            assert len(ledger.finished) >= before + 20, "replies did not come back"
            assert min(ledger.versions) >= seen, "the newest version answers, loaded again"
        await asyncio.gather(*listeners)
        await api.close()
        return heard

    heard = asyncio.run(siege())
    ends = {
        (_status(served, h.id), h.words if h.words == "length" else h.words.split(" (")[0])
        for h in heard
    }
    broken = (ExchangeStatus.FAILED, "the engine disconnected during the reply")
    # What vLLM had said to its end before it was killed was on its way: that client must have its finish.
    assert broken in ends
    assert ends <= {broken, (ExchangeStatus.DONE, "length")}
    assert "a stream ended without a finish" not in ledger.broken
    assert _until(lambda: not _alive(old)), "processes of the killed one were left behind"


def test_nothing_of_vllm_outlives_a_killed_system(served: Served) -> None:
    [server] = _servers(served)
    group = _group(server)
    os.kill(served.system.pid, signal.SIGKILL)
    assert _until(lambda: not _alive(group)), "vLLM outlived the system"
