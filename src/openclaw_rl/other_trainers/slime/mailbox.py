"""Messages between the rollout function and the weight hook, which run in two processes and perhaps on two machines.

Files in a folder that both see, beside the weights that slime writes to disk. Each is replaced as a whole.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

POLL_SECONDS = 0.1
_KINDS = ("start", "batch", "written", "answer")


class Mailbox:
    """`start`: fingerprint of the weights that this run began with. `batch`: the open one; `written`: its weights;
    `answer`: whether they were kept. The last three have the batch's `token`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, kind: str, **message: Any) -> None:
        """Write a message over the last one of this kind."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self.path_of(kind)
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        fresh.write_text(json.dumps(message), encoding="utf-8")
        fresh.replace(path)

    def get(self, kind: str) -> dict[str, Any] | None:
        """Return the message of this kind, or None."""
        with contextlib.suppress(FileNotFoundError):
            message: dict[str, Any] = json.loads(self.path_of(kind).read_text(encoding="utf-8"))
            return message
        return None

    def wait_for(
        self, kind: str, token: str, keep_waiting: Callable[[], bool]
    ) -> dict[str, Any] | None:
        """Return the message for the batch with this token, or None when `keep_waiting` turns false."""
        while keep_waiting():
            message = self.get(kind)
            if message is not None and message["token"] == token:
                return message
            time.sleep(POLL_SECONDS)
        return None

    def clear(self, *kinds: str) -> None:
        """Remove messages, by default all."""
        for kind in kinds or _KINDS:
            self.path_of(kind).unlink(missing_ok=True)

    def path_of(self, kind: str) -> Path:
        """Return the file of a message."""
        return self._folder / f"{kind}.json"
