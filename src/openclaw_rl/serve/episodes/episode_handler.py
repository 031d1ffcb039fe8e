"""HTTP handlers below /v1/episodes, for the owner's key (docs/concepts/episodes.md)."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Any, Literal

import msgspec
from aiohttp import web

from openclaw_rl.common.steady_clock import recorded_time
from openclaw_rl.errors import RequestError
from openclaw_rl.serve.auth import ApiKeys
from openclaw_rl.serve.chat_request import check_id_length, field_error
from openclaw_rl.serve.dialects.validation import INT32_MAX, decode_json
from openclaw_rl.serve.episodes.ticket import EPISODE_ID, Ticket, make_ticket
from openclaw_rl.serve.gateway import Gateway
from openclaw_rl.serve.http_connection import json_response
from openclaw_rl.serve.request_body import read_small_body
from openclaw_rl.store.db import Store
from openclaw_rl.store.episodes import episodes, groups, turn_list
from openclaw_rl.store.episodes.records import Episode, EpisodeEnd, EpisodeGroup, StepReward
from openclaw_rl.store.rows import to_json
from openclaw_rl.types import Sampling

# Seconds.
MAX_TTL = 7 * 24 * 3600
MAX_GROUP_SIZE = 256
# That a ticket may name.
MAX_VERSIONS = 64
# Characters of a reason.
MAX_TEXT = 2000
# Absolute; the differences of larger ones are not finite in the precision of the trainer.
MAX_REWARD = 1e9


class _GroupBody(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    size: int


class _SamplingBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None


class _EpisodeBody(msgspec.Struct, forbid_unknown_fields=True):
    task: str
    group: _GroupBody
    split: Literal["train", "held_out"] = "train"
    sampling: _SamplingBody | None = None
    max_steps: int | None = None
    ttl: int = 3600
    agent: str = ""
    versions: list[int] = []


class _StepBody(msgspec.Struct, forbid_unknown_fields=True):
    reward: float
    turn: str | None = None
    index: int | None = None


class _OutcomeBody(msgspec.Struct, forbid_unknown_fields=True):
    status: Literal["done", "void"]
    reward: float | None = None
    parts: dict[str, float] = {}
    steps: list[_StepBody] = []
    reason: str | None = None


_episode_decoder = msgspec.json.Decoder(_EpisodeBody)
_outcome_decoder = msgspec.json.Decoder(_OutcomeBody)


def add_episode_routes(app: web.Application, handler: EpisodeHandler) -> None:
    """Add the routes of the handler to the application."""
    app.router.add_put("/v1/episodes/{id}", handler.put_episode)
    app.router.add_get("/v1/episodes/{id}", handler.get_episode)
    app.router.add_post("/v1/episodes/{id}/outcome", handler.post_outcome)
    app.router.add_get("/v1/episodes", handler.list_episodes)


class EpisodeHandler:
    """Opens, ends and shows episodes."""

    def __init__(self, gateway: Gateway, keys: ApiKeys) -> None:
        self._gateway = gateway
        self._keys = keys
        # An episode that ends while it is being loaded must not be added as running.
        self._lock = asyncio.Lock()

    async def put_episode(self, request: web.Request) -> web.Response:
        """Open an episode and return its ticket. Idempotent. Raises `RequestError`."""
        scope = await self._keys.authenticate(request)
        raw = await read_small_body(request, self._gateway.config.serve)
        asked = _parse_episode(
            _checked_id(request.match_info["id"]), decode_json(_episode_decoder, raw), scope
        )
        self._check_sampling(asked)
        await self._gateway.version_access.check_grants(
            asked.versions, scope, self._gateway.versions.head
        )
        self._gateway.disk.check()
        await self._gateway.writer.put(asked)
        async with self._lock:
            episode = await self._load(asked.id, scope)
            if episode.outcome is None:
                self._gateway.episodes.add_episode(episode)
        return json_response(to_json(episode_entry(episode) | self._access(episode)))

    async def post_outcome(self, request: web.Request) -> web.Response:
        """End an episode. Idempotent. Raises `RequestError`."""
        scope = await self._keys.authenticate(request)
        raw = await read_small_body(request, self._gateway.config.serve)
        end = _parse_outcome(request.match_info["id"], decode_json(_outcome_decoder, raw), scope)
        if self._gateway.config.serve.capture == "redacted":
            end = replace(end, reason=None)
        self._gateway.disk.check()
        await self._gateway.writer.put(end)
        async with self._lock:
            self._gateway.episodes.remove_episode(end.id)
        return json_response(to_json(episode_entry(await self._load(end.id, scope))))

    async def get_episode(self, request: web.Request) -> web.Response:
        """Return an episode with its turns, without text, and the gateway's error that its last request got."""
        scope = await self._keys.authenticate(request)
        episode = await self._load(request.match_info["id"], scope)
        listed = await asyncio.to_thread(_load_turns, self._gateway.store, episode.id)
        failed = self._gateway.episodes.failed_request(episode.id)
        return json_response(
            to_json(episode_entry(episode) | {"turns": listed, "failed_request": failed})
        )

    async def list_episodes(self, request: web.Request) -> web.Response:
        """Return the episodes of a group, and the state of the group."""
        scope = await self._keys.authenticate(request)
        id_ = request.query.get("group")
        if not id_:
            raise field_error("group", "expected the id of a group: GET /v1/episodes?group=ID.")
        group, episodes = await asyncio.to_thread(_load_group, self._gateway.store, id_)
        if group is None or group.scope != scope:
            raise RequestError(
                f"there is no group {id_[:80]!r} under this API key.",
                param="group",
                code="not_found",
                status=404,
            )
        data = [episode_entry(episode) for episode in episodes]
        return json_response(
            to_json({"object": "list", "data": data, "group": _group_entry(group)})
        )

    async def _load(self, id_: str, scope: str) -> Episode:
        episode = await asyncio.to_thread(_load_episode, self._gateway.store, id_)
        if episode is None or episode.scope != scope:
            raise episodes.unknown_episode(id_)
        return episode

    def _access(self, episode: Episode) -> dict[str, Any]:
        ticket = Ticket(episode=episode.id, owner=episode.scope, expires_at=int(episode.expires_at))
        config = self._gateway.config
        key = make_ticket(self._keys.ticket_secret, ticket)
        return {"api_key": key, "base_url": f"{config.serve.url}/v1", "model": config.model.name}

    def _check_sampling(self, episode: Episode) -> None:
        """Raise `RequestError` for values that are out of range, or that make every turn of the train split useless."""
        values = episode.sampling
        bounds = {
            "temperature": (0, 2),
            "top_p": (1e-6, 1),
            "top_k": (0, INT32_MAX),
            "max_tokens": (1, INT32_MAX),
        }
        for name, value in values.items():
            low, high = bounds[name]
            if not low <= value <= high:
                raise field_error(
                    f"sampling.{name}", f"expected {low:g} to {high:g}, got {value:g}."
                )
        convention = self._gateway.config.engine.effective_convention
        sampling = replace(Sampling(convention=convention), **values)
        if episode.split == "train" and (reason := sampling.untrainable_reason()):
            raise field_error(
                "sampling",
                f"the episode is in the train split, and could not be trained on: {reason}.",
            )


def _checked_id(id_: str) -> str:
    if EPISODE_ID.fullmatch(id_) is None:
        raise field_error(
            "id",
            f"expected 1 to 128 of A-Z a-z 0-9 _ . : -, the first a letter or digit; got {id_[:80]!r}.",
        )
    return id_


def _parse_episode(id_: str, body: _EpisodeBody, scope: str) -> Episode:
    limits = {"group.size": (body.group.size, 1, MAX_GROUP_SIZE), "ttl": (body.ttl, 1, MAX_TTL)}
    if len(body.versions) > MAX_VERSIONS:
        raise field_error("versions", f"expected at most {MAX_VERSIONS} versions.")
    limits |= {f"versions[{n}]": (value, 0, 10**9) for n, value in enumerate(body.versions)}
    if body.max_steps is not None:
        limits["max_steps"] = (body.max_steps, 1, 2**31)
    for name, (value, low, high) in limits.items():
        if not low <= value <= high:
            raise field_error(name, f"expected {low} to {high}, got {value}.")
    for name, text in (("task", body.task), ("group.id", body.group.id)):
        if not check_id_length(text, name):
            raise field_error(name, "expected a name, got nothing.")
    now = math.floor(recorded_time())
    sampling = msgspec.structs.asdict(body.sampling) if body.sampling else {}
    return Episode(
        id=id_,
        scope=scope,
        task=body.task,
        group=body.group.id,
        size=body.group.size,
        split=body.split,
        agent=check_id_length(body.agent, "agent"),
        sampling={name: value for name, value in sampling.items() if value is not None},
        max_steps=body.max_steps,
        versions=tuple(sorted(set(body.versions))),
        started_at=now,
        expires_at=now + body.ttl,
    )


def _parse_outcome(id_: str, body: _OutcomeBody, scope: str) -> EpisodeEnd:
    for name, value in body.parts.items():
        if not math.isfinite(value):
            raise field_error(name[:80], "expected a finite number.")
    for name, value in [
        ("reward", body.reward or 0.0),
        *((f"steps[{n}]", s.reward) for n, s in enumerate(body.steps)),
    ]:
        if not abs(value) <= MAX_REWARD:
            raise field_error(
                name, f"expected a number from {-MAX_REWARD:g} to {MAX_REWARD:g}, got {value:g}."
            )
    try:
        return EpisodeEnd(
            id=id_,
            scope=scope,
            outcome=body.status,
            reward=body.reward,
            parts=body.parts,
            steps=tuple(
                StepReward(reward=s.reward, turn=s.turn, index=s.index) for s in body.steps
            ),
            reason=None if body.reason is None else body.reason[:MAX_TEXT],
            at=recorded_time(),
        )
    except ValueError:
        raise field_error(
            "reward",
            f"expected a finite number with status done, and none with void; got {body.reward}.",
        ) from None


def episode_entry(episode: Episode) -> dict[str, Any]:
    """Return an episode as the API shows it."""
    return {
        "object": "episode",
        "id": episode.id,
        "task": episode.task,
        "group": {"id": episode.group, "size": episode.size},
        "split": episode.split,
        "agent": episode.agent,
        "status": episode.outcome or "running",
        "reward": episode.reward,
        "parts": episode.parts,
        "reason": episode.reason,
        "max_steps": episode.max_steps,
        "versions": list(episode.versions),
        "started_at": episode.started_at,
        "expires_at": episode.expires_at,
        "ended_at": episode.ended_at,
    }


def _group_entry(group: EpisodeGroup) -> dict[str, Any]:
    names = ("id", "task", "split", "agent", "size", "completed_at", "reason")
    return {name: getattr(group, name) for name in names}


def _load_episode(store: Store, id_: str) -> Episode | None:
    with store.read() as conn:
        return episodes.get_episode(conn, id_) if id_.isascii() else None


def _load_turns(store: Store, id_: str) -> list[dict[str, Any]]:
    with store.read() as conn:
        return turn_list.list_turns(conn, id_)


def _load_group(store: Store, id_: str) -> tuple[EpisodeGroup | None, list[Episode]]:
    with store.read() as conn:
        known = id_.isprintable()
        return (
            (groups.get_group(conn, id_), episodes.episodes_of_group(conn, id_))
            if known
            else (None, [])
        )
