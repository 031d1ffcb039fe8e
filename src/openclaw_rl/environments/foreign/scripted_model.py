"""A chat endpoint on loopback that gives prepared replies: how a library is checked with a known answer."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL_NAME = "oracle"


class ScriptedModel:
    """Serves `/v1/chat/completions`. Each key has replies of its own; the last one is repeated."""

    def __init__(self) -> None:
        self._replies: dict[str, list[str]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def add_replies(self, replies: Sequence[str]) -> str:
        """Return a key that gets these replies in turn."""
        key = f"oracle-{secrets.token_hex(8)}"
        self._replies[key] = list(replies)
        return key

    def remove_replies(self, key: str) -> None:
        self._replies.pop(key, None)

    def next_reply(self, key: str) -> str | None:
        """Return the next reply of a key; None for an unknown one."""
        replies = self._replies.get(key)
        if replies is None:
            return None
        return replies.pop(0) if len(replies) > 1 else replies[0]


def _handler_of(model: ScriptedModel) -> type[BaseHTTPRequestHandler]:
    class ScriptedHandler(BaseHTTPRequestHandler):
        """Answers chat requests, also with a stream."""

        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            sent = self.headers.get("x-api-key") or self.headers.get(
                "Authorization", ""
            ).removeprefix("Bearer ")
            reply = model.next_reply(sent)
            if reply is None:
                self._send(
                    401, "application/json", json.dumps({"error": {"message": "unknown key"}})
                )
            elif asked.get("stream"):
                self._send(200, "text/event-stream", _stream(reply))
            else:
                self._send(200, "application/json", json.dumps(_completion(reply)))

        def _send(self, status: int, kind: str, body: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    return ScriptedHandler


def _completion(reply: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": reply}
    return {
        "id": f"chatcmpl-{secrets.token_hex(8)}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": MODEL_NAME,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


def _stream(reply: str) -> str:
    """Return a completion as server-sent events: the message, its end, and the usage."""
    whole = _completion(reply)
    same = {name: whole[name] for name in ("id", "created", "model")} | {
        "object": "chat.completion.chunk"
    }
    message = {"index": 0, "delta": whole["choices"][0]["message"], "finish_reason": None}
    parts = [
        {"choices": [message]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    ]
    parts.append({"choices": [], "usage": whole["usage"]})
    return "".join(f"data: {json.dumps(same | part)}\n\n" for part in parts) + "data: [DONE]\n\n"
