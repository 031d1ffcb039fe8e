"""A reply that is broken off is told so: no stream only stops, whatever became of the engine behind it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.engines.vllm_server import BREAKS, CONTEXT, VllmDouble
from tests.serve.conftest import USER, Script, Site, Start, statuses

from openclaw_rl.engines.remote.vllm import VllmEngine
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.settings.load import from_flat
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.testing import ScriptedEngine
from openclaw_rl.types import Chunk, ExchangeStatus, Generation

BODIES = {
    "/v1/chat/completions": {"messages": [USER]},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": [USER], "max_tokens": 100},
}
ENDS = (
    'finish_reason":"',
    "[DONE]",
    "response.completed",
    "response.incomplete",
    "message_stop",
    "message_delta",
)
PATHS = pytest.mark.parametrize("path", BODIES)


@pytest.fixture
def behind(
    tmp_path: Path, renderers: Callable[[str], Renderer]
) -> Iterator[tuple[Site, VllmDouble]]:
    """A gateway, and the vLLM double behind it."""
    settings = {
        "home": str(tmp_path),
        "engine.max_context": CONTEXT,
        "engine.backend": "vllm",
        "serve.engine_wait": 9,
    }
    config, script = from_flat(settings), Script(renderers("chatml"))
    script.say("One two three four five six seven.")
    store = Store.open(config.store_path)
    with store.write() as conn:
        policies.ensure_root(conn, base="test", identity="test-identity", at=time.time())
    with VllmDouble(tmp_path / "vllm.sock", ScriptedEngine(script, delay=0.001)) as double:
        engine = VllmEngine(double.http(), config.engine, folder=tmp_path / "identity")
        site = Site(config, script.renderer, store, engine, script)  # type: ignore[arg-type]
        yield site, double
        asyncio.run_coroutine_threadsafe(engine.close(), site.loop).result(240)
        site.close()
    store.close()


def broken(site: Site, path: str) -> str:
    """What the stream's last event says is wrong."""
    answer = site.http.post(path, BODIES[path] | {"model": "openclaw", "stream": True})
    assert answer.status_code == 200, answer.text
    assert not [end for end in ENDS if end in answer.text], answer.text
    assert answer.text.count("data: ") > 1, (
        "it had begun"
    )  # a busy machine sends several tokens in one event
    event = json.loads(answer.text.strip().split("data: ")[-1])
    error: Any = event.get("error") or event.get("response", {}).get("error") or event
    return str(error["message"])


@PATHS
@pytest.mark.parametrize("how", BREAKS)
def test_a_server_that_stops_in_the_middle(
    behind: tuple[Site, VllmDouble], path: str, how: str
) -> None:
    site, double = behind
    assert site.http.post(path, BODIES[path]).status_code == 200
    double.breaks = how, 6
    assert "the engine disconnected during the reply" in broken(site, path)
    assert statuses(site) == [ExchangeStatus.DONE, ExchangeStatus.FAILED]
    double.breaks = None
    assert site.http.post(path, BODIES[path]).status_code == 200


def test_the_official_client_raises(behind: tuple[Site, VllmDouble]) -> None:
    site, double = behind
    double.breaks = "killed", 6
    with pytest.raises(openai.APIError, match="during the reply"):
        list(site.client().chat.completions.create(model="openclaw", messages=[USER], stream=True))


class Surprising(ScriptedEngine):
    """An engine that fails as nobody has foreseen, behind its fifth token."""

    error: Exception

    async def generate(self, generation: Generation) -> AsyncIterator[Chunk]:
        sent = 0
        async for chunk in super().generate(generation):
            yield chunk
            if (sent := sent + 1) == 5:
                raise self.error


@PATHS
@pytest.mark.parametrize(
    "error", [ConnectionResetError("its own connection"), ValueError("secret words")]
)
def test_what_nobody_has_foreseen_is_an_error_too(
    start: Start, path: str, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where it looks as if the client had hung up."""
    site = start()
    site.script.say("One two three four five six seven.")
    site.engine.__class__, site.engine.error = Surprising, error  # type: ignore[assignment,attr-defined]
    assert broken(site, path) == "the gateway failed; see its log for the reason."
    assert [
        r.exc_info and r.exc_info[1]
        for r in caplog.records
        if r.name == "openclaw_rl.serve.completion_handler"
    ] == [error]
    failed = site.ended(site.last().request.id).reply
    assert failed is not None
    assert (failed.status, len(failed.response_ids)) == (ExchangeStatus.FAILED, 5)
