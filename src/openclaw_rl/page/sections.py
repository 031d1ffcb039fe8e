"""The sections of the page, in the order of its navigation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from aiohttp import web

from openclaw_rl.page.acts import learned as learned_acts
from openclaw_rl.page.acts import versions as version_acts
from openclaw_rl.page.view import PageAct, View
from openclaw_rl.page.views import learned, now, versions
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
        title="What it learned",
        path="/ui/learned",
        views=learned.VIEWS,
        acts=learned_acts.ACTS,
    ),
    PageSection(
        title="Versions", path="/ui/versions", views=versions.VIEWS, acts=version_acts.ACTS
    ),
)
