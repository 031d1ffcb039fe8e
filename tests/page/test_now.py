"""The view of what happens now, and the sentences that it shares with `status`."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.page.views import collect, open_store, show
from tests.store import world

from openclaw_rl.common.progress import Wait
from openclaw_rl.page.templating import TemplateRenderer, format_code
from openclaw_rl.page.view import ActResult
from openclaw_rl.status import now
from openclaw_rl.status.now import JUDGES, PEOPLE, compare_with_base
from openclaw_rl.status.sentences import WAITS, health_sentence
from openclaw_rl.status.version_words import VersionPlace
from openclaw_rl.store import heartbeats, reactions, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.feedback.records import add_feedback
from openclaw_rl.store.lessons import lessons
from openclaw_rl.store.lessons.lessons import Lesson
from openclaw_rl.store.lineage import policies
from openclaw_rl.store.lineage.policy_names import move_head
from openclaw_rl.types import Feedback, PolicyState

NOW = "/ui/now"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path) as opened:
        with opened.write() as conn:
            policies.ensure_root(conn, base="base", identity="i", at=1.0)
        yield opened


def test_an_empty_home_says_what_to_do(store: Store) -> None:
    shown = show(store, NOW)
    assert "No worker has started yet" in shown
    assert "Nobody has said yet whether a reply was good" in shown
    assert "No lesson yet" in shown


def test_scores_of_people_and_verdicts_of_judges_are_two_curves(store: Store) -> None:
    with store.write() as conn:
        for number, score in enumerate((1, 1, -1, 0, None)):
            world.judged(conn, f"t{number}", score=score)
        given = Feedback(id="f", scope="key", target="t0", score=-1, given_at=14.0)
        add_feedback(conn, [given])
        reactions.record_pending_feedback(conn, "t0", 14.0)
        turns.add_verdict(conn, world.verdict("t0", 2, -1, judge="explicit", explicit=True))
    data = collect(store, NOW)["satisfaction"]
    assert data["x"] == [0]
    people, judges = data["series"]
    assert (people["label"], people["values"], people["of"]) == (PEOPLE, [0.0], [1])
    assert (judges["label"], judges["of"]) == (JUDGES, [3])
    assert judges["values"] == [pytest.approx(2 / 3)]
    assert judges["low"][0] < judges["values"][0] < judges["high"][0]
    json.dumps(data)
    assert ">67</data>%" in show(store, NOW)


def test_versions_without_a_score_have_a_gap(store: Store) -> None:
    with store.write() as conn:
        world.judged(conn, "a")
        conn.exec_driver_sql("UPDATE exchanges SET version = 3")
        world.judged(conn, "b", score=1)
        turns.add_verdict(conn, world.verdict("b", 1, 1, judge="explicit", explicit=True))
    people, judges = collect(store, NOW)["satisfaction"]["series"]
    assert people["values"] == [1.0, None]
    assert judges["values"] == [1.0, 1.0]


def test_the_colour_of_verdicts_does_not_depend_on_other_scores(store: Store) -> None:
    with store.write() as conn:
        world.judged(conn, "a", score=1)
    (judges,) = collect(store, NOW)["satisfaction"]["series"]
    assert (judges["label"], judges["colour"]) == (JUDGES, 2)
    with store.write() as conn:
        turns.add_verdict(conn, world.verdict("a", 1, 1, judge="explicit", explicit=True))
    series = collect(store, NOW)["satisfaction"]["series"]
    assert [(each["label"], each["colour"]) for each in series] == [(PEOPLE, 1), (JUDGES, 2)]


def test_curves_have_no_number_that_json_cannot_hold(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.write() as conn:
        world.judged(conn, "a", score=1)
    monkeypatch.setattr(now, "wilson_interval", lambda good, of: (math.nan, math.inf))
    data = collect(store, NOW)["satisfaction"]
    json.dumps(data, allow_nan=False)
    assert (data["series"][0]["low"], data["series"][0]["high"]) == ([None], [None])


def test_workers_and_what_waits(store: Store) -> None:
    heartbeats.write_heartbeat(store, "train", "3 of 4", waits=[Wait.TURNS])
    with store.write() as conn:
        world.serve(conn, "a")
        world.serve(conn, "b")
        world.close(conn, "b")
    data = collect(store, NOW)
    assert [worker["name"] for worker in data["workers"]] == ["train"]
    waiting = [each.text for each in data["waiting"]]
    assert waiting == [
        "1 reply without a reaction so far",
        "1 reaction without a verdict so far",
        f"train waits for {WAITS[Wait.TURNS]}",
    ]
    silent = collect(store, NOW, now=time.time() + 3600)
    assert not silent["is_well"]
    assert "not respond" in silent["sentence"] or silent["problems"]


def test_what_a_worker_reports_is_folded_unless_it_is_a_problem(store: Store) -> None:
    heartbeats.write_heartbeat(store, "judge", "142 judged; judge: rules")
    heartbeats.write_heartbeat(store, "train", "out of memory: lower it", heartbeats.PARKED)
    seen, folded = show(store, NOW).split("What each reports")
    assert "142 judged" not in seen
    assert "142 judged; judge: rules" in folded
    assert "! out of memory: lower it" in seen


def test_policies_beside_the_default_one_are_listed(store: Store) -> None:
    assert "<h2>Policies</h2>" not in show(store, NOW)
    with store.write() as conn:
        for number, name in ((1, "agent:k:coder"), (2, "user:k:ann")):
            policies.insert_version(
                conn, replace(world.policy(number, 0), name=name), (), PolicyState.LIVE
            )
            move_head(conn, name, number)
    data = collect(store, NOW)
    assert data["policies"] == [("user:k:ann", 2), ("agent:k:coder", 1), ("default", 0)]
    shown = show(store, NOW)
    assert 'href="/ui/versions?policy=agent%3Ak%3Acoder"' in shown
    assert re.search(r"Version 2</a> of user:k:ann,\s+in use", shown)


def test_equal_lessons_differ_by_who_said_what_when(store: Store) -> None:
    with store.write() as conn:
        world.judged(conn, "turn")
        for id_, words in (("aa", "shorter!"), ("bb", "too long")):
            lesson = Lesson(id=id_, text="Be brief.", made_at=1.0, reinforced_at=1.0)
            lessons.add_lesson(conn, lesson)
            lessons.reinforce(conn, id_, "turn", weight=1.0, at=2.0, words=words)
    shown = show(store, NOW)
    for words in ("shorter!", "too long"):
        assert re.search(f"Be brief.</a>\\s+<span[^>]*><q>{words}</q>, you, <time", shown)


def test_newest_lessons_and_versions_are_linked(store: Store) -> None:
    with store.write() as conn:
        for number in range(7):
            lesson = Lesson(id=f"{number:08x}", text="Be brief.", made_at=number, reinforced_at=0)
            lessons.add_lesson(conn, lesson)
        policies.insert_version(conn, world.policy(1, 0), (), PolicyState.REJECTED)
        policies.insert_version(conn, world.policy(2, 0), (), PolicyState.CANDIDATE)
    shown = show(store, NOW)
    assert "/ui/learned/00000006" in shown
    assert "/ui/learned/00000001" not in shown
    assert "/ui/versions/1" in shown
    assert f"{VersionPlace.REFUSED}, learned from" in shown
    assert f"{VersionPlace.EXAMINED}, learned from" in shown


def test_the_sentence_names_what_needs_attention() -> None:
    alive = {"name": "judge", "alive": True}
    dead = {"name": "train", "alive": False}
    heads = {"default": 3}
    assert health_sentence([], [alive], heads) == "All is well: version 3 answers."
    assert health_sentence([], [alive], {**heads, "agent:k:coder": 7}) == (
        "All is well: 2 policies answer, each with its own version."
    )
    assert health_sentence(["judge behind"], [alive], heads) == (
        "1 thing needs your attention: judge behind."
    )
    assert health_sentence(["a", "b"], [dead], heads) == "2 things need your attention: a, b."
    assert health_sentence([], [alive, dead], heads) == "These workers do not respond: train."


def test_everything_has_its_words() -> None:
    assert set(WAITS) == set(Wait)


def scores(people: Sequence[tuple[int, int] | None], versions: Sequence[int]) -> dict[str, Any]:
    """Data of the curve, of people's own scores: (good, scored) of each version."""
    values = [None if each is None else each[0] / each[1] for each in people]
    counts = [None if each is None else each[1] for each in people]
    return {"x": versions, "series": [{"label": PEOPLE, "values": values, "of": counts}]}


def test_the_newest_versions_are_compared_with_the_base() -> None:
    few = scores([(8, 10), (4, 6), (5, 5), (0, 9)], [0, 1, 2, 3])
    assert compare_with_base(few, {0, 1, 2}) == (
        "People liked 8 of 10 replies of the base, and 9 of 11 of versions 1 to 2: "
        "not enough reactions yet to say which is better."
    )
    better = scores([(5, 20), (19, 20)], [0, 1])
    assert compare_with_base(better, {0, 1}).endswith(
        "19 of 20 of version 1: better than the base."
    )
    worse = scores([(19, 20), (5, 20)], [0, 1])
    assert compare_with_base(worse, {0, 1}).endswith("5 of 20 of version 1: worse than the base.")


def test_no_comparison_is_made_without_scores() -> None:
    assert compare_with_base({"x": [], "series": []}, {0}) == ""
    assert compare_with_base(scores([(1, 2)], [0]), {0}) == ""
    assert compare_with_base(scores([(1, 2)], [3]), {0, 3}) == (
        "People liked 1 of 2 replies of version 3. The base has no score to compare with."
    )


def test_only_what_stands_between_two_backticks_is_code() -> None:
    hostile = "run `a <b>` or `c\u202e`, <i> and ` alone"
    assert str(format_code(hostile)) == (
        "run <code>a &lt;b&gt;</code> or <code>c\ufffd</code>, &lt;i&gt; and ` alone"
    )
    assert str(format_code("no code")) == "no code"
    assert str(format_code("")) == ""


def test_a_text_without_width_is_shown() -> None:
    template = TemplateRenderer().render
    shown = template(
        "act_result.html", {"result": ActResult(title="\ufeff\u200b", message="a\u200db")}
    )
    assert "<h2>\ufffd</h2>" in shown
    assert "<p>a\u200db</p>" in shown
