"""Tools that are HTTP requests to a service of the owner."""

from __future__ import annotations

import json
from collections.abc import Mapping
from string import Formatter
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp

from openclaw_rl.environments.sources.tools.tool_box import ToolBroken
from openclaw_rl.environments.sources.tools.tool_config import HttpTarget
from openclaw_rl.environments.sources.tools.tool_text import cut_middle

EPISODE_HEADER = "X-Episode-Id"


async def call_service(
    http: aiohttp.ClientSession,
    target: HttpTarget,
    arguments: Mapping[str, Any],
    *,
    episode: str,
    seconds: float,
    characters: int,
) -> tuple[str, bool]:
    """Return the body of the answer, and whether it is an error that the model is shown (status 4xx).

    Redirects are not followed, and arguments lead to no other path of the service. Raises `ToolBroken` if the service
    does not answer, or with any other status.
    """
    try:
        url, rest = _fill_url(target.url, arguments)
    except ValueError as error:
        return f"error: {error}", True
    body: dict[str, Any] = {"params": _as_query(rest)} if target.method == "GET" else {"json": rest}
    headers = {**target.headers, EPISODE_HEADER: episode}
    timeout = aiohttp.ClientTimeout(total=seconds)
    try:
        async with http.request(
            target.method, url, headers=headers, timeout=timeout, allow_redirects=False, **body
        ) as response:
            # Bytes of so many characters in UTF-8.
            limit = 4 * characters
            raw = await response.content.read(limit + 1) if limit else b""
            while len(raw) <= limit:
                block = await response.content.read(limit + 1 - len(raw))
                if not block:
                    break
                raw += block
            text = cut_middle(raw[:limit].decode("utf-8", "replace"), characters)
            if response.status < 300:
                return text, False
            if 400 <= response.status < 500:
                return f"error {response.status}: {text}", True
            raise ToolBroken(f"{url} answered with {response.status}: {text[:200]}")
    except (aiohttp.ClientError, TimeoutError) as error:
        raise ToolBroken(f"{url} did not answer: {type(error).__name__}: {error}") from None


def _fill_url(url: str, arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the address with its `{name}` replaced, and the other arguments. Raises `ValueError` for "..", too."""
    used = {name for _, name, _, _ in Formatter().parse(url) if name}
    for name in used:
        url = url.replace(f"{{{name}}}", quote(str(arguments.get(name, "")), safe=""))
    if {".", ".."} & set(urlsplit(url).path.split("/")):
        raise ValueError(f"{', '.join(sorted(used))}: expected a name, got . or ..")
    return url, {name: value for name, value in arguments.items() if name not in used}


def _as_query(arguments: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in arguments.items()
    }
