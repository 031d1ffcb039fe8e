"""JSON of the policy that is nested very deeply is a bad answer, after which the episode continues."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.external.environments.openenv.test_openenv import PYTHON, answers
from tests.system.test_parked import wait_for

from openclaw_rl.common.sockets import free_port
from openclaw_rl.environments import foreign
from openclaw_rl.environments.foreign_process import ForeignProcess, ForeignRunner
from openclaw_rl.environments.types import EnvironmentTask, EpisodeTicket, PlayLimits, PlayOutcome

WORKER = Path(foreign.__file__).parent / "openenv_worker.py"


@contextmanager
def scripted_policy(*replies: str) -> Iterator[str]:
    """A gateway that gives these replies, then 410."""
    left = list(replies)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200 if left else 410)
            self.end_headers()
            if left:
                body = {
                    "id": f"turn-{len(left)}",
                    "choices": [{"message": {"content": left.pop(0)}}],
                }
                self.wfile.write(json.dumps(body).encode())

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def play(url: str, folder: Path, *replies: str) -> PlayOutcome:
    async def run() -> PlayOutcome:
        runner = ForeignRunner(ForeignProcess([str(PYTHON), str(WORKER)], os.environ["PATH"], {}))
        runner.open_runner(str(folder))
        task = EnvironmentTask(id="t", digest="d", split="train", data={"url": url, "seed": 0})
        ticket = EpisodeTicket(episode="e", base_url=base, api_key="k", model="m")
        try:
            return await runner.play_episode(
                task, ticket, str(folder / "e"), PlayLimits(seconds=300)
            )
        finally:
            await runner.close_runner()

    with scripted_policy(*replies) as base:
        return asyncio.run(run())


@contextmanager
def serving(*options: str) -> Iterator[str]:
    url = f"http://127.0.0.1:{(port := free_port())}"
    with subprocess.Popen(
        [PYTHON, Path(__file__).parent / "counting_server.py", str(port), *options]
    ) as server:
        try:
            wait_for(lambda: answers(f"{url}/health"))
            yield url
        finally:
            server.kill()


@pytest.mark.parametrize("depth", [101, 500, 900, 5000])
def test_deep_json_of_the_policy_is_a_bad_answer(tmp_path: Path, depth: int) -> None:
    deep = '{"text": "x", "plan": ' + '{"a": ' * depth + "1" + "}" * depth + "}"
    with serving("plans") as url:
        found = play(url, tmp_path, deep, '{"text": "x", "plan": {"a": 1}}')
    assert (found.status, found.reward, found.reason) == ("done", 0.25, "its limit of replies")
