"""Feedback of LangSmith, by its API: `GET /feedback` and `GET /runs/{id}`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import aiohttp

from openclaw_rl.connect.feedback.reply_texts import find_ids, find_text
from openclaw_rl.connect.feedback.score_relay import RemoteScore, ScoredReply, request_json
from openclaw_rl.errors import OpenClawError

PAGE_ITEMS = 100
_BY_JUDGES = frozenset({"model", "auto_eval"})
_SESSION_KEYS = ("session_id", "thread_id", "conversation_id")


class LangSmithSource:
    """Feedback with certain keys that people gave, in the app or by the SDK. That of evaluators is left out."""

    name = "langsmith"

    def __init__(
        self, http: aiohttp.ClientSession, *, url: str, key: str, names: Sequence[str], scale: str
    ) -> None:
        """`names`: keys of the feedback; `scale`: of numeric scores."""
        self._http = http
        self._url = url.rstrip("/")
        self._headers = {"x-api-key": key}
        self._names = tuple(names)
        self._scale = scale

    async def list_scores(self, since: float) -> list[RemoteScore]:
        """Return the feedback that was given since then, in seconds since the epoch. Raises `OpenClawError`."""
        params = [("key", name) for name in self._names]
        params += [
            ("limit", str(PAGE_ITEMS)),
            ("min_created_at", datetime.fromtimestamp(since, UTC).isoformat()),
        ]
        scores: list[RemoteScore] = []
        offset = 0
        while True:
            page = await self._get("/feedback", [*params, ("offset", str(offset))])
            for item in page:
                source = item.get("feedback_source") or {}
                is_recent = _read_time(item["created_at"]) >= since
                if (
                    item["key"] in self._names
                    and source.get("type") not in _BY_JUDGES
                    and is_recent
                ):
                    scores.append(self._read_score(item, source))
            if len(page) < PAGE_ITEMS:
                return scores
            offset += len(page)

    def _read_score(self, item: Mapping[str, Any], source: Mapping[str, Any]) -> RemoteScore:
        score = item.get("score")
        value = item.get("value") if score is None else score
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return RemoteScore(
            id=str(item["id"]),
            version=str(item.get("modified_at") or item["created_at"]),
            at=_read_time(item["created_at"]),
            value=value if is_number or isinstance(value, bool | str) else None,
            scale=self._scale if is_number else None,
            comment=item.get("comment") or None,
            correction=find_text(item.get("correction")),
            given_by=source.get("user_id"),
            place=item.get("run_id") or item.get("trace_id"),
        )

    async def find_replies(self, score: RemoteScore) -> list[ScoredReply]:
        """Return what is known of the reply: the output of the run. Raises `OpenClawError`."""
        if score.place is None:
            return []
        run = await self._get(f"/runs/{score.place}", [], missing_is_empty=True)
        output = run.get("outputs")
        metadata = ((run.get("extra") or {}).get("metadata")) or {}
        sessions = [metadata[key] for key in _SESSION_KEYS if metadata.get(key)]
        if not output:
            return []
        return [
            ScoredReply(
                ids=find_ids(output),
                text=find_text(output),
                session=str(sessions[0]) if sessions else None,
                user=metadata.get("user_id"),
            )
        ]

    async def _get(
        self, path: str, params: list[tuple[str, str]], *, missing_is_empty: bool = False
    ) -> Any:
        status, answer = await request_json(
            self._http, "GET", self._url + path, headers=self._headers, params=params
        )
        if status == 200:
            return answer
        if status == 404 and missing_is_empty:
            return {}
        hint = "check LANGSMITH_API_KEY" if status in (401, 403) else "see its answer"
        raise OpenClawError(
            f"LangSmith at {self._url} refused {path} ({status}): {hint}: {str(answer)[:200]}"
        )


def _read_time(text: str) -> float:
    """Return seconds since the epoch. LangSmith leaves the zone out, which is UTC."""
    time = datetime.fromisoformat(text)
    return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()
