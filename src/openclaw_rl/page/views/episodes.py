"""Views of agents at work: groups of episodes, and one episode turn by turn."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from openclaw_rl.common.message_hash import message_text
from openclaw_rl.errors import OpenClawError
from openclaw_rl.page.view import NotFound, View, ViewRequest
from openclaw_rl.settings.load import Config
from openclaw_rl.status.inspect import reply_text
from openclaw_rl.status.inspect_episodes import credit_method, episode_data, group_data
from openclaw_rl.store.episodes.group_list import newest_groups, newest_tasks

PAGE_SIZE = 30
# Groups whose tasks the filter offers.
_TASKS_OF = 500
_MAX_TEXT = 4000
FILMS_FOLDER = "film"
_FILM_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")


def collect_groups(request: ViewRequest) -> Mapping[str, Any]:
    """Return the newest groups with their rewards."""
    task = request.text("task")
    agent = request.text("agent")
    groups = newest_groups(
        request.conn, PAGE_SIZE + 1, before=request.integer("before"), task=task, agent=agent
    )
    shown = groups[:PAGE_SIZE]
    return {
        "groups": shown,
        "older": shown[-1].position if len(groups) > PAGE_SIZE else None,
        "tasks": newest_tasks(request.conn, _TASKS_OF),
        "task": task,
        "agent": agent,
        "is_first_page": not request.text("before"),
    }


def collect_group(request: ViewRequest) -> Mapping[str, Any]:
    """Return the episodes of a task beside each other. Raises `NotFound`."""
    method = credit_method(request.config)
    try:
        data = group_data(request.conn, request.text("id"), method)
    except OpenClawError as error:
        raise NotFound(f"There is no group {request.text('id')[:80]!r} (any more).") from error
    return {"group": data}


def collect_episode(request: ViewRequest) -> Mapping[str, Any]:
    """Return one episode, turn by turn. Raises `NotFound`."""
    id_ = request.text("id")
    try:
        data = episode_data(request.conn, id_, credit_method(request.config))
    except OpenClawError as error:
        raise NotFound(f"There is no episode {id_[:80]!r} (any more).") from error
    return {
        "episode": data,
        "turns": [_turn_texts(turn) for turn in data["turns"]],
        "has_film": find_film(request.config, id_) is not None,
    }


def _turn_texts(turn: Mapping[str, Any]) -> dict[str, Any]:
    """Return a turn with its reply and what the environment showed next, as texts."""
    reply = turn["reply"]
    reaction = turn["reaction"]
    messages = reaction["messages"] if reaction else ()
    return {
        **turn,
        "asked": (turn["user"] or "")[:_MAX_TEXT],
        "text": "" if reply is None else reply_text(reply["message"], _MAX_TEXT),
        "observation": "\n".join(map(message_text, messages))[:_MAX_TEXT],
        "left_out": turn["drop_reason"] or turn["untrainable"],
    }


def find_film(config: Config, episode: str) -> Path | None:
    """Return the filmstrip that the runner wrote for an episode of web tasks; None without one."""
    if not _FILM_NAME.fullmatch(episode):
        return None
    path = config.home_dir / FILMS_FOLDER / f"{episode}.png"
    return path if path.is_file() else None


VIEWS: Sequence[View] = (
    View(path="/ui/episodes", template="episodes.html", collect=collect_groups),
    View(path="/ui/episodes/group", template="episode_group.html", collect=collect_group),
    View(path="/ui/episodes/episode", template="episode.html", collect=collect_episode),
)
