"""A store that fails, group commit, restarts, the room itself."""

from __future__ import annotations

import asyncio
import json
import socket
import stat
import threading
import time
from dataclasses import replace
from pathlib import Path

import openai
import pytest
from tests.serve.conftest import SCOPE, USER, Http, Site, Start, statuses

from openclaw_rl.common.logging_metrics import GatewayMetrics, setup_logging
from openclaw_rl.errors import ConfigError, OpenClawError, RequestError
from openclaw_rl.serve.app import run
from openclaw_rl.serve.auth import ApiKeys, load_keys, read_key_file
from openclaw_rl.serve.group_commit import GroupCommitWriter
from openclaw_rl.settings.load import from_flat
from openclaw_rl.store import exchanges
from openclaw_rl.store.db import Store
from openclaw_rl.types import ExchangeStatus, Feedback

REFUSE = "CREATE TRIGGER no_room BEFORE {} BEGIN SELECT RAISE(ABORT, 'no room'); END"


def break_store(site: Site, when: str) -> None:
    with site.store.write() as conn:
        conn.exec_driver_sql(REFUSE.format(when))


@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_admitted_is_not_answered(site: Site, stream: bool) -> None:
    break_store(site, "INSERT ON bodies")
    with pytest.raises(openai.InternalServerError, match="durable") as error:
        site.client().chat.completions.create(model="openclaw", messages=[USER], stream=stream)
    assert error.value.status_code == 500
    assert error.value.code == "not_durable"
    assert site.count() == 0


def test_a_failed_commit_is_an_error_event_and_no_finish(site: Site) -> None:
    break_store(site, "INSERT ON replies")
    body = {"model": "openclaw", "messages": [USER], "stream": True}
    answer = site.http.post("/v1/chat/completions", body)
    events = [e.removeprefix("data: ") for e in answer.text.strip().split("\n\n")]
    assert json.loads(events[-1])["error"]["code"] == "not_durable"
    assert "[DONE]" not in answer.text
    assert all(json.loads(e)["choices"][0]["finish_reason"] is None for e in events[:-1])
    with pytest.raises(openai.InternalServerError, match="durable"):
        site.client().chat.completions.create(model="openclaw", messages=[USER])
    with pytest.raises(openai.APIError, match="durable"):
        list(site.client().chat.completions.create(model="openclaw", messages=[USER], stream=True))


def test_one_bad_item_does_not_fail_its_neighbours(site: Site) -> None:
    targets = [
        site.client().chat.completions.create(model="openclaw", messages=[USER]).id
        for _ in range(2)
    ]
    writer = GroupCommitWriter(site.store, GatewayMetrics())

    def item(n: int, target: str) -> Feedback:
        return Feedback(id=f"f{n}", scope=SCOPE, target=target, score=1, given_at=1.0)

    async def main() -> list[object]:
        items = [item(0, targets[0]), item(1, "nobody"), item(2, targets[1])]
        return await asyncio.gather(*[writer.put(i) for i in items], return_exceptions=True)

    first, bad, last = asyncio.run(main())
    writer.close()
    assert (first, last) == (None, None)
    assert isinstance(bad, KeyError)


def test_a_neighbours_failure_does_not_put_an_end_before_its_admission(site: Site) -> None:
    """What waits behind a failed group is not taken into the transactions in which that is tried again."""
    done = site.get(site.client().chat.completions.create(model="openclaw", messages=[USER]).id)
    assert done.reply is not None
    requests = [replace(done.request, id=f"again-{n}") for n in range(2)]
    end = replace(done.reply, id="again-1")
    bad = Feedback(id="f", scope=SCOPE, target="nobody", score=1, given_at=1.0)
    writer = GroupCommitWriter(site.store, GatewayMetrics())

    async def main() -> list[object]:
        with site.store.write():  # both groups are queued before the first is committed
            first = [writer.put(item) for item in (requests[0], bad, requests[1])]
            await asyncio.sleep(0)
            last = writer.put(end)
            await asyncio.sleep(0)
        return await asyncio.gather(*first, last, return_exceptions=True)

    before, refused, after, ended = asyncio.run(main())
    writer.close()
    assert (before, after, ended) == (None, None, None)
    assert isinstance(refused, KeyError)


def test_writes_that_may_wait_share_the_next_transaction(site: Site) -> None:
    target = site.client().chat.completions.create(model="openclaw", messages=[USER]).id
    metrics = GatewayMetrics()
    writer = GroupCommitWriter(site.store, metrics)

    def item(n: int) -> Feedback:
        return Feedback(id=f"f{n}", scope=SCOPE, target=target, score=1, given_at=1.0)

    def commits() -> float:
        return metrics.registry.get_sample_value("openclaw_commit_items_count") or 0.0

    async def main() -> None:
        early = writer.put(item(0), max_delay=60.0)
        await asyncio.sleep(0.05)
        assert not early.done()
        await writer.put(item(1))
        assert early.done()
        assert commits() == 1
        await asyncio.wait_for(writer.put(item(2), max_delay=0.01), 300)
        assert commits() == 2
        writer.put(item(3), max_delay=60.0)
        await asyncio.to_thread(writer.close)

    asyncio.run(main())
    with site.store.read() as conn:
        assert conn.exec_driver_sql("SELECT count(*) FROM feedback").scalar_one() == 4


def test_what_is_queued_is_written_before_the_end(site: Site) -> None:
    target = site.client().chat.completions.create(model="openclaw", messages=[USER]).id
    writer = GroupCommitWriter(site.store, GatewayMetrics())

    async def main() -> None:
        writer.put(Feedback(id="late", scope=SCOPE, target=target, score=1, given_at=1.0))
        await asyncio.to_thread(writer.close)

    asyncio.run(main())
    with site.store.read() as conn:
        assert conn.exec_driver_sql("SELECT id FROM feedback").scalar_one() == "late"


def test_exchanges_are_no_changes_by_others(site: Site) -> None:
    """Else the version manager reads the head after each of them."""
    done = site.get(site.client().chat.completions.create(model="openclaw", messages=[USER]).id)
    writer = GroupCommitWriter(site.store, GatewayMetrics())
    assert writer.others_have_changed()

    async def main() -> None:
        await writer.put(replace(done.request, id="again"))

    asyncio.run(main())
    assert not writer.others_have_changed()
    with site.store.write() as conn:
        conn.exec_driver_sql("UPDATE exchanges SET agent = 'another' WHERE id = 'again'")
    assert writer.others_have_changed()
    writer.close()


def test_replies_that_run_at_the_end_are_recorded(start: Start) -> None:
    site = start(delay=0.05)
    site.script.say("one two three " * 50)
    stream = site.client().chat.completions.create(model="openclaw", messages=[USER], stream=True)
    next(iter(stream))
    site.close()
    assert statuses(site) == [ExchangeStatus.CANCELLED]
    stream.close()


# The gateway worker.


def test_the_gateway_worker_runs(tmp_path: Path) -> None:
    """No engine is there: it lives, says that it is not ready, and answers 503 after its wait."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = from_flat({"home": str(tmp_path), "serve.port": port, "serve.engine_wait": 0.2})
    http = Http(f"http://127.0.0.1:{port}")
    said: dict[str, object] = {}

    def visit(stop: asyncio.Event, loop: asyncio.AbstractEventLoop) -> None:
        until = time.monotonic() + 240
        while time.monotonic() < until:
            try:
                said["health"] = http.get("/healthz").status_code
                break
            except OSError:
                time.sleep(0.05)
        said["ready"] = http.get("/readyz").json()
        key = read_key_file(config.key_file)[0]
        headers = {"Authorization": f"Bearer {key}"}
        said["chat"] = http.post("/v1/chat/completions", {"messages": [USER]}, headers).status_code
        time.sleep(0.2)
        loop.call_soon_threadsafe(stop.set)

    async def main() -> None:
        stop = asyncio.Event()
        thread = threading.Thread(
            target=visit, args=(stop, asyncio.get_running_loop()), daemon=True
        )
        thread.start()
        await asyncio.wait_for(run(config, stop=stop), 300)

    asyncio.run(main())
    assert said["health"] == 200
    ready = said["ready"]
    assert isinstance(ready, dict)
    assert ready["ready"] is False
    assert ready["reasons"]
    assert said["chat"] == 503
    store = Store.open(tmp_path / "store.db", create=False)
    with store.read() as conn:
        assert conn.exec_driver_sql("SELECT status FROM exchanges").scalar_one() == "failed"
        assert conn.exec_driver_sql("SELECT name FROM loops").scalar_one() == "gateway"
    store.close()
    assert stat.S_IMODE(config.key_file.stat().st_mode) == 0o600


def test_a_port_in_use_says_what_to_do(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config = from_flat({"home": str(tmp_path), "serve.port": taken.getsockname()[1]})
        with pytest.raises(OpenClawError, match=r"choose another port with serve\.port"):
            asyncio.run(run(config, stop=asyncio.Event()))


def test_what_a_dead_gateway_left_running_has_failed(start: Start, tmp_path: Path) -> None:
    site = start()
    done = site.client().chat.completions.create(model="openclaw", messages=[USER]).id
    request = site.get(done).request
    with site.store.write() as conn:
        import dataclasses

        exchanges.admit(conn, [dataclasses.replace(request, id="chatcmpl-left")])
        exchanges.fail_running(conn, "stopped", time.time())
    assert statuses(site) == [ExchangeStatus.DONE, ExchangeStatus.FAILED]


# Keys, settings, logs.


def test_the_key_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "home" / "api_key"
    made = read_key_file(path)
    assert read_key_file(path) == made
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("# keys\nann: k1\nk2\n")
    keys = load_keys(from_flat({"home": str(tmp_path / "home")}))
    scopes = {keys.authenticated_scope({"Authorization": f"Bearer {k}"}) for k in ("k1", "k2")}
    assert len(scopes) == 2
    with pytest.raises(RequestError):
        keys.authenticated_scope({"Authorization": "Bearer ann"})
    path.write_text("\n")
    with pytest.raises(ConfigError, match="one key per line"):
        read_key_file(path)


def test_a_configured_key_is_the_only_one(tmp_path: Path) -> None:
    keys = load_keys(from_flat({"home": str(tmp_path), "serve.api_key": "k"}))
    assert keys.authenticated_scope({"x-api-key": "k"}) == ApiKeys(["k"]).authenticated_scope(
        {"Authorization": "Bearer k"}
    )
    assert not (tmp_path / "api_key").exists()


def test_logs_for_people_and_machines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = setup_logging("gateway", tmp_path / "logs", "info")
    log.getChild("serve").info("listening on %d", 8000, extra={"port": 8000})
    log.getChild("serve").debug("not said")
    assert "gateway INFO listening on 8000" in capsys.readouterr().err
    lines = (tmp_path / "logs" / "gateway.log").read_text().splitlines()
    assert len(lines) == 1
    line = json.loads(lines[0])
    assert (line["message"], line["level"], line["port"]) == ("listening on 8000", "info", 8000)
    for handler in list(log.handlers):
        log.removeHandler(handler)
        handler.close()
    log.propagate = True
