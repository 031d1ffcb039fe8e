"""Asks an engine whether it answers. Its answers are the heartbeats of the engine's worker."""

from __future__ import annotations

import asyncio
import time

from openclaw_rl.engines import registry
from openclaw_rl.errors import OpenClawError
from openclaw_rl.protocols import EngineLink
from openclaw_rl.settings.load import Config
from openclaw_rl.settings.registry import engine_spec
from openclaw_rl.store import heartbeats
from openclaw_rl.supervisor.hang_verdict import Quiet

# Seconds between an answer and the next question.
PROBE_INTERVAL = 1.0
# Seconds without an answer after which the worker's heartbeat says so.
REPORTED_SILENCE = 15.0


class EngineProbe:
    """Questions to one engine. The embedded engine answers between two steps, a server at its health path.

    `answered_at`: monotonic seconds of the last answer; None before the first one.
    """

    def __init__(self, config: Config) -> None:
        """`config`: the settings of the engine's worker."""
        self._config = config
        self._link: EngineLink | None = None
        self._server = engine_spec(config).find_server(config)
        self._interval = max(PROBE_INTERVAL, self._server.pause if self._server else 0.0)
        self.answered_at: float | None = None
        # Of the last question, if it was refused at once.
        self.error = ""

    @property
    def is_foreign(self) -> bool:
        """Whether the engine is a server or a service that is not ours to restart."""
        return self._server is not None

    async def run(self, stop: asyncio.Event) -> None:
        """Ask until `stop` is set. A hung engine leaves a question open: it is asked no second one."""
        asking = asyncio.create_task(self._ask_repeatedly())
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({asking, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                asking.result()
        finally:
            asking.cancel()
            stopped.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await self._close()

    async def _ask_repeatedly(self) -> None:
        while True:
            try:
                if self._link is None:
                    self._link = await asyncio.to_thread(registry.connect_engine, self._config)
                await registry.probe_engine(self._link)
            except (OpenClawError, OSError) as error:
                # It starts, or has ended.
                self.error = str(error)
                # The next one may have another address.
                await self._close()
            else:
                self.answered_at = time.monotonic()
                self.error = ""
            await asyncio.sleep(self._interval)

    async def _close(self) -> None:
        if self._link is not None:
            link = self._link
            self._link = None
            await link.close()

    def answer_since(self, started_at: float) -> float | None:
        """Return the time of the last answer if the process that was started then gave it (monotonic seconds)."""
        if self.answered_at is None or self.answered_at <= started_at:
            return None
        return self.answered_at

    def worker_state(
        self, started_at: float, limit: float, quiet: Quiet | None = None
    ) -> tuple[str, str] | None:
        """Return state and note of the worker's heartbeat; None if the engine may only be busy.

        `started_at`: of the worker, in monotonic seconds; `limit`: seconds after which a silent worker is restarted;
        `quiet`: what it had of the machine since its last answer; on a busy machine that is little.
        """
        backend = self._config.engine.backend
        last = self.answer_since(started_at)
        silent = time.monotonic() - (started_at if last is None else last)
        if last is not None and silent < 2 * self._interval:
            return heartbeats.RUNNING, backend
        if last is None and self._server is None:
            return self._starting_state(silent)
        if silent < REPORTED_SILENCE:
            return None
        counted = silent if quiet is None else quiet.counted
        if self._server is None and counted < REPORTED_SILENCE:
            return (
                heartbeats.RUNNING,
                f"{backend}, busy: no answer for {silent:.0f} s, of which the engine had a processor, or needed "
                f"none, for {counted:.0f} s",
            )
        return heartbeats.PARKED, self._describe_silence(silent, limit)

    def _starting_state(self, silent: float) -> tuple[str, str]:
        """Return state and note of an engine process that has not answered yet."""
        is_service = engine_spec(self._config).is_service
        if is_service and self.error and silent >= REPORTED_SILENCE:
            return heartbeats.PARKED, self.error
        return heartbeats.STARTING, "loading the model"

    def _describe_silence(self, silent: float, limit: float) -> str:
        """Return since when the engine has not answered, and what follows. `silent`, `limit`: seconds."""
        where = "the engine"
        cure = f"It is restarted after {limit:g} s"
        if self._server is not None:
            where = f"the engine at {self._server.url}"
            cure = self._server.cure
        error = f" ({self.error})" if self.error else ""
        return f"{where} has not answered for {silent:.0f} s{error}. {cure}"
