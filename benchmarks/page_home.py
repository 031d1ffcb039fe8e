"""A large home for tests and benchmarks of the page: conversations, episodes, versions and lessons of a busy year.

    python -m benchmarks.page_home HOME [--turns 100000]

The rows are written by the store's own functions, and are the same in each run. The number of turns decides that of all
else: 100,000 turns are 8,000 conversations, 10,000 episodes, 1,000 versions and 500 lessons.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from sqlalchemy import Connection

from openclaw_rl.common import message_hash
from openclaw_rl.judge.user_feedback import JUDGE_NAME as FEEDBACK_JUDGE
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.store import exchanges, reactions, turn_states, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.episodes import episodes
from openclaw_rl.store.episodes.records import Episode, EpisodeEnd
from openclaw_rl.store.episodes.settlement import settle_episode
from openclaw_rl.store.feedback.records import add_feedback
from openclaw_rl.store.lessons import lessons
from openclaw_rl.store.lessons.lessons import Lesson, LessonState
from openclaw_rl.store.lineage import policies, probe_answers
from openclaw_rl.store.lineage.policy_names import DEFAULT_NAME, move_head
from openclaw_rl.store.lineage.probe_answers import ProbeAnswer
from openclaw_rl.store.lineage.token_credit import record_credit
from openclaw_rl.types import (
    ExchangeStatus,
    Feedback,
    FinishReason,
    Kind,
    Message,
    Policy,
    PolicyState,
    Reply,
    Request,
    Sampling,
    Span,
    Use,
    Verdict,
    Vote,
)

SCOPE = "page-home"
SESSION_TURNS = 10
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
TOPICS = ("owls", "trains", "rivers", "cheese", "engines", "poems", "taxes", "gardens")
REACTIONS = {
    1: "Great, that is what I wanted about {}. Next question.",
    -1: "No, that is too long. Please answer in one sentence about {}.",
    0: "By the way, what else is there about {}?",
    None: "Hm, {} then. I do not know what to say.",
}
HINT = "Answer in one sentence."
_NOTHING = message_hash.EphemeralMatcher(())
_WORDS = (
    *("water", "stone", "light", "river", "morning", "engine", "letter", "window", "answer"),
    *("market", "silver", "garden", "winter", "number", "silent", "people", "forest", "summer"),
    *("bridge", "island", "copper", "yellow", "simple", "travel"),
)


@dataclass(slots=True, kw_only=True)
class HomeBuilder:
    """Writes one round after another. `pending`: judged turns that no version has used yet."""

    store: Store
    rounds: int
    chance: random.Random = field(default_factory=lambda: random.Random(11))
    arrays: np.random.Generator = field(default_factory=lambda: np.random.default_rng(11))
    pending: list[str] = field(default_factory=list)
    lengths: dict[str, int] = field(default_factory=dict)
    head: int = 0
    number: int = 0

    def build(self) -> None:
        with self.store.write() as conn:
            policies.ensure_root(
                conn, base="page-home", identity="page-home", at=self._round_start(0)
            )
        for number in range(self.rounds):
            with self.store.write(durable=False) as conn:
                self._add_round(conn, number)
            self.pending.clear()
            self.lengths.clear()

    def _round_start(self, number: int) -> float:
        return NEWEST_AT - (self.rounds - number) * ROUND_SECONDS

    def _add_round(self, conn: Connection, number: int) -> None:
        start = self._round_start(number)
        calls = [
            call for index in range(ROUND_SESSIONS) for call in self._session(number, index, start)
        ]
        for index in range(ROUND_EPISODES):
            calls += self._episode(conn, number, index, start)
        calls.sort(key=lambda call: call.request.admitted_at)
        exchanges.insert_started(conn, [call.request for call in calls])
        exchanges.insert_finished(conn, [call.reply for call in calls])
        for call in calls:
            self._settle(conn, call)
        self._end_episodes(conn, number, start)
        self._add_lessons(conn, number, start)
        self._add_versions(conn, number, start)

    # ------------------------------------------------------------------------------- conversations

    def _session(self, number: int, index: int, start: float) -> Iterator[Call]:
        topic = self.chance.choice(TOPICS)
        session = f"s-{number}-{index}"
        agent = self.chance.choice(AGENTS)
        user = self.chance.choice(USERS)
        at = start + self.chance.random() * ROUND_SECONDS * 0.9
        history: list[Message] = [{"role": "system", "content": self._text(120)}]
        marks: tuple[message_hash.Mark, ...] = ()
        words = f"Could you explain the {self.chance.choice(_WORDS)} of {topic} to me, please?"
        parent = None
        for step in range(SESSION_TURNS):
            history = [*history, {"role": "user", "content": words}]
            marks = message_hash.mark_messages(
                history, self.store.secret, _NOTHING, known=marks, upto=len(marks)
            )
            score = self.chance.choices((1, -1, 0, None), (40, 25, 15, 20))[0]
            words = REACTIONS[score].format(topic)
            request = self._request(history, marks, agent=agent, user=user, session=session, at=at)
            last = step == SESSION_TURNS - 1
            call = self._call(request, None if last else score, parent, words)
            history = [*history, call.reply.message]
            parent = request.id
            at += 60 + self.chance.random() * 120
            yield call

    def _request(
        self,
        history: Sequence[Message],
        marks: tuple[message_hash.Mark, ...],
        *,
        agent: str,
        at: float,
        user: str = "",
        session: str | None = None,
        episode: str | None = None,
    ) -> Request:
        self.number += 1
        return Request(
            id=f"chatcmpl-{self.number:024x}",
            scope=SCOPE,
            agent=agent,
            user=user,
            session=session,
            episode=episode,
            messages=history,
            marks=marks,
            sampling=Sampling(temperature=0.0 if self.number % 25 == 0 else 1.0),
            prompt_ids=self.arrays.integers(0, 500, 40 * len(history), np.int32),
            lessons={"0000000000": HINT} if self.number % 3 == 0 else {},
            version=self.head,
            identity="page-home",
            admitted_at=at,
        )

    def _call(
        self, request: Request, score: int | None, parent: str | None, words: str | None
    ) -> Call:
        length = self.chance.randrange(20, 60)
        message = {"role": "assistant", "content": self._text(length)}
        chain = request.marks[-1].chain
        reply = Reply(
            id=request.id,
            status=ExchangeStatus.DONE,
            message=message,
            response_ids=self.arrays.integers(0, 500, length, np.int32),
            logprobs=-self.arrays.exponential(0.7, length).astype(np.float32),
            mask=np.ones(length, np.bool_),
            spans=(Span(start=0, end=length, version=request.version),),
            finish_reason=FinishReason.STOP,
            mark=message_hash.mark_message(
                message, index=len(request.messages), chain=chain, key=self.store.secret
            ),
            first_token_at=request.admitted_at + 0.3,
            finished_at=request.admitted_at + 2.0,
        )
        self.lengths[request.id] = length
        return Call(request=request, reply=reply, score=score, parent=parent, words=words)

    def _settle(self, conn: Connection, call: Call) -> None:
        """Link a turn, and give it its reaction, its verdict and sometimes explicit feedback."""
        turn = call.request.id
        session = call.request.session or call.request.episode or turn
        reactions.set_position(
            conn,
            turn,
            session=session,
            parent=call.parent,
            kind=Kind.MAIN,
            relation="fresh" if call.parent is None else "continuation",
            relation_of=None,
            unlinked=None,
        )
        if call.words is None or call.request.episode is not None:
            return
        at = call.reply.finished_at + 30
        number = int(turn.rpartition("-")[2], 16)
        if number % 40 == 0:
            turn_states.drop(conn, turn, ReasonCode.TIMEOUT, "nobody answered in time", at=at)
            return
        reactions.record_reaction(
            conn,
            turn,
            messages=[{"role": "user", "content": call.words}],
            signature=turn.encode(),
            source=None,
            how="exact",
            at=at,
        )
        if number % 2000 == 7:
            # It waits for its verdict.
            return
        hints = (HINT,) if call.score == -1 else ()
        vote = Vote(score=call.score, hint=hints[0] if hints else None, reason="It says so.")
        verdict = Verdict(
            turn=turn,
            revision=1,
            judge="rules@1",
            score=call.score,
            votes=(vote,),
            hints=hints,
            reason="1 of 1 votes",
            reason_code=ReasonCode.UNREADABLE if call.score is None else None,
            at=at + 1,
        )
        turns.add_verdict(conn, verdict)
        if number % 20 == 3:
            self._score(conn, verdict)
        if call.score is not None:
            self.pending.append(turn)

    def _score(self, conn: Connection, verdict: Verdict) -> None:
        score = verdict.score or 1
        given = Feedback(
            id=f"fb-{verdict.turn}",
            scope=SCOPE,
            target=verdict.turn,
            score=score,
            comment="As I said.",
            given_at=verdict.at + 1,
        )
        add_feedback(conn, [given])
        reactions.record_pending_feedback(conn, verdict.turn, verdict.at + 1)
        explicit = replace(
            verdict,
            revision=2,
            judge=FEEDBACK_JUDGE,
            score=score,
            explicit=True,
            reason_code=None,
            at=verdict.at + 2,
        )
        turns.add_verdict(conn, explicit)

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
        history: list[Message] = [{"role": "user", "content": f"Solve {task}. {self._text(60)}"}]
        marks: tuple[message_hash.Mark, ...] = ()
        parent = None
        for step in range(EPISODE_TURNS):
            marks = message_hash.mark_messages(
                history, self.store.secret, _NOTHING, known=marks, upto=len(marks)
            )
            request = self._request(history, marks, agent="worker", at=at + 5 * step, episode=id_)
            call = self._call(request, None, parent, None)
            parent = request.id
            observation = {"role": "user", "content": f"Observation: {self._text(40)}"}
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
                reward=None if is_void else float(self.chance.random() < 0.5),
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
            topic = self.chance.choice(TOPICS)
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
            for turn in self.chance.sample(self.pending, 6):
                lessons.reinforce(conn, id_, turn, at=at, words=REACTIONS[-1].format(topic))

    def _add_versions(self, conn: Connection, number: int, start: float) -> None:
        batch = len(self.pending) // ROUND_VERSIONS
        for index in range(ROUND_VERSIONS):
            version = number * ROUND_VERSIONS + index + 1
            used = self.pending[index * batch : (index + 1) * batch]
            at = start + ROUND_SECONDS * (0.95 + 0.004 * index)
            self._add_version(conn, version, used, at)
            newest = f"{number * ROUND_LESSONS + index % ROUND_LESSONS:08x}"
            value = 0.4 * self.chance.random()
            lessons.record_divergence(conn, newest, version, value, at=at)
        learned = lessons.get(conn, f"{number * ROUND_LESSONS:08x}")
        if learned is not None and learned.state is LessonState.ACTIVE:
            lessons.mark_learned(conn, learned.id, self.head, at=start + ROUND_SECONDS)

    def _add_version(self, conn: Connection, version: int, used: Sequence[str], at: float) -> None:
        is_rejected = version % 9 == 0
        metrics = {f"part/{name}": self.chance.random() for name in _WORDS}
        metrics |= {
            "reward/mean": self.chance.uniform(-1, 1),
            "loss/total": self.chance.random(),
            "kl": self.chance.random() / 100,
            "gradient/norm": self.chance.random(),
            "gate/held_out": self.chance.uniform(-0.1, 0.1),
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
            turn: self.arrays.normal(0, 0.05, self.lengths[turn]).astype(np.float16)
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
                head_answer=self._text(30),
                candidate_answer=self._text(12),
                verdict=1.0,
                reason="shorter",
            )
            for index, turn in enumerate(used[:3])
        ]
        probe_answers.record_answers(conn, answers)
        if not is_rejected:
            move_head(conn, DEFAULT_NAME, version)
            self.head = version

    def _text(self, words: int) -> str:
        return " ".join(self.chance.choices(_WORDS, k=words)).capitalize() + "."


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One model call. `words`: the person's next message; `score`: of its verdict."""

    request: Request
    reply: Reply
    score: int | None
    parent: str | None
    words: str | None


def build_home(home: Path, *, turns: int = 100_000) -> None:
    """Write the store of a home. `turns`: rounded to whole rounds of a thousand. Raises `OSError` if there is one."""
    home.mkdir(parents=True, exist_ok=True)
    path = home / "store.db"
    if path.exists():
        raise FileExistsError(f"{path} exists: choose another folder")
    with Store.open(path) as store:
        HomeBuilder(store=store, rounds=max(1, turns // ROUND_TURNS)).build()


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
