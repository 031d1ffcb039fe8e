"""Connects to MCP servers for the source `tools`. It needs the package `mcp`, and runs under the Python that has it.

Requests are JSON lines on stdin: {"id", "open": {"session", "command" | "url", "environment", "folder", "seconds"}},
{"id", "call": {"session", "tool", "arguments", "seconds"}} and {"id", "close": {"session"}}. Answers, in any order:
{"id", "tools": [...]}, {"id", "text", "images", "is_error"}, {"id", "closed"} or {"id", "error"}. It ends when stdin
does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from typing import Any

INVALID_PARAMETERS = -32602
NO_METHOD = -32601
# That the gateway reads.
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
# Of the images of a result, in base64: an answer may have 2**24 bytes.
MAX_IMAGE_CHARACTERS = 1 << 23


class ServerConnection:
    """One connection to a server. All its work is in one task, as the package requires."""

    def __init__(self, server: dict[str, Any]) -> None:
        self._server = server
        self._queue: asyncio.Queue[Any] = asyncio.Queue()
        self.opened: asyncio.Future[list[dict[str, Any]]] = (
            asyncio.get_running_loop().create_future()
        )
        # Why the connection ended.
        self._failure = "it was closed"
        self.task = asyncio.create_task(self._hold_open())

    async def call_tool(self, call: dict[str, Any]) -> dict[str, Any]:
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        if self.task.done():
            raise RuntimeError(f"the connection to the server has ended ({self._failure})")
        self._queue.put_nowait((call, answer))
        await asyncio.wait((answer, self.task), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise RuntimeError(
                f"the connection to the server ended during the call ({self._failure})"
            )
        return answer.result()

    async def close(self) -> None:
        self._queue.put_nowait(None)
        await asyncio.wait((self.task,))

    async def _hold_open(self) -> None:
        try:
            async with contextlib.AsyncExitStack() as stack:
                session = await self._connect(stack)
                self.opened.set_result(await list_tools(session))
                while True:
                    entry = await self._queue.get()
                    if entry is None:
                        break
                    call, answer = entry
                    await self._answer_call(session, call, answer)
        except BaseException as error:
            # A cancellation, too, ends the connection for those who wait.
            self._failure = describe_failure(error)
            if not self.opened.done():
                self.opened.set_exception(RuntimeError(self._failure))
            if isinstance(error, asyncio.CancelledError):
                raise

    async def _connect(self, stack: contextlib.AsyncExitStack) -> Any:
        import mcp  # type: ignore[import-not-found, unused-ignore]
        from mcp.client import stdio, streamable_http  # type: ignore[import-not-found, unused-ignore]

        if self._server.get("url"):
            connect = (
                getattr(streamable_http, "streamable_http_client", None)
                or streamable_http.streamablehttp_client
            )
            streams = await stack.enter_async_context(connect(self._server["url"]))
        else:
            program, *arguments = self._server["command"]
            parameters = mcp.StdioServerParameters(
                command=program,
                args=arguments,
                env=self._server["environment"],
                cwd=self._server["folder"],
            )
            streams = await stack.enter_async_context(stdio.stdio_client(parameters))
        session = await stack.enter_async_context(mcp.ClientSession(streams[0], streams[1]))
        await session.initialize()
        return session

    async def _answer_call(
        self, session: Any, call: dict[str, Any], answer: asyncio.Future[dict[str, Any]]
    ) -> None:
        try:
            async with asyncio.timeout(call["seconds"]):
                result = await session.call_tool(call["tool"], call["arguments"])
            content = result.model_dump(mode="json", by_alias=True)
            answer.set_result(
                {
                    "text": read_content(content),
                    "images": read_images(content),
                    "is_error": bool(content.get("isError")),
                }
            )
        except TimeoutError:
            answer.set_exception(RuntimeError(f"no result within {call['seconds']:g} s"))
        except Exception as error:  # noqa: BLE001 - every failure is an answer
            code = getattr(getattr(error, "error", None), "code", None)
            # Of the model's call.
            if code in (INVALID_PARAMETERS, NO_METHOD):
                answer.set_result({"text": str(error), "images": [], "is_error": True})
            else:
                answer.set_exception(RuntimeError(describe_failure(error)))


def describe_failure(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


async def list_tools(session: Any) -> list[dict[str, Any]]:
    """Return all tools of a server, also of further pages."""
    tools: list[dict[str, Any]] = []
    page = (await session.list_tools()).model_dump(mode="json", by_alias=True)
    tools += page["tools"]
    while page.get("nextCursor"):
        import mcp

        options = {"params": mcp.types.PaginatedRequestParams(cursor=page["nextCursor"])}
        page = (await session.list_tools(**options)).model_dump(mode="json", by_alias=True)
        tools += page["tools"]
    keys = ("name", "description", "inputSchema")
    return [{key: tool.get(key) for key in keys} for tool in tools]


def read_content(result: dict[str, Any]) -> str:
    """Return the text of a result. Blocks that are no text are named."""
    parts = []
    for block in result.get("content") or []:
        resource = block.get("resource") or {}
        text = block.get("text") if block.get("type") == "text" else resource.get("text")
        parts.append(text if isinstance(text, str) else f"[{block.get('type')}]")
    if not parts and result.get("structuredContent") is not None:
        return json.dumps(result["structuredContent"])
    return "\n".join(parts)


def read_images(result: dict[str, Any]) -> list[str]:
    """Return the images of a result as data URLs. Those of other types, or too large, are only named in its text."""
    images = []
    size = 0
    for block in result.get("content") or []:
        kind = block.get("mimeType")
        data = block.get("data")
        if (
            block.get("type") == "image"
            and kind in IMAGE_TYPES
            and size + len(data) <= MAX_IMAGE_CHARACTERS
        ):
            size += len(data)
            images.append(f"data:{kind};base64,{data}")
    return images


class RequestLoop:
    """Reads requests, and answers each in a task of its own."""

    def __init__(self) -> None:
        self._connections: dict[str, ServerConnection] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._output = os.fdopen(os.dup(1), "w", encoding="utf-8")
        # What a library prints is no answer.
        os.dup2(2, 1)

    async def serve_requests(self) -> None:
        reader = asyncio.StreamReader(limit=1 << 24)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            request = json.loads(line)
            task = asyncio.create_task(self._answer(request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await asyncio.gather(*(connection.close() for connection in self._connections.values()))

    async def _answer(self, request: dict[str, Any]) -> None:
        try:
            reply = await self._do_request(request)
        except Exception as error:  # noqa: BLE001 - every failure is an answer
            reply = {"error": str(error) or type(error).__name__}
        self._output.write(json.dumps({"id": request["id"], **reply}) + "\n")
        self._output.flush()

    async def _do_request(self, request: dict[str, Any]) -> dict[str, Any]:
        if "open" in request:
            opening = request["open"]
            connection = ServerConnection(opening)
            self._connections[opening["session"]] = connection
            async with asyncio.timeout(opening["seconds"]):
                return {"tools": await asyncio.shield(connection.opened)}
        if "call" in request:
            return await self._connections[request["call"]["session"]].call_tool(request["call"])
        if "close" in request:
            open_connection = self._connections.pop(request["close"]["session"], None)
            if open_connection is not None:
                await open_connection.close()
            return {"closed": True}
        return {"error": "unknown request"}


if __name__ == "__main__":
    try:
        import mcp  # noqa: F401
    except ImportError as problem:
        sys.exit(
            f"{sys.executable} has no package mcp ({problem}): `{sys.executable} -m pip install 'mcp>=1.27,<3'`"
        )
    asyncio.run(RequestLoop().serve_requests())
