"""One Chromium for all episodes, each with a context of its own, and a server for the pages of tasks."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import shutil
import threading
import time
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from os import environ
from pathlib import Path
from typing import Any

from request_loop import ForeignRefusal

_ONLY_LOOPBACK = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
_SHORT_FOLDER = "/proc/self/cwd"
"""The working folder by a short name: the path of a browser's socket has at most 107 characters."""
_DRIVER_OPTIONS = "--max-semi-space-size=2"
"""Options of playwright's driver, which is a Node.js program. By default, its young generation grows to 48 MiB."""
_LEFT_FILES = ".org.chromium.Chromium.*"
# A file that Chromium uses is unlinked, or written, sooner than this.
_LEFT_SECONDS = 60.0
_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")


class SharedPlaywright:
    """Stands in for the library's playwright: a launch returns the one browser, and closing that does nothing."""

    def __init__(self, playwright: Any) -> None:
        self._playwright = playwright
        self._browser: Any = None
        self.selectors = playwright.selectors
        self.chromium = self

    def launch(self, **_: Any) -> SharedPlaywright:
        """Start the browser if it does not run, without waits between actions."""
        if self._browser is None or not self._browser.is_connected():
            ours = [
                _ONLY_LOOPBACK,
                "--disable-dev-shm-usage",
                *(["--no-sandbox"] if os.geteuid() == 0 else []),
            ]
            self._browser = self._playwright.chromium.launch(
                executable_path=find_chromium(self._playwright), args=ours
            )
        return self

    def new_context(self, **options: Any) -> Any:
        return self._browser.new_context(**options)

    def close(self) -> None:
        """Do nothing: other episodes use the browser. It ends with this process."""


class ChatLog:
    """Keeps the messages between task and agent, in place of the library's chat in a browser of its own."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.messages: list[dict[str, Any]] = []

    def add_message(self, role: str, msg: str) -> None:
        self.messages.append({"role": role, "timestamp": time.time(), "message": msg})

    def close(self) -> None:
        """Do nothing."""


def find_chromium(playwright: Any) -> str:
    """Return the path of playwright's own browser, else of the first on PATH. Raises `ForeignRefusal`."""
    bundled = str(playwright.chromium.executable_path)
    chromium = (
        bundled
        if Path(bundled).exists()
        else next(filter(None, map(shutil.which, _PROGRAMS)), None)
    )
    if chromium is None:
        raise ForeignRefusal(
            f"no Chromium: expected {', '.join(_PROGRAMS)} on PATH (on Debian: apt install chromium)"
        )
    return chromium


@functools.cache
def install_shared_browser() -> None:
    """Let the library use one browser, in this thread, and observe the accessibility tree alone; once.

    Raises `ModuleNotFoundError`, `ForeignRefusal`.
    """
    core = importlib.import_module("browsergym.core")
    if Path(_SHORT_FOLDER).exists():
        environ["TMPDIR"] = _SHORT_FOLDER
    environ.setdefault("NODE_OPTIONS", _DRIVER_OPTIONS)
    from playwright.sync_api import sync_playwright

    core._set_global_playwright(SharedPlaywright(sync_playwright().start()))
    environment: Any = importlib.import_module("browsergym.core.env")
    environment.Chat = ChatLog
    _leave_out_observations(environment)


def _leave_out_observations(environment: Any) -> None:
    """Let the library extract no DOM, focus and screenshot: nobody gets them, and they take time in each step."""
    environment.extract_dom_snapshot = environment.extract_dom_extra_properties = lambda *_, **__: {}
    environment.extract_focused_element_bid = lambda _: ""
    environment.extract_screenshot = lambda _: None


def remove_empty_files() -> None:
    """Remove the empty temporary files that Chromium leaves in the working folder, about one in half a minute."""
    for path in Path(_SHORT_FOLDER).glob(_LEFT_FILES):
        with contextlib.suppress(OSError):
            status = path.stat()
            if status.st_size == 0 and time.time() - status.st_mtime > _LEFT_SECONDS:
                path.unlink()


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files and logs nothing."""

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@functools.cache
def serve_folder(folder: str) -> str:
    """Serve a folder on a free port of loopback, once. Return the address, with a slash at its end."""
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(QuietHandler, directory=folder)
    )
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}/"
