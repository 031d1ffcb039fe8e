"""Scores of Langfuse, by its public API: `/api/public/v3/scores` and `/api/public/v2/observations`."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import aiohttp

from openclaw_rl.connect.feedback.reply_texts import find_ids, find_text
from openclaw_rl.connect.feedback.score_relay import RemoteScore, ScoredReply, request_json
from openclaw_rl.errors import OpenClawError

PAGE_ITEMS = 100
# Observations of one trace that are read: the answer is among the last.
MAX_OBSERVATIONS = 200
_BY_JUDGES = "EVAL"
_ANSWER_TYPES = ("GENERATION", "AGENT")


class LangfuseSource:
    """Scores with certain names that people gave, in the app or by the SDK. Those of evaluators are left out."""

    name = "langfuse"

    def __init__(
        self,
        http: aiohttp.ClientSession,
        *,
        url: str,
        public_key: str,
        secret_key: str,
        names: Sequence[str],
        scale: str,
    ) -> None:
        """`scale`: of numeric scores."""
        self._http = http
        self._url = url.rstrip("/")
        credentials = base64.b64encode(f"{public_key}:{secret_key}".encode()).decode()
        self._headers = {"Authorization": f"Basic {credentials}"}
        self._names = frozenset(names)
        self._scale = scale

    async def list_scores(self, since: float) -> list[RemoteScore]:
        """Return the scores that were given since then, in seconds since the epoch. Raises `OpenClawError`."""
        params = {
            "limit": str(PAGE_ITEMS),
            "fields": "subject,details,annotation",
            "fromTimestamp": datetime.fromtimestamp(since, UTC).isoformat(),
        }
        scores = []
        while True:
            page = await self._get("/api/public/v3/scores", params)
            for item in page["data"]:
                if item["name"] in self._names and item["source"] != _BY_JUDGES:
                    scores.append(self._read_score(item))
            cursor = page["meta"].get("cursor")
            if not cursor:
                return scores
            params["cursor"] = cursor

    def _read_score(self, item: Mapping[str, Any]) -> RemoteScore:
        kind = item.get("dataType")
        value = item.get("value")
        words = {"TEXT": "comment", "CORRECTION": "correction"}.get(str(kind))
        said: dict[str, Any] = {"comment": item.get("comment") or None}
        if words is not None:
            said[words] = value
            value = None
        elif kind == "BOOLEAN":
            value = bool(value)
        return RemoteScore(
            id=item["id"],
            version=item["updatedAt"],
            at=datetime.fromisoformat(item["timestamp"]).timestamp(),
            value=value,
            scale=self._scale if kind == "NUMERIC" else None,
            given_by=item.get("authorUserId"),
            place=item.get("subject"),
            **said,
        )

    async def find_replies(self, score: RemoteScore) -> list[ScoredReply]:
        """Return what is known of the reply: of the scored observation, else of the last answers of the trace."""
        subject = score.place or {}
        if subject.get("kind") == "session":
            return [ScoredReply(session=subject["id"])]
        trace = (
            subject.get("traceId") if subject.get("kind") == "observation" else subject.get("id")
        )
        if trace is None:
            return []
        params = {
            "traceId": trace,
            "fields": "core,basic,io",
            "limit": str(MAX_OBSERVATIONS),
        }
        page = await self._get("/api/public/v2/observations", params)
        observations = sorted(page["data"], key=lambda item: item["startTime"], reverse=True)
        if subject["kind"] == "observation":
            observations = [item for item in observations if item["id"] == subject["id"]]
        else:
            # The answer is what the last call gave; a step around it may have given something else.
            observations.sort(key=lambda item: item["type"] not in _ANSWER_TYPES)
        return [
            ScoredReply(
                ids=find_ids(item.get("output")),
                text=find_text(item.get("output")),
                session=item.get("sessionId"),
                user=item.get("userId"),
            )
            for item in observations
            if item.get("output")
        ]

    async def _get(self, path: str, params: Mapping[str, str]) -> Any:
        status, answer = await request_json(
            self._http, "GET", self._url + path, headers=self._headers, params=params
        )
        if status == 200:
            return answer
        hint = {
            401: "check LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY",
            404: "its version has no such API; update Langfuse",
        }.get(status, "see its log")
        raise OpenClawError(f"Langfuse at {self._url} refused {path} ({status}): {hint}")
