"""The sections of the page, in the order of its navigation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from aiohttp import web

from openclaw_rl.page import chat_stream
from openclaw_rl.page.acts import score
from openclaw_rl.page.acts import take_back as take_back_act
from openclaw_rl.page.view import PageAct, View
from openclaw_rl.page.views import chat, not_understood, now, take_back
from openclaw_rl.settings.load import Config
from openclaw_rl.store.db import Store

Stream = Callable[[Config, Store, web.Request], Awaitable[web.StreamResponse]]
"""Handler of a request whose answer grows, such as a reply in the chat."""


@dataclass(frozen=True, kw_only=True)
class PageSection:
    """One entry of the navigation, with its views and acts."""

    title: str
    path: str
    views: Sequence[View]
    acts: Sequence[PageAct] = ()
    streams: Mapping[str, Stream] = field(default_factory=dict)


SECTIONS: Sequence[PageSection] = (
    PageSection(title="Now", path="/ui/now", views=now.VIEWS),
    PageSection(
        title="Not understood",
        path="/ui/not-understood",
        views=not_understood.VIEWS,
        acts=score.ACTS,
    ),
    PageSection(
        title="Take it back",
        path="/ui/take-back",
        views=take_back.VIEWS,
        acts=(take_back_act.ACT,),
    ),
    PageSection(
        title="Chat",
        path="/ui/chat",
        views=chat.VIEWS,
        streams={chat_stream.PATH: chat_stream.stream_reply},
    ),
)
