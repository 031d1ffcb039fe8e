"""When `policy.per` of a home changes, its lessons go to the policies that answer their prompts from then on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from sqlalchemy import Connection
from tests.store.world import policy, serve

from openclaw_rl.settings.load import from_flat
from openclaw_rl.store import leases
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import lessons
from openclaw_rl.store.lessons.lessons import Lesson, LessonState
from openclaw_rl.store.lessons.scopes import LessonScope, PromptContext, user_scope
from openclaw_rl.store.lineage import policies
from openclaw_rl.store.lineage.policy_names import PolicyOwner, policy_name, record_owner
from openclaw_rl.supervisor.policy_owner import set_owner

ANN = {"key": "key", "agent": "agent", "user": "ann"}
OF_USER = Lesson(
    id="user", key="key", text="Keep answers short.", topic="length/short", scope_kind=LessonScope.USER,
    scope_value=user_scope("agent", "ann"), made_at=1.0, reinforced_at=1.0,
)  # fmt: skip
FACT = replace(
    OF_USER,
    id="fact",
    topic="",
    text="It is Canberra.",
    scope_kind=LessonScope.QUESTION,
    scope_value="q",
)
OWNERS: tuple[PolicyOwner, ...] = ("user", "agent", "key", "all")


def fill_home(folder: Path) -> None:
    with Store.open(folder / "store.db") as store, store.write() as conn:
        policies.ensure_root(conn, base="base", identity="i", at=1.0)
        record_owner(conn, "all")
        serve(conn, "a")
        conn.exec_driver_sql("UPDATE exchanges SET agent = 'agent', user = 'ann'")
        for lesson in (OF_USER, FACT):
            lessons.add_lesson(conn, replace(lesson, weight=0.0))
            lessons.reinforce(conn, lesson.id, "a", at=1.0)


def start(folder: Path, per: PolicyOwner) -> None:
    set_owner(from_flat({"home": str(folder), "policy.per": per}))


def texts(conn: Connection, per: PolicyOwner, person: Mapping[str, str] = ANN) -> list[str]:
    context = PromptContext(policy=policy_name(per, **person), **person, question="q")
    return [lesson.id for lesson in lessons.lessons_for(conn, context)]


def test_lessons_apply_only_to_prompts_of_their_owners(tmp_path: Path) -> None:
    fill_home(tmp_path)
    for per in OWNERS:
        start(tmp_path, per)
        with Store.open(tmp_path / "store.db") as store, store.read() as conn:
            assert texts(conn, per) == ["user", "fact"], per
            assert texts(conn, per, ANN | {"user": "bob"})[:1] != ["user"]


def test_a_lesson_that_moves_to_another_policy_returns_to_prompts(tmp_path: Path) -> None:
    fill_home(tmp_path)
    start(tmp_path, "user")
    with Store.open(tmp_path / "store.db") as store, store.write() as conn:
        lease = leases.acquire(conn, "trainer", holder="t", now=1.0, ttl=60.0)
        assert lease is not None
        policies.publish(
            conn, lease, replace(policy(1, 0), name=policy_name("user", **ANN)), [], 2.0
        )
        lessons.mark_learned(conn, "user", 1)
        lessons.mark_learned(conn, "fact", 0)
    start(tmp_path, "all")
    with Store.open(tmp_path / "store.db") as store, store.read() as conn:
        states = {lesson.id: lesson.state for lesson in lessons.list_lessons(conn)}
    assert states == {"user": LessonState.ACTIVE, "fact": LessonState.LEARNED}, (
        "version 0 is an ancestor of all"
    )
