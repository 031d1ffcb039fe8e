"""A template whose calls nobody reads: the start and `status` say so, and turns with tools are not trained on."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from tests.render.model_folders import make
from tests.serve.conftest import KEY, TOOLS, USER, Site, Start, wait_for

from openclaw_rl.common.sockets import free_port
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.render.template_probe import UNREAD_CALLS_NOTE
from openclaw_rl.serve.app import run
from openclaw_rl.settings.load import from_flat
from openclaw_rl.status.inspect import template_summary
from openclaw_rl.status.report import CURES, worker_rows
from openclaw_rl.store import turns
from openclaw_rl.store.db import Store

APIS = {
    "/v1/chat/completions": {"messages": [USER], "tools": TOOLS},
    "/v1/responses": {"input": "hi", "tools": [{"type": "function", **TOOLS[0]["function"]}]},
    "/v1/messages": {
        "messages": [USER],
        "max_tokens": 50,
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
    },
}


def code_of_last(site: Site) -> str | None:
    with site.store.read() as conn:
        turn = turns.get(conn, site.last().request.id)
    assert turn is not None
    return turn.untrainable_code


@pytest.mark.parametrize("path", APIS)
def test_a_turn_with_tools_is_not_trained_on(path: str, start: Start) -> None:
    site = start("unread_calls")
    site.script.say('I call f with {"x": 1}')
    answer = site.http.post(path, {"model": "openclaw", **APIS[path]})
    assert answer.status_code == 200, answer.text
    assert code_of_last(site) == ReasonCode.UNREAD_CALLS
    assert ReasonCode.UNREAD_CALLS in CURES


def test_a_turn_without_tools_is_trained_on(start: Start) -> None:
    site = start("unread_calls")
    site.client().chat.completions.create(model="openclaw", messages=[USER])
    assert code_of_last(site) is None


@pytest.mark.parametrize("kind", ["chatml", "qwen3_5_think", "mistral_args", "gptoss"])
def test_a_turn_with_tools_of_a_template_that_is_read_is_trained_on(
    kind: str, start: Start
) -> None:
    site = start(kind)
    site.client().chat.completions.create(model="openclaw", messages=[USER], tools=TOOLS)
    assert code_of_last(site) is None


def test_the_start_and_status_say_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is said before the address, and stands in the worker's note."""
    folder = make(tmp_path / "model", "unread_calls")
    port = free_port()
    settings = {
        "home": str(tmp_path / "home"),
        "model.path": str(folder),
        "serve.port": port,
        "serve.api_key": KEY,
    }
    config = from_flat(settings)
    caplog.set_level("INFO", logger="openclaw_rl.serve")

    def notes() -> list[str]:
        with Store.open(config.store_path, create=False) as store, store.read() as conn:
            return [str(row["note"]) for row in worker_rows(conn, time.time())]

    async def main() -> None:
        stop = asyncio.Event()
        running = asyncio.create_task(run(config, stop=stop))
        await asyncio.to_thread(
            wait_for, lambda: any(UNREAD_CALLS_NOTE in note for note in notes()), bool
        )
        stop.set()
        await asyncio.wait_for(running, 240)

    config.home_dir.mkdir()
    Store.open(config.store_path).close()
    asyncio.run(main())
    lines = [record.getMessage() for record in caplog.records]
    address = next(line for line in lines if line.startswith("listening at"))
    assert lines.index(UNREAD_CALLS_NOTE) < lines.index(address)
    assert UNREAD_CALLS_NOTE in template_summary(config).plain
