"""A large home for tests and benchmarks of the page: conversations, episodes, versions and lessons of a busy year.

    python -m benchmarks.page_home HOME [--turns 100000]

The rows are written by the store's own functions, and are the same in each run. The number of turns decides that of all
else: 100,000 turns are 8,000 conversations, 10,000 episodes, 1,000 versions and 500 lessons.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from benchmarks.home_turns import REACTIONS, TOPICS, WORDS, Call, TurnWriter
from sqlalchemy import Connection

from openclaw_rl.common import message_hash
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.store.db import Store
from openclaw_rl.store.episodes import episodes
from openclaw_rl.store.episodes.records import Episode, EpisodeEnd
from openclaw_rl.store.episodes.settlement import settle_episode
from openclaw_rl.store.lessons import lessons
from openclaw_rl.store.lessons.lessons import Lesson, LessonState
from openclaw_rl.store.lineage import policies, probe_answers
from openclaw_rl.store.lineage.policy_names import DEFAULT_NAME, move_head
from openclaw_rl.store.lineage.probe_answers import ProbeAnswer
from openclaw_rl.store.lineage.token_credit import record_credit
from openclaw_rl.types import Message, Policy, PolicyState, Use

SCOPE = "page-home"
GROUP_SIZE = 4
EPISODE_TURNS = 2
# Of one round, which is one transaction: a thousand turns.
ROUND_TURNS = 1000
ROUND_SESSIONS = 80
ROUND_EPISODES = 100
ROUND_VERSIONS = 10
ROUND_LESSONS = 5
NEWEST_AT = 1_790_000_000.0
ROUND_SECONDS = 3.5 * 86400
AGENTS = ("main", "support", "")
USERS = ("ada", "ben", "")


@dataclass(slots=True, kw_only=True)
class HomeBuilder:
    """Writes one round after another. `pending`: judged turns that no version has used yet."""

    writer: TurnWriter
    rounds: int
    pending: list[str] = field(default_factory=list)
    head: int = 0

    def build(self) -> None:
        store = self.writer.store
        with store.write() as conn:
            policies.ensure_root(
                conn, base="page-home", identity="page-home", at=self._round_start(0)
            )
        for number in range(self.rounds):
            with store.write(durable=False) as conn:
                self._add_round(conn, number)
            self.pending.clear()
            self.writer.lengths.clear()

    def _round_start(self, number: int) -> float:
        return NEWEST_AT - (self.rounds - number) * ROUND_SECONDS

    def _add_round(self, conn: Connection, number: int) -> None:
        start = self._round_start(number)
        calls = []
        for index in range(ROUND_SESSIONS):
            at = start + self.writer.chance.random() * ROUND_SECONDS * 0.9
            name = f"s-{number}-{index}"
            calls += self.writer.session(name, agents=AGENTS, users=USERS, version=self.head, at=at)
        for index in range(ROUND_EPISODES):
            calls += self._episode(conn, number, index, start)
        self.pending += self.writer.write(conn, calls)
        self._end_episodes(conn, number, start)
        self._add_lessons(conn, number, start)
        self._add_versions(conn, number, start)

    # ------------------------------------------------------------------------------------ episodes

    def _episode(self, conn: Connection, number: int, index: int, start: float) -> Iterator[Call]:
        group = f"g-{number}-{index // GROUP_SIZE}"
        task = f"task-{index // GROUP_SIZE}"
        id_ = f"e-{number}-{index}"
        at = start + ROUND_SECONDS * 0.92 + index
        opened = Episode(
            id=id_,
            scope=SCOPE,
            task=task,
            group=group,
            size=GROUP_SIZE,
            split="train",
            agent="worker",
            started_at=at,
            expires_at=at + 3600,
        )
        episodes.open_episode(conn, opened)
        history: list[Message] = [
            {"role": "user", "content": f"Solve {task}. {self.writer.text(60)}"}
        ]
        marks: tuple[message_hash.Mark, ...] = ()
        parent = None
        for step in range(EPISODE_TURNS):
            marks = self.writer.mark(history, marks)
            request = self.writer.request(
                history, marks, agent="worker", version=self.head, at=at + 5 * step, episode=id_
            )
            call = self.writer.call(request, None, parent, None)
            parent = request.id
            observation = {"role": "user", "content": f"Observation: {self.writer.text(40)}"}
            history = [*history, call.reply.message, observation]
            yield call

    def _end_episodes(self, conn: Connection, number: int, start: float) -> None:
        at = start + ROUND_SECONDS * 0.93
        for index in range(ROUND_EPISODES):
            is_void = index % 33 == 0
            end = EpisodeEnd(
                id=f"e-{number}-{index}",
                scope=SCOPE,
                outcome="void" if is_void else "done",
                reward=None if is_void else float(self.writer.chance.random() < 0.5),
                reason="the sandbox did not start" if is_void else None,
                at=at + index,
            )
            episodes.end_episode(conn, end)
            settle_episode(conn, end.id, at=at + index + 1)

    # ------------------------------------------------------------------------ lessons and versions

    def _add_lessons(self, conn: Connection, number: int, start: float) -> None:
        at = start + ROUND_SECONDS * 0.94
        for index in range(ROUND_LESSONS):
            id_ = f"{number * ROUND_LESSONS + index:08x}"
            topic = self.writer.chance.choice(TOPICS)
            made = Lesson(
                id=id_,
                key=SCOPE,
                text=f"Answer in one sentence about {topic} ({number}, {index}).",
                topic=f"subject-{id_}/short",
                scope_value=AGENTS[index % len(AGENTS)],
                made_at=at,
                reinforced_at=at,
            )
            lessons.add_lesson(conn, made)
            for turn in self.writer.chance.sample(self.pending, 6):
                lessons.reinforce(conn, id_, turn, at=at, words=REACTIONS[-1].format(topic))

    def _add_versions(self, conn: Connection, number: int, start: float) -> None:
        batch = len(self.pending) // ROUND_VERSIONS
        for index in range(ROUND_VERSIONS):
            version = number * ROUND_VERSIONS + index + 1
            used = self.pending[index * batch : (index + 1) * batch]
            at = start + ROUND_SECONDS * (0.95 + 0.004 * index)
            self._add_version(conn, version, used, at)
            newest = f"{number * ROUND_LESSONS + index % ROUND_LESSONS:08x}"
            value = 0.4 * self.writer.chance.random()
            lessons.record_divergence(conn, newest, version, value, at=at)
        learned = lessons.get(conn, f"{number * ROUND_LESSONS:08x}")
        if learned is not None and learned.state is LessonState.ACTIVE:
            lessons.mark_learned(conn, learned.id, self.head, at=start + ROUND_SECONDS)

    def _add_version(self, conn: Connection, version: int, used: Sequence[str], at: float) -> None:
        is_rejected = version % 9 == 0
        metrics = {f"part/{name}": self.writer.chance.random() for name in WORDS}
        metrics |= {
            "reward/mean": self.writer.chance.uniform(-1, 1),
            "loss/total": self.writer.chance.random(),
            "kl": self.writer.chance.random() / 100,
            "gradient/norm": self.writer.chance.random(),
            "gate/held_out": self.writer.chance.uniform(-0.1, 0.1),
            "gap/starter": 0.001,
            "gap/starter/tokens": 4000.0,
        }
        policy = Policy(
            version=version,
            parent=self.head,
            state=PolicyState.LIVE,
            path=None,
            digest=f"d{version}",
            base="page-home",
            identity="page-home",
            metrics=metrics,
            created_at=at,
            reason="answers got worse" if is_rejected else None,
            reason_code=ReasonCode.WORSE if is_rejected else None,
        )
        uses = [Use(policy=version, turn=turn, number=1) for turn in used]
        state = PolicyState.REJECTED if is_rejected else PolicyState.LIVE
        policies.insert_version(conn, policy, uses, state)
        credit = {
            turn: self.writer.arrays.normal(0, 0.05, self.writer.lengths[turn]).astype(np.float16)
            for turn in used
        }
        record_credit(conn, version, credit)
        answers = [
            ProbeAnswer(
                version=version,
                probe=f"probe-{index}",
                head=self.head,
                turn=turn,
                question="Could you explain the river to me, please?",
                head_answer=self.writer.text(30),
                candidate_answer=self.writer.text(12),
                verdict=1.0,
                reason="shorter",
            )
            for index, turn in enumerate(used[:3])
        ]
        probe_answers.record_answers(conn, answers)
        if not is_rejected:
            move_head(conn, DEFAULT_NAME, version)
            self.head = version


def build_home(home: Path, *, turns: int = 100_000) -> None:
    """Write the store of a home. `turns`: rounded to whole rounds of a thousand. Raises `OSError` if there is one."""
    home.mkdir(parents=True, exist_ok=True)
    path = home / "store.db"
    if path.exists():
        raise FileExistsError(f"{path} exists: choose another folder")
    with Store.open(path) as store:
        writer = TurnWriter(store=store, scope=SCOPE, identity="page-home")
        HomeBuilder(writer=writer, rounds=max(1, turns // ROUND_TURNS)).build()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("home", type=Path)
    parser.add_argument("--turns", type=int, default=100_000)
    args = parser.parse_args()
    began = time.monotonic()
    build_home(args.home, turns=args.turns)
    size = (args.home / "store.db").stat().st_size
    print(f"{args.home}: {size / 1e6:.0f} MB in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
