"""
title: OpenClaw-RL feedback
description: Sends each thumb under an answer, and what is said with it, to OpenClaw-RL, and takes back what is deleted.
version: 1.0
"""

# `openclaw-rl connect open-webui` prints this file with the address and the key. Paste it in Open WebUI under
# Admin Panel > Functions > +, save it, and switch it on. It is an event function: Open WebUI calls `Event.event`.

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import aiohttp
from pydantic import BaseModel

GATEWAY_URL = "http://127.0.0.1:8000"
API_KEY = ""
log = logging.getLogger("openclaw_rl.feedback")
_TIMEOUT = aiohttp.ClientTimeout(total=60)
# Reasoning and tool calls, which Open WebUI shows beside an answer.
_SHOWN_BESIDE = re.compile(r"<details\b.*?</details>", re.DOTALL)


class ThumbEvents:
    """Follows the events of thumbs."""

    class Valves(BaseModel):
        """Settings that the admin panel shows."""

        gateway_url: str = GATEWAY_URL
        api_key: str = API_KEY

    def __init__(self) -> None:
        self.valves = self.Valves()
        # Open WebUI sends a thumb, and then the same one with tags: the events must not overtake one another.
        self._lock = asyncio.Lock()

    async def event(self, event: dict[str, Any]) -> None:
        """Send the thumb of an event as it is now, or take it back."""
        subject = str((event.get("subject") or {}).get("id"))
        kind = event.get("event")
        if kind in ("feedback.created", "feedback.updated"):
            async with self._lock:
                await self._send(subject)
        elif kind == "feedback.deleted":
            async with self._lock:
                await self._post({"retract": True, "idempotency_key": _key(subject)})

    async def _send(self, id_: str) -> None:
        from open_webui.models.feedbacks import Feedbacks  # type: ignore[import-not-found]

        stored = await Feedbacks.get_feedback_by_id(id_)
        if stored is None:
            return
        body = feedback_body(stored.model_dump())
        for match in reply_matches(stored.model_dump()):
            status, answer = await self._post(body | {"match": match})
            if status == 409 and answer["error"]["code"] == "idempotency_conflict":
                # The person has changed their mind.
                await self._post({"retract": True, "idempotency_key": _key(id_)})
                status, answer = await self._post(body | {"match": match})
            if status == 200:
                return
            log.warning("OpenClaw-RL: %s", answer["error"]["message"])

    async def _post(self, body: dict[str, Any]) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {self.valves.api_key}"}
        url = f"{self.valves.gateway_url.rstrip('/')}/v1/feedback"
        async with (
            aiohttp.ClientSession(timeout=_TIMEOUT) as http,
            http.post(url, json=body, headers=headers) as response,
        ):
            return response.status, await response.json()


# The name by which Open WebUI finds the class.
Event = ThumbEvents


def feedback_body(stored: dict[str, Any]) -> dict[str, Any]:
    """Return the request of a thumb, without the reply that it is on."""
    data = stored.get("data") or {}
    reason = str(data.get("reason") or "").replace("_", " ").capitalize()
    comment = ". ".join(part for part in (reason, data.get("comment")) if part)
    body = {"by": stored["user_id"], "idempotency_key": _key(stored["id"])}
    if data.get("rating") is not None:
        body["score"] = int(data["rating"])
    if comment:
        body["comment"] = comment
    return body


def reply_matches(stored: dict[str, Any]) -> list[dict[str, str]]:
    """Return what is known of the reply, surest first."""
    meta = stored.get("meta") or {}
    id_ = meta.get("message_id") or ""
    matches = [{"client_message_id": id_}] if id_ else []
    text = _shown_text(stored, id_)
    if text:
        matches += [{"text": text, "session": meta.get("chat_id") or id_}, {"text": text}]
    return matches


def _shown_text(stored: dict[str, Any], id_: str) -> str:
    """Return the text of a message in the snapshot of its chat; empty if it is not there."""
    found: Any = stored
    for key in ("snapshot", "chat", "chat", "history", "messages", id_):
        found = found.get(key) or {}
    return _SHOWN_BESIDE.sub("", str(found.get("content") or "")).strip()


def _key(id_: str) -> str:
    return f"open-webui-{id_}"
