"""Settings of the gateway that its other tests do not set: what they change for a client, or in the store."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import pytest
from tests.serve.conftest import KEY, Http, Start

from openclaw_rl.common.sockets import free_port
from openclaw_rl.errors import GrammarError, OpenClawError
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.serve.app import run
from openclaw_rl.settings.load import from_flat
from openclaw_rl.store import turns
from openclaw_rl.store.db import Store
from openclaw_rl.types import Capture

USER = {"role": "user", "content": "hi"}


def test_the_name_of_the_model_is_served(start: Start) -> None:
    site = start(settings={"model.name": "mine"})
    assert "mine" in [row["id"] for row in site.http.get("/v1/models").json()["data"]]
    assert (
        site.client()
        .chat.completions.create(model="mine", messages=[USER])
        .model.startswith("mine")
    )


def test_the_debug_log_follows_a_reply(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="openclaw_rl.serve")
    reply = start().client().chat.completions.create(model="openclaw", messages=[USER])
    assert f"{reply.id}: chat, 1 replies of version 0, " in caplog.text
    assert f"{reply.id}: done (stop), " in caplog.text
    assert "'hi'" not in caplog.text


@pytest.mark.parametrize(("value", "kept"), [("full", (USER,)), ("redacted", ())])
def test_redacted_capture_stores_no_text(
    start: Start, value: str, kept: tuple[dict[str, str], ...]
) -> None:
    site = start(settings={"serve.capture": value})
    reply = site.client().chat.completions.create(model="openclaw", messages=[USER])
    stored = site.get(reply.id).request
    assert (stored.capture, tuple(stored.messages)) == (Capture(value), kept)


@pytest.mark.parametrize("honors", [False, True])
@pytest.mark.parametrize("store", [None, True, False])
def test_store_false_has_an_effect_if_the_owner_says_so(
    start: Start, *, honors: bool, store: bool | None
) -> None:
    """In both APIs alike."""
    site = start(settings={"serve.honor_store": honors})
    bodies = {"/v1/chat/completions": {"messages": [USER]}, "/v1/responses": {"input": "hi"}}
    for path, body in bodies.items():
        answer = site.http.post(path, {"model": "openclaw", "store": store, **body})
        assert answer.status_code == 200
        with site.store.read() as conn:
            turn = turns.get(conn, answer.json()["id"])
        assert turn is not None
        expected = ReasonCode.NOT_STORED if honors and store is False else None
        assert turn.untrainable_code is expected
        # Kept, so that the next message is linked.
        assert site.get(turn.id).request.messages
        ignored = answer.headers.get("X-OpenClaw-Ignored", "")
        assert ("store: false" in ignored) == (store is False and not honors)


def test_redacted_capture_stores_no_words_about_earlier_replies(start: Start) -> None:
    """The reply was captured in full, before the setting was changed."""
    site = start()
    reply = site.client().chat.completions.create(model="openclaw", messages=[USER])
    site.close()
    other = start(settings={"serve.capture": "redacted"}, store=Store.open(site.config.store_path))
    body = {"id": reply.id, "score": -1, "comment": "too long", "correction": "be brief"}
    assert other.http.post("/v1/feedback", body).status_code == 200
    with other.store.read() as conn:
        stored = conn.exec_driver_sql("SELECT score, comment, correction FROM feedback").one()
    assert tuple(stored) == (-1, None, None)


def test_redacted_capture_keeps_no_words_beside_the_text(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """Those of a session's name, of an outcome's reason, and in the log, of an error that quotes the request."""
    caplog.set_level("DEBUG", logger="openclaw_rl.serve")
    site = start(settings={"serve.capture": "redacted"})
    headers = {"Authorization": f"Bearer {KEY}", "X-Session-Id": "quixotic"}
    for refusal in (None, GrammarError("Invalid type: zephyr")):
        site.engine.refuse = refusal
        body = {"messages": [USER], "response_format": {"type": "json_object"}}
        assert site.http.post("/v1/chat/completions", body, headers).status_code == (
            400 if refusal else 200
        )
    opened = {"task": "t", "group": {"id": "g", "size": 1}}
    site.http.send("PUT", "/v1/episodes/e", json.dumps(opened).encode())
    outcome = {"status": "void", "reason": "they spoke of zephyrs"}
    assert site.http.post("/v1/episodes/e/outcome", outcome).json()["reason"] is None
    with site.store.read() as conn:
        sessions = set(conn.exec_driver_sql("SELECT session FROM exchanges").scalars())
    assert len(sessions) == 1, "the same session has the same id"
    assert "failed" in caplog.text
    site.close()
    raw = b"".join(file.read_bytes() for file in site.config.home_dir.rglob("*") if file.is_file())
    assert b"redacted-" in raw
    for word in ("quixotic", "zephyr"):
        assert word not in caplog.text
        assert word.encode() not in raw


@pytest.mark.parametrize(("patterns", "count"), [((), 2), (("^clock: .*$",), 1)])
def test_ephemeral_messages_of_the_settings_are_left_out_of_the_history(
    start: Start, patterns: tuple[str, ...], count: int
) -> None:
    site = start(settings={"serve.ephemeral_patterns": patterns})
    messages = [{"role": "user", "content": "clock: 12:00"}, USER]
    reply = site.client().chat.completions.create(model="openclaw", messages=messages)
    assert len(site.get(reply.id).request.marks) == count


def test_the_gateway_listens_on_the_host_of_the_settings(tmp_path: Path) -> None:
    port = free_port()
    config = from_flat(
        {"home": str(tmp_path), "serve.host": "127.0.0.2", "serve.port": port, "serve.api_key": KEY}
    )

    async def main() -> None:
        stop = asyncio.Event()
        running = asyncio.create_task(run(config, stop=stop))
        while not running.done():
            try:
                answer = await asyncio.to_thread(Http(f"http://127.0.0.2:{port}").get, "/healthz")
                break
            except OSError:
                await asyncio.sleep(0.05)
        assert answer.status_code == 200
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", port), timeout=240)
        stop.set()
        await asyncio.wait_for(running, 240)

    asyncio.run(main())


def test_an_address_of_another_machine_is_refused(tmp_path: Path) -> None:
    config = from_flat(
        {
            "home": str(tmp_path),
            "serve.host": "192.0.2.1",
            "serve.port": 1,
            "serve.api_key": KEY * 3,
        }
    )
    with pytest.raises(OpenClawError, match=r"192\.0\.2\.1"):
        asyncio.run(run(config, stop=asyncio.Event()))
