"""The sections of the page, in the order of its navigation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from openclaw_rl.page import chat_stream
from openclaw_rl.page.acts import learned as learned_acts
from openclaw_rl.page.acts import score
from openclaw_rl.page.acts import take_back as take_back_act
from openclaw_rl.page.acts import versions as version_acts
from openclaw_rl.page.view import PageAct, View
from openclaw_rl.page.views import (
    chat,
    conversations,
    episodes,
    learned,
    not_understood,
    now,
    take_back,
    troubles,
    versions,
)
from openclaw_rl.settings.load import Config
from openclaw_rl.store.db import Store

Stream = Callable[[Config, Store, web.Request], Awaitable[web.StreamResponse]]
"""Handler of a request whose answer grows, such as a reply in the chat."""

FindPicture = Callable[[Config, str], Path | None]
"""Returns the PNG file of a thing by its id; None without one."""


@dataclass(frozen=True, kw_only=True)
class PageSection:
    """One entry of the navigation, with its views and acts."""

    title: str
    path: str
    views: Sequence[View]
    acts: Sequence[PageAct] = ()
    streams: Mapping[str, Stream] = field(default_factory=dict)
    pictures: Mapping[str, FindPicture] = field(default_factory=dict)


SECTIONS: Sequence[PageSection] = (
    PageSection(
        title="Now",
        path="/ui/now",
        views=now.VIEWS,
    ),
    PageSection(
        title="Conversations",
        path="/ui/conversations",
        views=conversations.VIEWS,
    ),
    PageSection(
        title="What it learned",
        path="/ui/learned",
        views=learned.VIEWS,
        acts=learned_acts.ACTS,
    ),
    PageSection(
        title="Not understood",
        path="/ui/not-understood",
        views=not_understood.VIEWS,
        acts=score.ACTS,
    ),
    PageSection(
        title="Versions",
        path="/ui/versions",
        views=versions.VIEWS,
        acts=version_acts.ACTS,
    ),
    PageSection(
        title="Take it back",
        path="/ui/take-back",
        views=take_back.VIEWS,
        acts=(take_back_act.ACT,),
    ),
    PageSection(
        title="Agents at work",
        path="/ui/episodes",
        views=episodes.VIEWS,
        pictures={"/ui/episodes/film": episodes.find_film},
    ),
    PageSection(
        title="Chat",
        path="/ui/chat",
        views=chat.VIEWS,
        streams={chat_stream.PATH: chat_stream.stream_reply},
    ),
    PageSection(
        title="Troubles",
        path="/ui/troubles",
        views=troubles.VIEWS,
    ),
)
