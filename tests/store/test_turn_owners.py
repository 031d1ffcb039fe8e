"""The policy that a turn trains, and how many of its uses are lost, after whatever moves heads and turns."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection
from tests.store.world import close, policy, reply, request, serve, verdict

from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.store import bootstrap, exchanges, leases, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import (
    candidates,
    head_moves,
    policies,
    policy_names,
    training_queue,
)
from openclaw_rl.store.lineage.policy_names import IMPORT_SCOPE, OwnerFilter, PolicyOwner
from openclaw_rl.store.migrations import MIGRATIONS
from openclaw_rl.types import Lease, Policy, Request, Use

Act = tuple[str, int]
NOW = 101.0
PEOPLE = (("key", "a", "ann"), ("key", "b", ""), ("other", "a", "ann"), (IMPORT_SCOPE, "", "bob"))
PER: Sequence[PolicyOwner] = ("all", "agent", "user", "key")
ACTS = (
    *("judge", "judge", "publish", "publish", "reject", "candidate", "roll back", "promote"),
    *("roll back", "per", "main key", "roll back shared"),
)


@dataclass
class World:
    """Acts on a store, and what is expected of it by plain Python."""

    conn: Connection
    lease: Lease
    prefix: str
    per: PolicyOwner = "all"
    main_key: str = IMPORT_SCOPE
    requests: list[Request] = field(default_factory=list)

    def judge(self, choice: int) -> None:
        scope, agent, user = PEOPLE[choice % len(PEOPLE)]
        made = request(f"{self.prefix}-{len(self.requests)}", scope=scope, agent=agent, user=user)
        exchanges.admit(self.conn, [made])
        exchanges.finish(self.conn, [reply(made)])
        close(self.conn, made.id)
        turns.add_verdict(self.conn, verdict(made.id))
        self.requests.append(made)

    def act(self, what: str, choice: int) -> None:
        names = sorted({self.owner_of(made) for made in self.requests} | {"default"})
        name = names[choice % len(names)]
        head = policies.head(self.conn, name)
        if what == "judge":
            self.judge(choice)
        elif what == "per":
            self.per = PER[choice % len(PER)]
            policy_names.start_policies(self.conn, self.per)
        elif what == "main key":
            self.main_key = ("key", "third")[choice % 2]
            policy_names.record_main_key(self.conn, self.main_key)
        elif what == "roll back":
            line = policies.lineage(self.conn, head.version)[1:]
            if line:
                to = line[choice % len(line)]
                head_moves.roll_back(self.conn, to=to, reason="x", at=NOW, name=name)
        elif what == "roll back shared":
            self.roll_back_shared(choice)
        elif what == "promote":
            self.promote(choice)
        else:
            self.step(what, head, choice)

    def roll_back_shared(self, choice: int) -> None:
        """As an undo or damage below the shared parent does."""
        heads = policy_names.read_heads(self.conn)
        if policy_names.SHARED_NAME not in heads:
            return
        line = policies.lineage(self.conn, heads[policy_names.SHARED_NAME])[1:]
        if line:
            to = line[choice % len(line)]
            head_moves.roll_back(
                self.conn, to=to, reason="x", at=NOW, name=policy_names.SHARED_NAME
            )

    def promote(self, choice: int) -> None:
        heads = policy_names.read_heads(self.conn)
        beside = [
            one.version
            for one in policies.list_all(self.conn)
            if one.version
            not in policies.lineage(self.conn, policy_names.head_version(heads, one.name))
        ]
        if beside:
            to = beside[choice % len(beside)]
            head_moves.promote(self.conn, to=to, reason="x", at=NOW)

    def step(self, what: str, head: Policy, choice: int) -> None:
        ids = self.claimed(head.name)[: 1 + choice]
        version = policies.next_version(self.conn)
        made = replace(policy(version, head.version), name=head.name)
        counted = dict(self.conn.exec_driver_sql("SELECT id, uses FROM turns").all())
        uses = [Use(policy=version, turn=id_, number=counted[id_] + 1) for id_ in ids]
        if what == "publish":
            policies.publish(self.conn, self.lease, made, uses, NOW)
        elif what == "reject":
            policies.reject(self.conn, self.lease, made, uses, NOW)
        else:
            candidates.add_candidate(self.conn, self.lease, made, uses, NOW)
            if choice % 2:
                candidates.promote_candidate(self.conn, self.lease, made, {}, NOW)
            else:
                reason = Reason(ReasonCode.WORSE, "worse")
                candidates.reject_candidate(
                    self.conn, self.lease, made, reason, {}, NOW, frees_turns=choice % 4 == 0
                )

    def claimed(self, name: str) -> list[str]:
        return training_queue.trainable_ids(
            self.conn,
            limit=99,
            max_uses=99,
            need_score=True,
            need_hint=True,
            owner=OwnerFilter(self.per, name),
        )

    def owner_of(self, made: Request) -> str:
        key = self.main_key if made.scope == IMPORT_SCOPE else made.scope
        return policy_names.policy_name(self.per, agent=made.agent, user=made.user, key=key)

    def check(self) -> None:
        heads = policy_names.read_heads(self.conn)
        used = self.conn.exec_driver_sql("SELECT turn, policy FROM uses").all()
        stored = {
            row.id: (row.owner, row.lost)
            for row in self.conn.exec_driver_sql("SELECT id, owner, lost FROM turns")
        }
        expected = {}
        for made in self.requests:
            owner = self.owner_of(made)
            line = policies.lineage(self.conn, policy_names.head_version(heads, owner))
            beside = [one for one in used if one.turn == made.id and one.policy not in line]
            expected[made.id] = owner, len(beside)
        assert {id_: stored[id_] for id_ in expected} == expected
        on_lines = {
            version for head in heads.values() for version in policies.lineage(self.conn, head)
        }
        live = self.conn.exec_driver_sql("SELECT version FROM policies WHERE state = 'live'")
        assert set(live.scalars()) == on_lines
        self.check_waiting()

    def check_waiting(self) -> None:
        """Whoever may be trained is listed, with at least as many turns, and is due with a full batch."""
        full = 2
        waiting = policy_names.waiting_policies(self.conn, self.per, full=full)
        listed = {one.name: one for one in waiting}
        for name in {self.owner_of(made) for made in self.requests}:
            claimed = self.claimed(name)
            if claimed:
                assert self.per == "all" or listed[name].turns >= len(claimed)
                assert listed[name].is_due or len(claimed) < full


_runs = itertools.count()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    opened = Store.open(tmp_path_factory.mktemp("owners") / "store.db")
    yield opened
    opened.close()


def start(conn: Connection) -> World:
    policies.ensure_root(conn, base="base", identity="i", at=1.0)
    lease = leases.acquire(conn, "train", "me", 30.0, 100.0)
    assert lease is not None
    return World(conn, lease, f"turn-{next(_runs)}")


@given(st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 7)), max_size=16))
@settings(max_examples=60, deadline=None)
def test_owners_and_lost_uses_follow_every_act(folder: Store, script: list[Act]) -> None:
    with folder.write() as conn, conn.begin_nested() as undo:
        world = start(conn)
        for what, choice in script:
            world.act(what, choice)
            world.check()
        undo.rollback()


@pytest.mark.parametrize("per", PER)
def test_an_older_store_gets_the_owners_and_the_lost_uses(tmp_path: Path, per: PolicyOwner) -> None:
    path = tmp_path / "store.db"
    with Store.open(path) as store, store.write() as conn:
        world = start(conn)
        for choice in range(8):
            world.act("judge", choice)
        world.act("publish", 2)
        world.act("per", PER.index(per))
        world.act("main key", 1)
        for what, choice in itertools.product(("publish", "reject", "roll back"), range(5)):
            world.act(what, choice)
        world.check()
        query = "SELECT id, owner, lost FROM turns ORDER BY seq"
        before = conn.exec_driver_sql(query).all()
    _go_back(path)
    with Store.open(path) as store, store.read() as conn:
        assert conn.exec_driver_sql(query).all() == before


def _go_back(path: Path) -> None:
    """Bring a store back to the schema before the owners: without the tables, columns and indexes that came since."""
    older = path.with_name("older.db")
    number = next(n for n, step in enumerate(MIGRATIONS) if "34_owners" in str(step))
    bootstrap.prepare_store(older, create=True, migrations=MIGRATIONS[:number])
    query = "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
    with closing(sqlite3.connect(older)) as conn:
        wanted = dict(conn.execute(query))
        columns_before = _columns(conn)
    with closing(sqlite3.connect(path)) as conn:
        for name in dict(conn.execute(query)):
            conn.execute(f"DROP INDEX {name}")
        for table, columns in _columns(conn).items():
            if table not in columns_before:
                conn.execute(f"DROP TABLE {table}")
                continue
            for column in columns - columns_before[table]:
                conn.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
        for statement in wanted.values():
            conn.execute(statement)
        schema = str(number).encode()
        conn.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (schema,))
        conn.commit()


def _columns(conn: sqlite3.Connection) -> dict[str, set[str]]:
    """Return the columns of each table."""
    query = (
        "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c "
        "WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite_%'"
    )
    columns: dict[str, set[str]] = {}
    for table, column in conn.execute(query):
        columns.setdefault(table, set()).add(column)
    return columns


def test_turns_of_episodes_train_the_policy_of_their_key(folder: Store) -> None:
    with folder.write() as conn, conn.begin_nested() as undo:
        world = start(conn)
        world.act("per", PER.index("key"))
        conn.exec_driver_sql(
            "INSERT INTO episodes (id, task, group_id, split, agent, started_at, scope, expires_at) "
            "VALUES ('e', 't', 'g', 'train', 'a', 1.0, 'key', 2.0)"
        )
        exchanges.admit(conn, [request("of-episode", scope="of its own", episode="e")])
        query = "SELECT owner FROM turns WHERE id = 'of-episode'"
        assert conn.exec_driver_sql(query).scalar() == "key:key"
        undo.rollback()


def test_a_change_of_a_version_is_counted_and_an_exchange_is_not(folder: Store) -> None:
    with folder.write() as conn, conn.begin_nested() as undo:
        world = start(conn)
        seen = [policy_names.count_changes(conn)]
        serve(conn, "one")
        assert policy_names.count_changes(conn) == seen[-1]
        for what, choice in (("publish", 0), ("reject", 0), ("candidate", 0), ("roll back", 0)):
            world.act(what, choice)
            seen.append(policy_names.count_changes(conn))
        assert seen == sorted(set(seen))
        undo.rollback()


def test_imported_turns_keep_their_uses_when_the_home_gets_its_first_key(folder: Store) -> None:
    """A trainer may have trained on them before any gateway has started."""
    with folder.write() as conn, conn.begin_nested() as undo:
        world = start(conn)
        world.act("per", PER.index("user"))
        world.judge(PEOPLE.index((IMPORT_SCOPE, "", "bob")))
        name = world.owner_of(world.requests[0])
        world.step("publish", policies.head(conn, name), 0)
        world.act("main key", 0)
        world.check()
        assert world.claimed(world.owner_of(world.requests[0])) == []
        undo.rollback()
