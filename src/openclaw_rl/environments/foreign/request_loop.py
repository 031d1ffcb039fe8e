"""Answers requests on stdin, for the programs in this folder (`openclaw_rl.environments.foreign_process`).

Those run under a Python of the user's with other people's libraries. They import their library, the standard library,
and the modules beside them; nothing of `openclaw_rl`.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import hashlib
import importlib.util
import itertools
import json
import os
import shutil
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
# Tasks in one answer.
_PAGE_ROWS = 2000
# For what waits in threads, as many as episodes at the same time; they are made when needed.
_THREADS = 1024


class ForeignRefusal(Exception):
    """Raised by a handler for a request that cannot be answered. Its text is the answer."""


class OwnerRefusal(Exception):
    """Raised by `call_owner` with the owner's reason."""


_asked: contextvars.ContextVar[tuple[int, Callable[[Mapping[str, Any]], None]]] = (
    contextvars.ContextVar("asked")
)
_calls: dict[int, asyncio.Future[dict[str, Any]]] = {}
_call_numbers = itertools.count(1)


async def call_owner(body: Mapping[str, Any]) -> dict[str, Any]:
    """Ask the owner for something that belongs to the request that this task answers. Raises `OwnerRefusal`."""
    number, send = _asked.get()
    call = next(_call_numbers)
    answer = _calls[call] = asyncio.get_running_loop().create_future()
    try:
        send({"id": number, "call": call, **body})
        reply = await answer
    finally:
        del _calls[call]
    if "error" in reply:
        raise OwnerRefusal(str(reply["error"]))
    return dict(reply)


def serve_requests(handlers: Mapping[str, Handler]) -> None:
    """Answer requests until stdin ends; then remove the working folder and end at once.

    A handler gets the body of its kind of request and returns the fields of the answer. What libraries print goes to
    stderr, so that stdout has nothing but answers. The owner ends this process by a signal; stdin ends only if the
    owner was killed.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr

    def send_answer(answer: Mapping[str, Any]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    asyncio.run(_serve(handlers, send_answer))


async def _serve(
    handlers: Mapping[str, Handler], send: Callable[[Mapping[str, Any]], None]
) -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.Queue[str]()
    loop.set_default_executor(ThreadPoolExecutor(_THREADS))
    running: dict[int, asyncio.Task[None]] = {}
    threading.Thread(target=_read_lines, args=(loop, lines, Path.cwd()), daemon=True).start()
    while True:
        request = json.loads(await lines.get())
        number = request.pop("id")
        if "call" in request:
            answer = _calls.get(request["call"])
            if answer is not None and not answer.done():
                answer.set_result(request)
            continue
        if request.get("cancel"):
            if number in running:
                running[number].cancel()
            continue
        (kind, body), *_ = request.items()
        running[number] = loop.create_task(_answer(handlers.get(kind), kind, number, body, send))
        running[number].add_done_callback(functools.partial(_forget_task, running, number))


def _forget_task(
    running: dict[int, asyncio.Task[None]], number: int, _: asyncio.Task[None]
) -> None:
    running.pop(number, None)


async def _answer(
    handler: Handler | None,
    kind: str,
    number: int,
    body: dict[str, Any],
    send: Callable[[Mapping[str, Any]], None],
) -> None:
    _asked.set((number, send))
    try:
        if handler is None:
            raise ForeignRefusal(f"unknown request {kind!r}")
        send({"id": number} | await handler(body))
    except ModuleNotFoundError as error:
        missing = error.name or str(error)
        send({"id": number, "error": f"no module: {missing}", "missing_module": missing})
    except ForeignRefusal as error:
        send({"id": number, "error": " ".join(str(error).split())[:1000]})
    except Exception as error:  # noqa: BLE001 - one request must not end the others
        traceback.print_exc()
        send({"id": number, "error": " ".join(f"{type(error).__name__}: {error}".split())[:1000]})


def _read_lines(loop: asyncio.AbstractEventLoop, lines: asyncio.Queue[str], folder: Path) -> None:
    for line in sys.stdin:
        loop.call_soon_threadsafe(lines.put_nowait, line)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def content_digest(content: Any) -> str:
    """Return the hexadecimal SHA-256 of what a task says."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()


def files_digest(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file, or of all files below a folder with their paths in it."""
    digest = hashlib.sha256()
    inside = (
        file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts
    )
    for file in sorted(inside) if path.is_dir() else [path]:
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        digest.update(f"{file.relative_to(path).as_posix()}\0{content}\n".encode())
    return digest.hexdigest()


def module_digest(name: str) -> str:
    """Return the digest of a module's file, or of its package's folder. Raises `ForeignRefusal` if it has neither."""
    spec = importlib.util.find_spec(name)
    places = (
        [] if spec is None else list(spec.submodule_search_locations or filter(None, [spec.origin]))
    )
    if not places or not all(Path(place).exists() for place in places):
        raise ForeignRefusal(f"the code of {name} is not in files, so a check could not name it")
    return content_digest([files_digest(Path(place)) for place in places])


def page_of_tasks(tasks: Sequence[Mapping[str, Any]], start: int) -> dict[str, Any]:
    """Return the answer to a request for tasks: those from `start` on, as many as a line holds, and how many there are.

    A task is `{"id", "digest", "data"}` and, if the library decides on it, `split`.
    """
    return {
        "tasks": [dict(task) for task in tasks[start : start + _PAGE_ROWS]],
        "count": len(tasks),
    }
