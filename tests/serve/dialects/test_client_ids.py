"""The ids that front ends send tell conversations and people of one key apart, in every API."""

from __future__ import annotations

from typing import Any

import pytest
from tests.serve.conftest import KEY, USER, Site

IDS = {"X-OpenWebUI-Chat-Id": "chat-1", "X-OpenWebUI-User-Id": "ann"}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [USER]},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": [USER], "max_tokens": 32},
    "/v1/completions": {"prompt": "hi"},
}


def names_of(site: Site, path: str, headers: dict[str, str], **body: Any) -> tuple[str | None, str]:
    """Return session and user of a request."""
    sent = {"Authorization": f"Bearer {KEY}", **headers}
    answer = site.http.post(path, {"model": "openclaw", **BODIES[path], **body}, sent)
    assert answer.status_code == 200, answer.text
    request = site.last().request
    return request.session, request.user


@pytest.mark.parametrize("path", BODIES)
def test_headers_of_a_front_end_name_session_and_user(site: Site, path: str) -> None:
    assert names_of(site, path, IDS) == ("chat-1", "ann")
    assert names_of(site, path, {}) == (None, "")
    assert names_of(site, path, IDS | {"X-Session-Id": "mine"}) == ("mine", "ann")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_metadata_of_the_body_names_session_and_user(site: Site, path: str) -> None:
    metadata = {"langfuse_session_id": "s1", "langfuse_user_id": "bo", "langfuse_trace_id": "t1"}
    assert names_of(site, path, {}, metadata=metadata) == ("s1", "bo")
    assert names_of(site, path, IDS, metadata=metadata) == ("chat-1", "ann")
    assert names_of(site, path, IDS, user="cleo", session_id="s2") == ("s2", "cleo")


def test_a_long_id_is_refused_by_name(site: Site) -> None:
    sent = {"Authorization": f"Bearer {KEY}", "X-OpenWebUI-Chat-Id": "x" * 600}
    answer = site.http.post("/v1/chat/completions", {"messages": [USER]}, sent)
    assert answer.status_code == 400
    assert "X-OpenWebUI-Chat-Id: expected at most 512 characters, got 600." in answer.text
