"""The loop of a worker: what it does when it is stopped in the middle of its work."""

from __future__ import annotations

import asyncio
import threading

from openclaw_rl.common.worker_loop import run_worker_loop


def test_a_stop_is_told_to_a_worker_that_is_busy() -> None:
    """The work may take longer than the process is given, so what is noted about it is withdrawn at once."""
    begun, told = threading.Event(), threading.Event()

    def work() -> bool:
        begun.set()
        assert told.wait(10), "nobody said during the work that it is to end"
        return False

    async def main() -> None:
        stop = asyncio.Event()
        task = asyncio.create_task(run_worker_loop(work, lambda: None, stop, poll=0.01, on_stop=told.set))
        await asyncio.to_thread(begun.wait, 10)
        stop.set()
        await asyncio.wait_for(task, 10)

    asyncio.run(main())
    assert told.is_set()
