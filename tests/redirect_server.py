"""Two servers: one answers every request with a redirect to the other, which notes what it gets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Received = list[tuple[str, str | None, bytes]]
"""Path, key and body of each request."""


@contextmanager
def redirecting(status: int) -> Iterator[tuple[str, Received]]:
    """Yield the address of the first server, and what the second one got."""
    received: Received = []

    class Other(BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            received.append((self.path, self.headers.get("Authorization"), body))
            self.reply(200)

        def reply(self, code: int, **headers: str) -> None:
            self.send_response(code)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        do_GET = do_POST = do_PUT = answer

    with ExitStack() as stack:
        other = stack.enter_context(serving(Other))

        class Redirect(Other):
            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self.reply(status, Location=f"{other}{self.path}")

            do_GET = do_POST = do_PUT = answer

        yield stack.enter_context(serving(Redirect)), received


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(240)
