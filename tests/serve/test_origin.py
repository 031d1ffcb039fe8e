"""OpenClaw names session and agent in its first message: they are stored, and the prompt stays what was sent."""

from __future__ import annotations

from typing import Any

from tests.serve.conftest import KEY, Site

RUN = "Runtime: agent=ops | session=agent:ops:main | sessionId=7f3a | host=vm | model=openclaw-rl/openclaw"
BEARER = {"Authorization": f"Bearer {KEY}"}


def ask(site: Site, *words: str, **headers: str) -> Any:
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(words)]
    answer = site.http.post("/v1/chat/completions", {"messages": messages}, BEARER | headers)
    assert answer.status_code == 200, answer.text
    return site.get(answer.json()["id"]).request


def test_session_and_agent_are_those_of_the_first_message(site: Site) -> None:
    request = ask(site, f"hi\n\n{RUN}")
    assert (request.session, request.agent) == ("7f3a", "ops")
    assert request.messages[0]["content"] == f"hi\n\n{RUN}"
    later = ask(site, "hi", "Hello there.", f"and this?\n\n{RUN}")
    assert (later.session, later.agent) == (None, "")


def test_a_header_outranks_it(site: Site) -> None:
    request = ask(site, f"hi\n\n{RUN}", **{"X-Session-Id": "mine", "X-Agent-Id": "me"})
    assert (request.session, request.agent) == ("mine", "me")


def test_a_changed_line_is_matched_and_rendered_again(site: Site) -> None:
    changed = f"hi\n\n{RUN} | channel=webchat"
    first = ask(site, f"hi\n\n{RUN}")
    second = ask(site, changed, "Hello there.", "go on")
    assert second.marks[0].own == first.marks[0].own
    plain = site.renderer.render(second.messages).prompt_ids
    assert second.prompt_ids.tolist() == plain.tolist()
