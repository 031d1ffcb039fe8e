"""The acts of the owner: their list, and the state of one whose answer was lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.page.conftest import Browser
from tests.page.views import collect, open_store, show
from tests.store.world import judged

from openclaw_rl.owner_acts.origin import ActOrigin
from openclaw_rl.page.views.act_list import ACTS_A_PAGE
from openclaw_rl.store.acts import ActActor, ActKind, newest_acts
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import lessons
from openclaw_rl.store.lessons.lessons import Lesson
from openclaw_rl.store.lineage import policies

ACTS = "/ui/versions/acts"
HX = {"HX-Request": "true"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(tmp_path)
    with opened.write() as conn:
        policies.ensure_root(conn, base="b", identity="i", at=1.0)
        judged(conn, "turn-1")
        lesson = Lesson(id="aa", text="Be <brief>.", made_at=1.0, reinforced_at=1.0)
        lessons.add_lesson(conn, lesson)
    yield opened
    opened.close()


def record(store: Store, kind: ActKind, target: str, outcome: str = "done", id: str = "") -> None:
    with store.write() as conn:
        ActOrigin(id=id or None).record(conn, kind, target, outcome)


def test_each_act_names_its_target_and_links_what_exists(store: Store) -> None:
    record(store, ActKind.EDIT_LESSON, "aa")
    record(store, ActKind.FORGET_LESSON, "bb", "the lesson is <forgotten>")
    record(store, ActKind.ROLL_BACK, "1")
    record(store, ActKind.FREEZE, "training")
    record(store, ActKind.UNDO, "turn-1, turn-2", id="c" * 24)
    record(store, ActKind.SCORE, "turn-1")
    record(store, ActKind.RETRACT_SCORE, "turn-9")
    record(store, ActKind.SIGN_OUT, "")
    rows = [(row["target"], row["link"]) for row in collect(store, ACTS)["acts"]]
    assert rows[::-1] == [
        ("“Be <brief>.”", "/ui/learned/aa"),
        ("a lesson that was forgotten", ""),
        ("version 1", "/ui/versions/1"),
        ("training", ""),
        ("replies that were chosen", f"/ui/take-back/receipt?act={'c' * 24}"),
        ("the reply to “this is turn-1”", "/ui/turns/turn-1"),
        ("a reply", "/ui/turns/turn-9"),
        ("all browsers", ""),
    ]
    html = show(store, ACTS)
    assert "Be &lt;brief&gt;." in html
    assert "&lt;forgotten&gt;" in html


def test_every_kind_of_act_has_words_for_its_target(store: Store) -> None:
    for kind in ActKind:
        record(store, kind, "1")
    rows = collect(store, ACTS)["acts"]
    assert len(rows) == len(ActKind)
    assert all(row["target"] for row in rows)


def test_earlier_acts_are_on_further_pages(store: Store) -> None:
    for number in range(ACTS_A_PAGE + 3):
        record(store, ActKind.PIN_VERSION, str(number))
    first = collect(store, ACTS)
    assert f"{ACTS}?before={first['next']}" in show(store, ACTS)
    second = collect(store, ACTS, {"before": str(first["next"])})
    targets = [row["act"].target for data in (first, second) for row in data["acts"]]
    assert targets == [str(number) for number in range(ACTS_A_PAGE + 3)][::-1]
    assert second["next"] is None
    assert "That is all." in show(store, ACTS, {"before": "1"})


def test_an_act_without_a_record_is_not_done_so_far(browser: Browser) -> None:
    path = f"/ui/acts/state/{'d' * 24}"
    answer = browser.get(path, HX)
    assert answer.status_code == 200
    assert "<h2>Not done so far</h2>" in answer.text
    assert f'hx-get="{path}"' in answer.text
    assert "Done" not in answer.text.replace("Not done", "")
    origin = ActOrigin(actor=ActActor.PAGE, id="d" * 24)
    with browser.site.store.write() as conn:
        origin.record(conn, ActKind.FREEZE, "training", "training is frozen")
    answer = browser.get(path, HX)
    assert "<h2>Done</h2>" in answer.text
    assert "It was done: training is frozen" in answer.text


def test_a_refused_act_is_marked_so_that_its_form_can_stay(browser: Browser) -> None:
    form = {"act_id": "e" * 24, "turn": "unknown", "score": "good"}
    answer = browser.post("/ui/acts/score", form, HX)
    assert answer.status_code == 200
    assert "data-refusal" in answer.text
    assert "HX-Trigger" not in answer.headers
    with browser.site.store.read() as conn:
        assert not list(newest_acts(conn, 1))
