"""Several replies to one prompt (`n`), told as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from openclaw_rl.serve.ask import Part
from openclaw_rl.serve.serving import Serving

_Ready = asyncio.Queue[tuple[int, Part | Exception]]


async def interleaved(servings: Sequence[Serving]) -> AsyncGenerator[tuple[int, Part]]:
    """(number of the reply, part), in the order in which they come; each reply's last part has its `end`.

    Raises what the first reply that fails raises. Whoever leaves early, and a failure too, cancels all the others.
    """
    if len(servings) == 1:
        async with aclosing(servings[0].parts()) as parts:
            async for part in parts:
                yield 0, part
        return
    ready: _Ready = asyncio.Queue(len(servings))  # a client that reads slowly holds them all up
    tasks = [asyncio.create_task(_tell(n, serving, ready)) for n, serving in enumerate(servings)]
    running = len(servings)
    try:
        while running:
            number, told = await ready.get()
            if isinstance(told, Exception):
                for serving in servings:
                    serving.leaving = f"another reply of the same answer failed: {told}"
                raise told
            running -= told.end is not None
            yield number, told
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for serving in servings:  # a task that never ran has not begun
            serving.abandon()


async def _tell(number: int, serving: Serving, ready: _Ready) -> None:
    try:
        async with aclosing(serving.parts()) as parts:
            async for part in parts:
                await ready.put((number, part))
    except Exception as error:  # noqa: BLE001 - whatever it is, who reads the queue raises it
        await ready.put((number, error))
