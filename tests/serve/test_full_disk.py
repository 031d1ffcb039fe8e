"""The gateway on a full disk: a clear 503, and no reply whose end is lost."""

from __future__ import annotations

import shutil
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.serve.conftest import USER, Site, Start, wait_for
from tests.small_disk import fill, free, mount_small_disk

from openclaw_rl.common.disk_space import RESERVE_BYTES
from openclaw_rl.serve import group_commit
from openclaw_rl.store.db import Store
from openclaw_rl.types import ExchangeStatus

pytestmark = pytest.mark.system

BODY = {"model": "openclaw", "messages": [USER]}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mount_small_disk(tmp_path / "small", 2 + 2 * RESERVE_BYTES // 2**20) as folder:
        yield folder


@pytest.fixture
def slow_site(start: Start, disk: Path, empty_store: Path) -> Site:
    """A gateway whose store is on the small disk, and whose replies take a second."""
    shutil.copy(empty_store, disk / "store.db")
    return start(store=Store.open(disk / "store.db"), delay=0.25)


def test_new_requests_get_a_503_until_there_is_room(slow_site: Site, disk: Path) -> None:
    first = slow_site.http.post("/v1/chat/completions", BODY).json()["id"]
    fill(disk)
    for path, body in (
        ("/v1/chat/completions", BODY),
        ("/v1/chat/completions", BODY | {"stream": True}),
        ("/v1/feedback", {"id": first, "score": 1}),
    ):
        answer = slow_site.http.post(path, body)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
        error = answer.json()["error"]
        assert error["code"] == "disk_full"
        assert "Free some space" in error["message"]
    state = slow_site.http.get("/readyz")
    assert state.status_code == 503
    assert any("the disk" in reason and "is full" in reason for reason in state.json()["reasons"])
    assert slow_site.count() == 1
    free(disk)
    wait_for(
        lambda: slow_site.http.post("/v1/chat/completions", BODY).status_code,
        lambda code: code == 200,
        3.0,
    )
    assert slow_site.http.post("/v1/feedback", {"id": first, "score": 1}).status_code == 200


def test_the_last_room_is_kept_for_replies_that_run(slow_site: Site, disk: Path) -> None:
    fill(disk, leave=RESERVE_BYTES - 2**20)
    assert slow_site.http.post("/v1/chat/completions", BODY).status_code == 503


@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_that_runs_waits_for_room(slow_site: Site, disk: Path, stream: bool) -> None:
    threading.Timer(0.6, fill, [disk]).start()
    threading.Timer(2.5, free, [disk]).start()
    began = time.monotonic()
    client = slow_site.client()
    if stream:
        chunks = list(client.chat.completions.create(stream=True, **BODY))  # type: ignore[call-overload]
        id_, finish = chunks[0].id, chunks[-1].choices[0].finish_reason
    else:
        reply = client.chat.completions.create(**BODY)  # type: ignore[call-overload]
        id_, finish = reply.id, reply.choices[0].finish_reason
    assert finish == "stop"
    assert time.monotonic() - began > 2.4
    end = slow_site.get(id_).reply
    assert end is not None
    assert end.status is ExchangeStatus.DONE


def test_a_reply_that_cannot_be_recorded_ends_with_an_error_and_is_recorded_as_failed_later(
    slow_site: Site, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "MAX_DISK_WAIT", 0.5)
    threading.Timer(0.6, fill, [disk]).start()
    chunks: list[Any] = []
    stream = slow_site.client().chat.completions.create(stream=True, **BODY)  # type: ignore[call-overload]
    with pytest.raises(openai.APIError, match="could not be recorded"):
        deque(map(chunks.append, stream))
    assert all(chunk.choices[0].finish_reason is None for chunk in chunks)
    (id_,) = {chunk.id for chunk in chunks}
    assert slow_site.get(id_).reply is None
    free(disk)
    exchange = wait_for(lambda: slow_site.get(id_), lambda found: found.reply is not None)
    assert exchange.reply.status is ExchangeStatus.FAILED
    assert len(exchange.reply.response_ids) > 1
