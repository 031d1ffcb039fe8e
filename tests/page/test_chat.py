"""The chat of the page: what it asks of the gateway, what it relays, and what it says was noted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from tests.store.world import close, judged, policy, serve, verdict

from openclaw_rl.common.gateway_address import GatewayAddress, home_key, publish_address
from openclaw_rl.errors import OpenClawError
from openclaw_rl.page import chat_stream
from openclaw_rl.page.templating import TemplateRenderer
from openclaw_rl.page.view import ViewRequest
from openclaw_rl.page.views import chat
from openclaw_rl.settings.load import Config, from_flat
from openclaw_rl.status.chat_notes import notes_on_turns
from openclaw_rl.store import leases, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import lessons
from openclaw_rl.store.lessons.examinations import Withdrawal, WithdrawalCode
from openclaw_rl.store.lessons.lessons import Lesson, LessonState
from openclaw_rl.store.lineage import policies
from openclaw_rl.types import Use

MARKUP = "<b>bold</b> & more"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return from_flat({"home": str(tmp_path)})


@pytest.fixture
def store(config: Config) -> Iterator[Store]:
    opened = Store.open(config.store_path)
    with opened.write() as conn:
        policies.ensure_root(conn, base="b", identity="i", at=1.0)
    yield opened
    opened.close()


class Gateway:
    """Answers as the gateway does, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[dict[str, str], Any]] = []
        self.status = 200
        self.error: str | None = None

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((dict(request.headers), await request.json()))
        if self.status != 200:
            return web.json_response({"error": {"message": "busy"}}, status=self.status)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        base = {"id": "chatcmpl-1", "system_fingerprint": "7"}
        for delta, end in (
            ({"role": "assistant"}, None),
            ({"content": MARKUP}, None),
            ({}, "stop"),
        ):
            choice = {"index": 0, "delta": delta, "finish_reason": end}
            await self.send(response, {**base, "choices": [choice]})
            if self.error is not None and delta.get("content"):
                await self.send(response, {"error": {"message": self.error}})
                return response
        await response.write(b"data: [DONE]\n\n")
        return response

    @staticmethod
    async def send(response: web.StreamResponse, chunk: Any) -> None:
        await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")


def ask(config: Config, store: Store, gateway: Gateway, body: Any) -> list[dict[str, Any]]:
    """The lines that the browser gets."""

    async def run() -> list[dict[str, Any]]:
        served = web.Application()
        served.router.add_post("/v1/chat/completions", gateway.answer)
        page = web.Application()
        page.router.add_post(chat_stream.PATH, partial(chat_stream.stream_reply, config, store))
        async with TestServer(served) as server, TestClient(TestServer(page)) as browser:
            address = GatewayAddress(
                url=str(server.make_url("")).rstrip("/"),
                model="openclaw",
                model_path="starter",
                key="file",
                pid=1,
            )
            with publish_address(config.home_dir, address):
                answer = await browser.post(chat_stream.PATH, json=body)
                return [json.loads(line) for line in (await answer.text()).splitlines()]

    return asyncio.run(run())


def question(column: str) -> Any:
    messages = [{"role": "user", "content": "Hello"}]
    return {"column": column, "conversation": "c1", "messages": messages}


def test_the_head_answers_in_a_conversation_of_the_page(config: Config, store: Store) -> None:
    gateway = Gateway()
    lines = ask(config, store, gateway, question("head"))
    assert lines == [{"id": "chatcmpl-1", "version": "7"}, {"text": MARKUP}, {"end": "stop"}]
    ((headers, body),) = gateway.asked
    assert headers["Authorization"] == f"Bearer {home_key(store.secret)}"
    assert "X-Agent-Id" not in headers
    assert headers["X-Session-Id"] == "c1"
    assert "X-Turn-Type" not in headers
    assert (body["model"], body["stream"]) == ("openclaw", True)
    assert body["messages"] == question("head")["messages"]


def test_the_base_answers_as_a_side_call_of_its_own(config: Config, store: Store) -> None:
    gateway = Gateway()
    ask(config, store, gateway, question("base"))
    ((headers, body),) = gateway.asked
    assert headers["X-Turn-Type"] == "side"
    assert (headers["X-Agent-Id"], headers["X-Session-Id"]) == ("page-base", "c1-base")
    assert body["model"] == "openclaw@0"


def test_errors_are_said_in_the_column(config: Config, store: Store) -> None:
    gateway = Gateway()
    gateway.error = "the engine was lost"
    assert ask(config, store, gateway, question("head"))[-1] == {"error": "the engine was lost"}
    gateway.status = 503
    assert ask(config, store, gateway, question("head")) == [{"error": "busy"}]


def test_without_a_gateway_the_column_says_how_to_start_one(config: Config, store: Store) -> None:
    async def pieces() -> None:
        asked = chat_stream._decoder.decode(json.dumps(question("head")))
        async for _ in chat_stream._reply_pieces(config, store, asked):
            pass

    with pytest.raises(OpenClawError, match="openclaw-rl up"):
        asyncio.run(pieces())


def lesson(id_: str, words: str, **changes: Any) -> Lesson:
    return Lesson(id=id_, text=words, made_at=1.0, reinforced_at=1.0, **changes)


def test_notes_say_what_was_understood_and_learned(store: Store) -> None:
    withdrawal = Withdrawal(
        code=WithdrawalCode.ALONE, asked=4, right_with=0, right_without=4, at=2.0
    )
    with store.write() as conn:
        judged(conn, "a", score=-1, hints=("Be brief.",))
        serve(conn, "b")
        close(conn, "b", "hm")
        assert turns.add_verdict(conn, verdict("b", score=None))
        for item in (
            lesson("l1", "Be brief."),
            lesson("l2", "No emoji.", state=LessonState.LEARNED),
            lesson("l3", "Be wrong.", state=LessonState.WITHDRAWN, withdrawal=withdrawal),
        ):
            lessons.add_lesson(conn, item)
            lessons.reinforce(conn, item.id, "a", weight=1.0, at=2.0, words="")
        lease = leases.acquire(conn, "train", "me", ttl=60.0, now=1.0)
        assert lease is not None
        policies.publish(conn, lease, policy(1, 0), [Use(policy=1, turn="a", number=1)], now=1.0)
        notes = notes_on_turns(conn, ["a", "b"])
    assert [note.text for note in notes] == [
        "verdict on that turn: not good (hint: Be brief.)",
        "the judge made nothing of that",
        "noted: Be brief.",
        "learned: No emoji.",
        "left the prompts: Be wrong. (0 of 4 answers were right with it, 4 without)",
        "version 1 is live: it learned from you",
    ]
    assert [note.turn for note in notes] == ["a", "b", "", "", "", ""]
    assert [note.unclear_turn for note in notes] == ["", "b", "", "", "", ""]


def test_the_view_shows_the_notes_of_its_replies(store: Store, config: Config) -> None:
    with store.write() as conn:
        judged(conn, "a", score=1, hints=(f"Use {MARKUP}.",))
    with store.read() as conn:
        request = ViewRequest(
            conn=conn,
            config=config,
            params={"turns": "a unknown"},
            now=2.0,
            tokens=None,  # type: ignore[arg-type]
            cache={},
        )
        data = chat.collect_chat(request)
    assert asdict(data["notes"][0])["key"] == "verdict-a"
    assert data["replies"] == {"a": "Here is what you asked for."}
    everywhere = {"sections": (), "path": "/ui/chat"}
    html = TemplateRenderer().render("chat.html", {**everywhere, **data})
    assert "&lt;b&gt;bold" in html
    assert "<b>bold" not in html
    assert "On <q>Here is what you asked for.</q>:" in html
    assert html.count('aria-pressed="false"') == 2
    block = TemplateRenderer().render("chat.html", {**everywhere, **data}, block="chat_notes")
    assert "<textarea" not in block
