"""The running episodes, in memory: whether a ticket is still valid, and how many replies it has had."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from openclaw_rl.errors import RequestError
from openclaw_rl.serve.chat_request import MIN_TEMPERATURE, ChatRequest
from openclaw_rl.store.episodes.episodes import EXPIRED
from openclaw_rl.store.episodes.groups import HELD_OUT
from openclaw_rl.store.episodes.records import Episode
from openclaw_rl.types import Convention, Sampling

_MIN_PRUNED = 1024
_FREE = {
    "top_p": 1.0, "top_k": 0, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "min_tokens": 0,
    "seed": None,
}  # fmt: skip
"""Sampling fields that make a turn untrainable, or all episodes of a group alike, and their values that do not."""


@dataclass(slots=True)
class _OpenEpisode:
    episode: Episode
    replies: int  # that have not failed
    failed_request: str | None = None


class OpenEpisodes:
    """The episodes without an outcome, loaded from the store at the start and kept up to date by the HTTP handlers."""

    def __init__(
        self, running: Iterable[tuple[Episode, int]] = (), clock: Callable[[], float] = time.time
    ) -> None:
        self._open = {episode.id: _OpenEpisode(episode, replies) for episode, replies in running}
        self._clock = clock
        # Number of episodes at which the expired ones are removed.
        self._prune_at = _MIN_PRUNED

    def __len__(self) -> int:
        return len(self._open)

    def add_episode(self, episode: Episode) -> None:
        """Add an episode that was opened. One that is known keeps its count."""
        if len(self._open) >= self._prune_at:
            now = self._clock()
            self._open = {
                id_: open_episode
                for id_, open_episode in self._open.items()
                if open_episode.episode.expires_at > now
            }
            self._prune_at = max(_MIN_PRUNED, 2 * len(self._open))
        self._open.setdefault(episode.id, _OpenEpisode(episode, 0))

    def remove_episode(self, id: str) -> None:
        """Remove an episode that has ended: its ticket is no longer valid."""
        self._open.pop(id, None)

    def get_running(self, id: str) -> Episode:
        """Return a running episode. Raises `RequestError` (410) if it has ended."""
        return self._find(id).episode

    def reserve_replies(self, id: str, number: int) -> None:
        """Count replies that are about to begin; `failed_request` is then None again.

        Raises `RequestError` (410) if that would exceed the limit.
        """
        open_episode = self._find(id)
        limit = open_episode.episode.max_steps
        if limit is not None and open_episode.replies + number > limit:
            raise RequestError(
                f"the episode {id} has had {open_episode.replies} of {limit} replies (max_steps): no more are given.",
                code="max_steps",
                status=410,
            )
        open_episode.replies += number
        open_episode.failed_request = None

    def return_reply(self, id: str) -> None:
        """Take back the count of a reply that failed."""
        if id in self._open:
            self._open[id].replies -= 1

    def note_failure(self, id: str, message: str) -> None:
        """Note that a request got an error of the gateway (status 5xx), also one of which the store has no record."""
        if id in self._open:
            self._open[id].failed_request = message

    def failed_request(self, id: str) -> str | None:
        """Return the error of the gateway that the last request for a reply got; None if that reply began."""
        return self._open[id].failed_request if id in self._open else None

    def _find(self, id: str) -> _OpenEpisode:
        open_episode = self._open.get(id)
        if open_episode is not None and open_episode.episode.expires_at <= self._clock():
            self.remove_episode(id)
            raise RequestError(
                f"the episode {id} has ended: {EXPIRED}.", code="episode_ended", status=410
            )
        if open_episode is None:
            raise RequestError(f"the episode {id} has ended.", code="episode_ended", status=410)
        return open_episode


def apply_episode(request: ChatRequest, episode: Episode, convention: Convention) -> ChatRequest:
    """Return the request as one of its episode, with the episode's session, agent and sampling.

    In the train split, sampling that would make the turn untrainable, or the episodes of a group alike, is replaced;
    `ignored_fields` lists what was.
    """
    sampling, ignored = _episode_sampling(request.sampling, episode, convention)
    return replace(
        request,
        session=episode.id,
        agent=episode.agent,
        user="",
        session_done=False,
        sampling=sampling,
        untrainable=HELD_OUT if episode.split == "held_out" else request.untrainable,
        ignored_fields=(*request.ignored_fields, *ignored, *_ignored_names(request, episode)),
    )


def _ignored_names(request: ChatRequest, episode: Episode) -> list[str]:
    asked = {"session": request.session not in (None, episode.id), "user": bool(request.user)}
    asked |= {
        "agent": request.agent not in ("", episode.agent),
        "session_done": request.session_done,
    }
    return [
        f"{name} (the key is for the episode {episode.id})"
        for name, is_ignored in asked.items()
        if is_ignored
    ]


def _episode_sampling(
    asked: Sampling, episode: Episode, convention: Convention
) -> tuple[Sampling, list[str]]:
    """Return the sampling of a reply, and a description of each value that is replaced."""
    changes: dict[str, Any] = dict(episode.sampling)
    if episode.split == "train":
        changes |= _training_changes(replace(asked, **changes), convention)
    ignored = []
    for name, value in changes.items():
        default = getattr(Sampling(), name)
        if getattr(asked, name) not in (value, default):
            ignored.append(f"{name} (the episode {episode.id} samples with {_format_value(value)})")
    return replace(asked, **changes), ignored


def _training_changes(sampling: Sampling, convention: Convention) -> dict[str, Any]:
    """Return the values of a sampling that must be others where turns are trained on."""
    changes: dict[str, Any] = {}
    is_scaled = convention == "raw" and sampling.temperature != 1
    if is_scaled or sampling.temperature < MIN_TEMPERATURE:
        changes["temperature"] = 1.0
    for name, value in _FREE.items():
        if getattr(sampling, name) != value:
            changes[name] = value
    if sampling.logit_bias:
        changes["logit_bias"] = {}
    return changes


def _format_value(value: object) -> str:
    return (
        f"{value:g}" if isinstance(value, float) and math.isfinite(value) else str(value or "none")
    )
