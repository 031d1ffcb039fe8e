"""Real traffic for the fault tests: users who go on whatever happens, and remember what they were promised."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

import openai

from openclaw_rl.evals import user_driver
from openclaw_rl.evals.personas import Persona
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem


@dataclass(slots=True)
class Ledger:
    """What clients saw: ids with a finish (and the text that was streamed until then), and what broke."""

    finished: dict[str, str] = field(default_factory=dict)
    versions: set[int] = field(default_factory=set)
    broken: list[str] = field(default_factory=list)


async def user(
    system: SubprocessSystem, persona: Persona, ledger: Ledger, stop: asyncio.Event, pause: float = 0.02
) -> None:
    """Talk until told to stop. A broken reply is tried again, as clients do."""
    api = user_driver.openai_client(system.base_url, system.api_key)
    name = system.config.model.name
    while not stop.is_set():
        history: list[dict[str, str]] = []
        while not stop.is_set() and (text := persona.next_message(history)) is not None:
            history.append({"role": "user", "content": text})
            reply = await _insist(api, name, history, ledger, stop)
            if reply is None:
                break
            history.append({"role": "assistant", "content": reply})
            await asyncio.sleep(pause)
    await api.close()


async def _insist(
    api: openai.AsyncOpenAI, name: str, history: list[dict[str, str]], ledger: Ledger, stop: asyncio.Event
) -> str | None:
    while not stop.is_set():
        try:
            spoken = await user_driver.stream_reply(api, name, history, temperature=1.0)
        except (openai.OpenAIError, RuntimeError) as error:
            ledger.broken.append(f"{type(error).__name__}: {error}")
            await asyncio.sleep(0.1)
            continue
        if spoken.finished:
            ledger.finished[spoken.id] = spoken.text
            ledger.versions.add(spoken.version)
            return spoken.text
        ledger.broken.append("a stream ended without a finish")
    return None


@contextlib.asynccontextmanager
async def crowd(system: SubprocessSystem, users: int, ledger: Ledger, pause: float = 0.02):  # type: ignore[no-untyped-def]
    """So many users talk while the block runs."""
    stop = asyncio.Event()
    tastes = ("short", "casual", "bulleted", "formal")
    tasks = [
        asyncio.create_task(user(system, Persona(taste=tastes[n % 4], seed=n), ledger, stop, pause))  # type: ignore[arg-type]
        for n in range(users)
    ]
    try:
        yield
    finally:
        stop.set()
        await asyncio.gather(*tasks)
