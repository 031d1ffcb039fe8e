"""The real gateway and an engine, with a recorder on the wire between them: what the engine gave, token by token."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.external.openclaw.scripted_system import CONTEXT, ROOT, model_folder, wait_for

from openclaw_rl.common.frames import FrameDecoder
from openclaw_rl.engines.embedded import protocol
from openclaw_rl.settings.load import Config, to_environment
from openclaw_rl.supervisor.home_folder import prepare_home
from openclaw_rl.supervisor.subprocess_system import scratch_config

_INHERITED = "from openclaw_rl.settings import load; config = load.inherited_config(); "
_SUPERVISE = (
    _INHERITED + "from openclaw_rl.supervisor import supervisor; "
    "supervisor.supervise(config, ('gateway', 'collect', 'judge'))"
)
_EMBEDDED = _INHERITED + "from openclaw_rl.engines.embedded import server; server.main(config)"
_SETTINGS = {"train.method": "groups"}
Sampled = tuple[tuple[int, ...], tuple[int, ...]]
"""The ids of a prompt, and those that the engine gave for it."""


class EngineRecorder:
    """Passes on what comes to the socket `at` to the engine, and keeps the ids of each call."""

    def __init__(self, at: Path, engine: Path) -> None:
        self._at, self._engine = at, engine
        self._loop = asyncio.new_event_loop()
        self._calls: dict[tuple[int, int], tuple[tuple[int, ...], list[int]]] = {}
        self._connections = 0

    def sampled(self) -> set[Sampled]:
        return {(prompt, tuple(ids)) for prompt, ids in list(self._calls.values())}

    def start(self) -> None:
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        asyncio.run_coroutine_threadsafe(
            asyncio.start_unix_server(self._connect, self._at), self._loop
        ).result(10)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        number = self._connections
        theirs_in, theirs_out = await asyncio.open_unix_connection(self._engine)

        def see_call(body: bytes) -> None:
            call = protocol.call_decoder.decode(body)
            if isinstance(call, protocol.GenerateCall):
                self._calls[number, call.id] = (
                    tuple(protocol.unpack_ids(call.prompt_ids).tolist()),
                    [],
                )

        def see_reply(body: bytes) -> None:
            reply = protocol.reply_decoder.decode(body)
            if isinstance(reply, protocol.TokensReply):
                for stream, token in zip(reply.ids, reply.token_ids, strict=True):
                    self._calls[number, stream][1].append(token)

        await asyncio.gather(
            _pump(reader, theirs_out, see_call), _pump(theirs_in, writer, see_reply)
        )


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, see: Callable[[bytes], None]
) -> None:
    frames = FrameDecoder()
    try:
        while data := await reader.read(1 << 16):
            for body in frames.feed(data):
                see(body)
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


class RecordedSystem:
    """Gateway, collector and judge on a home, and an engine of its own: the starter, or a script.

    Nothing is trained. `script`: as in `tests/external/openclaw/engine.py`.
    """

    def __init__(self, home: Path, script: Sequence[Mapping[str, Any]] | None = None) -> None:
        self._script, self._processes = script, list[subprocess.Popen[bytes]]()
        (home / "engine").mkdir(parents=True)
        model = {} if script is None else {"model.path": str(model_folder(home / "model"))}
        self.config = scratch_config(home, _SETTINGS | model)
        self._engine_config = scratch_config(home / "engine", _SETTINGS | model)
        for config in (self.config, self._engine_config):
            prepare_home(config)
        self.recorder = EngineRecorder(self.config.engine_socket, self._engine_config.engine_socket)

    def __enter__(self) -> Self:
        try:
            if self._script is None:
                self._start_python(self._engine_config, "-c", _EMBEDDED)
            else:
                file = self.config.home_dir / "engine.json"
                settings = {
                    "socket": str(self._engine_config.engine_socket),
                    "model": self.config.model.path,
                }
                file.write_text(
                    json.dumps(settings | {"context": CONTEXT, "script": list(self._script)})
                )
                self._start_python(
                    self._engine_config, str(ROOT / "tests/external/openclaw/engine.py"), str(file)
                )
            wait_for(
                self._engine_config.engine_socket.exists,
                bool,
                what=f"the engine; see {self.config.logs_dir}",
            )
            self.recorder.start()
            self._start_python(self.config, "-c", _SUPERVISE)
            wait_for(
                self._is_ready, bool, seconds=120, what=f"the gateway; see {self.config.logs_dir}"
            )
        except BaseException:  # also an interrupt must not leave processes behind
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.terminate()
            process.wait(20)

    def _start_python(self, config: Config, *words: str) -> None:
        with (self.config.logs_dir / "system.log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, *words], env=to_environment(config), stdout=log, stderr=log
                )
            )

    def _is_ready(self) -> bool:
        assert all(process.poll() is None for process in self._processes), (
            f"it ended; see {self.config.logs_dir}"
        )
        try:
            with urllib.request.urlopen(
                f"{self.config.serve.url.removesuffix('/v1')}/readyz", timeout=2
            ) as answer:
                return bool(json.load(answer)["ready"])
        except (urllib.error.URLError, OSError, ValueError):
            return False
