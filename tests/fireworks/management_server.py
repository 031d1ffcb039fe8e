"""A server that speaks the documented management API of Fireworks: models, uploads to signed addresses, deployments."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

KEY = "fw-key"
BASE = "accounts/fireworks/models/letters"


class ManagementDouble:
    """Starts on entry. `models`, `files` and `loaded`: what was created, sent and loaded; `calls`: method and path."""

    def __init__(self, *, busy: int = 0) -> None:
        """`busy`: validations that come before the files have arrived."""
        self.models: dict[str, dict[str, Any]] = {
            BASE: {"kind": "HF_BASE_MODEL", "supportsLora": True}
        }
        self.files: dict[str, bytes] = {}
        self.deployments: dict[str, Any] = {}
        self.loaded: list[Any] = []
        self.calls: list[str] = []
        self.busy = busy
        self.without_address: set[str] = set()

    def __enter__(self) -> Self:
        double = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: Any) -> None:
                pass

            def answer(self) -> None:
                raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, body = double.handle(self.command, self.path, dict(self.headers), raw)
                text = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_PUT = answer

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join(240)
        self._server.server_close()

    def handle(
        self, method: str, path: str, headers: dict[str, str], raw: bytes
    ) -> tuple[int, Any]:
        self.calls.append(f"{method} {path}")
        if method == "PUT":
            return self._put(path, headers, raw)
        if headers.get("Authorization") != f"Bearer {KEY}":
            return 401, {"error": "unauthorized"}
        body = json.loads(raw) if raw else {}
        name, _, verb = path.removeprefix("/v1/").partition(":")
        if verb == "getUploadEndpoint":
            self.sizes = body["filenameToSize"]
            signed = {
                n: f"{self.url}/bucket/{name}/{n}"
                for n in self.sizes
                if n not in self.without_address
            }
            return 200, {"filenameToSignedUrls": signed}
        if verb == "validateUpload":
            return self._validate(name)
        if method == "GET":
            return (
                (200, self.models[name])
                if name in self.models
                else (404, {"code": 5, "message": "not found"})
            )
        if name == "accounts/me/models":
            made = {"name": f"accounts/me/models/{body['modelId']}", "state": "UPLOADING"} | body[
                "model"
            ]
            self.models[made["name"]] = made
            return 200, made
        if name.startswith("accounts/me/deployments?deploymentId="):
            if name.partition("=")[2] in self.deployments:
                return 409, {"code": 6, "message": "already exists"}
            self.deployments[name.partition("=")[2]] = body
            return 200, {}
        if name == "accounts/me/deployedModels":
            if body in self.loaded:
                return 409, {"code": 6, "message": "already exists"}
            self.loaded.append(body)
            return 200, {}
        return 404, {"code": 5, "message": path}

    def _put(self, path: str, headers: dict[str, str], raw: bytes) -> tuple[int, Any]:
        """Take a file as a storage service does: no key, and the size and type that were signed."""
        name = path.rpartition("/")[2]
        expected = {
            "Content-Type": "application/octet-stream",
            "X-goog-content-length-range": f"{len(raw)},{len(raw)}",
        }
        given = {
            key.capitalize() if key.lower().startswith("x-") else key: value
            for key, value in headers.items()
        }
        if "Authorization" in given or any(
            given.get(key) != value for key, value in expected.items()
        ):
            return 403, {"message": f"signature does not match: {given}"}
        assert self.sizes[name] == str(len(raw))
        self.files[name] = raw
        return 200, {}

    def _validate(self, name: str) -> tuple[int, Any]:
        if self.busy > 0 or self.files.keys() != self.sizes.keys():
            self.busy -= 1
            return 400, {"code": 9, "message": "files are still landing"}
        self.models[name]["state"] = "READY"
        return 200, {}
