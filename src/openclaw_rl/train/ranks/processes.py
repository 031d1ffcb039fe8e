"""Ranks as child processes. When one ends, the end of their log is part of the error."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from openclaw_rl.errors import RanksGone
from openclaw_rl.train.ranks import rpc
from openclaw_rl.train.ranks.rpc import Listener

PROGRAM = (sys.executable, "-m", "openclaw_rl.train.ranks.main")
Start = tuple[list[str], dict[str, str]]
"""A command and its environment."""
_TAIL = 25  # lines
_LAST_WORDS = 5.0  # seconds to wait for the first exit code after the connection is lost
_GRACE = 8.0  # seconds between SIGTERM and SIGKILL


class Processes:
    """Child processes: the ranks, or one torchrun that starts them."""

    def __init__(self, starts: Sequence[Start], listener: Listener | None, log_file: Path) -> None:
        """`listener`: accepts the connection of rank 0, None without rank 0; `log_file`: their standard error."""
        self._log, self._listener = log_file, listener
        self._log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._log.write_bytes(b"")
        self._log.chmod(0o600)
        self._line: rpc.Line | None = None
        self.children = [self._start(command, environment) for command, environment in starts]

    def _start(self, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as out:
            return subprocess.Popen(command, env=dict(environment), stdin=subprocess.PIPE, stdout=out, stderr=out)

    def ask(self, raw: bytes | None) -> bytes:
        try:
            if self._line is None:
                assert self._listener is not None, "rank 0 is on another machine"
                self._line = self._listener.accept(self.check)
            return rpc.answer(self._line, self.check) if raw is None else rpc.ask(self._line, raw, self.check)
        except EOFError:
            rpc.wait(lambda: self._ended() is not None, _LAST_WORDS)
            raise self._gone() from None

    def _ended(self) -> subprocess.Popen[bytes] | None:
        return next((child for child in self.children if child.poll() is not None), None)

    def check(self) -> None:
        """Raise `RanksGone` if one of them has ended."""
        if self._ended() is not None:
            rpc.wait(lambda: all(child.poll() is not None for child in self.children), 0.5)
            raise self._gone()

    def _gone(self) -> RanksGone:
        how = ", ".join(
            f"process {number} " + ("runs" if code is None else f"ended with {code}")
            for number, code in enumerate(child.poll() for child in self.children)
        )
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        tail = "\n".join(f"    {words}" for words in lines[-_TAIL:])
        return RanksGone(f"a rank is gone ({how}). End of their log:\n{tail}\nFull log: {self._log}")

    def close(self) -> None:
        if self._line is not None:
            self._line.close()
        if self._listener is not None:
            self._listener.close()
        for child in self.children:
            assert child.stdin is not None
            child.stdin.close()  # makes torchrun's process guard end it
            child.terminate()
        rpc.wait(lambda: all(child.poll() is not None for child in self.children), _GRACE)
        for child in self.children:
            child.kill()
            child.wait()
