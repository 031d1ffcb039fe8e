"""Ranks as child processes. When one ends, the end of their log is part of the error."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from openclaw_rl.common.progress import library_call
from openclaw_rl.errors import RanksGone
from openclaw_rl.train.ranks import rpc
from openclaw_rl.train.ranks.rpc import RpcListener

RANK_PROGRAM = (sys.executable, "-m", "openclaw_rl.train.ranks.main")
ProcessSpec = tuple[list[str], dict[str, str]]
"""A command and its environment."""
# Lines.
_TAIL_LINES = 25
# Seconds to wait for the first exit code after the connection is lost.
_EXIT_SECONDS = 5.0
# Seconds between SIGTERM and SIGKILL.
_GRACE_SECONDS = 8.0


class RankProcesses:
    """Child processes: the ranks, or one torchrun that starts them."""

    def __init__(
        self, starts: Sequence[ProcessSpec], listener: RpcListener | None, log_file: Path
    ) -> None:
        """`listener`: accepts the connection of rank 0, None without rank 0; `log_file`: their standard error."""
        self._log_file = log_file
        self._listener = listener
        self._log_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._log_file.write_bytes(b"")
        self._log_file.chmod(0o600)
        self._channel: rpc.RpcChannel | None = None
        self.children = [
            self._start_process(command, environment) for command, environment in starts
        ]

    def _start_process(
        self, command: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        with self._log_file.open("ab") as out:
            return subprocess.Popen(
                command, env=dict(environment), stdin=subprocess.PIPE, stdout=out, stderr=out
            )

    def send_command(self, raw: bytes | None) -> bytes:
        try:
            if self._channel is None:
                assert self._listener is not None, "rank 0 is on another machine"
                # They import torch and find each other.
                with library_call():
                    self._channel = self._listener.accept(self.check_running)
            if raw is not None:
                self._channel.send(raw)
            return rpc.receive_reply(self._channel, self.check_running)
        except EOFError:
            rpc.wait_until(lambda: self._first_ended() is not None, _EXIT_SECONDS)
            raise self._ranks_gone() from None

    def _first_ended(self) -> subprocess.Popen[bytes] | None:
        return next((child for child in self.children if child.poll() is not None), None)

    def check_running(self) -> None:
        """Raise `RanksGone` if one of them has ended."""
        if self._first_ended() is not None:
            rpc.wait_until(lambda: all(child.poll() is not None for child in self.children), 0.5)
            raise self._ranks_gone()

    def _ranks_gone(self) -> RanksGone:
        how = ", ".join(
            f"process {number} " + ("runs" if code is None else f"ended with {code}")
            for number, code in enumerate(child.poll() for child in self.children)
        )
        lines = self._log_file.read_text(encoding="utf-8", errors="replace").splitlines()
        tail = "\n".join(f"    {text}" for text in lines[-_TAIL_LINES:])
        return RanksGone(
            f"a rank is gone ({how}). End of their log:\n{tail}\nFull log: {self._log_file}"
        )

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
        if self._listener is not None:
            self._listener.close()
        for child in self.children:
            assert child.stdin is not None
            # Makes torchrun's process guard end it.
            child.stdin.close()
            child.terminate()
        rpc.wait_until(
            lambda: all(child.poll() is not None for child in self.children), _GRACE_SECONDS
        )
        for child in self.children:
            child.kill()
            child.wait()
