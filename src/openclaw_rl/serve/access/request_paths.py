"""Read the path of a request: base URLs without `/v1`, with `/v1` twice or a double slash, and Azure's paths.

Clients append their route to the base URL of their settings, which is easily off by a `/v1`. Such a path means the same
as the one that was intended, so it is served as this one. The page and the internal paths are read as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote

from aiohttp.http_parser import RawRequestMessage

API_ROOT = "/v1"
_ROUTES = frozenset(
    {
        "audio",
        "chat",
        "completions",
        "embeddings",
        "episodes",
        "feedback",
        "images",
        "messages",
        "models",
        "moderations",
        "responses",
    }
)
"""First segments of the API's paths below `/v1`."""
_UNVERSIONED_ROUTES = frozenset({"health", "healthz", "metrics", "readyz"})
_PREFIXES = frozenset({"anthropic", "openai", "v1"})
"""Segments before a route that mean the API's root: Azure has `/openai` and `/anthropic`."""
_DEPLOYMENTS = "deployments"
_CANONICAL_PATHS = frozenset(
    f"{API_ROOT}/{route}" for route in ("chat/completions", "completions", "messages", "responses")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPath:
    """The path of a route."""

    path: str
    """As the router knows it, percent-encoded."""
    deployment: str = ""
    """The model that one of Azure's paths names."""


def read_path(raw: str) -> RequestPath:
    """Return the route that a percent-encoded path means; the path as it is if it means no other."""
    unchanged = RequestPath(path=raw)
    if raw in _CANONICAL_PATHS:
        return unchanged
    given = [segment for segment in raw.split("/") if segment]
    deployment, segments = _split_prefixes(given)
    if segments and segments[0] in _ROUTES:
        return RequestPath(path="/".join([API_ROOT, *segments]), deployment=deployment)
    if len(given) == 1 and given[0] in _UNVERSIONED_ROUTES:
        return RequestPath(path=f"/{given[0]}")
    return unchanged


def _split_prefixes(segments: list[str]) -> tuple[str, list[str]]:
    """Return the deployment that is named before the route, and the route."""
    deployment = ""
    while segments and (segments[0] in _PREFIXES or _names_deployment(segments, deployment)):
        if segments[0] == _DEPLOYMENTS:
            deployment, segments = _take_deployment(segments)
        else:
            segments = segments[1:]
    return deployment, segments


def _names_deployment(segments: list[str], deployment: str) -> bool:
    return segments[0] == _DEPLOYMENTS and len(segments) > 2 and not deployment


def _take_deployment(segments: list[str]) -> tuple[str, list[str]]:
    """Return the deployment's name, and the segments behind it. OpenAI's SDK does not encode a slash in the name."""
    for index in range(2, len(segments)):
        if segments[index] in _ROUTES:
            return unquote("/".join(segments[1:index])), segments[index:]
    return "", []


def read_message(message: RawRequestMessage) -> tuple[RawRequestMessage, str]:
    """Return a request's head with the path of its route, and the deployment that its path names, if any."""
    target = read_path(message.url.raw_path)
    if target.path == message.url.raw_path:
        return message, ""
    url = message.url.with_path(target.path, encoded=True, keep_query=True)
    return message._replace(url=url, path=str(url)), target.deployment


def means_api(path: str) -> bool:
    """Return whether an unknown path was meant for the API, so that a wrong base URL explains it."""
    segments = path.strip("/").split("/")
    return not _ROUTES.isdisjoint(segments) or "v1" in segments
