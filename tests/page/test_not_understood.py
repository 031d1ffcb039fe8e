"""Reactions that were not understood, and the person's own word on them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from tests.store.world import close, judged, serve, verdict

from openclaw_rl.errors import OpenClawError
from openclaw_rl.owner_acts.origin import ActOrigin
from openclaw_rl.owner_acts.scores import OwnerScore, score_reply
from openclaw_rl.page.acts import score
from openclaw_rl.page.templating import TemplateRenderer
from openclaw_rl.page.view import ActRequest, InvalidForm, NotFound, ViewRequest
from openclaw_rl.page.views import not_understood
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.settings.load import Config, from_flat
from openclaw_rl.store import acts, events, reactions, turns, unclear_reactions
from openclaw_rl.store.acts import ActActor, ActKind
from openclaw_rl.store.db import Store
from openclaw_rl.store.feedback import records
from openclaw_rl.store.lineage import policies

HOSTILE = '"><img src=x onerror=alert(1)>\u202e'


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return from_flat({"home": str(tmp_path)})


@pytest.fixture
def store(config: Config) -> Iterator[Store]:
    opened = Store.open(config.store_path)
    with opened.write() as conn:
        policies.ensure_root(conn, base="b", identity="i", at=1.0)
    yield opened
    opened.close()


class NoTokens:
    def split(self, ids: Any) -> None:
        return None


def request(conn: Any, config: Config, **params: str) -> ViewRequest:
    return ViewRequest(
        conn=conn, config=config, params=params, now=1e9, tokens=NoTokens(), cache={}
    )


def page(store: Store, config: Config, **params: str) -> Any:
    with store.read() as conn:
        return not_understood.collect_not_understood(request(conn, config, **params))


def listed(data: Any) -> list[str]:
    return [item["turn"] for item in data["items"]]


def render(data: Any, block: str | None = None) -> str:
    everywhere = {"sections": (), "path": "/ui/not-understood"}
    return TemplateRenderer().render("not_understood.html", {**everywhere, **data}, block=block)


def unclear(store: Store, *ids: str, words: str = "hm", at: float = 13.0) -> None:
    """Turns whose reactions the judge did not understand, a second after each other."""
    with store.write() as conn:
        for number, id_ in enumerate(ids):
            serve(conn, id_)
            close(conn, id_, words)
            assert turns.add_verdict(conn, verdict(id_, score=None, at=at + number))


def give(store: Store, config: Config, **form: str) -> str:
    values = {name: [value] for name, value in form.items()}
    act_id = form.pop("act_id", "a" * 24)
    asked = ActRequest(store=store, config=config, form=values, act_id=act_id, now=50.0)
    return score.apply_score(asked).message


def test_only_reactions_of_people_without_an_opinion_are_listed(
    store: Store, config: Config
) -> None:
    unclear(store, "old", "new")
    with store.write() as conn:
        judged(conn, "good")
        judged(conn, "wish", score=None, hints=("Be brief.",))
        serve(conn, "aside")
        close(conn, "aside")
        no_evidence = verdict("aside", score=None, reason_code=ReasonCode.NO_EVIDENCE)
        assert turns.add_verdict(conn, no_evidence)
        serve(conn, "tool")
        result = [{"role": "tool", "content": "42"}]
        reactions.record_reaction(
            conn, "tool", messages=result, signature=b"t", source="x", how="exact", at=12.0
        )
        assert turns.add_verdict(conn, verdict("tool", score=None, at=20.0))
    data = page(store, config)
    assert listed(data) == ["new", "old"]
    assert data["items"][0]["reaction"] == "hm"
    assert data["items"][0]["asked"] == "this is new"
    assert data["items"][0]["reply"] == "Here is what you asked for."


def test_a_later_reaction_that_is_understood_takes_the_turn_off_the_list(
    store: Store, config: Config
) -> None:
    unclear(store, "a")
    with store.write() as conn:
        close(conn, "a", "Great!", 30.0)
        assert turns.add_verdict(conn, verdict("a", 2, 1, at=31.0))
    assert listed(page(store, config)) == []


def test_pages_follow_each_other_without_gaps(store: Store, config: Config) -> None:
    ids = [f"t{number:03}" for number in range(2 * not_understood.PAGE_ITEMS + 3)]
    unclear(store, *ids)
    data = page(store, config)
    seen = listed(data)
    while data["older"]:
        data = page(store, config, before=data["older"])
        seen += listed(data)
    assert seen == ids[::-1]
    assert not data["is_first"]
    with pytest.raises(NotFound):
        page(store, config, before="yesterday")


def test_new_ones_are_counted_and_do_not_move_the_list(store: Store, config: Config) -> None:
    unclear(store, "a")
    newest = page(store, config)["newest"]
    assert page(store, config, since=newest)["new"] == 0
    unclear(store, "b", "c", at=90.0)
    data = page(store, config, since=newest)
    block = render(data, "not_understood_new")
    assert "2 more since you opened this list" in block
    assert "<li" not in block


def test_the_query_reads_along_its_index(store: Store) -> None:
    with store.read() as conn:
        query = unclear_reactions._unclear.order_by(text("at DESC"))
        compiled = str(query.compile(conn.engine, compile_kwargs={"literal_binds": True}))
        plan = conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {compiled}").all()
    details = [row[3] for row in plan]
    assert "verdicts_not_understood" in details[0]
    assert not [detail for detail in details if "TEMP B-TREE" in detail]


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ({"score": "good"}, (1, None, None)),
        ({"score": "good", "text": "to the point"}, (1, "to the point", None)),
        ({"score": "neither"}, (0, None, None)),
        ({"score": "bad", "text": "shorter"}, (-1, None, "shorter")),
        ({"score": "meant", "text": "too long"}, (None, "too long", None)),
    ],
)
def test_one_key_gives_feedback_and_takes_the_item_off_the_list(
    store: Store, config: Config, form: dict[str, str], expected: tuple[Any, ...]
) -> None:
    unclear(store, "a", "b")
    give(store, config, turn="a", **form)
    assert listed(page(store, config)) == ["b"]
    with store.read() as conn:
        (item,) = records.feedback_on(conn, "a")
        assert (item.score, item.comment, item.correction) == expected
        assert (item.given_by, item.idempotency_key, item.scope) == ("page", "a" * 24, "key")
        kinds = [event.kind for event in events.read_after(conn, 0, 100)]
        assert kinds.count(records.GIVEN_EVENT) == 1
        (act,) = acts.newest_acts(conn, 5)
        assert (act.kind, act.target, act.actor) == (ActKind.SCORE, "a", ActActor.PAGE)
    with store.write() as conn:
        assert reactions.record_pending_feedback(conn, "a", 60.0)
    with store.read() as conn:
        reaction = turns.current_reaction(conn, "a")
        assert reaction is not None
        assert len(reaction.feedback) == 1, "the judge reads it with the reaction"


def test_a_score_that_is_taken_back_puts_the_item_on_the_list_again(
    store: Store, config: Config
) -> None:
    unclear(store, "a")
    give(store, config, turn="a", score="good")
    with store.read() as conn:
        plan = score.plan_retract(request(conn, config, turn="a"))
    form = {name: [value] for name, value in plan.fields.items()}
    asked = ActRequest(store=store, config=config, form=form, act_id="b" * 24, now=51.0)
    assert "taken back" in score.apply_retract(asked).message
    assert listed(page(store, config)) == ["a"]
    with pytest.raises(OpenClawError, match="nothing was given"):
        score.apply_retract(asked)


def test_what_cannot_be_used_is_refused(store: Store, config: Config) -> None:
    unclear(store, "a")
    with pytest.raises(InvalidForm):
        give(store, config, turn="a", score="great")
    with pytest.raises(InvalidForm, match="what the reaction meant"):
        give(store, config, turn="a", score="meant", text="  ")
    with pytest.raises(OpenClawError, match="no reply"):
        give(store, config, turn="unknown", score="good")
    with pytest.raises(OpenClawError, match="none of them"):
        score_reply(store, config, OwnerScore(turn="a"), ActOrigin())
    for params in ({"turn": "a", "score": "great"}, {"turn": "unknown"}):
        with store.read() as conn, pytest.raises(NotFound):
            score.plan_score(request(conn, config, **params))
    with store.read() as conn:
        assert not list(acts.newest_acts(conn, 5))


def test_words_are_not_stored_of_a_home_that_stores_none(store: Store, tmp_path: Path) -> None:
    redacting = from_flat({"home": str(tmp_path), "serve.capture": "redacted"})
    unclear(store, "a")
    give(store, redacting, turn="a", score="bad", text="my secret")
    with store.read() as conn:
        (item,) = records.feedback_on(conn, "a")
    assert (item.score, item.correction) == (-1, None)


def test_what_was_meant_is_refused_where_no_words_are_stored(store: Store, tmp_path: Path) -> None:
    redacting = from_flat({"home": str(tmp_path), "serve.capture": "redacted"})
    unclear(store, "a")
    with pytest.raises(OpenClawError, match="what was meant is not stored"):
        give(store, redacting, turn="a", score="meant", text="my secret")
    with store.read() as conn:
        assert not records.feedback_on(conn, "a")
        assert not list(acts.newest_acts(conn, 5))
    assert give(store, redacting, turn="a", score="bad", text="my secret") == "noted: not good"


def test_a_dialog_without_a_score_offers_all_of_them(store: Store, config: Config) -> None:
    unclear(store, "a")
    with store.read() as conn:
        plan = score.plan_score(request(conn, config, turn="a"))
        good = score.plan_score(request(conn, config, turn="a", score="good"))
    html = TemplateRenderer().render("act_plan.html", {"plan": plan, "action": "x", "act_id": "y"})
    for value in ("good", "bad", "neither", "meant"):
        assert f'type="radio" name="score" value="{value}" required>' in html
    assert 'name="text"' in html
    assert "score" not in plan.fields
    assert good.title == "Note that the reply was good"
    with pytest.raises(InvalidForm, match="expected good, bad, neither or meant"):
        give(store, config, turn="a")
    assert give(store, config, turn="a", score="neither") == "noted: neither good nor bad"


def test_hostile_reactions_are_shown_as_text(store: Store, config: Config) -> None:
    unclear(store, "a", words=HOSTILE)
    html = render(page(store, config))
    assert "<img src=x" not in html
    assert "\u202e" not in html
    assert "&lt;img" in html


def test_the_question_stands_above_the_reply(store: Store, config: Config) -> None:
    unclear(store, "a")
    html = render(page(store, config))
    assert html.index("this is a") < html.index("Here is what you asked for.")


def test_an_empty_list_says_what_to_do(store: Store, config: Config) -> None:
    assert "Say in a conversation what you think" in render(page(store, config))
