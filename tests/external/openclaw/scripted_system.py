"""Our side of the test: the real gateway, collect and judge workers and supervisor, on a scripted engine."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from tests.render.model_folders import make

from openclaw_rl.collect.worker import CURSOR_NAME, EVENT_KINDS
from openclaw_rl.common.sockets import free_port
from openclaw_rl.settings.load import Config, from_flat, to_environment
from openclaw_rl.store import events, exchanges, turns
from openclaw_rl.store.db import Store
from openclaw_rl.supervisor.home_folder import prepare_home
from openclaw_rl.supervisor.supervisor import read_key
from openclaw_rl.types import Exchange, Turn

ROOT = Path(__file__).parents[3]
CONTEXT = 131_072
READY_WITHIN = 60.0  # seconds
_SUPERVISE = (
    "from openclaw_rl.settings import load; from openclaw_rl.supervisor import supervisor; "
    "supervisor.supervise(load.inherited_config(), ('gateway', 'collect', 'judge'))"
)
T = TypeVar("T")


def model_folder(folder: Path) -> Path:
    """A tokenizer made on the spot and a Hermes template; the weights are an empty file."""
    make(folder, "chatml")
    (folder / "config.json").write_text(
        json.dumps({"model_type": "qwen3", "max_position_embeddings": CONTEXT})
    )
    header = b'{"empty":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    return folder


def wait_for(
    get: Callable[[], T], good: Callable[[T], bool], *, seconds: float = 60.0, what: str = ""
) -> T:
    """Return the first value that is good. Fails after the timeout."""
    end = time.monotonic() + seconds
    while not good(value := get()):
        assert time.monotonic() < end, f"not within {seconds:g} s: {what or value!r}"
        time.sleep(0.05)
    return value


class ScriptedSystem:
    """A gateway, a collector and a judge on a home of their own, and the scripted engine of the gateway."""

    def __init__(self, home: Path, script: Sequence[Mapping[str, Any]], **engine: Any) -> None:
        self.config: Config = from_flat(
            {
                "home": str(home),
                "model.path": str(model_folder(home / "model")),
                "serve.port": free_port(),
            }
        )
        prepare_home(self.config)
        self._settings = home / "engine.json"
        self._settings.write_text(
            json.dumps(
                {
                    "socket": str(self.config.engine_socket),
                    "model": self.config.model.path,
                    "context": CONTEXT,
                    "script": list(script),
                }
                | engine
            )
        )
        self._engine: subprocess.Popen[bytes] | None = None
        self._workers: subprocess.Popen[bytes] | None = None
        self.store: Store | None = None

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.config.serve.port}/v1"

    @property
    def key(self) -> str:
        return read_key(self.config)

    def __enter__(self) -> Self:
        try:
            self.start_engine()
            with (self.config.logs_dir / "workers.log").open("ab") as log:
                self._workers = subprocess.Popen(
                    [sys.executable, "-c", _SUPERVISE],
                    env=to_environment(self.config),
                    stdout=log,
                    stderr=log,
                )
            wait_for(
                self._ready,
                bool,
                seconds=READY_WITHIN,
                what=f"the gateway; see {self.config.logs_dir}",
            )
            self.store = Store.open(self.config.store_path, create=False)
        except BaseException:  # also an interrupt must not leave processes behind
            self.__exit__()
            raise
        return self

    def start_engine(self) -> None:
        """Also again, after it has died."""
        self._end(self._engine)
        with (self.config.logs_dir / "engine.log").open("ab") as log:
            self._engine = subprocess.Popen(
                [
                    sys.executable,
                    str(ROOT / "tests/external/openclaw" / "engine.py"),
                    str(self._settings),
                ],
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self._engine.stdout is not None
        assert self._engine.stdout.readline().strip() == b"ready", (
            self.config.logs_dir / "engine.log"
        )

    def engine_ended(self) -> bool:
        return self._engine is not None and self._engine.poll() is not None

    def _ready(self) -> bool:
        assert self._workers is not None
        assert self._workers.poll() is None, f"the workers ended; see {self.config.logs_dir}"
        try:
            with urllib.request.urlopen(
                self.base_url.removesuffix("/v1") + "/readyz", timeout=2
            ) as answer:
                return bool(json.load(answer)["ready"])
        except (urllib.error.URLError, OSError, ValueError):
            return False

    def __exit__(self, *ended: object) -> None:
        if self.store is not None:
            self.store.close()
        for process in (self._workers, self._engine):
            self._end(process)

    @staticmethod
    def _end(process: subprocess.Popen[bytes] | None) -> None:
        if process is not None and process.poll() is None:
            process.terminate()
            process.wait(20)
        if process is not None and process.stdout is not None:
            process.stdout.close()

    # What is in the store.

    def wait_until_settled(self) -> None:
        """Wait until every exchange has ended and the collector has seen it."""

        def rest() -> int:
            assert self.store is not None
            with self.store.read() as conn:
                running = conn.exec_driver_sql(
                    "SELECT count(*) FROM exchanges WHERE status = 'running'"
                ).scalar_one()
                unseen = len(
                    events.read_after(
                        conn, events.read_cursor(conn, CURSOR_NAME), 1000, EVENT_KINDS
                    )
                )
                return int(running) + unseen

        wait_for(rest, lambda n: n == 0, what="turns are not collected")

    def exchanges(self) -> list[Exchange]:
        """All of them, in order of admission."""
        assert self.store is not None
        with self.store.read() as conn:
            ids = conn.exec_driver_sql("SELECT id FROM exchanges ORDER BY seq").scalars().all()
            found = [exchanges.get(conn, i) for i in ids]
        return [e for e in found if e is not None]

    def turn(self, id_: str) -> Turn:
        assert self.store is not None
        with self.store.read() as conn:
            found = turns.get(conn, id_)
        assert found is not None
        return found
