"""Sends reactions under a bot's messages in Slack to OpenClaw-RL, and takes back those that are removed.

    OPENCLAW_URL=http://127.0.0.1:8000 OPENCLAW_API_KEY=... SLACK_SIGNING_SECRET=... SLACK_BOT_TOKEN=xoxb-... \
        python slack_relay.py

`openclaw-rl connect slack` prints the manifest of the app. Slack sends the events `reaction_added` and
`reaction_removed` to /slack/events; the relay reads the message and sends its text, so the bot needs no change. Emoji
that say nothing of an answer are left out by the gateway. A relay for Discord sends the same requests from
`on_raw_reaction_add` and `on_raw_reaction_remove` of discord.py.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import os
import time
from typing import Any

import aiohttp
from aiohttp import web

log = logging.getLogger("slack_relay")
GATEWAY = os.environ.get("OPENCLAW_URL", "http://127.0.0.1:8000")
API_KEY = os.environ.get("OPENCLAW_API_KEY", "")
SECRET = os.environ.get("SLACK_SIGNING_SECRET", "")
BOT_TOKEN = os.environ.get("SLACK_BOT_TOKEN", "")
SLACK_API = os.environ.get("SLACK_API_URL", "https://slack.com/api")
# Seconds; Slack's own bound against repeated requests.
MAX_AGE = 300


def is_signed(secret: str, timestamp: str, signature: str, body: bytes) -> bool:
    """Return whether Slack signed the body, not long ago."""
    if not secret or not timestamp.isdigit() or abs(time.time() - int(timestamp)) > MAX_AGE:
        return False
    signed = b"v0:" + timestamp.encode() + b":" + body
    expected = "v0=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
    return hmac.compare_digest(expected, signature)


async def read_message(http: aiohttp.ClientSession, channel: str, ts: str) -> dict[str, Any] | None:
    """Return the message under a reaction; in a thread, too."""
    params = {"channel": channel, "ts": ts, "latest": ts, "inclusive": "true", "limit": "1"}
    headers = {"Authorization": f"Bearer {BOT_TOKEN}"}
    for method in ("conversations.history", "conversations.replies"):
        async with http.get(f"{SLACK_API}/{method}", params=params, headers=headers) as response:
            answer = await response.json()
        for message in answer.get("messages", ()):
            if message["ts"] == ts:
                return dict(message)
    return None


async def relay_reaction(app: web.Application, event: dict[str, Any]) -> None:
    """Give the feedback of a reaction, or take it back, in the order in which the events came."""
    async with app[ORDER]:
        await send_feedback(app[HTTP], event)


async def send_feedback(http: aiohttp.ClientSession, event: dict[str, Any]) -> None:
    """Send one event to the gateway."""
    item = event["item"]
    key = "-".join(("slack", item["channel"], item["ts"], event["user"], event["reaction"]))
    body: dict[str, Any] = {"retract": True, "idempotency_key": key}
    if event["type"] == "reaction_added":
        message = await read_message(http, item["channel"], item["ts"])
        # Reactions under what people wrote are theirs.
        if message is None or not message.get("bot_id"):
            return
        score = f":{event['reaction']}:"
        match = {"text": message["text"]}
        body = {"match": match, "score": score, "by": event["user"], "idempotency_key": key}
    headers = {"Authorization": f"Bearer {API_KEY}"}
    async with http.post(f"{GATEWAY}/v1/feedback", json=body, headers=headers) as response:
        log.info("%s: %s %s", key, response.status, await response.text())


async def receive(request: web.Request) -> web.Response:
    """Answer Slack at once, because it repeats events after three seconds."""
    body = await request.read()
    headers = request.headers
    timestamp = headers.get("X-Slack-Request-Timestamp", "")
    if not is_signed(SECRET, timestamp, headers.get("X-Slack-Signature", ""), body):
        return web.Response(status=401)
    payload = json.loads(body)
    if payload["type"] == "url_verification":
        return web.json_response({"challenge": payload["challenge"]})
    event = payload.get("event", {})
    if (
        event.get("type") in ("reaction_added", "reaction_removed")
        and event["item"]["type"] == "message"
    ):
        task = asyncio.create_task(relay_reaction(request.app, event))
        request.app[TASKS].add(task)
        task.add_done_callback(request.app[TASKS].discard)
    return web.Response()


HTTP = web.AppKey("http", aiohttp.ClientSession)
TASKS = web.AppKey("tasks", set[asyncio.Task[None]])
ORDER = web.AppKey("order", asyncio.Lock)


async def make_app() -> web.Application:
    """Return the relay."""
    app = web.Application()
    app[HTTP] = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60))
    app[TASKS] = set()
    app[ORDER] = asyncio.Lock()
    app.router.add_post("/slack/events", receive)

    async def close(app: web.Application) -> None:
        await asyncio.gather(*app[TASKS], return_exceptions=True)
        await app[HTTP].close()

    app.on_cleanup.append(close)
    return app


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    web.run_app(make_app(), port=int(os.environ.get("PORT", "3000")))
