"""SkyRL's open Tinker server on the CPU, as a child process; it is started as `uv run -m skyrl.tinker.api` wants it.

It ends with the process that started it, in whatever way that one ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

from openclaw_rl.common import process_guard
from openclaw_rl.common.sockets import free_port

KEY = "tml-test"
RANK = 8
READY_SECONDS = 240.0
_COMPILE_CACHE = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.5"}
# The server reads its parent's command line, and starts its engine by `uv run` too. Pydantic needs this TypedDict below
# Python 3.12.
_UV = """#!{python}
import signal, subprocess, sys
code = (
    "import runpy, sys, typing, typing_extensions; typing.TypedDict = typing_extensions.TypedDict; "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)
child = subprocess.Popen([{python!r}, "-c", code, *sys.argv[sys.argv.index("-m") + 1 :]], stdout=sys.stderr)
signal.signal(signal.SIGTERM, lambda *_: child.terminate())
sys.exit(child.wait())
"""


class SkyrlServer:
    """Starts on entry, and can be killed and started again on the same folder and port."""

    def __init__(self, folder: Path, model: Path, *, adapters: int = 12, rank: int = RANK) -> None:
        """`adapters`: models at a time; those of killed trainers and engines stay for five minutes. `rank`: at most."""
        self.folder = folder
        self.model = model
        self._adapters = adapters
        self._rank = rank
        self.port = free_port()
        self.log = folder / "server.log"
        self._group: int | None = None
        (folder / "bin").mkdir(parents=True, exist_ok=True)
        uv = folder / "bin" / "uv"
        uv.write_text(_UV.format(python=sys.executable))
        uv.chmod(0o755)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def __enter__(self) -> Self:
        backend = {
            "max_lora_adapters": self._adapters,
            "max_lora_rank": self._rank,
            # One shape to compile for each length.
            "train_micro_batch_size": 1,
            "sample_max_num_sequences": 8,
        }
        options = {
            "--base-model": str(self.model),
            "--backend": "jax",
            "--backend-config": json.dumps(backend),
            "--database-url": f"sqlite:///{self.folder}/tinker.db",
            "--checkpoints-base": str(self.checkpoints),
            "--host": "127.0.0.1",
            "--port": str(self.port),
        }
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        # A server that starts again takes what it compiled before from here.
        compiled = {"JAX_COMPILATION_CACHE_DIR": str(self.folder / "compiled"), **_COMPILE_CACHE}
        server = [
            str(self.folder / "bin" / "uv"),
            "run",
            "-m",
            "skyrl.tinker.api",
            *sum(options.items(), ()),
        ]
        with self.log.open("ab") as log:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", process_guard.__file__, *server],
                env=compiled
                | os.environ
                | {"PATH": path, "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # Out of reach of what ends the group of this process.
                start_new_session=True,
            )
        try:
            self._group = self._read_group()
            self._wait_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def _read_group(self) -> int:
        """Return the process group of the server, of which its guard says the number first."""
        assert self._guard.stdout is not None
        with self._guard.stdout as lines:
            line = lines.readline().decode()
        assert line.startswith("guard: pid "), self.log.read_text()[-3000:]
        return int(line.split()[-1])

    def _wait_ready(self) -> None:
        end = time.monotonic() + READY_SECONDS
        while time.monotonic() < end:
            assert self._guard.poll() is None, self.log.read_text()[-3000:]
            try:
                urllib.request.urlopen(f"{self.url}/api/v1/healthz", timeout=2).close()
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
            else:
                return
        raise AssertionError(self.log.read_text()[-3000:])

    def kill(self) -> None:
        """End the server and its engine at once."""
        if self._group is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._group, signal.SIGKILL)
            self._group = None
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
