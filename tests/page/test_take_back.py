"""What a person sees before and after something is taken back, and that the page does what the command does."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import Connection, event
from tests.train.conftest import builder, judged, renderer, store
from tests.train.test_undo import Home, put

from openclaw_rl.errors import OpenClawError
from openclaw_rl.owner_acts import undo
from openclaw_rl.owner_acts.origin import ActOrigin
from openclaw_rl.page.acts import take_back as act
from openclaw_rl.page.templating import TemplateRenderer
from openclaw_rl.page.view import ActRequest, InvalidForm, NotFound, ViewRequest
from openclaw_rl.page.views import take_back, versions
from openclaw_rl.settings.load import Config, from_flat
from openclaw_rl.status.undo_report import count_taken_out, describe_plan
from openclaw_rl.store import acts, events, turns
from openclaw_rl.store.acts import ActActor, ActKind
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import lessons
from openclaw_rl.store.lessons.lessons import Lesson
from openclaw_rl.store.lineage import policies, policy_marks, retraining
from openclaw_rl.store.lineage.policy_names import DEFAULT_NAME
from openclaw_rl.train.sample_builder import SampleBuilder
from openclaw_rl.train.undo import check_safe_files, plan_undo
from openclaw_rl.types import JudgedTurn, TurnState

__all__ = ["builder", "judged", "renderer", "store"]

NOW = 1e9
HOSTILE = "<script>alert(1)</script>\u202e\x1b[31m"


@pytest.fixture
def home(
    store: Store,
    builder: SampleBuilder,
    judged: Callable[..., JudgedTurn],
    tmp_path: Path,
) -> Iterator[Home]:
    made = Home(store, builder, judged, tmp_path)
    yield made
    made.loop.close()


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return from_flat({"home": str(tmp_path)})


class NoTokens:
    def split(self, ids: Any) -> None:
        return None


class Statements:
    """Adds the statements of a connection to a list, until it is closed."""

    def __init__(self, conn: Connection, texts: list[str]) -> None:
        self._conn = conn
        self._texts = texts
        event.listen(conn, "before_cursor_execute", self._add)

    def _add(self, conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        self._texts.append(statement)

    def close(self) -> None:
        event.remove(self._conn, "before_cursor_execute", self._add)


def look(store: Store, config: Config, collect: Any, zone: tzinfo = UTC, /, **lists: Any) -> Any:
    """What a view or a plan returns. A value may be a list, for a parameter that is repeated."""
    many = {name: value if isinstance(value, list) else [value] for name, value in lists.items()}
    with store.read() as conn:
        return collect(
            ViewRequest(
                conn=conn,
                config=config,
                params={name: values[-1] for name, values in many.items()},
                lists=many,
                now=NOW,
                tokens=NoTokens(),
                cache={},
                zone=zone,
            )
        )


def carry_out(
    store: Store,
    config: Config,
    fields: Any,
    act_id: str = "a" * 24,
) -> str:
    form = {name: [value] for name, value in fields.items()}
    return act.apply_take_back(
        ActRequest(store=store, config=config, form=form, act_id=act_id, now=NOW)
    ).message


def render(name: str, data: Any) -> str:
    everywhere = {"sections": (), "path": "/ui/take-back"}
    return TemplateRenderer().render(name, {**everywhere, **data})


def left_rows(store: Store) -> dict[str, Any]:
    """What an undo has written, without the times and the ids of acts."""
    with store.read() as conn:
        return {
            "head": policies.head(conn).version,
            "batches": retraining.outstanding_batches(conn, DEFAULT_NAME),
            "events": [
                (event.kind, event.ref, dict(event.data))
                for event in events.read_after(conn, 0, 1000)
                if event.kind in ("policy.undone", "policy.rolled_back", "turn.dropped")
            ],
            "acts": [
                (one.kind, one.target, one.outcome, acts.details_of_act(conn, one.id))
                for one in acts.newest_acts(conn, 10)
            ],
            "versions": [(p.version, p.state, p.reason) for p in policies.list_all(conn)],
        }


def test_a_click_writes_the_same_rows_as_the_command(
    home: Home, config: Config, tmp_path: Path
) -> None:
    home.learn(3)
    other_folder = tmp_path / "other"
    shutil.copytree(home.folder / "policies", other_folder / "policies")
    with (
        closing(sqlite3.connect(home.folder / "store.db")) as source,
        closing(sqlite3.connect(other_folder / "store.db")) as copy,
    ):
        source.backup(copy)
    out = home.learned[2][0]
    plan = look(home.store, config, act.plan_take_back, turn=out)
    message = carry_out(home.store, config, plan.fields)
    clicked = left_rows(home.store)
    home.folder = other_folder
    ended = home.undo("--turn", out, "--yes")
    assert ended.exit_code == 0, ended.output
    assert message in ended.output
    with Store.open(other_folder / "store.db") as other:
        assert left_rows(other) == clicked
        with other.read() as conn:
            by_command = next(acts.newest_acts(conn, 1))
    with home.store.read() as conn:
        by_click = next(acts.newest_acts(conn, 1))
    assert (by_command.actor, by_click.actor) == (ActActor.COMMAND, ActActor.PAGE)
    assert by_click.id == "a" * 24


def test_a_session_says_what_would_be_lost(home: Home, config: Config) -> None:
    home.learn(3)
    first = home.learned[1][0]
    with home.store.write() as conn:
        for id_, evidence in (("alone", [first]), ("also", [first, home.learned[2][0]])):
            lesson = Lesson(id=id_, text=f"Lesson {id_}.", made_at=1.0, reinforced_at=1.0)
            lessons.add_lesson(conn, lesson)
            for turn in evidence:
                lessons.reinforce(conn, id_, turn, weight=1.0, at=2.0, words="")
    data = look(home.store, config, take_back.collect_take_back, conversation=first)
    assert (data["selected"], data["problem"]) == (1, "")
    assert [row["asked"] for row in data["turns"]] == ["Where is the Louvre?"]
    assert [row["reaction"] for row in data["turns"]] == ["thanks"]
    assert {card.lesson.text: is_lost for card, is_lost in data["lessons"]} == {
        "Lesson alone.": True,
        "Lesson also.": False,
    }
    (plan,) = data["plans"]
    assert (plan["undone"], plan["safe"], plan["batches"]) == (3, 0, 3)
    html = render("take_back.html", data)
    assert f"/ui/acts/take-back?conversation={first}" in html
    assert f'<a href="/ui/turns/{first}">Where is the Louvre?</a>' in html
    assert "3 versions rolled back: 1, 2, 3; version 0 answers meanwhile" in html
    assert home.head() == 3, "a look changes nothing"


def test_several_ticked_turns_a_lesson_and_a_time_are_selections(
    home: Home, config: Config
) -> None:
    home.learn(2, hints=("Be brief.",))
    ticked = [home.learned[1][0], home.learned[2][1]]
    ids = take_back.collect_take_back
    assert look(home.store, config, ids, turn=ticked)["selected"] == 2
    assert look(home.store, config, ids, lesson="be brief")["selected"] == 4
    assert look(home.store, config, ids, since="0")["selected"] == 4
    berlin = ZoneInfo("Europe/Berlin")
    day = look(home.store, config, ids, berlin, when="1971-01-01T01:00")
    assert day["selection"].since == 365 * 86400.0
    late = look(home.store, config, ids, since="99999999999")
    assert (late["selected"], late["problem"]) == (0, "no turn was answered since that time")
    assert "no turn was answered" in render("take_back.html", late)
    with pytest.raises(NotFound, match="expected one such as"):
        look(home.store, config, ids, when="yesterday")


def test_without_a_selection_the_page_offers_some(home: Home, config: Config) -> None:
    data = look(home.store, config, take_back.collect_take_back)
    html = render("take_back.html", data)
    assert "The last 24 hours" in html
    assert "Nothing was taken back so far." in html


def test_turns_that_came_since_the_plan_are_not_taken_back_unseen(
    home: Home, config: Config
) -> None:
    home.learn(1)
    plan = look(home.store, config, act.plan_take_back, since="0")
    home.learn(1)
    with pytest.raises(OpenClawError, match="nothing was taken back"):
        carry_out(home.store, config, plan.fields)
    assert home.head() == 2
    assert home.state(home.learned[1][0])[0] is not TurnState.DROPPED
    with pytest.raises(InvalidForm, match="Load the page again"):
        carry_out(home.store, config, {"selection": "{}", "digest": ""})


def test_a_plan_that_would_undo_more_versions_is_shown_again(home: Home, config: Config) -> None:
    home.learn(1)
    out = home.learned[1][0]
    plan = look(home.store, config, act.plan_take_back, turn=out)
    home.learn(1)
    with pytest.raises(OpenClawError, match="the plan has changed"):
        carry_out(home.store, config, plan.fields)
    assert home.head() == 2
    again = look(home.store, config, act.plan_take_back, turn=out)
    carry_out(home.store, config, again.fields)
    assert home.head() == 0


def test_a_version_that_is_published_at_the_click_is_not_undone_unseen(home: Home) -> None:
    home.learn(1)
    selected = home.learned[1][:1]
    agreed = check_safe_files(home.store, selected)
    home.learn(1)
    with pytest.raises(OpenClawError, match="the plan has changed"):
        undo.take_back(home.store, agreed, selected, model="m", origin=ActOrigin(), is_exact=True)
    assert home.head() == 2
    assert home.left() == []


@pytest.mark.parametrize("most", [act.MAX_LISTED_TURNS, 1])
@pytest.mark.parametrize("by", ["since", "lesson", "conversation"])
def test_a_click_takes_back_what_was_seen_while_replies_come_in(
    home: Home, config: Config, monkeypatch: pytest.MonkeyPatch, by: str, most: int
) -> None:
    monkeypatch.setattr(act, "MAX_LISTED_TURNS", most)
    home.learn(1, hints=("Be brief.",))
    seen = home.learned[1]
    values = {"since": "0", "lesson": "be brief", "conversation": seen[1]}
    plan = look(home.store, config, act.plan_take_back, **{by: values[by]})
    later = home.add_turns(1, hints=("Be brief.",))
    carry_out(home.store, config, plan.fields)
    taken = [turn for turn in (*seen, *later) if home.state(turn)[0] is TurnState.DROPPED]
    assert taken == (seen[1:] if by == "conversation" else seen)


def test_a_conversation_of_another_key_with_the_same_name_stays(
    home: Home, config: Config, judged: Callable[..., JudgedTurn]
) -> None:
    mine, theirs = put(
        home.store,
        [judged(request={"session": "main", "scope": scope}) for scope in ("one", "two")],
    )
    plan = look(home.store, config, act.plan_take_back, conversation=mine)
    carry_out(home.store, config, plan.fields)
    assert home.state(mine)[0] is TurnState.DROPPED
    assert home.state(theirs)[0] is not TurnState.DROPPED
    unknown = look(home.store, config, take_back.collect_take_back, conversation="gone")
    assert "no such conversation" in unknown["problem"]


def test_replies_of_practice_are_counted_apart(home: Home) -> None:
    home.learn(1)
    with home.store.read() as conn:
        plan = plan_undo(conn, home.learned[1][:1])
    more = replace(plan, turns=(*plan.turns, *(f"practice-{number}" for number in range(48))))
    assert count_taken_out(plan, plan.turns) == "1 reply"
    text = "1 reply and 48 replies of practice"
    assert count_taken_out(more, plan.turns) == text
    assert describe_plan(more, plan.turns)[0].startswith(f"{text} taken out")
    assert count_taken_out(more, []) == "49 replies of practice"


def test_equal_lessons_differ_by_who_said_what_when(home: Home, config: Config) -> None:
    home.learn(1)
    turn = home.learned[1][0]
    with home.store.write() as conn:
        for id_, words in (("aa", "shorter!"), ("bb", "too long"), ("cc", "hello")):
            text = "Say hello." if id_ == "cc" else "Be brief."
            lesson = Lesson(id=id_, text=text, made_at=1.0, reinforced_at=1.0)
            lessons.add_lesson(conn, lesson)
            lessons.reinforce(conn, id_, turn, weight=1.0, at=2.0, words=words)
    chosen = render(
        "take_back.html", look(home.store, config, take_back.collect_take_back, turn=turn)
    )
    offered = render("take_back.html", look(home.store, config, take_back.collect_take_back))
    for html in (chosen, offered):
        for words in ("shorter!", "too long", "hello"):
            assert re.search(f'<q>{words}</q>, you, <time datetime="1970-01-01T00:00:02', html)


def test_the_receipt_of_an_earlier_act_leads_to_the_one_that_continued_it(
    home: Home, config: Config
) -> None:
    home.learn(3)
    for letter, number in (("b", 3), ("c", 1)):
        plan = look(home.store, config, act.plan_take_back, turn=home.learned[number][0])
        carry_out(home.store, config, plan.fields, letter * 24)
    first = look(home.store, config, take_back.collect_receipt, act="b" * 24)
    second = look(home.store, config, take_back.collect_receipt, act="c" * 24)
    html = render("take_back_receipt.html", first)
    assert f'act={"c" * 24}">continued by a later one</a>' in html
    assert "<progress" not in html
    assert second["later"] is None
    assert "<progress" in render("take_back_receipt.html", second)


def test_a_version_that_was_taken_back_names_the_receipt(home: Home, config: Config) -> None:
    home.learn(2)
    plan = look(home.store, config, act.plan_take_back, turn=home.learned[1][0])
    carry_out(home.store, config, plan.fields, "f" * 24)
    data = look(home.store, config, versions.collect_version, version="2")
    html = render("version.html", data)
    assert "you took back replies that it, or a version before it, had learned from." in html
    assert f'/ui/take-back/receipt?act={"f" * 24}"' in html
    assert look(home.store, config, versions.collect_version, version="0")["receipt"] is None


def test_the_number_of_lessons_does_not_change_that_of_statements(
    home: Home, config: Config
) -> None:
    home.learn(1)
    turn = home.learned[1][0]
    statements: list[str] = []
    counts = []
    for made in (2, 40):
        with home.store.write() as conn:
            for number in range(made):
                lesson = Lesson(
                    id=f"{made}-{number}", text="Be brief.", made_at=1.0, reinforced_at=1.0
                )
                lessons.add_lesson(conn, lesson)
                lessons.reinforce(conn, lesson.id, turn, weight=1.0, at=2.0, words="short")
        with home.store.read() as conn, closing(Statements(conn, statements)):
            take_back._lessons_of(conn, [turn])
            take_back._choices(
                ViewRequest(
                    conn=conn, config=config, params={}, now=NOW, tokens=NoTokens(), cache={}
                )
            )
        counts.append(len(statements))
        statements.clear()
    assert counts[0] == counts[1]


def test_frozen_training_is_said_before_the_click(home: Home, config: Config) -> None:
    home.learn(2)
    with home.store.write() as conn:
        policy_marks.freeze_training(conn, 1.0)
    data = look(home.store, config, take_back.collect_take_back, turn=home.learned[1][0])
    assert data["plans"] == []
    assert "training is frozen" in data["problem"]
    assert len(data["turns"]) == 1


def test_the_receipt_shows_how_far_the_rest_is(home: Home, config: Config) -> None:
    home.learn(3)
    plan = look(home.store, config, act.plan_take_back, turn=home.learned[1][0])
    carry_out(home.store, config, plan.fields, "b" * 24)
    receipt = look(home.store, config, take_back.collect_receipt, act="b" * 24)
    assert (receipt["total"], receipt["done"], receipt["left"]) == (3, 0, 3)
    assert receipt["answers"] == [("", 0)]
    assert "no trainer runs" in receipt["blocked"]
    assert home.loop.run_once(), home.loop.note
    receipt = look(home.store, config, take_back.collect_receipt, act="b" * 24)
    assert (receipt["done"], receipt["left"]) == (1, 2)
    with home.store.write() as conn:
        policy_marks.freeze_training(conn, 1.0)
    receipt = look(home.store, config, take_back.collect_receipt, act="b" * 24)
    assert "training is frozen" in receipt["blocked"]
    html = render("take_back_receipt.html", receipt)
    assert "1 reply was taken out" in html
    assert 'max="3" value="1"' in html
    with pytest.raises(NotFound):
        look(home.store, config, take_back.collect_receipt, act="c" * 24)


def test_an_act_without_details_has_a_receipt(store: Store, config: Config) -> None:
    with store.write() as conn:
        ActOrigin(id="d" * 24).record(conn, ActKind.UNDO, "t", "done by an earlier release")
    receipt = look(store, config, take_back.collect_receipt, act="d" * 24)
    assert "done by an earlier release" in render("take_back_receipt.html", receipt)


def test_hostile_words_are_shown_as_text(home: Home, config: Config) -> None:
    home.learn(1, question=HOSTILE)
    turn = home.learned[1][0]
    data = look(home.store, config, take_back.collect_take_back, turn=turn)
    plan = look(home.store, config, act.plan_take_back, turn=turn)
    assert json.loads(plan.fields["selection"])["turns"] == [turn]
    for html in (
        render("take_back.html", data),
        render(
            "take_back.html", look(home.store, config, take_back.collect_take_back, turn=HOSTILE)
        ),
        render("act_plan.html", {"plan": plan, "action": act.PATH, "act_id": "x"}),
    ):
        assert "<script>alert" not in html
        assert "\u202e" not in html
        assert "\x1b" not in html
    with home.store.read() as conn:
        assert turns.get(conn, turn) is not None
