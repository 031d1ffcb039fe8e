"""HTTP client of the gateway's episodes (docs/concepts/episodes.md), with the key of the owner."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

import aiohttp

from openclaw_rl.common.http.sessions import open_http_session
from openclaw_rl.environments.types import EpisodeTicket, PlayOutcome, void_outcome
from openclaw_rl.errors import OpenClawError

_TIMEOUT = aiohttp.ClientTimeout(total=60, sock_connect=10)
# Seconds between two attempts.
_PAUSE = 0.5
_BAD_REQUEST = 400
_CONFLICT = 409
# Code of the error for an episode of a complete group.
_GROUP_COMPLETE = "group_complete"
# Characters of an error.
_MAX_WORDS = 500
_JSON = {"Content-Type": "application/json"}


class GroupComplete(OpenClawError):
    """Raised if an episode cannot be opened because its group has been completed without it. It does not exist."""


class _RequestRefused(OpenClawError):
    """Raised if the gateway refused a request (status 4xx). `message`: its explanation."""

    def __init__(self, what: str, status: int, message: str, code: str | None) -> None:
        super().__init__(what + message)
        self.status = status
        self.words = message
        self.code = code


class EpisodeClient:
    """Opens, ends and lists episodes. `retry_seconds`: time for a gateway to answer."""

    def __init__(
        self, http: aiohttp.ClientSession, url: str, *, retry_seconds: float = 30.0
    ) -> None:
        """`http`: a session from `open_session`. `url`: of the gateway, without a path."""
        self._http = http
        self._url = url
        self.retry_seconds = retry_seconds

    async def open_episode(self, episode: str, body: Mapping[str, Any]) -> EpisodeTicket:
        """Open an episode. Raises `GroupComplete`; `OpenClawError` if the gateway refuses it or does not answer."""
        try:
            answer = await self._request("PUT", f"/v1/episodes/{episode}", body)
        except _RequestRefused as error:
            if error.code != _GROUP_COMPLETE:
                raise
            raise GroupComplete(f"it was not opened in time: {error.words}") from None
        return EpisodeTicket(
            episode=episode,
            base_url=answer["base_url"],
            api_key=answer["api_key"],
            model=answer["model"],
        )

    async def end_episode(self, episode: str, outcome: PlayOutcome) -> PlayOutcome:
        """Post the outcome. Return the one that the episode has from now on.

        That is another one if the episode has ended already, for example because it expired; and void if the gateway
        refuses the outcome, for example for the reward of a step that is no reply of this episode. Raises
        `OpenClawError` if the gateway does not answer.
        """
        path = f"/v1/episodes/{episode}/outcome"
        try:
            try:
                await self._request("POST", path, _outcome_body(outcome))
            except _RequestRefused as error:
                if error.status != _BAD_REQUEST:
                    raise
                outcome = void_outcome(f"its outcome was refused: {error.words}")
                await self._request("POST", path, _outcome_body(outcome))
        except _RequestRefused as error:
            if error.status != _CONFLICT:
                raise
            entry = await self._request("GET", f"/v1/episodes/{episode}")
            if entry["status"] != "done":
                return void_outcome(entry["reason"] or error.words)
            return PlayOutcome(status="done", reward=entry["reward"], reason=entry["reason"])
        return outcome

    async def get_episode(self, episode: str) -> dict[str, Any]:
        """Return an episode with its `turns` in the order of their admission, without text, and `failed_request`."""
        return dict(await self._request("GET", f"/v1/episodes/{episode}"))

    async def list_group(self, group: str) -> list[dict[str, Any]]:
        """Return the episodes of a group; none if it does not exist."""
        answer = await self._request("GET", f"/v1/episodes?group={group}", missing={"data": []})
        return list(answer["data"])

    async def _request(
        self, verb: str, path: str, body: Mapping[str, Any] | None = None, *, missing: Any = None
    ) -> Any:
        end = time.monotonic() + self.retry_seconds
        # Half a surrogate pair, which a program may have escaped, becomes "?": the gateway takes UTF-8.
        sent = (
            None
            if body is None
            else json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        )
        while True:
            try:
                async with self._http.request(
                    verb, f"{self._url}{path}", data=sent, headers=_JSON
                ) as response:
                    answer = await response.json(content_type=None)
                if response.status < 400:
                    return answer
                if response.status == 404 and missing is not None:
                    return missing
                error = _error_of(answer)
                problem = f"{response.status}: {str(error.get('message'))[:_MAX_WORDS]}"
                if response.status < 500:
                    what = f"the gateway at {self._url} refused {verb} {path}: "
                    raise _RequestRefused(what, response.status, problem, error.get("code"))
            except (aiohttp.ClientError, TimeoutError, ValueError) as failure:
                problem = f"{type(failure).__name__}: {failure}"
            if time.monotonic() >= end:
                raise OpenClawError(
                    f"the gateway at {self._url} did not answer {verb} {path} ({problem})"
                )
            await asyncio.sleep(_PAUSE)


def open_session(key: str) -> aiohttp.ClientSession:
    """Return an HTTP session with the owner's key, for `EpisodeClient`."""
    headers = {"Authorization": f"Bearer {key}"}
    return open_http_session(headers=headers, timeout=_TIMEOUT, connections=0)


def _outcome_body(outcome: PlayOutcome) -> dict[str, Any]:
    body: dict[str, Any] = {"status": outcome.status}
    if outcome.reward is not None:
        body |= {
            "reward": outcome.reward,
            "parts": dict(outcome.parts),
            "steps": [dict(s) for s in outcome.steps],
        }
    if outcome.reason is not None:
        body["reason"] = outcome.reason
    return body


def _error_of(answer: Any) -> Mapping[str, Any]:
    error = answer.get("error") if isinstance(answer, dict) else None
    return error if isinstance(error, dict) else {"message": answer}
