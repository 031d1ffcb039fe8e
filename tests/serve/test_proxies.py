"""With proxies in the environment, requests between the package's own parts reach no proxy."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from tests.judge.endpoint import ITEM, always, vote
from tests.judge.endpoint import serving as serving_endpoint
from tests.redirect_server import Received, serving
from tests.serve.conftest import KEY, Site, wait_for

from openclaw_rl.cli.chat import _ChatSession
from openclaw_rl.common.gateway_address import GatewayAddress, publish_address
from openclaw_rl.common.terminal import TerminalConsole
from openclaw_rl.environments.episode_client import EpisodeClient, open_session
from openclaw_rl.environments.foreign.policy_chat import ask_policy
from openclaw_rl.gates.reply_source import GatewayReplySource, ReplyOrder
from openclaw_rl.judge.llm import LlmJudge
from openclaw_rl.rollouts.policy_client import PolicyClient
from openclaw_rl.settings.load import from_flat
from openclaw_rl.supervisor.subprocess_system import is_ready

EPISODE = {"task": "t", "group": {"id": "g", "size": 1}}


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch) -> Iterator[Received]:
    """Name a proxy for all addresses, and yield what it gets."""
    received: Received = []

    class Proxy(BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

        def refuse(self) -> None:
            received.append((self.path, self.headers.get("Authorization"), b""))
            self.send_response(502)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST = do_PUT = do_CONNECT = refuse

    with serving(Proxy) as address:
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, address)
            monkeypatch.setenv(name.upper(), address)
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        yield received


def test_chat_reaches_the_gateway(site: Site, tmp_path: Path, proxied: Received) -> None:
    output = io.StringIO()

    class Keyboard(TerminalConsole):
        def __init__(self, lines: list[str]) -> None:
            super().__init__(file=output, width=200)
            self._lines = lines

        def input(self, *_: object, **__: object) -> str:
            return self._lines.pop(0)

    port = int(site.url.rpartition(":")[2])
    config = from_flat({"home": str(tmp_path), "serve.api_key": KEY, "serve.port": port})
    wait_for(lambda: is_ready(site.url, KEY), bool)
    asyncio.run(_ChatSession(config, Keyboard(["hello", "/good", "/quit"])).run())
    assert "Hello there." in output.getvalue()
    assert not proxied


def test_gate_and_practice_get_their_replies(site: Site, tmp_path: Path, proxied: Received) -> None:
    """Both get them from the same source."""
    address = GatewayAddress(
        url=site.url, model="openclaw", model_path="starter", key="file", pid=1
    )
    order = ReplyOrder(version=0, prompt_ids=[1, 2], max_tokens=64, temperature=0.0, seed=0)
    with publish_address(tmp_path, address):
        replies = GatewayReplySource(tmp_path, site.store, 1).generate([order])
    assert replies[0].finish == "stop"
    assert not proxied


def test_the_judge_reaches_an_endpoint_on_this_machine(proxied: Received) -> None:
    async def judge_reaction() -> int | None:
        async with serving_endpoint(always(vote(-1))) as endpoint:
            flat = {
                "judge.kind": "llm",
                "judge.base_url": f"http://127.0.0.1:{endpoint.port}/v1",
                "judge.model": "grader",
                "judge.num_judges": 1,
            }
            judge = LlmJudge(from_flat(flat))
            try:
                return (await judge.judge(ITEM)).score
            finally:
                await judge.close()

    assert asyncio.run(judge_reaction()) == -1
    assert not proxied


def test_environments_and_rollouts_reach_the_gateway(site: Site, proxied: Received) -> None:
    async def play() -> str:
        async with open_session(KEY) as http:
            ticket = await EpisodeClient(http, site.url).open_episode("e1", EPISODE)
            model = PolicyClient(http, site.url, name="openclaw", session="s", most=2)
            await model.generate("hello", max_tokens=8)
        access = {"base_url": f"{site.url}/v1", "api_key": ticket.api_key, "model": ticket.model}
        messages = [{"role": "user", "content": "hello"}]
        text, _ = await asyncio.to_thread(ask_policy, access | {"seconds": 60}, messages)
        return text

    assert asyncio.run(play()) == "Hello there."
    assert not proxied
