"""A tracing or chat service in this process: the part of its HTTP API that the relays use, over stored items."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Query = dict[str, list[str]]
Route = Callable[[str, str, Query, Any], tuple[int, Any]]
"""(method, path, query, JSON body) -> (status, JSON answer)."""


class Service:
    """A server on a free port. `requests`: method and path of each."""

    def __init__(self, route: Route) -> None:
        self.requests: list[tuple[str, str]] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def handle_any(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                raw = self.rfile.read(length)
                parts = urlsplit(self.path)
                service.requests.append((self.command, parts.path))
                query = parse_qs(parts.query)
                body = None
                if "json" in self.headers.get("Content-Type", ""):
                    body = json.loads(raw)
                elif "urlencoded" in self.headers.get("Content-Type", ""):
                    query |= parse_qs(raw.decode())
                status, answer = route(self.command, parts.path, query, body)
                content = json.dumps(answer, default=str).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PATCH = do_DELETE = handle_any

            def log_message(self, format: str, *args: Any) -> None:
                """Keep standard error for the test."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class LangfuseApi:
    """Scores and observations, as `/api/public` of Langfuse gives them."""

    def __init__(self) -> None:
        self.scores: dict[str, dict[str, Any]] = {}
        self.observations: list[dict[str, Any]] = []
        self.changes = 0

    def add_score(self, sent: dict[str, Any]) -> None:
        """Store a score as a client sends it to `POST /api/public/scores`."""
        self.changes += 1
        value = sent["value"]
        kind = sent.get("dataType") or ("CATEGORICAL" if isinstance(value, str) else "NUMERIC")
        subject: dict[str, Any] = {"kind": "session", "id": sent.get("sessionId")}
        if sent.get("observationId"):
            subject = {
                "kind": "observation",
                "id": sent["observationId"],
                "traceId": sent["traceId"],
            }
        elif sent.get("traceId"):
            subject = {"kind": "trace", "id": sent["traceId"]}
        at = sent["timestamp"]
        self.scores[sent["id"]] = {
            "id": sent["id"],
            "projectId": "p",
            "name": sent["name"],
            "value": bool(value) if kind == "BOOLEAN" else value,
            "dataType": kind,
            "source": sent.get("source", "API"),
            "timestamp": at,
            "environment": sent.get("environment") or "default",
            "createdAt": at,
            "updatedAt": f"{at[:19]}.{self.changes:03}Z",
            "comment": sent.get("comment"),
            "authorUserId": sent.get("authorUserId"),
            "subject": subject,
        }

    def route(self, method: str, path: str, query: Query, body: Any) -> tuple[int, Any]:
        if (method, path) == ("POST", "/api/public/scores"):
            sent = body if isinstance(body, list) else [body]
            for score in sent:
                self.add_score(score)
            results = {"acceptedCount": len(sent), "rejectedCount": 0, "errors": []}
            return 202, results | {"results": results}
        if (method, path) == ("GET", "/api/public/v3/scores"):
            at = int(query.get("cursor", ["0"])[0])
            listed = list(self.scores.values())[at:][:2]
            more = at + 2 < len(self.scores)
            meta = {"limit": 2} | ({"cursor": str(at + 2)} if more else {})
            return 200, {"data": listed, "meta": meta}
        if (method, path) == ("GET", "/api/public/v2/observations"):
            trace = query["traceId"][0]
            found = [item for item in self.observations if item["traceId"] == trace]
            return 200, {"data": found, "meta": {}}
        if method == "DELETE" and path.startswith("/api/public/scores/"):
            self.scores.pop(path.rsplit("/", 1)[1], None)
            return 202, {"message": "deleted"}
        return 404, {"message": f"no {method} {path}"}


class LangSmithApi:
    """Runs and feedback, as the API of LangSmith keeps them."""

    def __init__(self) -> None:
        self.runs: dict[str, dict[str, Any]] = {}
        self.feedback: dict[str, dict[str, Any]] = {}

    def route(self, method: str, path: str, query: Query, body: Any) -> tuple[int, Any]:
        place = path.strip("/").split("/")
        if place == ["info"]:
            return 200, {
                "version": "0.7.0",
                "batch_ingest_config": {"use_multipart_endpoint": False},
            }
        if place[0] == "runs" and method == "POST":
            self.runs[str(body["id"])] = {k: v for k, v in body.items() if k != "attachments"}
            return 202, {"message": "accepted"}
        if place[0] == "runs" and method == "PATCH":
            changed = {k: v for k, v in body.items() if v is not None and k != "attachments"}
            self.runs.setdefault(place[1], {}).update(changed)
            return 200, {"message": "accepted"}
        if place[0] == "runs":
            run = self.runs.get(place[1])
            return (404, {"detail": "Run not found"}) if run is None else (200, run)
        if place == ["feedback"] and method == "POST":
            self.feedback[str(body["id"])] = {"trace_id": body["run_id"]} | body
            return 200, body
        if place == ["feedback"]:
            start = int(query["offset"][0])
            end = start + int(query["limit"][0])
            keys = query.get("key")
            found = [item for item in self.feedback.values() if keys is None or item["key"] in keys]
            return 200, found[start:end]
        if place[0] == "feedback" and method == "PATCH":
            item = self.feedback[place[1]]
            item.update(body)
            item["modified_at"] = f"{item['modified_at']}-{len(item)}"[:26]
            return 200, item
        if place[0] == "feedback" and method == "DELETE":
            del self.feedback[place[1]]
            return 200, {}
        return 404, {"detail": f"no {method} {path}"}


class SlackApi:
    """Messages of channels, as `conversations.history` and `conversations.replies` give them."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.in_threads: list[dict[str, Any]] = []

    def route(self, method: str, path: str, query: Query, body: Any) -> tuple[int, Any]:
        listed = self.messages if path == "/conversations.history" else self.in_threads
        found = [message for message in listed if message["ts"] <= query["latest"][0]]
        return 200, {"ok": True, "messages": found[-1:]}
