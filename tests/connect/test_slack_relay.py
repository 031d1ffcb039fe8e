"""The example relay for Slack: signatures, events as Slack sends them, and the real gateway."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import importlib.util
import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from tests.connect.services import Service, SlackApi
from tests.serve.conftest import KEY, USER, Site, Start, empty_store, renderers, start

__all__ = ["empty_store", "renderers", "start"]
SECRET = "8f742231b10e8888abcd99yyyzzz85a5"
RELAY = Path(__file__).parents[2] / "examples" / "feedback" / "slack_relay.py"
TS = "1360782804.083113"


@pytest.fixture
def site(start: Start) -> Site:
    return start()


@pytest.fixture
def slack() -> SlackApi:
    return SlackApi()


@pytest.fixture
def relay(site: Site, slack: SlackApi) -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("slack_relay", RELAY)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    service = Service(slack.route)
    module.GATEWAY = site.url
    module.API_KEY = KEY
    module.SECRET = SECRET
    module.SLACK_API = service.url
    yield module
    service.close()


def reaction(kind: str, name: str, user: str = "U024BE7LH") -> dict[str, Any]:
    """An event as in Slack's reference of `reaction_added`."""
    return {
        "token": "z26uFbvR1xHJEdHE1OQiO6t8",
        "team_id": "T061EG9RZ",
        "api_app_id": "A0FFV41KK",
        "event": {
            "type": kind,
            "user": user,
            "reaction": name,
            "item_user": "U0G9QF9C6",
            "item": {"type": "message", "channel": "C0G9QF9GZ", "ts": TS},
            "event_ts": "1360782804.083113",
        },
        "type": "event_callback",
        "event_id": "Ev9UQ52YNA",
        "event_time": 1234567890,
    }


def send(relay: ModuleType, *payloads: dict[str, Any], secret: str = SECRET) -> list[int]:
    """Send events to the relay, and wait until it has handled them. Returns its statuses."""

    async def main() -> list[int]:
        app = await relay.make_app()
        statuses = []
        async with TestClient(TestServer(app)) as client:
            for payload in payloads:
                body = json.dumps(payload)
                timestamp = str(int(time.time()))
                signed = f"v0:{timestamp}:{body}".encode()
                signature = hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
                headers = {
                    "X-Slack-Request-Timestamp": timestamp,
                    "X-Slack-Signature": f"v0={signature}",
                }
                response = await client.post("/slack/events", data=body, headers=headers)
                statuses.append(response.status)
        return statuses

    return asyncio.run(main())


def listed(site: Site) -> list[tuple[str, int, str]]:
    data = site.http.get("/v1/feedback").json()["data"]
    return [(item["target"], item["score"], item["by"]) for item in data]


def ask(site: Site, said: str) -> str:
    site.script.say(said)
    return str(site.client().chat.completions.create(model="openclaw", messages=[USER]).id)


def test_reactions_are_given_and_taken_back(site: Site, slack: SlackApi, relay: ModuleType) -> None:
    target = ask(site, "Use a < b & **keep** [the link](https://example.com).")
    text = "Use a &lt; b &amp; *keep* <https://example.com|the link>."
    slack.messages = [{"ts": TS, "text": text, "bot_id": "B1", "type": "message"}]
    added = reaction("reaction_added", "+1::skin-tone-3")
    assert send(relay, added, added) == [200, 200]
    assert listed(site) == [(target, 1, "U024BE7LH")], "once, though Slack sent it twice"
    send(relay, reaction("reaction_added", "thumbsdown", "U2"), reaction("reaction_added", "eyes"))
    assert listed(site)[0] == (target, -1, "U2")
    assert len(listed(site)) == 2
    send(
        relay, reaction("reaction_removed", "+1::skin-tone-3"), reaction("reaction_removed", "eyes")
    )
    assert listed(site) == [(target, -1, "U2")]
    send(relay, added)
    assert len(listed(site)) == 2, "given a second time"


def test_messages_in_threads_count_and_those_of_people_do_not(
    site: Site, slack: SlackApi, relay: ModuleType
) -> None:
    target = ask(site, "In a thread.")
    slack.messages = [{"ts": "1360782000.000001", "text": "the first message", "user": "U1"}]
    slack.in_threads = [{"ts": TS, "text": "In a thread.", "bot_id": "B1"}]
    send(relay, reaction("reaction_added", "tada"))
    assert listed(site) == [(target, 1, "U024BE7LH")]
    slack.in_threads = [{"ts": TS, "text": "In a thread.", "user": "U1"}]
    send(relay, reaction("reaction_added", "fire"))
    assert len(listed(site)) == 1


def test_only_slack_is_heard(site: Site, slack: SlackApi, relay: ModuleType) -> None:
    ask(site, "Hello.")
    slack.messages = [{"ts": TS, "text": "Hello.", "bot_id": "B1"}]
    assert send(relay, reaction("reaction_added", "+1"), secret="another") == [401]
    assert listed(site) == []
    old = str(int(time.time()) - 3600)
    assert not relay.is_signed(SECRET, old, "v0=0", b"{}")
    assert not relay.is_signed("", str(int(time.time())), "v0=0", b"{}")
    challenge = {
        "type": "url_verification",
        "challenge": "3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P",
    }
    assert send(relay, challenge) == [200]
