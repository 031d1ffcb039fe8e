"""Feedback finds its reply by what the client knows, through the real gateway."""

from __future__ import annotations

from typing import Any

from tests.serve.conftest import KEY, OTHER_KEY, Answer, Site

from openclaw_rl.collect.worker import Collector

TEXT = "The **first** step: open `settings.yaml` & set [the key](https://example.com/key)."


def ask(site: Site, said: str, prompt: str = "hi", **headers: str) -> str:
    """Return the id of a reply."""
    site.script.say(said)
    body = {"messages": [{"role": "user", "content": prompt}]}
    given = {"Authorization": f"Bearer {KEY}"} | headers
    if "user" in headers:
        body["user"] = given.pop("user")
    return str(site.http.post("/v1/chat/completions", body, given).json()["id"])


def thumb(site: Site, key: str = KEY, score: Any = 1, **match: str) -> Answer:
    body = {"match": match, "score": score}
    return site.http.post("/v1/feedback", body, {"Authorization": f"Bearer {key}"})


def target(answer: Answer) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.json()["target"])


def candidates(answer: Answer) -> tuple[list[str], list[str]]:
    assert answer.status_code == 409, answer.text
    error = answer.json()["error"]
    assert error["code"] == "ambiguous_reply"
    for reply in error["candidates"]:
        assert reply["id"] in error["message"]
    return [reply["id"] for reply in error["candidates"]], error["distinguished_by"]


def test_the_text_that_was_shown(site: Site) -> None:
    first = ask(site, TEXT)
    ask(site, "Something else entirely.")
    assert target(thumb(site, text=TEXT)) == first
    assert target(thumb(site, text=f"  {TEXT}\r\n")) == first


def test_the_text_after_a_program_rendered_it(site: Site) -> None:
    first = ask(site, TEXT)
    ask(site, "Something else entirely.")
    slack = "The *first* step: open `settings.yaml` &amp; set <https://example.com/key|the key>."
    assert target(thumb(site, text=slack)) == first
    assert target(thumb(site, text="The first step: open settings.yaml & set the key.")) == first


def test_the_text_beside_other_text_and_the_start_of_it(site: Site) -> None:
    first = ask(site, TEXT)
    shown = f"<details>Looked up the weather.</details>\n{TEXT}"
    assert target(thumb(site, text=shown)) == first
    assert target(thumb(site, text=TEXT[:50])) == first
    assert thumb(site, text="The first step").status_code == 404, "too short to be sure of"


def test_equal_texts_are_ambiguous_until_something_distinguishes_them(site: Site) -> None:
    first = ask(site, "Done.", **{"X-Session-Id": "a", "user": "ann"})
    second = ask(site, "Done.", **{"X-Session-Id": "b", "user": "ann"})
    found, fields = candidates(thumb(site, text="Done."))
    assert (found, fields) == ([second, first], ["session"])
    assert target(thumb(site, text="Done.", session="a")) == first
    assert target(thumb(site, text="Done.", session="b", user="ann")) == second
    third = ask(site, "Done.", **{"X-Session-Id": "b", "user": "ann"})
    found, fields = candidates(thumb(site, text="Done.", session="b"))
    assert (found, fields) == ([third, second], ["target"])
    with site.store.read() as conn:
        assert conn.exec_driver_sql("SELECT count(*) FROM feedback").scalar_one() == 2


def test_a_session_or_a_user_alone_means_the_newest_reply(site: Site) -> None:
    ask(site, "One.", **{"X-Session-Id": "a", "user": "ann"})
    second = ask(site, "Two.", **{"X-Session-Id": "a", "user": "ann"})
    other = ask(site, "Three.", **{"X-Session-Id": "b", "user": "bob"})
    assert target(thumb(site, session="a")) == second
    assert target(thumb(site, user="bob")) == other
    assert target(thumb(site, user="ann")) == second


def test_side_traffic_counts_after_main_traffic(site: Site) -> None:
    main = ask(site, "The answer.", **{"X-Session-Id": "a"})
    ask(site, "A title.", **{"X-Session-Id": "a", "X-Turn-Type": "side"})
    collector = Collector(site.store, site.config.collect)
    while collector.step():
        pass
    assert target(thumb(site, session="a")) == main


def test_the_message_id_of_the_client(site: Site) -> None:
    first = ask(site, "One moment.", **{"X-OpenWebUI-Message-Id": "m1", "X-Session-Id": "a"})
    step = ask(site, "It rains.", **{"X-OpenWebUI-Message-Id": "m1", "X-Session-Id": "a"})
    second = ask(site, "It rains.", **{"X-Client-Message-Id": "m2", "X-Session-Id": "a"})
    assert target(thumb(site, client_message_id="m1")) == step, "the last step of a message"
    assert target(thumb(site, client_message_id="m1", text="One moment.")) == first
    assert target(thumb(site, client_message_id="m2")) == second
    found, fields = candidates(thumb(site, text="It rains."))
    assert (found, fields) == ([second, step], ["client_message_id"])
    ask(site, "Elsewhere.", **{"X-Client-Message-Id": "m2", "X-Session-Id": "b"})
    assert candidates(thumb(site, client_message_id="m2"))[1] == ["session"]
    assert target(thumb(site, client_message_id="m2", session="a")) == second


def test_what_fits_nothing_is_named(site: Site) -> None:
    ask(site, "One.", **{"X-Session-Id": "a"})
    answer = thumb(site, text="Never said.", session="a")
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == ("match", "not_found")
    assert "text 'Never said.', session 'a'" in error["message"]
    assert "1 replies fit everything but the text" in error["message"]
    assert thumb(site, key=OTHER_KEY, text="One.").status_code == 404, "of another key"
    running = thumb(site, client_message_id="none")
    assert "client_message_id 'none'" in running.json()["error"]["message"]


def test_a_match_that_is_wrong(site: Site) -> None:
    reply = ask(site, "One.")
    for body, param in (
        ({"match": {}, "score": 1}, "match"),
        ({"match": {"text": " "}, "score": 1}, "match.text"),
        ({"match": {"seesion": "a"}, "score": 1}, "match"),
        ({"match": {"session": "a" * 600}, "score": 1}, "match.session"),
        ({"match": {"text": "One."}, "id": reply, "score": 1}, "match"),
        ({"id": reply, "target": reply, "score": 1}, "target"),
        ({"score": 1}, "id"),
    ):
        answer = site.http.post("/v1/feedback", body)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == param, answer.text


def test_redacted_replies_are_found_by_their_hashes(start: Any) -> None:
    site = start(settings={"serve.capture": "redacted"})
    reply = ask(
        site,
        "Nothing of this is kept.",
        **{"X-Session-Id": "a", "X-Client-Message-Id": "m"},
    )
    assert target(thumb(site, text="Nothing of this is kept.")) == reply
    assert target(thumb(site, client_message_id="m", session="a")) == reply
    with site.store.read() as conn:
        stored = conn.exec_driver_sql("SELECT session, client_message_id FROM exchanges").one()
    assert not {"a", "m"} & set(stored)
