"""Whoever asks with another key, another user or a ticket gets nothing of a person's: a table with every route."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.serve.conftest import KEY, OTHER_KEY, SCOPE, USER, Answer, Site, Start, wait_for

from openclaw_rl.common.gateway_address import home_key
from openclaw_rl.store.lineage.policy_names import policy_name

SECRET_WORDS = "the tin of tea is behind the clock"
OWNER = {"Authorization": f"Bearer {KEY}"}


@dataclass(frozen=True, kw_only=True)
class Belongings:
    """What one person has: a private version, a reply and its conversation, feedback, and an episode in a group."""

    version: int
    reply: str
    response: str
    feedback: str
    episode: str
    group: str


@dataclass(frozen=True, kw_only=True)
class Request:
    method: str
    path: str
    body: Any = None


Ask = Callable[[Belongings], Request]
REFUSED = frozenset({403, 404})


def post_to(path: str, **body: Any) -> Ask:
    return lambda _: Request(method="POST", path=path, body=body)


def named(path: str, **body: Any) -> Ask:
    """A request for a reply of the private version."""
    return lambda own: Request(
        method="POST", path=path, body={"model": f"openclaw@{own.version}"} | body
    )


ROUTES: Mapping[str, Ask | None] = {
    "POST /v1/chat/completions": named("/v1/chat/completions", messages=[USER]),
    "POST /v1/completions": named("/v1/completions", prompt="hi"),
    "POST /v1/messages": named("/v1/messages", messages=[USER], max_tokens=8),
    "POST /v1/responses": named("/v1/responses", input="hi"),
    "POST /v1/messages/count_tokens": named("/v1/messages/count_tokens", messages=[USER]),
    "POST /v1/responses/input_tokens": named("/v1/responses/input_tokens", input="hi"),
    "POST /v1/responses/compact": None,
    "GET /v1/responses/{id}": lambda own: Request(
        method="GET", path=f"/v1/responses/{own.response}"
    ),
    "DELETE /v1/responses/{id}": None,
    "GET /v1/responses/{id}/input_items": lambda own: Request(
        method="GET", path=f"/v1/responses/{own.response}/input_items"
    ),
    "POST /internal/gate/replies": None,
    "POST /v1/feedback": lambda own: Request(
        method="POST", path="/v1/feedback", body={"id": own.reply, "score": -1}
    ),
    "GET /v1/feedback": lambda own: Request(method="GET", path=f"/v1/feedback?target={own.reply}"),
    "GET /v1/feedback/{id}": lambda own: Request(method="GET", path=f"/v1/feedback/{own.feedback}"),
    "DELETE /v1/feedback/{id}": lambda own: Request(
        method="DELETE", path=f"/v1/feedback/{own.feedback}"
    ),
    # Opens an episode of whoever asks; another one's id is refused below.
    "PUT /v1/episodes/{id}": None,
    "GET /v1/episodes/{id}": lambda own: Request(method="GET", path=f"/v1/episodes/{own.episode}"),
    "POST /v1/episodes/{id}/outcome": lambda own: Request(
        method="POST",
        path=f"/v1/episodes/{own.episode}/outcome",
        body={"status": "done", "reward": 1},
    ),
    "GET /v1/episodes": lambda own: Request(method="GET", path=f"/v1/episodes?group={own.group}"),
    "GET /v1/models/{name}": lambda own: Request(
        method="GET", path=f"/v1/models/openclaw@{own.version}"
    ),
    # Their answers name nobody's things, as is tested below.
    "GET /v1/models": None,
    "GET /health": None,
    "GET /healthz": None,
    "GET /readyz": None,
    "GET /metrics": None,
    # The page has keys of its own (`tests/page/test_page_access.py`).
    "GET /": None,
    "GET /ui": None,
    "POST /ui": None,
    "GET /ui/{tail}": None,
    "POST /ui/{tail}": None,
}
"""Route -> a request for what another person has; None for a route that has a test of its own below."""
LISTING_ALLOWED = frozenset({"GET /v1/feedback"})
"""Routes that answer 200 with an empty list."""


def route_names(site: Site) -> set[str]:
    return {
        f"{route.method} {route.resource.canonical}"
        for route in site.app.router.routes()
        if route.method != "HEAD" and route.resource is not None
    }


def test_every_route_is_in_the_table(site: Site) -> None:
    assert route_names(site) == set(ROUTES)


def ask(site: Site, request: Request, headers: Mapping[str, str]) -> Answer:
    content = b"" if request.body is None else json.dumps(request.body).encode()
    return site.http.send(request.method, request.path, content, headers)


@pytest.fixture
def per_user(start: Start) -> Site:
    return start(settings={"policy.per": "user"})


@pytest.fixture
def belongings(per_user: Site, tmp_path: Path) -> Belongings:
    site = per_user
    name = policy_name("user", agent="", user="ann", key=SCOPE)
    policy = site.publish(tmp_path / "p", name=name)
    chat = site.http.post(
        "/v1/chat/completions",
        {
            "model": "openclaw",
            "user": "ann",
            "messages": [{"role": "user", "content": SECRET_WORDS}],
        },
    )
    response = site.http.post(
        "/v1/responses", {"model": "openclaw", "user": "ann", "input": SECRET_WORDS}
    )
    reply = chat.json()["id"]
    feedback = site.http.post("/v1/feedback", {"id": reply, "score": 1, "comment": SECRET_WORDS})
    site.http.send(
        "PUT",
        "/v1/episodes/mine",
        json.dumps({"task": SECRET_WORDS, "group": {"id": "group-mine", "size": 1}}).encode(),
    )
    own = Belongings(
        version=policy.version,
        reply=reply,
        response=response.json()["id"],
        feedback=feedback.json()["id"],
        episode="mine",
        group="group-mine",
    )
    pinned = named("/v1/chat/completions", messages=[USER], user="ann")(own)
    assert ask(site, pinned, OWNER).json()["system_fingerprint"] == f"v{policy.version}"
    return own


def ticket_headers(site: Site, id: str, key: str = OTHER_KEY, **more: Any) -> dict[str, str]:
    body = {"task": "t", "group": {"id": f"g-{id}", "size": 1}} | more
    headers = {"Authorization": f"Bearer {key}"}
    opened = site.http.send("PUT", f"/v1/episodes/{id}", json.dumps(body).encode(), headers)
    assert opened.status_code == 200, opened.text
    return {"Authorization": f"Bearer {opened.json()['api_key']}"}


@pytest.mark.parametrize("who", ["another key", "a ticket", "a ticket of the owner"])
def test_other_callers_are_refused(per_user: Site, belongings: Belongings, who: str) -> None:
    headers = {"Authorization": f"Bearer {OTHER_KEY}"}
    if who != "another key":
        headers = ticket_headers(per_user, "t", OTHER_KEY if who == "a ticket" else KEY)
    # As if they were that person: a name that a client sends proves nothing.
    headers |= {"X-OpenWebUI-User-Id": "ann"}
    for route, make_request in ROUTES.items():
        if make_request is None:
            continue
        answer = ask(per_user, make_request(belongings), headers)
        assert SECRET_WORDS not in answer.text, route
        if route in LISTING_ALLOWED and answer.status_code == 200:
            assert answer.json()["data"] == [], route
        else:
            assert answer.status_code in REFUSED, (route, answer.status_code, answer.text)


def test_without_a_key_nothing_is_answered(per_user: Site, belongings: Belongings) -> None:
    for route, make_request in ROUTES.items():
        if make_request is not None:
            assert ask(per_user, make_request(belongings), {}).status_code == 401, route


def test_another_user_of_the_same_key_gets_no_private_version(
    per_user: Site, belongings: Belongings
) -> None:
    pinned = named("/v1/chat/completions", messages=[USER])(belongings)
    for user in ("bob", ""):
        request = Request(method="POST", path=pinned.path, body=pinned.body | {"user": user})
        answer = ask(per_user, request, OWNER)
        assert answer.status_code == 404, user
        unknown = Request(
            method="POST", path=pinned.path, body=pinned.body | {"model": "openclaw@99"}
        )
        expected = ask(per_user, unknown, OWNER).json()["error"]["message"]
        assert answer.json()["error"]["message"] == expected.replace("99", str(belongings.version))


def listed(site: Site, headers: Mapping[str, str]) -> list[str]:
    return [entry["id"] for entry in site.http.get("/v1/models", headers).json()["data"]]


def test_models_are_listed_for_their_owner(per_user: Site, belongings: Belongings) -> None:
    private = f"openclaw@{belongings.version}"
    ann = {"X-OpenWebUI-User-Id": "ann"}
    other = {"Authorization": f"Bearer {OTHER_KEY}"}
    assert listed(per_user, OWNER | ann) == ["openclaw", private, "openclaw@0"]
    for headers in (OWNER, OWNER | {"X-OpenWebUI-User-Id": "bob"}, other, other | ann):
        assert listed(per_user, headers) == ["openclaw", "openclaw@0"]
    secret = per_user.store.secret
    home = {"Authorization": f"Bearer {home_key(secret)}"}
    assert listed(per_user, home) == ["openclaw", private, "openclaw@0"]


def test_a_ticket_gets_the_head_and_what_the_owner_allowed(
    per_user: Site, belongings: Belongings
) -> None:
    site = per_user
    allowed = ticket_headers(site, "allowed", KEY, versions=[belongings.version])
    assert listed(site, allowed) == ["openclaw", f"openclaw@{belongings.version}"]
    pinned = named("/v1/chat/completions", messages=[USER])(belongings)
    answer = ask(site, pinned, allowed)
    assert answer.json()["system_fingerprint"] == f"v{belongings.version}"
    plain = ticket_headers(site, "plain", KEY)
    assert listed(site, plain) == ["openclaw"]
    head = Request(method="POST", path=pinned.path, body={"messages": [USER]})
    assert ask(site, head, plain).status_code == 200
    base = Request(method="POST", path=pinned.path, body=pinned.body | {"model": "openclaw@0"})
    assert ask(site, base, plain).status_code == 404
    body = {"task": "t", "group": {"id": "g-x", "size": 1}, "versions": [belongings.version]}
    other = {"Authorization": f"Bearer {OTHER_KEY}"}
    refused = site.http.send("PUT", "/v1/episodes/x", json.dumps(body).encode(), other)
    assert refused.status_code == 404


def test_routes_without_an_owner_name_nobody(per_user: Site, belongings: Belongings) -> None:
    other = {"Authorization": f"Bearer {OTHER_KEY}"}
    for route in ("/health", "/healthz", "/readyz", "/metrics"):
        text = per_user.http.get(route, other).text
        for value in (belongings.reply, belongings.episode, "ann", SECRET_WORDS):
            assert f'"{value}"' not in text, route
    refused = per_user.http.send(
        "PUT",
        f"/v1/episodes/{belongings.episode}",
        json.dumps({"task": "t", "group": {"id": "g-y", "size": 1}}).encode(),
        other,
    )
    assert refused.status_code == 409
    assert SECRET_WORDS not in refused.text
    joined = per_user.http.send(
        "PUT",
        "/v1/episodes/y",
        json.dumps({"task": "t", "group": {"id": belongings.group, "size": 1}}).encode(),
        other,
    )
    assert joined.status_code == 409
    assert SECRET_WORDS not in joined.text
    gate = per_user.http.post("/internal/gate/replies", {"version": belongings.version}, other)
    assert gate.status_code == 401
    for method, path in (("POST", "/v1/responses/compact"), ("DELETE", "/v1/responses/{id}")):
        answer = per_user.http.send(method, path.replace("{id}", belongings.response), b"{}", other)
        assert SECRET_WORDS not in answer.text


def test_a_conversation_of_another_key_cannot_be_continued(
    per_user: Site, belongings: Belongings
) -> None:
    body = {"model": "openclaw", "input": "and?", "previous_response_id": belongings.response}
    other = {"Authorization": f"Bearer {OTHER_KEY}"}
    answer = per_user.http.post("/v1/responses", body, other)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "previous_response_not_found"


def test_an_agent_of_another_key_has_a_policy_of_its_own(start: Start, tmp_path: Path) -> None:
    site = start(settings={"policy.per": "agent"})
    site.publish(tmp_path / "p", name=policy_name("agent", agent="coder", user="", key=SCOPE))

    def version_for(key: str) -> str:
        headers = {"Authorization": f"Bearer {key}", "X-Agent-Id": "coder"}
        body = {"model": "openclaw", "messages": [USER]}
        return str(
            site.http.post("/v1/chat/completions", body, headers).json()["system_fingerprint"]
        )

    wait_for(lambda: version_for(KEY), lambda version: version == "v1")
    assert version_for(OTHER_KEY) == "v0"
