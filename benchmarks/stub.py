"""A stub engine: the same twenty tokens for everybody, without delay.

    python stub.py SETTINGS.json

One process speaks OpenAI HTTP (for the direct, pass-through and LiteLLM rows) and our engine's wire on a Unix socket
(for our gateway). Each token leaves in a loop iteration of its own, on both, as from an engine that decodes step by
step. A streamed HTTP reply is 22 events: twenty tokens, the finish, `[DONE]`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from openclaw_rl.common.frames import FrameDecoder
from openclaw_rl.engines.embedded import protocol
from openclaw_rl.protocols import EngineInfo

LOGPROB = -0.5


class _Asked(msgspec.Struct):
    messages: list[msgspec.Raw]
    model: str = ""
    stream: bool = False


_asked = msgspec.json.Decoder(_Asked)


class Replies:
    """Every byte of the HTTP replies, made once."""

    def __init__(self, pieces: list[str], model: str) -> None:
        head = {"id": "chatcmpl-stub", "created": int(time.time()), "model": model}
        usage = {
            "prompt_tokens": 16,
            "completion_tokens": len(pieces),
            "total_tokens": 16 + len(pieces),
        }
        message = {"role": "assistant", "content": "".join(pieces)}
        whole = head | {
            "object": "chat.completion",
            "choices": [
                {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
            ],
            "usage": usage,
        }
        body = json.dumps(whole, separators=(",", ":")).encode()
        self.whole = _head("application/json", f"Content-Length: {len(body)}") + body
        self.stream_head = _head("text/event-stream; charset=utf-8", "Transfer-Encoding: chunked")
        deltas: list[tuple[dict[str, str], str | None]] = [
            ({"content": piece}, None) for piece in pieces
        ]
        deltas[0] = ({"role": "assistant", "content": pieces[0]}, None)
        deltas.append(({}, "stop"))
        self.events = []
        for delta, finish in deltas:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            event = head | {"object": "chat.completion.chunk", "choices": [choice]}
            self.events.append(
                _chunk(b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n")
            )
        self.events.append(_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


def _head(kind: str, framing: str) -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{framing}\r\n\r\n".encode()


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


class Http(asyncio.Protocol):
    """Just enough HTTP/1.1: keep-alive, bodies with a length."""

    def __init__(self, replies: Replies) -> None:
        self._replies = replies
        self._buffer = bytearray()
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._buffer[:end]).lower()
            at = head.find(b"content-length:")
            size = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._buffer) < end + 4 + size:
                return
            body = bytes(self._buffer[end + 4 : end + 4 + size])
            del self._buffer[: end + 4 + size]
            if body and _asked.decode(body).stream:
                self._transport.write(self._replies.stream_head)
                self._step(0)
            else:
                self._transport.write(self._replies.whole)

    def _step(self, at: int) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(self._replies.events[at])
        if at + 1 < len(self._replies.events):
            asyncio.get_running_loop().call_soon(self._step, at + 1)


class Engine(asyncio.Protocol):
    """Our wire: all streams of a connection advance by one token in each step, in one frame."""

    def __init__(self, token_ids: list[int], stop: int, info: dict[str, Any]) -> None:
        self._ids = [*token_ids, stop]
        self._info = info
        self._versions: tuple[int, ...] = (0,)
        self._frames = FrameDecoder()
        self._running: dict[int, int] = {}
        self._transport: Any = None
        self._stepping = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for body in self._frames.feed(data):
            self._call(protocol.call_decoder.decode(body))

    def _call(self, call: protocol.EngineCall) -> None:
        if isinstance(call, protocol.GenerateCall):
            self._running[call.id] = 0
            if not self._stepping:
                self._stepping = True
                asyncio.get_running_loop().call_soon(self._step)
        elif isinstance(call, protocol.CancelCall):
            self._running.pop(call.id, None)
        elif isinstance(call, protocol.LoadCall):
            self._versions = tuple(policy.version for policy in call.policies)
            self._send(protocol.LoadReply(call.id))
        elif isinstance(call, protocol.InfoCall):
            self._send(
                protocol.InfoReply(
                    call.id,
                    EngineInfo(
                        versions=self._versions, running=0, waiting=0, pid=os.getpid(), **self._info
                    ),
                )
            )
        else:
            self._send(protocol.RejectionReply(call.id, "the stub does not score"))

    def _step(self) -> None:
        running = self._running
        last = len(self._ids) - 1
        if not running or self._transport.is_closing():
            self._stepping = False
            return
        ids = list(running)
        tokens = [self._ids[at] for at in running.values()]
        finish = {key: "stop" for key, at in running.items() if at == last}
        self._send(protocol.TokensReply(ids, tokens, [LOGPROB] * len(ids), finish))
        self._running = {key: at + 1 for key, at in running.items() if at < last}
        asyncio.get_running_loop().call_soon(self._step)

    def _send(self, answer: protocol.EngineReply) -> None:
        self._transport.write(protocol.encode_frame(answer))


async def serve(settings: dict[str, Any]) -> None:
    """Serve both until killed; prints the HTTP port once both answer."""
    loop = asyncio.get_running_loop()
    replies = Replies(settings["pieces"], settings["info"]["model"])
    http = await loop.create_server(lambda: Http(replies), "127.0.0.1", 0)
    with contextlib.suppress(FileNotFoundError):
        Path(settings["socket"]).unlink()
    await loop.create_unix_server(
        lambda: Engine(settings["token_ids"], settings["stop"], settings["info"]),
        settings["socket"],
    )
    print(http.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(json.loads(Path(sys.argv[1]).read_text())))
