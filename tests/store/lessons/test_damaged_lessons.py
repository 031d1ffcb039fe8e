"""A lesson whose row is damaged is left out, and said once: prompts, judge, gate and commands work with the others."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from sqlalchemy import literal, select
from tests.store.lessons.test_lessons import ANN, HERE, SHORT, put
from tests.store.world import serve

from openclaw_rl.store import events
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import lessons
from openclaw_rl.store.lessons.scopes import LessonScope, subject_scope
from openclaw_rl.store.lessons.taste_changes import read_taste_changes

MONEY = subject_scope("agent", "ann", "money")
DAMAGE = {
    "json": "scope_value = '[\"agent\"'",
    "other json": "scope_value = '3'",
    "too few names": "scope_value = '[\"agent\"]'",
    "no text": "scope_value = '[1, 2, 3]'",
    "nesting": f"scope_value = '{'[' * 100_000}'",
    "kind": "scope_kind = 'planet'",
    "state": "state = ''",
    "weight": "weight = 'heavy'",
    "text": "text = x'ff'",
    "divergence": "divergence = 'far'",
}


@pytest.mark.parametrize("sql", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize(("kind", "value"), [(LessonScope.USER, ANN), (LessonScope.SUBJECT, MONEY)])
def test_a_damaged_lesson_is_left_out(
    store: Store, caplog: pytest.LogCaptureFixture, sql: str, kind: LessonScope, value: str
) -> None:
    id_ = f"{kind}-{list(DAMAGE.values()).index(sql)}"  # of its own: the damage of a lesson is logged once
    with store.write() as conn:
        put(
            conn,
            SHORT,
            replace(SHORT, id=id_, topic="tone/formal", scope_kind=kind, scope_value=value),
        )
        conn.exec_driver_sql(f"UPDATE lessons SET {sql} WHERE id = '{id_}'")
    with store.read() as conn, caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert lessons.get(conn, id_) is None
            assert [one.id for one in lessons.list_lessons(conn)] == ["aa"]
            assert [one.id for one in lessons.lessons_for(conn, replace(HERE, asked="money"))] == [
                "aa"
            ]
    assert len([r for r in caplog.records if f"lesson {id_} is left out" in r.getMessage()]) == 1


def test_the_gate_reads_changes_of_taste_past_a_damaged_lesson(store: Store) -> None:
    with store.write() as conn:
        ended = replace(SHORT, id="bb", scope_kind=LessonScope.USER, scope_value=ANN)
        put(conn, SHORT, ended)
        for number, id_ in enumerate(("t1", "t2")):
            serve(conn, id_)
            for lesson in ("aa", "bb"):
                lessons.reinforce(conn, lesson, id_, at=float(number))
        lessons.supersede(conn, "bb", "aa")
        events.append(conn, lessons.SUPERSEDED_EVENT, "bb", {"by": "aa"}, 9.0)
        line = select(literal(0).label("version")).cte()
        assert read_taste_changes(conn, 0, line).last_turns
        conn.exec_driver_sql("UPDATE lessons SET scope_value = '{' WHERE id = 'bb'")
        assert not read_taste_changes(conn, 0, line).last_turns
