"""Homes that differ in size alone, for `benchmarks.growth`: one policy for all, or one for each of many agents.

The rows are written by the store's own functions. Each agent has conversations in turn, and its policy a version for
each batch of its judged turns. One candidate in nine is rejected, and its turns are trained on in two halves; one
version in forty is rolled back, and its turns are trained on again. The newest versions have folders on the disk.
"""

from __future__ import annotations

import random
import shutil
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from benchmarks.home_turns import REACTIONS, SESSION_TURNS, WORDS, Call, TurnWriter
from sqlalchemy import Connection, select

from openclaw_rl.common.policy_digest import hash_folder
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.store import leases, sessions
from openclaw_rl.store import schema as t
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import lessons
from openclaw_rl.store.lessons.lessons import Lesson
from openclaw_rl.store.lineage import head_moves, policies, policy_names, training_queue
from openclaw_rl.store.lineage.policy_names import PolicyOwner, owner_filter
from openclaw_rl.store.lineage.token_credit import record_credit
from openclaw_rl.testing.trainer import write_adapter
from openclaw_rl.train.lease_keeper import TRAINER_LEASE
from openclaw_rl.types import Lease, Policy, PolicyState

SCOPE = "growth"
IDENTITY = "growth"
NEWEST_AT = 1_790_000_000.0
BATCH = 16
# Of one round, which is one transaction.
ROUND_TURNS = 1000
ROUND_SECONDS = 3.5 * 86400
# Turns of a policy in a home in which there would be more policies.
LEAST_OF_POLICY = 50
KEPT_VERSIONS = 20
USERS = ("ada", "ben", "")
REJECTED_SHARE = 9
ROLLED_BACK_SHARE = 40
LESSONS_A_ROUND = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeSpec:
    """The size of a home. `policies`: at most, since each has `LEAST_OF_POLICY` turns; `batch`: turns of a version."""

    turns: int
    policies: int
    batch: int = BATCH

    @property
    def folder(self) -> str:
        return f"turns-{self.turns}-policies-{self.policies}-batch-{self.batch}"

    @property
    def per(self) -> PolicyOwner:
        return "all" if self.policies == 1 else "agent"

    @property
    def agents(self) -> list[str]:
        if self.policies == 1:
            return ["main"]
        return [f"agent-{i}" for i in range(min(self.policies, self.turns // LEAST_OF_POLICY))]

    def policy_of(self, agent: str) -> str:
        return policy_names.policy_name(self.per, agent=agent, user="", key=SCOPE)


@dataclass(slots=True, kw_only=True)
class _PolicyState:
    """A policy as it is built. `pending`: judged turns that its lineage has not used, in the order of their batches."""

    agent: str
    name: str
    head: int = 0
    pending: list[str] = field(default_factory=list)
    # Sizes of the next batches, after a rejected one.
    sizes: deque[int] = field(default_factory=deque)
    # Versions with files, oldest first.
    with_files: deque[int] = field(default_factory=deque)


class GrowthBuilder:
    """Writes the rounds of a home into an empty store."""

    def __init__(self, store: Store, spec: HomeSpec, root: Path) -> None:
        self._store = store
        self._spec = spec
        self._root = root
        self._writer = TurnWriter(store=store, scope=SCOPE, identity=IDENTITY)
        self._policies = [
            _PolicyState(agent=agent, name=spec.policy_of(agent)) for agent in spec.agents
        ]
        self._version = 0
        self._published = 0
        self._template = root / "template"
        write_adapter(self._template)
        self._digest, self._files = hash_folder(self._template)

    def build(self) -> None:
        rounds = max(1, self._spec.turns // ROUND_TURNS)
        with self._store.write() as conn:
            policies.ensure_root(conn, base="growth", identity=IDENTITY, at=NEWEST_AT - 1e9)
            policy_names.start_policies(conn, self._spec.per)
            lease = leases.acquire(conn, TRAINER_LEASE, "growth", 1.0, 0.0)
        assert lease is not None, "the store is new"
        for number in range(rounds):
            with self._store.write(durable=False) as conn:
                self._add_round(conn, lease, number, NEWEST_AT - (rounds - number) * ROUND_SECONDS)
            self._writer.lengths.clear()
        with self._store.write() as conn:
            leases.release(conn, lease)
        self._write_folders()

    def _add_round(self, conn: Connection, lease: Lease, number: int, start: float) -> None:
        count = len(self._policies)
        session_count = min(ROUND_TURNS, self._spec.turns) // SESSION_TURNS
        calls: list[Call] = []
        owners: dict[str, _PolicyState] = {}
        for index in range(session_count):
            policy = self._policies[(number * session_count + index) % count]
            at = start + self._writer.chance.random() * ROUND_SECONDS * 0.9
            for call in self._writer.session(
                f"s-{number}-{index}",
                agents=[policy.agent],
                users=USERS,
                version=policy.head,
                at=at,
            ):
                calls.append(call)
                owners[call.request.id] = policy
        greedy = {call.request.id for call in calls if call.request.sampling.temperature == 0}
        scores = {call.request.id: call.score for call in calls}
        for turn in self._writer.write(conn, calls):
            if scores[turn] and turn not in greedy:
                owners[turn].pending.append(turn)
        at = start + 0.95 * ROUND_SECONDS
        touched = {policy.name: policy for policy in owners.values()}
        self._add_lessons(conn, number, list(touched.values()), at)
        for policy in touched.values():
            while len(policy.pending) >= self._spec.batch:
                self._add_version(conn, lease, policy, at)
                at += 1

    def _add_lessons(
        self, conn: Connection, number: int, touched: Sequence[_PolicyState], at: float
    ) -> None:
        for index in range(LESSONS_A_ROUND):
            policy = touched[index % len(touched)]
            evidence = policy.pending[:4]
            if not evidence:
                continue
            id_ = f"{number * LESSONS_A_ROUND + index:08x}"
            lesson = Lesson(
                id=id_,
                policy=policy.name,
                key=SCOPE,
                text=f"Answer in one sentence ({number}, {index}).",
                topic=f"subject-{id_}/short",
                scope_value=policy.agent,
                made_at=at,
                reinforced_at=at,
            )
            lessons.add_lesson(conn, lesson)
            for turn in evidence:
                lessons.reinforce(conn, id_, turn, at=at, words=REACTIONS[-1].format("owls"))

    def _add_version(self, conn: Connection, lease: Lease, policy: _PolicyState, at: float) -> None:
        size = policy.sizes.popleft() if policy.sizes else self._spec.batch
        batch = policy.pending[:size]
        del policy.pending[:size]
        self._version += 1
        version = self._version
        is_rejected = version % REJECTED_SHARE == 0 and size == self._spec.batch and size > 1
        folder = self._root / f"{version:06d}-{uuid.UUID(int=version).hex[-8:]}"
        made = Policy(
            version=version,
            name=policy.name,
            parent=policy.head,
            state=PolicyState.LIVE,
            path=None if is_rejected else str(folder),
            digest=self._digest,
            files={} if is_rejected else self._files,
            base="growth",
            identity=IDENTITY,
            metrics=self._metrics(),
            memory={"steps": version},
            created_at=at,
            reason="answers got worse" if is_rejected else None,
            reason_code=ReasonCode.WORSE if is_rejected else None,
        )
        uses = training_queue.next_uses(conn, version, batch)
        if is_rejected:
            policies.reject(conn, lease, made, uses, at, lease_now=0.0)
            policy.pending[:0] = batch
            policy.sizes.extend((size // 2, size - size // 2))
            return
        policies.publish(conn, lease, made, uses, at, lease_now=0.0)
        lengths = {turn: self._writer.lengths.get(turn, 40) for turn in batch}
        credit = {
            turn: self._writer.arrays.normal(0, 0.05, length).astype(np.float16)
            for turn, length in lengths.items()
        }
        record_credit(conn, version, credit)
        self._published += 1
        if self._published % ROLLED_BACK_SHARE == 0 and policy.head:
            head_moves.roll_back(
                conn, to=policy.head, reason="answers got worse", at=at, name=policy.name
            )
            policies.mark_removed(conn, made, list(made.files))
            policy.pending[:0] = batch
            return
        policy.head = version
        self._keep_files(conn, policy)

    def _metrics(self) -> dict[str, float]:
        chance = self._writer.chance
        metrics = {f"part/{name}": chance.random() for name in WORDS}
        return metrics | {
            "reward/mean": chance.uniform(-1, 1),
            "loss/total": chance.random(),
            "kl": chance.random() / 100,
            "gradient/norm": chance.random(),
            "gate/held_out": chance.uniform(-0.1, 0.1),
            "gap/starter": 0.001,
            "gap/starter/tokens": 4000.0,
            "turns": float(self._spec.batch),
            "seconds/batch": 1.0,
        }

    def _keep_files(self, conn: Connection, policy: _PolicyState) -> None:
        """Record the files of the head, and the removal of those that are no longer kept."""
        policy.with_files.append(policy.head)
        if len(policy.with_files) > KEPT_VERSIONS:
            oldest = policies.require_version(conn, policy.with_files.popleft())
            policies.mark_removed(conn, oldest, list(oldest.files))

    def _write_folders(self) -> None:
        with self._store.read() as conn:
            for policy in self._policies:
                for version in policies.get_many(conn, policy.with_files):
                    shutil.copytree(self._template, str(version.path))
        shutil.rmtree(self._template)


def build_home(home: Path, spec: HomeSpec) -> None:
    """Write a home. Raises `OSError` if there is one."""
    home.mkdir(parents=True)
    with Store.open(home / "store.db") as store:
        GrowthBuilder(store, spec, home / "policies").build()


def count_waiting(conn: Connection, spec: HomeSpec, name: str) -> int:
    """Return the number of turns with a score that the policy may be trained on."""
    return training_queue.count_trainable(
        conn,
        max_uses=1,
        need_score=True,
        need_hint=False,
        owner=owner_filter(spec.per, name),
    )


def add_waiting_turns(store: Store, spec: HomeSpec, agent: str, least: int) -> None:
    """Write conversations of an agent until `least` of its turns wait for a step."""
    name = spec.policy_of(agent)
    while True:
        with store.read() as conn:
            missing = least - count_waiting(conn, spec, name)
            if missing <= 0:
                return
            number = sessions.newest_turn_number(conn)
            head = policies.head(conn, name).version
        writer = TurnWriter(
            store=store,
            scope=SCOPE,
            identity=IDENTITY,
            number=number,
            chance=random.Random(number),
            arrays=np.random.default_rng(number),
        )
        with store.write() as conn:
            writer.write(conn, list(_sessions(writer, agent, missing, head)))


def _sessions(writer: TurnWriter, agent: str, turns: int, head: int) -> Iterator[Call]:
    first = writer.number
    for index in range(1 + turns // SESSION_TURNS):
        name = f"waiting-{first}-{index}"
        at = NEWEST_AT + 2000 * index
        yield from writer.session(name, agents=[agent], users=USERS, version=head, at=at)


def newest_of_agent(conn: Connection, agent: str) -> str:
    """Return the newest turn of an agent."""
    e = t.exchanges.c
    query = select(e.id).where(e.agent == agent, e.episode.is_(None)).order_by(e.seq.desc())
    return str(conn.execute(query.limit(1)).scalar_one())
