"""Replies of versions for a comparison come from the gateway, which serves people first."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.common.gateway_address import (
    GATE_REPLY_PATH,
    GatewayAddress,
    gate_key,
    publish_address,
)
from openclaw_rl.page import version_replies
from openclaw_rl.page.version_replies import AnswerState, VersionAnswer, VersionReplies
from openclaw_rl.settings.load import Config, from_flat
from openclaw_rl.store.db import Store
from openclaw_rl.supervisor.home_folder import prepare_home

BUSY = (503, {"error": {"message": "replies to people are running", "code": "busy"}})
BROKEN = (503, {"error": {"message": "version 9 cannot be loaded", "code": "version_broken"}})
REPLY = (200, {"token_ids": [1, 2], "logprobs": [-1.0, -1.0], "finish": "length"})


@pytest.fixture
def config(tmp_path: Path) -> Config:
    config = from_flat({"home": str(tmp_path), "serve.api_key": "sk-test"})
    prepare_home(config)
    return config


@pytest.fixture
def store(config: Config) -> Iterator[Store]:
    with Store.open(config.store_path) as opened:
        yield opened


@contextmanager
def gateway(config: Config, *answers: tuple[int, Any]) -> Iterator[list[dict[str, Any]]]:
    """Answer requests in this order, and the last answer again and again. Yields what was asked."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {"path": self.path, "key": self.headers["Authorization"]}
            asked.append({**json.loads(body), **headers})
            status, answer = answers[min(len(asked), len(answers)) - 1]
            raw = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    url = f"http://127.0.0.1:{server.server_port}"
    address = GatewayAddress(url=url, model="m", model_path="p", key="file", pid=os.getpid())
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with publish_address(config.home_dir, address):
            yield asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def wait_for(replies: VersionReplies, version: int = 3) -> VersionAnswer:
    """Ask until the reply is there, at most some minutes."""
    for _ in range(12_000):
        answer = replies.get(version, "turn", [5, 6])
        if answer.state is not AnswerState.PENDING:
            return answer
        threading.Event().wait(0.01)
    raise AssertionError("the reply did not come")


def test_a_reply_is_greedy_and_kept(config: Config, store: Store) -> None:
    with gateway(config, REPLY) as asked:
        replies = VersionReplies(config, store)
        assert replies.get(3, "turn", [5, 6]).state is AnswerState.PENDING
        answer = wait_for(replies)
        assert wait_for(replies) is answer
        replies.close()
    assert (answer.token_ids, answer.is_cut) == ((1, 2), True)
    (request,) = asked
    assert (request["version"], request["prompt_ids"], request["temperature"]) == (3, [5, 6], 0.0)
    assert request["path"] == GATE_REPLY_PATH
    assert request["key"] == f"Bearer {gate_key(store.secret)}"


def test_people_come_first(config: Config, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_replies, "_FIRST_DELAY", 0.01)
    with gateway(config, BUSY, BUSY, REPLY) as asked:
        replies = VersionReplies(config, store)
        assert wait_for(replies).token_ids == (1, 2)
        replies.close()
    assert len(asked) == 3


def test_a_gateway_that_stays_busy_is_said_in_words(
    config: Config, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version_replies, "_FIRST_DELAY", 0.01)
    monkeypatch.setattr(version_replies, "_MAX_WAIT", 0.02)
    with gateway(config, BUSY):
        replies = VersionReplies(config, store)
        answer = wait_for(replies)
        replies.close()
    assert answer.state is AnswerState.FAILED
    assert "people come first" in answer.note


def test_a_failure_is_said_once_and_asked_again_then(config: Config, store: Store) -> None:
    with gateway(config, BROKEN, REPLY):
        replies = VersionReplies(config, store)
        assert wait_for(replies).note == "version 9 cannot be loaded"
        assert wait_for(replies).token_ids == (1, 2)
        replies.close()


def test_without_a_gateway_it_says_how_to_start_one(config: Config, store: Store) -> None:
    replies = VersionReplies(config, store)
    assert "openclaw-rl up" in wait_for(replies).note
    replies.close()


def test_old_replies_leave_the_memory(
    config: Config, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version_replies, "MAX_CACHED", 2)
    with gateway(config, REPLY) as asked:
        replies = VersionReplies(config, store)
        for version in (1, 2, 3, 3, 1):
            wait_for(replies, version)
        replies.close()
    assert [request["version"] for request in asked] == [1, 2, 3, 1]
