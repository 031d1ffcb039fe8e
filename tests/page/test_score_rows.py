"""A score of the page leaves the rows of the same score over the API, also if two browsers score at once."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.page.conftest import Browser, OpenPage
from tests.serve.conftest import Site, Start

from openclaw_rl.store.acts import ActKind, new_act_id, newest_acts

SCORE = "/ui/acts/score"


def served_reply(site: Site) -> str:
    messages: list[Any] = [{"role": "user", "content": "Where is the Louvre?"}]
    return site.client().chat.completions.create(model="openclaw", messages=messages).id


def rows_of(site: Site, turn: str) -> dict[str, list[Any]]:
    """Rows of the feedback on a reply, and its events, without ids, times, and the digest of a body."""
    with site.store.read() as conn:
        feedback = conn.exec_driver_sql(
            "SELECT scope, score, comment, correction, revision, given_by, retracted_at FROM feedback "
            "WHERE target = ? ORDER BY seq",
            (turn,),
        )
        logged = conn.exec_driver_sql(
            "SELECT kind, data FROM events WHERE ref IN (SELECT id FROM feedback WHERE target = ?)",
            (turn,),
        )
        return {
            "feedback": [tuple(row) for row in feedback],
            "events": [(kind, sorted(json.loads(data))) for kind, data in logged],
        }


@pytest.mark.parametrize(
    ("form", "body"),
    [
        ({"score": "good"}, {"score": 1}),
        ({"score": "neither"}, {"score": 0}),
        ({"score": "good", "text": "well said"}, {"score": 1, "comment": "well said"}),
        ({"score": "bad", "text": "In Paris."}, {"score": -1, "correction": "In Paris."}),
        ({"score": "meant", "text": "too short"}, {"comment": "too short"}),
    ],
)
def test_a_click_leaves_the_rows_of_the_api(
    browser: Browser, form: dict[str, str], body: dict[str, Any]
) -> None:
    site = browser.site
    by_api = served_reply(site)
    by_click = served_reply(site)
    given = site.http.post("/v1/feedback", {"id": by_api, "by": "page", **body})
    assert given.status_code == 200, given.text
    clicked = browser.post(SCORE, {"act_id": new_act_id(), "turn": by_click, **form})
    assert "<h2>Done</h2>" in clicked.text
    assert rows_of(site, by_click) == rows_of(site, by_api)
    assert [len(rows) for rows in rows_of(site, by_click).values()] == [1, 1]


def test_two_browsers_that_send_one_form_at_once_score_once(
    start: Start, open_page: OpenPage
) -> None:
    first = open_page(start())
    second = open_page(first.site)
    assert first.cookie != second.cookie
    turn = served_reply(first.site)
    form = {"act_id": new_act_id(), "turn": turn, "score": "good"}
    with ThreadPoolExecutor(2) as executor:
        answers = list(executor.map(lambda each: each.post(SCORE, form).text, (first, second)))
    assert sorted("This was done already" in text for text in answers) == [False, True]
    assert len(rows_of(first.site, turn)["feedback"]) == 1
    with first.site.store.read() as conn:
        assert len(list(newest_acts(conn, 10, ActKind.SCORE))) == 1
