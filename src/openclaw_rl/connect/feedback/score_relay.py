"""Keeps the gateway's feedback equal to the scores of a tracing service: new, changed and deleted ones.

Each round lists the scores of the last days and compares them with those of the round before, which a file in the
home holds. So nothing is lost while the relay does not run, and a score that is deleted is taken back.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from openclaw_rl.common.atomic_files import write_text_file
from openclaw_rl.errors import OpenClawError

# Seconds of one request.
REQUEST_TIMEOUT = 60.0
DAY = 86_400.0
MAX_TRIES = 5
"""Rounds in which the reply of a score is looked for: its trace may arrive after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteScore:
    """A score that a person gave in a tracing service."""

    id: str
    version: str  # changes with each change of the score
    at: float  # when it was given, in seconds since the epoch
    value: Any = None  # see `serve/feedback/values.py`; None: words only
    scale: str | None = None
    comment: str | None = None
    correction: str | None = None
    given_by: str | None = None
    place: Any = None  # what the source needs to find the reply


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredReply:
    """A scored reply as the service knows it: ids that the gateway gave, else its text, with session and user."""

    ids: Sequence[str] = ()
    text: str | None = None
    session: str | None = None
    user: str | None = None


class ScoreSource(Protocol):
    """A tracing service. Its methods raise `OpenClawError`."""

    name: str

    async def list_scores(self, since: float) -> list[RemoteScore]:
        """Return the scores that were given since then, in seconds since the epoch."""

    async def find_replies(self, score: RemoteScore) -> list[ScoredReply]:
        """Return what is known of the reply, surest first; nothing if its trace is not there yet."""


@dataclass(slots=True, kw_only=True)
class KnownScore:
    """A score of an earlier round. `feedback`: id at the gateway; None: its reply was not found."""

    version: str
    at: float
    feedback: str | None = None
    tries: int = 0
    problem: str | None = None


@dataclass(slots=True, kw_only=True)
class RoundReport:
    """Numbers of changes of one round, and its problems."""

    given: int = 0
    retracted: int = 0
    problems: list[str] = field(default_factory=list)


class ScoreRelay:
    """Relays the scores of one service."""

    def __init__(
        self,
        source: ScoreSource,
        http: aiohttp.ClientSession,
        *,
        gateway: str,
        key: str,
        state_file: Path,
        days: float,
    ) -> None:
        """`gateway`: its URL without /v1; `days`: scores that are older are left alone."""
        self._source = source
        self._http = http
        self._url = f"{gateway}/v1/feedback"
        self._headers = {"Authorization": f"Bearer {key}"}
        self._state_file = state_file
        self._window = days * DAY
        self._known = _read_state(state_file)

    async def run_round(self) -> RoundReport:
        """Relay what has changed since the last round. Raises `OpenClawError`."""
        since = time.time() - self._window
        scores = {score.id: score for score in await self._source.list_scores(since)}
        report = RoundReport()
        for id_ in [id_ for id_, known in self._known.items() if known.at < since]:
            del self._known[id_]
        for id_, known in list(self._known.items()):
            if id_ not in scores:
                report.retracted += await self._retract(known)
                del self._known[id_]
        for score in scores.values():
            await self._update(score, report)
            self._write_state()
        self._write_state()
        return report

    async def _update(self, score: RemoteScore, report: RoundReport) -> None:
        known = self._known.get(score.id)
        if known is not None and known.version != score.version:
            report.retracted += await self._retract(known)
            known = None
        if known is None:
            known = KnownScore(version=score.version, at=score.at)
            self._known[score.id] = known
        if known.feedback is not None or known.tries >= MAX_TRIES:
            return
        known.tries += 1
        known.feedback, known.problem = await self._give(score)
        if known.feedback is not None:
            report.given += 1
        elif known.problem is not None:
            report.problems.append(f"{score.id}: {known.problem}")

    async def _give(self, score: RemoteScore) -> tuple[str | None, str | None]:
        """Return the id of the feedback, or the problem."""
        values = {
            "score": score.value,
            "scale": score.scale,
            "comment": score.comment,
            "correction": score.correction,
            "by": score.given_by,
            "idempotency_key": f"{self._source.name}-{score.id}-{score.version}",
        }
        body = {name: value for name, value in values.items() if value is not None}
        replies = await self._source.find_replies(score)
        problem = "its trace has no answer yet"
        for place in _places(replies):
            status, answer = await self._request("POST", self._url, body | place)
            if status == 200:
                return answer["id"], None if answer["id"] else "it says nothing of the reply"
            problem = str(answer["error"]["message"])
        return None, problem

    async def _retract(self, known: KnownScore) -> int:
        """Take the feedback of a score back. Returns the number that was taken back."""
        if known.feedback is None:
            return 0
        status, _ = await self._request("DELETE", f"{self._url}/{known.feedback}")
        return int(status == 200)

    async def _request(self, method: str, url: str, body: Any = None) -> tuple[int, Any]:
        """Return status and answer. Raises `OpenClawError` for errors that no other request would mend."""
        status, answer = await request_json(
            self._http, method, url, headers=self._headers, json_body=body
        )
        if status not in (200, 400, 404, 409):
            message = answer.get("error", {}).get("message", answer)
            raise OpenClawError(f"the gateway refused feedback ({status}): {message}")
        return status, answer

    def _write_state(self) -> None:
        self._state_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = {id_: asdict(known) for id_, known in self._known.items()}
        write_text_file(self._state_file, json.dumps(state, indent=1))


async def run_relay(
    relay: ScoreRelay,
    *,
    every: float,
    stop: asyncio.Event,
    report: Callable[[RoundReport], None],
) -> None:
    """Run rounds until `stop` is set, and pass the report of each on. A round that fails is reported and repeated."""
    while not stop.is_set():
        try:
            report(await relay.run_round())
        except OpenClawError as error:
            report(RoundReport(problems=[f"{error}. The next round is in {every:g} s"]))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), every)


async def request_json(
    http: aiohttp.ClientSession,
    method: str,
    url: str,
    *,
    headers: dict[str, str],
    params: Any = None,
    json_body: Any = None,
) -> tuple[int, Any]:
    """Send a request and return status and JSON answer. Raises `OpenClawError` without an answer."""
    try:
        async with http.request(
            method,
            url,
            headers=headers,
            params=params,
            json=json_body,
            timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT),
        ) as response:
            return response.status, await response.json(content_type=None)
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise OpenClawError(
            f"{url} did not answer ({type(error).__name__}: {error}). Check the address"
        ) from error


def _places(replies: Sequence[ScoredReply]) -> list[dict[str, Any]]:
    """Return what to send to name each reply, surest first."""
    places: list[dict[str, Any]] = []
    for reply in replies:
        places += [{"target": id_} for id_ in reply.ids]
        more = {"session": reply.session, "user": reply.user}
        known = {name: value for name, value in more.items() if value}
        if reply.text is not None:
            places += [{"match": {"text": reply.text} | known}] if known else []
            places.append({"match": {"text": reply.text}})
        elif known and not reply.ids:
            places.append({"match": known})
    return places


def _read_state(path: Path) -> dict[str, KnownScore]:
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        return {id_: KnownScore(**known) for id_, known in state.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise OpenClawError(
            f"{path}: the state of the relay cannot be read ({error}). Delete it: the scores are compared again"
        ) from error
